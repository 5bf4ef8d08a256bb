"""Pairs of one model's predictions: for in-distribution images and for out-of-distribution images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nescio.errors import BadInput
from nescio.predictions.model_predictions import ModelPredictions, list_stored_predictions, predictions_from_file
from nescio.specs import SpecError, assignment, items, mapping
from nescio.work.store import Store

ByModel = Mapping[str, ModelPredictions]


@dataclass(frozen=True)
class PairedPredictions:
    """One model's predictions for in-distribution images and for out-of-distribution images."""

    in_distribution: ModelPredictions
    ood: ModelPredictions
    extra_ood: Mapping[str, ModelPredictions] = field(
        default_factory=dict, hash=False
    )  # fixed OOD sets, such as ImageNet-O

    @property
    def model(self) -> str:
        return self.in_distribution.model

    def sampled(self, rows: int, seed: int) -> PairedPredictions:
        """The same, loaded as random samples of rows."""
        inside, outside = self.in_distribution.sampled(rows, seed), self.ood.sampled(rows, seed)
        others = {name: predictions.sampled(rows, seed) for name, predictions in self.extra_ood.items()}
        return PairedPredictions(inside, outside, others)


# ---- files


def pair_from_text(text: str) -> PairedPredictions:
    """NAME=IN,OUT[,SET=FILE]."""
    expected_form = "NAME=IN,OUT, the files of in-distribution and out-of-distribution images"
    name, further_sets = assignment(text)
    inside, *others = items(further_sets)
    if not (name and inside and others and others[0]):
        raise SpecError(text, 0, "this names no model with two files", expected_form, "pair")
    return pair_from_files(name, inside, others[0], mapping(others[1:], f"{expected_form}; further sets are NAME=FILE"))


def pair_from_files(
    model: str, inside: str, outside: str, others: Mapping[str, str] | None = None
) -> PairedPredictions:
    """A model by its files of predictions."""
    fixed = {name: predictions_from_file(path, model) for name, path in (others or {}).items()}
    pair = PairedPredictions(predictions_from_file(inside, model), predictions_from_file(outside, model), fixed)
    for predictions in (pair.ood, *fixed.values()):
        if predictions.key == pair.in_distribution.key and not _of_both_sides(predictions):
            raise BadInput(
                f"{model}: {predictions.path} contains predictions for in-distribution images, and is given for "
                "images of other classes too: name another file, or mark the rows of each kind by `in_distribution`."
            )
    return pair


def _of_both_sides(predictions: ModelPredictions) -> bool:
    """Whether predictions mark rows of both kinds."""
    in_distribution = predictions.load().in_distribution
    return in_distribution is not None and bool(in_distribution.any()) and not in_distribution.all()


# ---- models of a store


def pairs_from_store(
    store: Store, data: str, out: str, also: Mapping[str, str] | None = None, damaged: list[str] | None = None
) -> tuple[list[PairedPredictions], list[str]]:
    """The store's models with predictions on both sets, by their absolute names, and sentences on those without.

    damaged  gets a sentence on each damaged entry of the store, which is then left out; None: it raises
    """

    def by_model(spec: str, outside: bool) -> dict[str, ModelPredictions]:
        return {
            predictions.model: predictions for predictions in list_stored_predictions(store, spec, outside, damaged)
        }

    inside, outside, also = by_model(data, False), by_model(out, True), also or {}
    fixed = {name: by_model(spec, True) for name, spec in also.items()}
    pairs = pairs_of(list(inside.values()), outside, fixed)
    if not pairs:
        raise BadInput(
            f"No model in {store.root} has predictions on both {data} and {out}: "
            f"`nescio zoo MODEL --data {data} --ood-data {out}` makes them."
        )
    notes = []
    for spec, available in ((out, outside), *zip(also.values(), fixed.values(), strict=True)):
        if missing := [model for model in inside if model not in available]:
            examples = ", ".join(missing[:3]) + (" …" if len(missing) > 3 else "")
            notes.append(f"{len(missing)} models have no predictions on {spec} and are not shown there: {examples}.")
    return pairs, notes


def pairs_of(
    inside: Sequence[ModelPredictions], outside: ByModel, fixed: Mapping[str, ByModel]
) -> list[PairedPredictions]:
    """The pairs of models with predictions on both sets; `outside` and each of `fixed` map models to predictions."""
    paired = [predictions for predictions in inside if predictions.model in outside]
    others = {model: {name: models[model] for name, models in fixed.items() if model in models} for model in outside}
    return [
        PairedPredictions(predictions, outside[predictions.model], others[predictions.model]) for predictions in paired
    ]
