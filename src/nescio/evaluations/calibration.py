"""Accuracy and probabilities: raw, and after temperature scaling on validation images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nescio import measures
from nescio.analysis.calibration import Temperature, temperature_or_reason
from nescio.datasets.image_set import ImageSet
from nescio.evaluations.base import Evaluation, Field, Headline, Inapplicable, Outputs, Subject, evaluation
from nescio.evaluations.scoring import ACCURACIES, add_outcomes
from nescio.rows import RowBuilder

METRICS = (*ACCURACIES, "nll", "brier", "ece")


@evaluation("calibration", question="Are predictions right, and are their probabilities calibrated?")
@dataclass(frozen=True)
class Calibration(Evaluation):
    """Accuracy, NLL, Brier score and ECE of test images, raw and scaled (Guo et al. 2017)."""

    fields: ClassVar[tuple[Field, ...]] = ("logits",)
    headlines: ClassVar[tuple[Headline, ...]] = (
        Headline("accuracy", "higher", by_score=False, title="accuracy", columns={"calibrated": False}),
        Headline("nll", "lower", by_score=False, title="NLL", columns={"calibrated": False}),
        Headline("ece", "lower", by_score=False, title="ECE", columns={"calibrated": False}),
    )

    def image_sets(self, subject: Subject) -> dict[str, ImageSet]:
        subject.require_logits()
        sets = {"test": subject.test_images}
        try:
            return sets | {"val": subject.val_images}
        except Inapplicable:
            return sets

    def measure(self, outputs: Outputs, subject: Subject, results: RowBuilder) -> None:
        add_outcomes(measures.summary(outputs["test"]).outcomes(), METRICS, results, calibrated=False)
        if "val" not in outputs:
            results.omit("No validation images are known that could fit a temperature.", metric="calibrated")
            return
        temperature, reason = temperature_or_reason(outputs["val"])
        if temperature is None:
            results.omit(reason, metric="calibrated")
            return
        results.add("temperature", temperature, len(outputs["val"]), split="val", calibrated=True)
        scaled = Temperature(temperature)(outputs["test"])
        add_outcomes(measures.summary(scaled).outcomes(), METRICS, results, calibrated=True)
