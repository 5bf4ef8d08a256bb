"""Looks after a store of finished work. `nescio runs` lists what is in it.

examples:
  nescio store prune --dry-run                what work of older versions takes
  nescio store prune --store old --yes
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from nescio.commands._output import say, size_text
from nescio.errors import BadInput
from nescio.options import add_options, option, options_of
from nescio.work.pruning import OldWork, old_work, prune
from nescio.work.store import Store

PRUNE = """Removes work of older versions: finished, failed and stopped work that no command of today reads.

Work that is going on is never touched. What is removed, and how much, is printed first."""


@dataclass(frozen=True)
class PruneOptions:
    """Which store, and whether to ask."""

    store: str = option("store", "folder of finished work")
    dry_run: bool = option(False, "only say what would be removed")
    yes: bool = option(False, "remove without asking; needed without a terminal")


def configure(parser: argparse.ArgumentParser, _words: Sequence[str] = ()) -> None:
    actions = parser.add_subparsers(metavar="ACTION", dest="_action", required=True, parser_class=type(parser))
    sub = actions.add_parser(
        "prune",
        help="removes work of older versions",
        description=PRUNE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(sub, PruneOptions)
    sub.set_defaults(_parser=sub)


def run(args: argparse.Namespace) -> int:
    from nescio.protocols.base import registry

    options = options_of(args, PruneOptions)
    store = Store(options.store)
    if not store.root.is_dir():
        raise BadInput(f"There is no store in {store.root}.")
    old = old_work(store, {protocol.name: protocol.version for protocol in registry.parts()})
    if not old:
        say(f"{store.root} holds no work of older versions.")
        return 0
    say("\n".join(_lines(old)))
    if options.dry_run:
        return 0
    if not options.yes:
        if not sys.stdin.isatty():
            raise BadInput("Without a terminal, give --yes to remove it, or --dry-run only to look.")
        if input(f"Remove it from {store.root}? [y/N] ").strip().lower() not in ("y", "yes"):
            say("Nothing was removed.")
            return 0
    removed = prune(store, old)
    say(f"Removed {_amount(removed)}." if removed else "Nothing was removed: other processes are at it.")
    return 0


def _lines(old: Sequence[OldWork]) -> list[str]:
    """How much there is, stage by stage, and in all."""
    stages = defaultdict(list)
    for work in old:
        stages[work.run.stage].append(work)
    lines = [f"  {stage:<9} {_amount(works)}" for stage, works in sorted(stages.items())]
    return ["Work of older versions:", *lines, f"  {'in all':<9} {_amount(old)}"]


def _amount(old: Sequence[OldWork]) -> str:
    size = sum(work.bytes for work in old)
    return f"{len(old):,} piece{'s' * (len(old) != 1)} of work, {size_text(size)}"
