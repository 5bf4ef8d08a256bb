"""Export of a network that abstains, to ONNX or torch.export."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nescio.api.results import ApiResult
from nescio.api.storage import DATA, WEIGHTS
from nescio.errors import BadInput
from nescio.networks.preprocessing import Preprocessing
from nescio.options import REQUIRED, argument, nested, option
from nescio.rows import Row
from nescio.work.store import Store

if TYPE_CHECKING:
    from nescio.networks.abstaining import AbstentionRule


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Options of `export`."""

    model: str = argument("timm name, torchvision:NAME, store:KEY or zoo:NAME", metavar="MODEL")
    threshold: str | float = option(
        REQUIRED, "uncertainty above which to abstain, or a file of `nescio threshold --format json`", metavar="U|FILE"
    )
    temperature: float | None = option(None, unset="that of the threshold's file, or 1")
    measure: str | None = option(
        None, kind="measure", unset="that of the threshold's file, or msp; loss_order with --loss-order"
    )
    loss_order: str | None = option(None, "loss-order score, as written by `LossOrder.save`", metavar="FILE")
    output: str | None = option(None, unset="MODEL.onnx")
    file_format: Literal["onnx", "pt2"] | None = option(
        None, "format of the file; pt2 needs torch to run", unset="by the ending of --output, or onnx"
    )
    weights: str | None = option(None, unset=WEIGHTS)
    class_names: str | None = option(None, unset="those of the network or the store")
    preprocessing: Preprocessing = nested(Preprocessing())
    store: str = option("store")
    root: str | None = option(None, unset=DATA)
    training_data: str | None = option(None, unset="its path at training", kind="dataset")


@dataclass(repr=False)
class Export(ApiResult):
    """A written file with its metadata.

    checked  whether its outputs were compared with the network's
    notes    what the guarantee does not cover
    """

    path: Path
    metadata: Mapping[str, Any]
    checked: bool
    rule: AbstentionRule
    notes: list[str]

    @property
    def rows(self) -> list[Row]:  # type: ignore[override]
        return [{"file": str(self.path), "checked": self.checked, **self.metadata}]

    def __repr__(self) -> str:
        return "\n".join(self.sentences())

    def sentences(self) -> list[str]:
        from nescio.networks.exportable import preprocessing_fields

        rule, names = self.rule, self.metadata.get("names")
        above = f"{rule.measure} > {rule.threshold:.6g} (temperature {rule.temperature:g})"
        lines = [f"{self.path} abstains where {above}."]
        lines += [f"Its {len(names):,} classes are named, from {names[0]} to {names[-1]}."] if names else []
        lines.append(f"It takes {self.metadata['input'].removeprefix('images: ')}.")
        view = preprocessing_fields(self.metadata)["view"]
        lines.append(f"Images are resized and cropped before that: {view} (docs/export.md does it).")
        if not self.checked:
            return [*lines, *self.notes, "It is not checked: onnxruntime is not installed here."]
        return [*lines, *self.notes, "Checked: the file gives the network's predictions."]

    def show(self, brief: bool = True) -> None:
        print("\n".join(self.sentences()))

    def plain(self) -> Row:
        return self.rows[0]


def export(options: ExportOptions) -> Export:
    """Write a network that abstains to one file, for ONNX Runtime or torch.export."""
    goal = _goal(options.model, options.output, options.file_format)
    from nescio.measures import LossOrder
    from nescio.networks.export import check_packages
    from nescio.networks.export import export as write_network
    from nescio.networks.exportable import exportable_network
    from nescio.networks.threshold_file import read_rule

    check_packages(goal)
    learned = LossOrder.load(options.loss_order) if options.loss_order else None
    measure = options.measure or ("loss_order" if learned else None)
    rule, promise = read_rule(str(options.threshold), options.temperature, measure)
    network = exportable_network(
        options.model,
        Store(options.store),
        weights=Path(options.weights) if options.weights else promise.weights_of(options.model),
        root=options.root,
        classes=Path(options.class_names) if options.class_names else None,
        score=learned or promise.score,
        preprocessing=options.preprocessing,
        data=options.training_data,
    )
    promise.check(network)
    if len(promise.names) == network.classes and "names" not in network.facts:
        network = replace(network, facts={**network.facts, "names": list(promise.names)})
    if promise.terms:
        network = replace(network, facts={**network.facts, "promise": promise.terms})
    exported = write_network(network, rule, goal)
    notes = []
    if promise.terms and promise.model is None:
        notes.append(
            f"{options.threshold} does not name its model: make sure that it was computed from predictions "
            f"of {options.model} (`nescio threshold {options.model}=FILE` names it)."
        )
    return Export(exported.path, exported.metadata, exported.checked, rule, notes)


def _goal(model: str, to: str | None, form: str | None) -> Path:
    """The output file; its suffix sets the format and must agree with --file-format."""
    goal = Path(to) if to else Path(f"{re.sub(r'[^A-Za-z0-9._-]', '-', model)}.{form or 'onnx'}")
    if not goal.suffix:
        goal = goal.with_name(f"{goal.name}.{form or 'onnx'}")
    if goal.suffix not in (".onnx", ".pt2"):
        raise BadInput(f"output ends in {goal.suffix}; a file that is written ends in .onnx or .pt2.")
    if form and goal.suffix != f".{form}":
        raise BadInput(f"output ends in {goal.suffix} and file_format is {form}: omit one of them.")
    return goal
