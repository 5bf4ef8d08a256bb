"""Export a network to one file that predicts and abstains, for ONNX Runtime (.onnx) or torch.export (.pt2).

MODEL is a timm name, torchvision:NAME, store:KEY for a network of `nescio train`, or zoo:NAME for a model of `nescio
zoo` with the weights of that run. The file takes uint8 images (n, channels, size, size) and includes the normalisation.
It returns `class`, `probability` (calibrated), `uncertainty` and `abstain` (uncertainty above the threshold). Its
metadata (key `nescio`) describe resizing, cropping, class names and the guarantee.

The threshold is a number, or the file that `nescio threshold --format json` wrote. That file also sets measure,
temperature and fitted score, and is refused for another model. The written file is checked against the network.

examples:
  nescio threshold zoo:resnet50.a1_in1k --risk 0.05 --fit-temperature --format json > guarantee.json
  nescio export zoo:resnet50.a1_in1k --threshold guarantee.json
  nescio export tf_efficientnet_lite0 --weights weights/ --threshold 0.2 --temperature 1.1 --output lite0.pt2
  nescio export store:3f2a --threshold guarantee.json --output digits.onnx
  nescio export resnet18@flowers.pth --threshold 0.2 --class-names flowers.txt
  nescio export store:3f2a --threshold 1.7 --loss-order head.npz
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from nescio.commands._output import TextOrJson, json_of, say
from nescio.commands._work import DATA, WEIGHTS
from nescio.errors import BadInput
from nescio.networks.preprocessing import Preprocessing
from nescio.options import REQUIRED, argument, nested, option
from nescio.work.store import Store


@dataclass(frozen=True, kw_only=True)
class Options:
    model: str = argument("timm name, torchvision:NAME, store:KEY or zoo:NAME", metavar="MODEL")
    threshold: str = option(
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
    image_padding: bool = option(False)
    preprocessing: Preprocessing = nested(Preprocessing())
    store: str = option("store")
    root: str | None = option(None, unset=DATA)
    training_data: str | None = option(None, unset="its path at training", kind="dataset")
    format: TextOrJson = option("text")


def run(options: Options) -> int:
    goal = _goal(options.model, options.output, options.file_format)
    from nescio.measures import LossOrder
    from nescio.networks.export import check_packages, export
    from nescio.networks.exportable import exportable_network, preprocessing_fields
    from nescio.networks.threshold_file import read_rule

    check_packages(goal)
    learned = LossOrder.load(options.loss_order) if options.loss_order else None
    measure = options.measure or ("loss_order" if learned else None)
    rule, promise = read_rule(options.threshold, options.temperature, measure)
    weights = Path(options.weights) if options.weights else promise.weights_of(options.model)
    network = exportable_network(
        options.model,
        Store(options.store),
        weights=weights,
        root=options.root,
        image_padding=options.image_padding,
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
    exported = export(network, rule, goal)
    if options.format == "json":
        say(json_of({"file": str(exported.path), "checked": exported.checked, **exported.metadata}))
        return 0
    say(f"{exported.path} abstains where {rule.measure} > {rule.threshold:.6g} (temperature {rule.temperature:g}).")
    if names := exported.metadata.get("names"):
        say(f"Its {len(names):,} classes are named, from {names[0]} to {names[-1]}.")
    say(f"It takes {exported.metadata['input'].removeprefix('images: ')}.")
    view = preprocessing_fields(exported.metadata)["view"]
    say(f"Images are resized and cropped before that: {view} (docs/export.md does it).")
    if promise.terms and promise.model is None:
        say(
            f"{options.threshold} does not name its model: make sure that it was computed from predictions "
            f"of {options.model} (`nescio threshold {options.model}=FILE` names it)."
        )
    checked = "Checked: the file gives the network's predictions."
    say(checked if exported.checked else "It is not checked: onnxruntime is not installed here.")
    return 0


def _goal(model: str, to: str | None, form: str | None) -> Path:
    """The output file; its suffix sets the format and must agree with --file-format."""
    goal = Path(to) if to else Path(f"{re.sub(r'[^A-Za-z0-9._-]', '-', model)}.{form or 'onnx'}")
    if not goal.suffix:
        goal = goal.with_name(f"{goal.name}.{form or 'onnx'}")
    if goal.suffix not in (".onnx", ".pt2"):
        raise BadInput(f"--output ends in {goal.suffix}; a file that is written ends in .onnx or .pt2.")
    if form and goal.suffix != f".{form}":
        raise BadInput(f"--output ends in {goal.suffix} and --file-format is {form}: omit one of them.")
    return goal
