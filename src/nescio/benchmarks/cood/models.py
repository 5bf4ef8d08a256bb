"""Models of a plan, names of their classes, and OOD classes that overlap with in-distribution classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nescio.analysis.evaluation_rows import in_distribution_rows
from nescio.datasets import hierarchy, imagenet
from nescio.datasets.image_set import ImageSet
from nescio.datasets.names import name_for_keys_if_present
from nescio.errors import BadInput
from nescio.predictions.model_predictions import ModelPredictions
from nescio.predictions.pairs import PairedPredictions, pair_from_text, pairs_from_store
from nescio.specs import STORE, NetworkName, mapping
from nescio.work.launchers import Failure
from nescio.work.steps import Work

if TYPE_CHECKING:
    from nescio.benchmarks.cood import Plan

LISTED = 50  # maximum number of omitted classes in a note
ClassNames = tuple[Sequence[str], Sequence[str]]  # names of in-distribution and of OOD classes, class 0 first


def paired_predictions(plan: Plan, work: Work) -> tuple[list[PairedPredictions], list[str]]:
    """The models of a plan, and notes about those that are left out; damaged entries are failures."""
    if plan.pair:
        if plan.data or plan.ood_data or plan.extra_ood:
            raise BadInput("Plan.pair has files: omit data, ood_data and extra_ood, which name sets of a store.")
        return [pair_from_text(text) for text in plan.pair], []
    if not (plan.data and plan.ood_data):
        raise BadInput(
            "Name models by files in Plan.pair (NAME=IN,OOD), or models of a store by Plan.data and Plan.ood_data."
        )
    root = work.context.root
    extra = mapping(plan.extra_ood, "NAME=SET")
    extra_sets = {name: name_for_keys_if_present(data, root, "all") for name, data in extra.items()}
    inside = name_for_keys_if_present(plan.data, root, "test")
    outside = name_for_keys_if_present(plan.ood_data, root, "all")
    damaged: list[str] = []
    pairs, notes = pairs_from_store(work.store, inside, outside, extra_sets, damaged)
    work.failures += [Failure("reading the store", reason) for reason in dict.fromkeys(damaged)]
    return pairs, notes


# ---- names of classes


def class_names(plan: Plan, work: Work, pairs: Sequence[PairedPredictions] = ()) -> ClassNames | None:
    """Names of the in-classes and of the out-classes, from files or from the datasets; None if there are none.

    Those of files must be those of the classes of `pairs`. In-classes without names are an empty list.
    """
    _tree_of(plan)  # one that cannot be read is named first
    files = (plan.data_names, plan.ood_names)
    if any(files) and not all(files) and not (plan.data and plan.ood_data):
        raise BadInput("Plan.data_names needs ood_names, and the reverse: overlap is between the two.")
    inside = hierarchy.names(files[0]) if files[0] else _names_of_set(plan, plan.data, "test_or_all", work)
    outside = hierarchy.names(files[1]) if files[1] else _names_of_set(plan, plan.ood_data, "all_ood", work)
    if outside is None:
        return None
    names = inside or (), outside
    if any(files):
        check_names(names, pairs)
    return names


def _names_of_set(plan: Plan, data: str | None, split: str, work: Work) -> Sequence[str] | None:
    from nescio.datasets.names import absolute_name

    if data is None:
        return None
    try:
        names = ImageSet(absolute_name(data), split=split).load(work.context.root).classes  # type: ignore[arg-type]
    except BadInput as reason:
        if plan.hierarchy:
            raise
        work.add_notes(f"Whether classes of the two sets are the same is unknown: {reason}")
        return None
    if not all(name.isdigit() for name in names):  # class 3 of two sets is not the same class
        return names
    if plan.hierarchy:
        raise BadInput(f"The classes of {data} have numbers, no names: name them in data_names and ood_names.")
    return None


def check_names(names: ClassNames, pairs: Sequence[PairedPredictions]) -> None:
    """Refuse lists of names that do not have one name per class of the predictions.

    In-distribution classes are all classes of the model, or those that it was evaluated on. The number of OOD classes
    is not known beyond the largest label.
    """
    for pair in pairs:
        try:
            inside, outside = in_distribution_rows(pair.in_distribution.load()), pair.ood.load(ood=True)
        except BadInput:
            continue  # its own step fails later
        evaluated = 0 if inside.labels is None else len(np.unique(inside.labels))
        counts = [count for count in dict.fromkeys((inside.classes, evaluated)) if count]
        if counts and len(names[0]) not in counts:
            raise BadInput(
                f"Plan.data_names has {len(names[0])} names and {pair.in_distribution.path} has "
                f"{' or '.join(map(str, counts))} "
                "classes: name each class once, class 0 first."
            )
        last = -1 if outside.labels is None else int(outside.labels.max())
        if last >= len(names[1]):
            raise BadInput(
                f"Plan.ood_names has {len(names[1])} names and {pair.ood.path} has a class {last}: name every class, "
                "class 0 first."
            )


def overlapping_classes(
    plan: Plan, names: ClassNames | None, pairs: Sequence[PairedPredictions] = ()
) -> tuple[tuple[int, ...], list[str]]:
    """The out-classes that overlap with in-classes, or with what the models were trained on; and sentences on them."""
    tree = _tree_of(plan)
    if names is None:
        if tree is not None:
            raise BadInput("Plan.hierarchy needs the names of the classes: set data_names and ood_names.")
        return (), []
    inside, outside = names
    of_imagenet = bool(inside) and set(inside) <= set(imagenet.wordnet_ids())
    imagenet_names = (
        imagenet.classes_by_name() if of_imagenet or any(_of_imagenet(pair.in_distribution) for pair in pairs) else {}
    )
    refused = hierarchy.overlapping(inside, outside, tree, imagenet_names)
    notes = []
    if refused:
        overlap = "are in-classes" if tree is None else "are in-classes, or above or below one in the hierarchy"
        overlap += ", or have the name of a class of ImageNet-1k" if imagenet_names else ""
        listed = ", ".join(_described(outside[number], imagenet_names) for number in refused[:LISTED])
        suffix = f" and {len(refused) - LISTED:,} more" if len(refused) > LISTED else ""
        notes.append(f"{len(refused):,} of {len(outside):,} out-classes {overlap}, and are left out: {listed}{suffix}.")
    if tree is not None and (unknown := sum(name not in tree for name in (*inside, *outside))):
        notes.append(f"The hierarchy does not contain {unknown:,} of the {len(inside) + len(outside):,} classes.")
    return refused, notes


def _of_imagenet(predictions: ModelPredictions) -> bool:
    """Whether the model was trained on ImageNet-1k: a pretrained one of its number of classes."""
    return predictions.facts.get("classes") == imagenet.CLASSES and NetworkName.parse(predictions.model).kind != STORE


def _described(name: str, imagenet_names: Mapping[str, tuple[int, ...]]) -> str:
    """A class, with the number of ImageNet-1k classes of its name if there are several."""
    count = len(imagenet_names.get(imagenet.plain(name), ()))
    return f"{name} (the name of {count} classes)" if count > 1 else name


def _tree_of(plan: Plan) -> hierarchy.Hierarchy | None:
    return None if plan.hierarchy is None else hierarchy.read(plan.hierarchy)
