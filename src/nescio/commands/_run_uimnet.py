"""What classifiers know what they don't know (UIMNET): ten methods, seven measures, in-domain and out-domain metrics.

Data seeds × trials × backbones × spectral norm are trained and calibrated, the best of each method averaged, and all
asked about classes that they were taught and classes that they were not: Tables 2 and 3 of the paper, and the page.

examples:
  nescio run uimnet --data digits --methods all --trials 3 --seeds 2 --workers 2
  nescio run uimnet --data cifar10 --backbones resnet18 --methods erm,mimo,due --spectral none,5 --epochs 60
  nescio run uimnet --preset paper                 ImageNet as in the paper: ten trials, three seeds, two sizes
  nescio run uimnet --measures entropy,mine        a new measure over a finished study: no network is asked again
"""

from __future__ import annotations

import argparse
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from nescio.commands._study import (
    Lines,
    add_budget,
    add_log,
    add_place,
    budget_of,
    numbers,
    show,
    targets,
    workers_of,
)
from nescio.commands._watch import logger
from nescio.errors import BadInput
from nescio.identity import canonical


def configure(parser: argparse.ArgumentParser) -> None:
    from nescio.protocols.uimnet import PRESETS

    parser.add_argument(
        "--preset", default="small", help="small (default), demo, or paper: where the other options start from"
    )
    what = parser.add_argument_group("what")
    what.add_argument("--data", help="dataset: digits, cifar10, folder:PATH, npz:PATH … (small: digits)")
    what.add_argument("--methods", default="all", help="comma-separated, or all (default)")
    what.add_argument("--backbones", help="comma-separated, small to large (small: conv)")
    what.add_argument("--spectral", help="targets of the spectral norm, comma-separated (default: none,5)")
    what.add_argument("--measures", help="of uncertainty, comma-separated, or all (default: the paper's seven)")
    what.add_argument("--members", metavar="K", help="sizes of ensembles, comma-separated (default: 1,5)")
    what.add_argument("--trials", type=int, help="settings of each method; the first is its defaults (small: 3)")
    what.add_argument("--seeds", type=int, help="data seeds: train/validation splits (small: 2)")
    what.add_argument("--search", choices=("random", "optuna"), help="how further trials are drawn (default: random)")
    what.add_argument(
        "--in",
        dest="inside",
        metavar="CLASSES",
        help="in-domain classes, as 0-5,7 (default: Ward tree; digits: 0-5)",
    )
    what.add_argument(
        "--out", dest="outside", metavar="CLASSES", help="out-domain classes (with --in; default: all others)"
    )
    what.add_argument(
        "--partition", metavar="FILE", help="in-domain and out-domain classes as `nescio imagenot` wrote them"
    )
    what.add_argument(
        "--features", choices=("reference", "pixels"), help="of the Ward tree (default: a reference network)"
    )
    what.add_argument("--no-oracle", action="store_true", help="leave the oracle row out")
    add_budget(parser, {name: plan.training for name, plan in PRESETS.items()})
    add_log(parser, "validation NLL, seconds and pace of every finished trial")
    parser.add_argument("--workers", type=int, help="processes (default: one a core, one on a GPU); 0: this process")
    parser.add_argument(
        "--report", metavar="DIR", default=None, help="page, tables and rows there (default: STORE/report)"
    )
    add_place(parser)


def run(args: argparse.Namespace) -> int:
    from nescio.protocols import uimnet
    from nescio.protocols._networks import Place

    place = Place(args.store, args.root, args.device, args.checkpoint_seconds)
    plan, workers = plan_of(args), workers_of(args)
    with logger(args.log, canonical(plan)) or nullcontext() as log, closing(Lines(workers, log)) as lines:
        study = uimnet.run(plan, place, workers, lines)
    return show(study, Path(args.report or Path(args.store) / "report"))


def plan_of(args: argparse.Namespace) -> Any:
    from nescio.methods import classifiers
    from nescio.methods import registry as methods
    from nescio.protocols.uimnet import PRESETS

    if args.preset not in PRESETS:
        raise BadInput(f"There is no preset named {args.preset!r}. There are: {', '.join(PRESETS)}.")
    plan = PRESETS[args.preset]
    named = classifiers() if args.methods == "all" else args.methods.split(",")
    names = tuple(dict.fromkeys(methods[name].name for name in named))
    inside, outside = classes_of(args)
    if args.outside and not args.inside:
        raise BadInput("--out goes with --in: say which classes are in-domain as well.")
    changes = {
        "data": args.data,
        "backbones": tuple(args.backbones.split(",")) if args.backbones else None,
        "spectral": targets(args.spectral) if args.spectral else None,
        "measures": measures_of(args.measures) if args.measures else None,
        "members": numbers(args.members) if args.members else None,
        "trials": args.trials,
        "seeds": args.seeds,
        "search": args.search,
        "features": args.features,
        "inside": inside,
        "outside": outside,
    }
    training = replace(plan.training, **budget_of(args))
    kept = {name: value for name, value in changes.items() if value is not None}
    return replace(plan, methods=names, training=training, oracle=not args.no_oracle, **kept)


def classes_of(args: argparse.Namespace) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """In-domain and out-domain classes as they are named, or as `nescio imagenot` wrote them."""
    if args.partition is None:
        return (numbers(args.inside) if args.inside else None, numbers(args.outside) if args.outside else None)
    if args.inside or args.outside or args.features:
        raise BadInput("--partition says which classes are in and out; leave --in, --out and --features away.")
    from nescio import datasets
    from nescio.datasets.partition import Partition
    from nescio.protocols.uimnet import PRESETS

    found = Partition.load(Path(args.partition))
    found.check(datasets.load(args.data or PRESETS[args.preset].data, args.root))
    return found.inside, found.outside


def measures_of(text: str) -> tuple[str, ...]:
    """Names of measures of one network's answers and features; those of ensembles are taken by the protocol itself."""
    from nescio.measures import registry

    if text != "all":
        return tuple(dict.fromkeys(registry[name].name for name in text.split(",")))
    return tuple(name for name in registry if registry[name].kind != "ensemble")
