"""Activity: evidence, on the trained weights, that the distinctive part of a method has an effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nescio import datasets
from nescio.datasets.image_set import ImageSet
from nescio.evaluations.base import Evaluation, Field, Inapplicable, Outputs, Subject, evaluation
from nescio.rows import RowBuilder


@evaluation("activity", question="Does the distinctive part of each method have an effect?")
@dataclass(frozen=True)
class Activity(Evaluation):
    """Observations of `nescio verify` on the networks of the study: 1 if passed, 0 if not."""

    fields: ClassVar[tuple[Field, ...]] = ("embeddings",)

    def image_sets(self, subject: Subject) -> dict[str, ImageSet]:
        if len(subject.group.trials) != 1:
            raise Inapplicable("Only single networks that were trained here have evidence.")
        return {"test": subject.test_images}

    def measure(self, outputs: Outputs, subject: Subject, results: RowBuilder) -> None:
        from nescio.runtime import runtime_for, seed_everything
        from nescio.testing.evidence import method_evidence
        from nescio.training import load_method, train_step

        (trial,) = subject.group.trials
        context = outputs.context
        runtime = runtime_for("cpu", "float32")
        key = train_step(trial, context.root).key
        method = load_method(key, trial, context.store, runtime, context.root)
        seed_everything(0)
        dataset = datasets.load(trial.data, context.root)
        for name, evidence in method_evidence(method, trial, dataset, runtime).items():
            results.add("evidence", float(evidence.passed), None, measure=name, split="train")
