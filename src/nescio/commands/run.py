"""A paper's whole benchmark: train or read, predict, evaluate, tables and page.

Finished work lies in the store: run the same command again and only what is missing is done. Kill it at any time.
Several runs may share one store at once; nothing is done twice. A network that fails does not stop the others.

examples:
  nescio run uimnet --data digits --methods all --trials 3 --seeds 2 --workers 2
  nescio run selective vit.npz resnet=r50.npz
  nescio run cood --pair resnet=cifar10.npz,cifar100.npz --estimation 40 --test 20
  nescio run reliability --data digits --methods simclr,moco --members 3
  nescio run uimnet --preset paper --dry-run       steps, what is finished, time and disk; nothing is done
  nescio run uimnet --help                         the options of a benchmark
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

from nescio.benchmarks import base
from nescio.commands._dry_run import say_costs
from nescio.commands._loggers import check_log
from nescio.commands._output import check_place, page_option, report_folder
from nescio.commands._work import StoreOptions, WorkerOptions, end, page_place, working
from nescio.errors import BadInput
from nescio.identity import canonical
from nescio.options import add_options, nested, option, options_of
from nescio.work.dry_run import DryRun, costs
from nescio.work.store import StoreError


@dataclass(frozen=True)
class RunOptions:
    """What every benchmark takes."""

    place: StoreOptions = nested(StoreOptions())
    crew: WorkerOptions = nested(WorkerOptions())
    log: str | None = option(
        None,
        "tensorboard:DIR or wandb:PROJECT: validation NLL, seconds and pace of every finished trial",
        metavar="KIND:PLACE",
        group="output",
    )
    to: str | None = page_option(
        "page, tables and rows there", unset="STORE/report/BENCHMARK-KEY, by the key of the study"
    )
    json: bool = option(False, "print the rows as JSON, alone on stdout; write no page", group="output")
    dry_run: bool = option(
        False,
        "only say which steps there are, what is finished, and what time and disk the others take",
        group="output",
    )


def configure(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    benchmarks = parser.add_subparsers(metavar="BENCHMARK", dest="_benchmark", required=True, parser_class=type(parser))
    for name, benchmark in base.registry.items():
        sub = benchmarks.add_parser(
            name,
            help=benchmark.sentence.replace("%", "%%"),
            description=benchmark.doc,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add_options(sub, benchmark.plan, benchmark.presets)
        add_options(sub, RunOptions, start=_start(benchmark), words=words)
        sub.set_defaults(_parser=sub)


def _start(benchmark: base.Benchmark) -> RunOptions:
    return RunOptions(crew=WorkerOptions(workers=benchmark.workers))


def run(args: argparse.Namespace) -> int:
    benchmark = base.registry[args._benchmark]
    plan = options_of(args, benchmark.plan, benchmark.presets)
    options = options_of(args, RunOptions, start=_start(benchmark))
    check_log(options.log)
    if options.to is not None and not options.json:
        check_place(Path(options.to), "--to")
    if options.dry_run:
        return _rehearse(benchmark, plan, options)
    with working(options.place, options.crew, options.log, canonical(plan)) as work:
        study = base.run(benchmark, plan, work)
    if options.json:
        return end(study, None)
    return end(
        study, page_place(report_folder(options.to, options.place.store, "report", base.page_name(study)), study)
    )


# ---- --dry-run


def _rehearse(benchmark: base.Benchmark, plan: Any, options: RunOptions) -> int:
    """Says what a run would do and take."""
    from nescio.benchmarks.costs import STORY, clock_of, estimated, waking
    from nescio.work.launchers import make_launcher, use_one_thread

    started = process_time()  # of this process, and so of a worker
    use_one_thread()
    context = options.place.context()
    workers = max(1, options.crew.launch(options.crew.count(options.place.device)).workers)
    if context.store.root.is_file():
        raise BadInput(f"{context.store.root} is a file, and a store is a folder: name another --store.")
    rehearsal = DryRun(context, make_launcher("local", 0))
    with suppress(StoreError):  # what all else needs is not there yet: the last line says so
        benchmark.run(plan, rehearsal)
    crew = options.crew
    together, places = crew.processes * crew.nodes, min(crew.processes, workers)
    steps = rehearsal.steps.values()
    figures = partial(estimated, context=context)
    stages = costs(steps, context.store, figures, together, places, clock=clock_of(context.device))
    say_costs(stages, context, workers, 2 * started + STORY + waking(), options.json)
    return 0
