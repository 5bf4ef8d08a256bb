"""Where graded models come from: predictions on both sides, and the names of their classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from nescio.datasets import imagenet
from nescio.errors import BadInput
from nescio.measures import summary
from nescio.predictions import Predictions
from nescio.predictions.entries import ModelDump, file_dump, stored_dumps
from nescio.protocols.cood import hierarchy
from nescio.work.steps import Work
from nescio.work.store import Store

if TYPE_CHECKING:
    from nescio.protocols.cood import Plan

LISTED = 50  # classes that are left out, by name
ClassNames = tuple[Sequence[str], Sequence[str]]  # of the in-classes and of the out-classes, class 0 first
ByModel = Mapping[str, ModelDump]


@dataclass(frozen=True)
class PairedDumps:
    """What one model says about in-distribution images, and about images of classes that were not in training."""

    model: str
    inside: ModelDump
    outside: ModelDump
    others: Mapping[str, ModelDump] = field(default_factory=dict, hash=False)  # fixed out-sets, such as ImageNet-O

    def known(self) -> Predictions:
        """The in-distribution rows of classes that the model can answer; all where the dump does not mark them."""
        inside = self.inside.load()
        known = inside.taught if inside.labels is None or inside.logits is None else summary(inside).known
        if known is None or known.all():
            return inside
        if not known.any():
            raise BadInput(
                "Every row of the in-distribution data is of a class that was not in training; is it the other file?"
            )
        return inside.take(known)

    def limited(self, rows: int, seed: int) -> PairedDumps:
        """A random part of so many rows of every dump."""
        inside, outside = self.inside.limited(rows, seed), self.outside.limited(rows, seed)
        others = {name: dump.limited(rows, seed) for name, dump in self.others.items()}
        return PairedDumps(self.model, inside, outside, others)


# ---- predictions


def paired_dumps(plan: Plan, store: Store) -> tuple[list[PairedDumps], list[str]]:
    """The models that a plan names, and sentences on those that are left out."""
    if plan.pair:
        if plan.data or plan.out or plan.also:
            raise BadInput("--pair names files; omit --data, --out and --also, which name sets of a store.")
        return [_pair_of(text) for text in plan.pair], []
    if not (plan.data and plan.out):
        raise BadInput(
            "Name models by their files with --pair NAME=IN,OUT, or models of a store with --data and --out."
        )
    return pairs_of_store(store, plan.data, plan.out, named_values(plan.also, "--also"))


def named_values(texts: Sequence[str], option: str) -> dict[str, str]:
    """NAME=VALUE of every text."""
    values = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not (name and value):
            raise BadInput(f"{option} {text}: {text!r} is not of the form NAME=VALUE.")
        values[name] = value
    return values


def _pair_of(text: str) -> PairedDumps:
    """NAME=IN,OUT[,SET=FILE]."""
    ((name, rest),) = named_values([text], "--pair").items()
    inside, *others = rest.split(",")
    if not (inside and others and others[0]):
        raise BadInput(
            f"--pair {text}: write NAME=IN,OUT, the files about in-distribution and out-of-distribution images."
        )
    return pair_of_files(name, inside, others[0], named_values(others[1:], "--pair"))


def pair_of_files(model: str, inside: str, outside: str, others: Mapping[str, str] | None = None) -> PairedDumps:
    """A model by its files of predictions."""
    fixed = {name: file_dump(path, model) for name, path in (others or {}).items()}
    pair = PairedDumps(model, file_dump(inside, model), file_dump(outside, model), fixed)
    for dump in (pair.outside, *fixed.values()):
        if dump.key == pair.inside.key and not _of_both_sides(dump):
            raise BadInput(
                f"{model}: {dump.place} is what the model says of in-distribution images, and is given as images of "
                "other classes too: name another file, or mark the rows of each kind by `taught`."
            )
    return pair


def _of_both_sides(dump: ModelDump) -> bool:
    """Whether a dump marks rows of both sides."""
    taught = dump.load().taught
    return taught is not None and bool(taught.any()) and not taught.all()


def pairs_of_store(
    store: Store, data: str, out: str, also: Mapping[str, str] | None = None
) -> tuple[list[PairedDumps], list[str]]:
    """The store's models with predictions on both sets, and sentences on those without."""
    from nescio.datasets.images import absolute

    def by_model(spec: str, outside: bool) -> dict[str, ModelDump]:
        return {dump.model: dump for dump in stored_dumps(store, absolute(spec), outside)}

    inside, outside, also = by_model(data, False), by_model(out, True), also or {}
    fixed = {name: by_model(spec, True) for name, spec in also.items()}
    pairs = pairs_of(list(inside.values()), outside, fixed)
    if not pairs:
        raise BadInput(
            f"No model in {store.root} has predictions on both {data} and {out}: "
            f"`nescio zoo MODEL --data {data} --out {out}` makes them."
        )
    notes = []
    for spec, own in ((out, outside), *zip(also.values(), fixed.values(), strict=True)):
        if missing := [model for model in inside if model not in own]:
            few = ", ".join(missing[:3]) + (" …" if len(missing) > 3 else "")
            notes.append(f"{len(missing)} models have no predictions on {spec} and are not shown there: {few}.")
    return pairs, notes


def pairs_of(inside: Sequence[ModelDump], outside: ByModel, fixed: Mapping[str, ByModel]) -> list[PairedDumps]:
    """Of every model that has both, its predictions inside and outside; `outside` and each of `fixed` are by model."""
    both = [dump for dump in inside if dump.model in outside]
    others = {model: {name: own[model] for name, own in fixed.items() if model in own} for model in outside}
    return [PairedDumps(dump.model, dump, outside[dump.model], others[dump.model]) for dump in both]


# ---- names of classes


def class_names(plan: Plan, work: Work, pairs: Sequence[PairedDumps] = ()) -> ClassNames | None:
    """Names of the in-classes and of the out-classes, from files or from the datasets; None where there are none.

    Those of files must be those of the classes of `pairs`. In-classes without names are an empty list.
    """
    _tree_of(plan)  # one that cannot be read is named first
    files = (plan.in_names, plan.out_names)
    if any(files) and not all(files) and not (plan.data and plan.out):
        raise BadInput("Give both --in-names and --out-names: overlap is between the two.")
    inside = hierarchy.names(files[0]) if files[0] else _names_of_set(plan, plan.data, "given", work)
    outside = hierarchy.names(files[1]) if files[1] else _names_of_set(plan, plan.out, "outside", work)
    if outside is None:
        return None
    names = inside or (), outside
    if any(files):
        check_names(names, pairs)
    return names


def _names_of_set(plan: Plan, data: str | None, split: str, work: Work) -> Sequence[str] | None:
    from nescio.datasets.images import ImageSet, absolute

    if data is None:
        return None
    try:
        own = ImageSet(absolute(data), split=split).load(work.context.root).classes  # type: ignore[arg-type]
    except BadInput as reason:
        if plan.hierarchy:
            raise
        work.note(f"Whether classes of the two sets are the same could not be found out: {reason}")
        return None
    if not all(name.isdigit() for name in own):  # a number is not a name: class 3 of two sets is not one class
        return own
    if plan.hierarchy:
        raise BadInput(f"The classes of {data} have numbers, no names: name them with --in-names and --out-names.")
    return None


def check_names(names: ClassNames, pairs: Sequence[PairedDumps]) -> None:
    """Names that a person listed are those of the dumps' classes: one each of the in-classes, none of an id missing.

    In-classes are all that the model can answer, or those that it was evaluated on; a dump does not hold how many
    out-classes there are beyond its largest label.
    """
    for pair in pairs:
        try:
            inside, outside = pair.known(), pair.outside.load(outside=True)
        except BadInput:
            continue  # its own step fails later
        evaluated = 0 if inside.labels is None else len(np.unique(inside.labels))
        counts = [count for count in dict.fromkeys((inside.classes, evaluated)) if count]
        if counts and len(names[0]) not in counts:
            raise BadInput(
                f"--in-names has {len(names[0])} names and {pair.inside.place} has {' or '.join(map(str, counts))} "
                "classes: name each class once, class 0 first."
            )
        last = -1 if outside.labels is None else int(outside.labels.max())
        if last >= len(names[1]):
            raise BadInput(
                f"--out-names has {len(names[1])} names and {pair.outside.place} has a class {last}: name every class, "
                "class 0 first."
            )


def overlapping_classes(
    plan: Plan, names: ClassNames | None, pairs: Sequence[PairedDumps] = ()
) -> tuple[tuple[int, ...], list[str]]:
    """The out-classes that overlap with in-classes, or with what the models were trained on; and sentences on them."""
    tree = _tree_of(plan)
    if names is None:
        if tree is not None:
            raise BadInput("A hierarchy needs the names of the classes: give --in-names and --out-names.")
        return (), []
    inside, outside = names
    of_imagenet = bool(inside) and set(inside) <= set(imagenet.wordnet_ids())
    known = imagenet.by_name() if of_imagenet or any(_of_imagenet(pair.inside) for pair in pairs) else {}
    refused = hierarchy.overlapping(inside, outside, tree, known)
    notes = []
    if refused:
        why = "are in-classes" if tree is None else "are in-classes, or above or below one in the hierarchy"
        why += ", or bear the name of a class of ImageNet-1k" if known else ""
        shown = ", ".join(_described(outside[number], known) for number in refused[:LISTED])
        more = f" and {len(refused) - LISTED:,} more" if len(refused) > LISTED else ""
        notes.append(f"{len(refused):,} of {len(outside):,} out-classes {why}, and are left out: {shown}{more}.")
    if tree is not None and (unknown := sum(name not in tree for name in (*inside, *outside))):
        notes.append(f"The hierarchy does not know {unknown:,} of the {len(inside) + len(outside):,} classes.")
    return refused, notes


def _of_imagenet(dump: ModelDump) -> bool:
    """Whether the model was trained on ImageNet-1k: a pretrained one of its number of classes."""
    return dump.facts.get("classes") == imagenet.CLASSES and not dump.model.startswith("store:")


def _described(name: str, known: Mapping[str, tuple[int, ...]]) -> str:
    """A class, with how many classes of ImageNet-1k bear its name where they are several."""
    times = len(known.get(imagenet.plain(name), ()))
    return f"{name} (the name of {times} classes)" if times > 1 else name


def _tree_of(plan: Plan) -> hierarchy.Hierarchy | None:
    return None if plan.hierarchy is None else hierarchy.read(plan.hierarchy)
