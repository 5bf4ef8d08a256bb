"""Is a method alive? Trains it on a small task and shows, on the trained weights, that its special part acts.

Every method: the loss falls; a classifier is right more often than by chance, features without labels bring a changed
image nearer to its class; the same seed gives the same weights, saved and reloaded it answers the same, no answer
depends on the rows beside it, draws differ where there are several, spectral normalisation bounds every layer, a native
score that claims so ranks noise above data; and the method's own evidence. The exit code is 1 if anything is dead.

examples:
  nescio verify
  nescio verify due mimo --epochs 10
  nescio verify erm --data cifar10 --backbone resnet18 --epochs 2 --spectral 5
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from nescio.commands._output import add_format, json_of, say
from nescio.errors import BadInput


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="(default: all)")
    parser.add_argument("--data", default="digits", help="dataset of the task (default: digits)")
    parser.add_argument("--root", help="folder of datasets (default: $NESCIO_DATA, else ~/.cache/nescio/data)")
    parser.add_argument("--backbone", default="conv", help="mlp, conv, resnet18 or any timm name (default: conv)")
    parser.add_argument("--epochs", type=int, default=6, help="of the task (default: 6)")
    parser.add_argument(
        "--spectral",
        type=float,
        default=1.0,
        metavar="TARGET",
        help="of the spectral norm that is looked at (default: 1)",
    )
    add_format(parser)


def run(args: argparse.Namespace) -> int:
    from nescio.methods import registry
    from nescio.methods.contract import observe, trial_of
    from nescio.progress import track
    from nescio.report import grid

    if not args.spectral > 0:
        raise BadInput(f"--spectral must be above 0, not {args.spectral:g}.")
    names = args.methods or sorted(registry)
    trials = [
        trial_of(name, data=args.data, backbone=args.backbone, epochs=args.epochs, root=args.root) for name in names
    ]
    rows, dead = [], 0
    for trial in track(trials, "verify", total=len(trials)):
        seen = dict(observe(trial, spectral=args.spectral, root=args.root))
        rows += [
            {"method": trial.method, "evidence": what, "alive": each.alive, "seen": each.seen}
            for what, each in seen.items()
        ]
        dead += sum(not each.alive for each in seen.values())
    if args.format == "json":
        say(json_of(rows))
    elif args.format != "table":
        say(grid(rows, args.format))
    else:
        say(grid(list(_shown(rows))))
        count = f"{len(rows)} observations on {len(names)} method{'s' * (len(names) != 1)}"
        say(f"{count}: {f'{dead} dead (✗)' if dead else 'all alive'}.")
    return int(dead > 0)


def _shown(rows: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """A method's name once, then its evidence."""
    last = None
    for row in rows:
        name, last = "" if row["method"] == last else row["method"], row["method"]
        yield {"method": name, "": "✓" if row["alive"] else "✗", "evidence": row["evidence"], "seen": row["seen"]}
