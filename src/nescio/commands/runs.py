"""What is in a store: finished, running, stopped half-way, and failed with the reason.

examples:
  nescio runs
  nescio runs --failed
  nescio runs --json | jq '.[] | select(.method == "erm") | .key'
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from nescio.commands._output import add_format, json_of, say
from nescio.errors import BadInput

TRIAL = ("method", "data", "backbone", "spectral", "trial", "data_seed", "init_seed")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", default="store", help="folder of finished work (default: store)")
    parser.add_argument("--failed", action="store_true", help="only what failed")
    add_format(parser)


def run(args: argparse.Namespace) -> int:
    from nescio.report import grid
    from nescio.store import Store, StoreError

    store = Store(args.store)
    if not store.root.is_dir():
        raise BadInput(f"There is no store in {store.root}.")
    try:
        runs = [each for each in store.runs() if not args.failed or each.state == "failed"]
    except StoreError as error:
        print(f"nescio runs: {error}", file=sys.stderr)
        return 1
    if args.format == "json":
        plain = [
            {"stage": r.stage, "key": r.key, "state": r.state, "reason": r.reason, "owner": r.owner, "recipe": r.recipe}
            | {name: r.recipe[name] for name in TRIAL if name in r.recipe}
            for r in runs
        ]
        say(json_of(plain))
        return 0
    states = [each.state for each in runs]
    counts = [
        f"{states.count(state)} {state}" for state in ("finished", "running", "stopped", "failed") if state in states
    ]
    if runs:
        say(grid([_row(each) for each in runs], args.format))
    if args.format == "table":
        say(f"{store.root}: {', '.join(counts) if counts else 'nothing failed' if args.failed else 'empty'}.")
    return 0


def _row(run: Any) -> dict[str, str]:
    recipe = run.recipe
    what = [
        f"{name} {recipe[name]:g}" if name == "spectral" else _word(name, recipe[name])
        for name in TRIAL
        if recipe.get(name)
    ]
    if not what:
        what = [str(recipe[name]) for name in ("split", "kind") if recipe.get(name)]
    return {
        "key": run.key,
        "stage": run.stage,
        "state": run.state,
        "what": " · ".join(what),
        "why": run.reason or run.owner,
    }


def _word(name: str, value: Any) -> str:
    return str(value) if name in ("method", "data", "backbone") else f"{name.replace('_', ' ')} {value}"
