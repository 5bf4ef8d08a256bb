"""Remove or copy finished work of a store; `nescio runs` lists it.

examples:
  nescio store prune --dry-run                size of the work of older versions
  nescio store prune --store old --yes
  nescio store sync node7/store store         copy finished work of another machine
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from nescio.api.dry_run import size_text
from nescio.api.results import status
from nescio.commands._output import say
from nescio.commands.parsing import add_options
from nescio.errors import BadInput
from nescio.options import argument, option, options_of
from nescio.progress import track
from nescio.work.pruning import OldWork, damaged_work, old_work, prune
from nescio.work.store import Store
from nescio.work.store_errors import Busy, StoreError

PRUNE = """Removes work of older versions: finished, failed and stopped work that no command of today reads.

Work that is going on is never touched. The removed work and its size are printed first."""


SYNC = """Copies finished work from one store to another, for machines without a common file system.

Work is identified by its key: finished and active work in TO is not changed. Every file
is checked when it is read and when it is written. An interrupted copy can be resumed."""


@dataclass(frozen=True, kw_only=True)
class SyncOptions:
    source: str = argument("store to copy from", metavar="FROM")
    target: str = argument("store to copy to; created if missing", metavar="TO")
    stages: tuple[str, ...] = option(
        (), "stages to copy: train, predict, evaluate, study …", metavar="NAME,…", unset="all"
    )


@dataclass(frozen=True)
class PruneOptions:
    store: str = option("store")
    dry_run: bool = option(False)
    yes: bool = option(False, "remove without asking; required without a terminal")


def configure(parser: argparse.ArgumentParser, _argv: Sequence[str] = ()) -> None:
    actions = parser.add_subparsers(metavar="ACTION", dest="_action", required=True, parser_class=type(parser))
    shape = argparse.RawDescriptionHelpFormatter
    for name, argv, text, options, do in (
        ("prune", "removes work of older versions", PRUNE, PruneOptions, _prune),
        ("sync", "copies finished work to another store", SYNC, SyncOptions, _sync),
    ):
        sub = actions.add_parser(name, help=argv, description=text, formatter_class=shape)
        add_options(sub, options)
        sub.set_defaults(_parser=sub, _do=do)


def run(args: argparse.Namespace) -> int:
    code: int = args._do(args)
    return code


def _open_store(folder: str) -> Store:
    store = Store(folder)
    if not store.root.is_dir():
        raise BadInput(f"There is no store in {store.root}.")
    return store


def _sync(args: argparse.Namespace) -> int:
    options = options_of(args, SyncOptions)
    source, target = _open_store(options.source), Store(options.target)
    if os.path.realpath(source.root) == os.path.realpath(target.root):
        raise BadInput(f"{options.source} and {options.target} are the same store.")
    runs = [run for run in source.runs() if run.state == "finished"]
    if unknown := set(options.stages) - {run.stage for run in runs}:
        raise BadInput(f"{source.root} has no finished work of the stage {min(unknown)}.")
    runs = [run for run in runs if not options.stages or run.stage in options.stages]
    copied, failed = 0, 0
    for run in track(runs, f"copying to {target.root}"):
        try:
            copied += not target.finished(run.stage, run.key) and target.receive(source, run.stage, run.key)
        except (Busy, StoreError) as error:
            failed += 1
            status(f"not copied: {run.stage}/{run.key}: {error}")
    say(f"Copied {copied:,} of {len(runs):,} finished steps; {len(runs) - copied - failed:,} were there.")
    return 1 if failed else 0


def _prune(args: argparse.Namespace) -> int:
    from nescio.benchmarks.base import registry

    options = options_of(args, PruneOptions)
    store = _open_store(options.store)
    old = old_work(store, {benchmark.name: benchmark.version for benchmark in registry.parts()})
    for run in damaged_work(store):
        status(f"not removed: {run.stage}/{run.key}: its config.json is damaged; remove the folder {run.folder}.")
    if not old:
        say(f"{store.root} contains no work of older versions.")
        return 0
    say("\n".join(_lines(old)))
    if options.dry_run:
        return 0
    if not options.yes:
        if not sys.stdin.isatty():
            raise BadInput("Without a terminal, give --yes to remove it, or --dry-run to list it.")
        if input(f"Remove it from {store.root}? [y/N] ").strip().lower() not in ("y", "yes"):
            say("Nothing was removed.")
            return 0
    removed = prune(store, old)
    say(f"Removed {_amount(removed)}." if removed else "Nothing was removed: other processes are at it.")
    return 0


def _lines(old: Sequence[OldWork]) -> list[str]:
    """Number and size of entries, per stage and in total."""
    stages = defaultdict(list)
    for work in old:
        stages[work.run.stage].append(work)
    lines = [f"  {stage:<9} {_amount(works)}" for stage, works in sorted(stages.items())]
    return ["Work of older versions:", *lines, f"  {'in all':<9} {_amount(old)}"]


def _amount(old: Sequence[OldWork]) -> str:
    size = sum(work.bytes for work in old)
    return f"{len(old):,} piece{'s' * (len(old) != 1)} of work, {size_text(size)}"
