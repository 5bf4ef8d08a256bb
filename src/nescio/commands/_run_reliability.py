"""Which representations can be trusted, before anyone says what they are for.

Networks learn without labels (SimCLR, BYOL, MoCo), several seeds of each. Every test image gets scores from their
embeddings alone: neighbourhood consistency (NC), distance to the references (Dist), length (Norm), density (LL) and
variance between the networks (FV). Then labels come in: heads on the frozen features, one for every pair of classes,
say how well each image does downstream, and Kendall's τ how well each score had known (Park et al. 2024).

Downstream data is the pre-training data itself, or another set of images with as many channels (--targets); its images
are brought to the size that the networks know. Everything finished lies in the store: run the same command again and
only what is missing is done.

examples:
  nescio run reliability
  nescio run reliability --data digits --methods simclr,moco --members 3 --epochs 5 --workers 2
  nescio run reliability --data cifar10 --backbones resnet18 --members 5 --references 5000 --k 100 --batch 512
  nescio run reliability --data npz:tiny_imagenet_100.npz@32 --targets npz:cifar100_small.npz --backbones resnet18
  nescio run reliability --preset paper            CIFAR-10, CIFAR-100, Tiny-ImageNet → three sets, two sizes, M = 10
"""

from __future__ import annotations

import argparse
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nescio.commands._study import Lines, add_budget, add_log, add_place, budget_of, numbers, show, workers_of
from nescio.commands._watch import logger
from nescio.errors import BadInput
from nescio.identity import canonical

if TYPE_CHECKING:
    from nescio.protocols.reliability import Plan


def configure(parser: argparse.ArgumentParser) -> None:
    from nescio.protocols.reliability import PRESETS

    parser.add_argument("--preset", default="small", help="small (default) or paper: where other options start from")
    what = parser.add_argument_group("what")
    what.add_argument(
        "--data",
        metavar="SETS",
        help="pre-training data, comma-separated (small: digits; paper: cifar10, cifar100, tiny-imagenet)",
    )
    what.add_argument(
        "--targets",
        metavar="SETS",
        help="downstream data, comma-separated (default: the pre-training data itself; "
        "paper: of tiny-imagenet: cifar10, cifar100, stl10)",
    )
    what.add_argument("--methods", help="that learn without labels, comma-separated (default: simclr,byol,moco)")
    what.add_argument("--backbones", help="comma-separated, small to large (small: conv; paper: resnet18,resnet50)")
    what.add_argument(
        "--members", metavar="M", help="networks of each candidate (small: 3; paper: 10); 5,moco=3: 5, but 3 of MoCo"
    )
    how = parser.add_argument_group("scores")
    how.add_argument("--references", type=int, metavar="N", help="pre-training images (small: 500; paper: 5000)")
    how.add_argument("--seeds", type=int, help="samples of references (default: 5)")
    how.add_argument("--k", type=int, help="neighbours of NC, about 2 %% of the references (small: 20; paper: 100)")
    how.add_argument("--k-dist", type=int, metavar="K", help="neighbours of Dist (default: 1)")
    how.add_argument(
        "--ks", metavar="KS", help="of the sweep over k (default: 1,2,5,10,20,50,100,200,500,1000, below --references)"
    )
    how.add_argument("--distances", help="comma-separated (default: cosine,euclidean); sweeps are of cosine")
    how.add_argument("--scores", help="comma-separated (default: nc,dist,norm,ll,fv); ll takes most of the time")
    how.add_argument("--components", type=int, metavar="C", help="of LL's mixtures (default: 20)")
    how.add_argument("--similarity", choices=("jaccard", "overlap"), help="of two neighbourhoods (default: jaccard)")
    how.add_argument(
        "--tasks", choices=("one-vs-one", "multiclass"), help="what heads are taught downstream (default: one-vs-one)"
    )
    add_budget(parser, {name: plan.training for name, plan in PRESETS.items()})
    add_log(parser, "seconds and pace of every trained network")
    parser.add_argument("--workers", type=int, help="processes (default: one a core, one on a GPU); 0: this process")
    parser.add_argument("--report", metavar="DIR", help="page, tables and rows there (default: STORE/report)")
    add_place(parser)


def run(args: argparse.Namespace) -> int:
    from nescio.protocols import reliability
    from nescio.protocols._networks import Place

    plan, place = plan_of(args), Place(args.store, args.root, args.device, args.checkpoint_seconds)
    plan.check()
    workers = workers_of(args)
    with logger(args.log, canonical(plan)) or nullcontext() as log, closing(Lines(workers, log)) as lines:
        study = reliability.run(plan, place, workers, lines)
    return show(study, Path(args.report or Path(args.store) / "report"))


def plan_of(args: argparse.Namespace) -> Plan:
    from nescio.methods import registry as methods
    from nescio.protocols.reliability import PRESETS

    if args.preset not in PRESETS:
        raise BadInput(f"There is no preset named {args.preset!r}. There are: {', '.join(PRESETS)}.")
    plan = PRESETS[args.preset]
    sources = _words(args.data) or tuple(plan.sources)
    targets = _words(args.targets)
    changes: dict[str, Any] = {
        "settings": tuple((data, target) for data in sources for target in targets or (data,))
        if args.data or args.targets
        else None,
        "methods": tuple(methods[name].name for name in _words(args.methods)) or None,
        "backbones": _words(args.backbones) or None,
        "distances": _words(args.distances) or None,
        "scores": _words(args.scores) or None,
        "ks": numbers(args.ks, "numbers of neighbours") if args.ks else None,
    }
    if args.members:
        changes["members"], changes["others"] = members_of(args.members, plan.members)
    plain = ("references", "seeds", "k", "k_dist", "components", "similarity", "tasks")
    changes |= {name: getattr(args, name) for name in plain}
    kept = {name: value for name, value in changes.items() if value is not None}
    return replace(plan, training=replace(plan.training, **budget_of(args)), **kept)


def members_of(text: str, usual: int) -> tuple[int, tuple[tuple[str, int], ...]]:
    """5,moco=3 → (5, ((moco, 3),)); without a number of its own: the usual one."""
    others = []
    for word in _words(text):
        name, _, count = word.rpartition("=")
        if not count.isdecimal():
            raise BadInput(f"--members is a number of networks such as 5, or 5,moco=3, not {text!r}.")
        if name:
            others.append((name, int(count)))
        else:
            usual = int(count)
    return usual, tuple(others)


def _words(text: str | None) -> tuple[str, ...]:
    """a,b → (a, b), each once."""
    return tuple(dict.fromkeys(word for word in (text or "").split(",") if word))
