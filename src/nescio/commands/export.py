"""One file that answers, says how sure it is, and abstains: for ONNX Runtime (.onnx) or torch.export (.pt2).

MODEL is a timm name, torchvision:NAME, store:KEY for a network of `nescio train`, or zoo:NAME for a model that
`nescio zoo` has predicted with, under the weights that it had then. The file takes uint8 images
(n, channels, size, size), values 0 to 255, any n; the normalisation is inside. It returns `class`, `probability` (of
that class, calibrated), `uncertainty` (higher is less sure) and `abstain` (true where the uncertainty is above the
threshold). Its metadata (key `nescio`) says how an image must be resized and cropped, what the classes are called and
what the threshold promises.

The threshold is a number, or the file that `nescio threshold --json` wrote: measure and temperature are then taken from
it, with the fitted score that it names, and a promise that was made for another model is refused. After writing, the
file is read again and its answers are compared with the network's.

examples:
  nescio threshold zoo:resnet50.a1_in1k --risk 0.05 --temperature fit --json > promise.json
  nescio export zoo:resnet50.a1_in1k --threshold promise.json
  nescio export tf_efficientnet_lite0 --weights weights/ --threshold 0.2 --temperature 1.1 --to lite0.pt2
  nescio export store:3f2a --threshold promise.json --to digits.onnx
  nescio export resnet18@flowers.pth --threshold 0.2 --classes flowers.txt
  nescio export store:3f2a --threshold 1.7 --loss-order head.npz
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from nescio.commands._inputs import own_data_option
from nescio.commands._output import json_of, say
from nescio.commands._work import DATA, padding_option
from nescio.errors import BadInput
from nescio.networks.preprocessing import Preprocessing
from nescio.options import REQUIRED, argument, nested, option
from nescio.work.store import Store


@dataclass(frozen=True, kw_only=True)
class Options:
    model: str = argument("timm name, torchvision:NAME, store:KEY or zoo:NAME", metavar="MODEL")
    threshold: str = option(REQUIRED, "abstain above it; or a file of `nescio threshold --json`", metavar="U|FILE")
    temperature: float | None = option(None, "divides the logits", metavar="T", unset="of the threshold's file, or 1")
    measure: str | None = option(
        None,
        "a score of the logits such as msp, entropy or energy, or loss_order; fitted ones by the threshold's file",
        unset="of the threshold's file, or largest; loss_order with --loss-order",
        part="measure",
    )
    loss_order: str | None = option(
        None, "a learned score of the network's embeddings, as `LossOrder.save` wrote it", metavar="FILE", unset="none"
    )
    to: str | None = option(None, "where to write, ending in .onnx or .pt2", metavar="FILE", unset="MODEL.onnx here")
    format: Literal["onnx", "pt2"] | None = option(
        None, "pt2 needs torch to run", unset="by the ending of --to, or onnx"
    )
    weights: str | None = option(
        None,
        "file of weights, or a folder that holds one of the model's name",
        metavar="PATH",
        unset="$NESCIO_WEIGHTS, or the hubs",
    )
    classes: str | None = option(
        None,
        "names of the classes for the file: one per line, class 0 first, or NAME=CLASS per line",
        metavar="FILE",
        unset="those that the network or the store knows",
    )
    image_padding: bool = padding_option()
    preprocessing: Preprocessing = nested(Preprocessing())
    store: str = option("store", "folder of finished work, for store:KEY and zoo:NAME")
    root: str | None = option(None, "folder of datasets, for store:KEY", unset=DATA)
    data: str | None = own_data_option()
    json: bool = option(False, "the file's metadata as strict JSON, alone on stdout")


def run(options: Options) -> int:
    goal = _goal(options.model, options.to, options.format)
    from nescio.measures import LossOrder
    from nescio.networks.export import check_packages, export, exportable_network, preprocessing_fields, read_rule

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
        classes=Path(options.classes) if options.classes else None,
        score=learned or promise.score,
        look=options.preprocessing,
        data=options.data,
    )
    promise.check(network)
    if len(promise.names) == network.classes and "names" not in network.about:
        network = replace(network, about={**network.about, "names": list(promise.names)})
    if promise.terms:
        network = replace(network, about={**network.about, "promise": promise.terms})
    made = export(network, rule, goal)
    if options.json:
        say(json_of({"file": str(made.path), "checked": made.checked, **made.metadata}))
        return 0
    say(f"{made.path} abstains where {rule.measure} > {rule.threshold:.6g} (temperature {rule.temperature:g}).")
    if names := made.metadata.get("names"):
        say(f"Its {len(names):,} classes are named, from {names[0]} to {names[-1]}.")
    say(f"It takes {made.metadata['input'].removeprefix('images: ')}.")
    view = preprocessing_fields(made.metadata)["view"]
    say(f"Images are resized and cropped before that: {view} (docs/export.md does it).")
    if promise.terms and promise.model is None:
        say(
            f"The promise of {options.threshold} does not name its model: see to it that it was made on predictions of "
            f"{options.model} (`nescio threshold {options.model}=FILE` names it)."
        )
    checked = "Checked: the file gives the network's predictions."
    say(checked if made.checked else "It is not checked: onnxruntime is not installed here.")
    return 0


def _goal(model: str, to: str | None, form: str | None) -> Path:
    """Where to write; the ending decides the format, and both must agree."""
    goal = Path(to) if to else Path(f"{re.sub(r'[^A-Za-z0-9._-]', '-', model)}.{form or 'onnx'}")
    if not goal.suffix:
        goal = goal.with_name(f"{goal.name}.{form or 'onnx'}")
    if goal.suffix not in (".onnx", ".pt2"):
        raise BadInput(f"--to ends in {goal.suffix}; a file that is written ends in .onnx or .pt2.")
    if form and goal.suffix != f".{form}":
        raise BadInput(f"--to ends in {goal.suffix} and --format is {form}: omit one of them.")
    return goal
