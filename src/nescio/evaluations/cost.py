"""Cost: parameters, training time and inference time of a network, or of an average of networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nescio.datasets.image_set import ImageSet
from nescio.evaluations.base import Evaluation, Field, Outputs, Subject, evaluation
from nescio.files import read_json
from nescio.rows import RowBuilder


@evaluation("cost", question="What do training and inference cost?")
@dataclass(frozen=True)
class NetworkCost(Evaluation):
    """Parameters of all members, seconds of an epoch, and milliseconds per image. Times are no part of the results."""

    fields: ClassVar[tuple[Field, ...]] = ("logits", "scores")

    def image_sets(self, subject: Subject) -> dict[str, ImageSet]:
        return {"test": subject.test_images}

    def measure(self, outputs: Outputs, subject: Subject, results: RowBuilder) -> None:
        from nescio.predictions.model_predictions import FACTS
        from nescio.training import facts_of, train_step

        store, root = outputs.context.store, outputs.context.root
        predicted = [read_json(step.folder(store) / FACTS) for step in outputs.steps["test"]]
        params = sum(facts["params"] for facts in predicted)
        results.add("parameters", params, len(predicted), split=None)
        results.describe(params=params)
        results.time(inference_ms=sum(1000 / max(facts["images_per_second"], 1e-9) for facts in predicted))
        if trials := subject.group.trials:
            trained = [(facts_of(train_step(trial, root), store), trial.training.epochs) for trial in trials]
            results.time(epoch_seconds=sum(facts["seconds"] / epochs for facts, epochs in trained))
            accuracies = [facts["train_accuracy"] for facts, _ in trained if "train_accuracy" in facts]
            results.describe(train_accuracy=min(accuracies, default=None))
