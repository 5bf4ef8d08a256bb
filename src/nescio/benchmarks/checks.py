"""Checks of plans that train networks, before any work."""

from __future__ import annotations

from collections.abc import Sequence

from nescio import backbones, datasets, measures
from nescio.benchmarks.recipes import refuse_fixed
from nescio.errors import BadInput
from nescio.methods import registry as methods
from nescio.training import check_batch, check_compiled
from nescio.trials import Training


def refuse_without_labels(names: Sequence[str], benchmark: str) -> None:
    """Refuses methods that do not classify."""
    if mute := [name for name in names if not methods[name].classifies]:
        raise BadInput(f"{benchmark} compares classifiers, and {mute[0]} learns features without labels: omit it.")


def refuse_measures(names: Sequence[str], of: Sequence[str], kept: Sequence[str] | None = None) -> None:
    """Refuses measures that neither nescio nor one of these methods has.

    kept  what dumps hold beside scores, where they hold less than a measure may need
    """
    if not names:
        raise BadInput("Plan.measures is empty: name at least one measure, such as entropy.")
    scores = {"native", *(score for name in of for score in methods[name].scores)}
    for name in names:
        if name.removeprefix(measures.SCORE) in scores:
            continue
        measure = measures.registry[name]
        if kept is not None and (measure.kind != "plain" or not set(measure.needs) <= set(kept)):
            raise BadInput(
                f"The measure {name} needs more than {' and '.join(kept)} of the test images, and no more is kept for "
                "every corruption. Take one such as entropy, msp, max_logit or energy."
            )


def refuse_classification(
    benchmark: str,
    data: str,
    names: Sequence[str],
    fixed: Sequence[str],
    backbone: str,
    training: Training,
    root: str | None,
) -> None:
    """Refuse, before any work, classifiers that cannot be trained on these images.

    names  of the trained methods
    fixed  hyper-parameters, METHOD.FIELD=VALUE
    """
    refuse_without_labels(names, benchmark)
    refuse_fixed(fixed)
    dataset = datasets.load(data, root)
    if dataset.train.maps is not None:
        raise BadInput(f"{data} has a label for every pixel: set task to segmentation.")
    if len(dataset.classes) < 2:
        raise BadInput(f"{data} has one class, {dataset.classes[0]}: a classifier needs at least two.")
    for name in names:
        check_compiled(training, name)
    refuse_training(dataset, [backbone], training, len(datasets.split_dataset(dataset, None, 0).train))


def refuse_training(dataset: datasets.Dataset, names: Sequence[str], training: Training, rows: int) -> None:
    """Refuses backbones that cannot see these images, and batches that so many rows cannot fill."""
    for name in names:
        backbones.build(name, dataset.channels, dataset.shape)
    check_batch(training, rows)
