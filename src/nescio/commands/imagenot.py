"""Divides the classes of a labelled dataset into in-domain and out-domain ones, by how alike they look.

Features of a reference model, the mean of every class, Ward's tree: in-domain is the smaller side of its root, and
out-domain the first equally many classes of the other side (UIMNET §2, there on ImageNet: 266 and 266 classes).

examples:
  nescio imagenot --data digits --to imagenot.json --draw tree.svg
  nescio imagenot --data folder:birds@224 --features resnet18 --weights resnet18.safetensors --to imagenot.json
  nescio imagenot --data cifar100 --features 3f9a0c21d4be7788 --store store --to imagenot.json
  nescio imagenot --data cifar100 --features train.npz --to imagenot.json
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nescio.commands._output import say
from nescio.errors import BadInput

if TYPE_CHECKING:
    from nescio.protocols.imagenot import Partition


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", required=True, metavar="DATA", help="digits, cifar10, folder:PATH, npz:PATH …")
    parser.add_argument("--root", metavar="DIR", help="where datasets lie (default: $NESCIO_DATA)")
    parser.add_argument(
        "--features",
        default="pixels",
        metavar="WHAT",
        help="pixels (the default); a timm model, with --weights; the key of a training, with --store; "
        "or a file of predictions with embeddings and labels",
    )
    parser.add_argument("--weights", metavar="FILE", help="weights of the timm model: nothing is downloaded")
    parser.add_argument("--store", metavar="DIR", help="where the training lies")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    parser.add_argument("--to", metavar="FILE", help="write the partition there, as JSON")
    parser.add_argument("--draw", metavar="FILE", help="draw the tree there, as SVG")
    parser.add_argument("--json", action="store_true", help="print the partition as JSON, alone on stdout")


def run(args: argparse.Namespace) -> int:
    from nescio import datasets
    from nescio.protocols import imagenot

    if args.weights and args.store:
        raise BadInput("Both --weights and --store are given: features come from a timm model or from a training.")
    if args.draw and Path(args.draw).suffix != ".svg":
        raise BadInput(f"--draw writes SVG: {args.draw} must end in .svg.")
    dataset = datasets.load(args.data, args.root)
    means, features = _means(args, dataset)
    made = imagenot.imagenot(dataset, means, features)
    if args.to:
        made.save(args.to)
    if args.draw:
        Path(args.draw).parent.mkdir(parents=True, exist_ok=True)
        Path(args.draw).write_text(imagenot.draw(made), "utf-8")
    if args.json:
        say(made.to_json())
        return 0
    _show(made)
    for path, what in ((args.to, "The partition"), (args.draw, "The tree")):
        if path:
            say(f"{what} is {path}.")
    return 0


def _means(args: argparse.Namespace, dataset: Any) -> tuple[Any, str]:
    """Class means, and what they are means of."""
    from nescio.protocols import imagenot

    if args.weights or args.store:
        from nescio.runtime import runtime
        from nescio.store import Store

        place = runtime(args.device, "float32")
        if args.weights:
            return imagenot.timm_means(args.features, args.weights, dataset, place), f"timm model {args.features}"
        means = imagenot.trial_means(args.features, Store(args.store), dataset, place, args.root)
        return means, f"training {args.features}"
    if args.features == "pixels":
        return imagenot.pixel_means(dataset), "pixels"
    if Path(args.features).exists():
        return imagenot.dump_means(args.features, dataset), f"predictions {Path(args.features).name}"
    raise BadInput(
        f"--features {args.features}: there is no such file. If it is a timm model, name its weights with --weights; "
        "if it is the key of a training, name its store with --store; the images themselves are --features pixels."
    )


def _show(made: Partition) -> None:
    from itertools import zip_longest

    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{made.dataset}: classes by the Ward tree of {made.features}", title_justify="left")
    table.add_column(f"in-domain ({len(made.inside)})", overflow="fold")
    table.add_column(f"out-domain ({len(made.outside)})", overflow="fold")
    words = ([_word(made, label) for label in side] for side in (made.inside, made.outside))
    for line in zip_longest(*words, fillvalue=""):
        table.add_row(*line)
    console = Console(markup=False, highlight=False)
    console.print(table)
    unused = len(made.order) - len(made.inside) - len(made.outside)
    if unused:
        console.print(
            f"{unused} of {len(made.order)} classes are neither: they stand aside, so that the sides are equal."
        )
    if len(made.inside) < 2:
        console.print("One in-domain class leaves nothing to classify: other features may give a more even tree.")


def _word(made: Partition, label: int) -> str:
    name = made.classes[label]
    return name if name == str(label) else f"{label}  {name}"
