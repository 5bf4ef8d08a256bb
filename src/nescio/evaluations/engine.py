"""The steps of networks × evaluations: every image set is predicted once per network, for all evaluations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Literal, get_args

from nescio.datasets.image_set import ImageSet
from nescio.errors import BadInput, Undefined
from nescio.evaluations.base import Evaluation, Field, Inapplicable, Outputs, Subject
from nescio.networks.groups import NetworkGroup
from nescio.networks.network import Network
from nescio.predict import OutputSpec, predict_step
from nescio.rows import Row, RowBuilder
from nescio.work.step_folder import StepFolder
from nescio.work.steps import Context, Files, Step, files_of


@dataclass
class Planned:
    """The steps of networks × evaluations, and the reasons for pairs that have none."""

    steps: list[Step] = field(default_factory=list)
    reasons: list[Row] = field(default_factory=list)


def plan_steps(subjects: Iterable[Subject], evaluations: Sequence[Evaluation], root: str | None) -> Planned:
    """One step for every subject and evaluation that apply to each other.

    An evaluation of siblings has one step for all networks that differ in their seeds alone. All predictions have the
    most precise type that an evaluation needs, so that scores of two image sets can be compared.
    """
    planned = Planned()
    applicable: list[tuple[Subject, Evaluation, Mapping[str, ImageSet]]] = []
    subjects = list(subjects)
    for evaluation in evaluations:
        for subject in sibling_subjects(subjects) if evaluation.siblings else subjects:
            try:
                applicable.append((subject, evaluation, evaluation.image_sets(subject)))
            except (Inapplicable, Undefined, BadInput) as reason:
                planned.reasons.append(_reason(subject, evaluation, reason))
    fields: dict[ImageSet, set[str]] = {}
    for _, evaluation, sets in applicable:
        for images in sets.values():
            fields.setdefault(images, set()).update(evaluation.fields)
    dtype: Literal["float32", "float16"] = max((evaluation.dtype for _, evaluation, _ in applicable), default="float32")

    @cache
    def parent_of(network: Network) -> Step | str:
        return network.parent(root)

    @cache
    def named(images: ImageSet) -> ImageSet:
        return images.with_content_name(root)

    @cache
    def predictions_of(network: Network, images: ImageSet) -> Step:
        spec = output_spec(fields[images], dtype)
        return predict_step(network, named(images), root=root, output_spec=spec, parent=parent_of(network))

    for subject, evaluation, sets in applicable:
        networks = subject.group.networks
        steps = {
            name: evaluation.prediction_steps(subject, images)
            or tuple(predictions_of(network, images) for network in networks)
            for name, images in sets.items()
        }
        planned.steps.append(_step(subject, evaluation, sets, steps))
    return planned


def output_spec(fields: Iterable[str], dtype: Literal["float32", "float16"] = "float32") -> OutputSpec:
    """The stored outputs of an image set, in float32, because bf16 has too few digits to order neighbours."""
    names = tuple(name for name in get_args(Field) if name in set(fields))
    return OutputSpec(fields=names, dtype=dtype, precision="float32")


def sibling_subjects(subjects: Sequence[Subject]) -> list[Subject]:
    """Merge single networks that differ in their seeds alone into one subject."""
    groups: dict[Any, list[Subject]] = {}
    for subject in subjects:
        columns = subject.group.columns
        if columns.get("members", 1) == 1:
            seedless = {name: value for name, value in columns.items() if name not in ("data_seed", "init_seed")}
            groups.setdefault((subject.data, str(sorted(seedless.items(), key=str))), []).append(subject)
    return [_joined(group) for group in groups.values()]


def _joined(group: Sequence[Subject]) -> Subject:
    first = group[0].group
    columns = {**first.columns, "data_seed": None, "init_seed": None}
    networks = tuple(network for subject in group for network in subject.group.networks)
    return replace(group[0], group=NetworkGroup(networks, columns, first.own_augmentation))


def _step(
    subject: Subject, evaluation: Evaluation, sets: Mapping[str, ImageSet], steps: Mapping[str, Sequence[Step]]
) -> Step:
    columns = {"evaluation": evaluation.name, **subject.group.columns}
    config = {"evaluation": evaluation, "columns": columns, "sets": list(sets)}
    make = partial(_evaluate, subject=subject, evaluation=evaluation, sets=sets, steps=steps, columns=columns)
    largest_group = max(len(members) for members in steps.values())
    parents = tuple(
        dict.fromkeys(members[n] for n in range(largest_group) for members in steps.values() if n < len(members))
    )
    return Step(f"{subject.group.title}, {evaluation.title}", "evaluate", config, make, parents, evaluation.version)


def _evaluate(
    step_folder: StepFolder,
    context: Context,
    subject: Subject,
    evaluation: Evaluation,
    sets: Mapping[str, ImageSet],
    steps: Mapping[str, Sequence[Step]],
    columns: Row,
) -> Files:
    results = RowBuilder(columns, reported=("method", "members", "evaluation"))
    files: Files | None = None
    try:
        files = evaluation.measure(Outputs(steps, sets, context), subject, results)
    except (Undefined, Inapplicable) as reason:
        results.omit(reason)
    return {**files_of(results), **(files or {})}


def _reason(subject: Subject, evaluation: Evaluation, reason: Exception) -> Row:
    columns = subject.group.columns
    named = {name: columns.get(name) for name in ("method", "members")} | {"evaluation": evaluation.name}
    return named | {"split": None, "measure": None, "metric": None, "reason": str(reason)}
