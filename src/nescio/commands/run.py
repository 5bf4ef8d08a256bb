"""Run a benchmark: train or read networks, predict, evaluate, and write tables and a page.

Finished work is in the store: the same command again does only what is missing. It can be killed at any time. Several
commands may share one store. A network that fails does not stop the others. --config repeats a study from its file.

examples:
  nescio run uimnet --data digits --methods all --trials 3 --seeds 2 --workers 2
  nescio run selective vit.npz resnet=r50.npz
  nescio run cood --pair resnet=cifar10.npz,cifar100.npz --estimation-images 40 --test-images 20
  nescio run reliability --pretraining-data digits --methods simclr,moco --seeds 3
  nescio run uimnet --preset paper --dry-run       steps, finished work, time and disk
  nescio run uimnet --preset paper --help          options of a benchmark, with the values of a preset
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

from nescio.api.dry_run import CostEstimate
from nescio.api.loggers import check_log
from nescio.api.storage import StoreOptions, WorkerOptions, working
from nescio.benchmarks import base
from nescio.commands._output import TextOrJson, check_writable, emit, report_folder
from nescio.commands._studies import end, page_folder
from nescio.commands.config import config_text
from nescio.commands.parsing import add_options
from nescio.errors import BadInput
from nescio.identity import canonical
from nescio.options import nested, option, options_of
from nescio.provenance import keep_config
from nescio.work.dry_run import DryRun, costs
from nescio.work.store_errors import StoreError


@dataclass(frozen=True)
class RunOptions:
    """Options that every benchmark takes."""

    storage: StoreOptions = nested(StoreOptions())
    crew: WorkerOptions = nested(WorkerOptions())
    log: str | None = option(None, group="output")
    output: str | None = option(None, unset="STORE/report/BENCHMARK-KEY", group="output")
    format: TextOrJson = option("text", group="output")
    dry_run: bool = option(False, group="output")


def configure(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    benchmarks = parser.add_subparsers(metavar="BENCHMARK", dest="_benchmark", required=True, parser_class=type(parser))
    for name, benchmark in base.registry.items():
        sub = benchmarks.add_parser(
            name,
            help=benchmark.sentence.replace("%", "%%"),
            description=benchmark.doc,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add_options(sub, benchmark.plan, benchmark.presets, argv=argv)
        add_options(sub, RunOptions, start=_start(benchmark), argv=argv)
        sub.set_defaults(_parser=sub)


def _start(benchmark: base.Benchmark) -> RunOptions:
    return RunOptions(crew=WorkerOptions(workers=benchmark.workers))


def run(args: argparse.Namespace) -> int:
    benchmark = base.registry[args._benchmark]
    plan = options_of(args, benchmark.plan, benchmark.presets)
    options = options_of(args, RunOptions, start=_start(benchmark))
    keep_config(partial(config_text, ("run", benchmark.name), plan, options, presets=benchmark.presets))
    check_log(options.log)
    if options.output is not None and options.format != "json":
        check_writable(Path(options.output), "--output")
    if options.dry_run:
        return _print_cost_estimate(benchmark, plan, options)
    with working(options.storage, options.crew, options.log, canonical(plan)) as work:
        study = base.run(benchmark, plan, work)
    if options.format == "json":
        return end(study, None)
    return end(
        study, page_folder(report_folder(options.output, options.storage.store, "report", base.page_name(study)), study)
    )


# ---- --dry-run


def _print_cost_estimate(benchmark: base.Benchmark, plan: Any, options: RunOptions) -> int:
    """Print the steps and the estimated cost of a run."""
    from nescio.benchmarks.costs import STORY, clock_of, estimated, waking
    from nescio.work.launchers import make_launcher, use_one_thread

    started = process_time()  # of this process, and so of a worker
    use_one_thread()
    context = options.storage.context()
    workers = max(1, options.crew.launch(options.crew.count(options.storage.device)).workers)
    if context.store.root.is_file():
        raise BadInput(f"{context.store.root} is a file, and a store is a folder: name another --store.")
    rehearsal = DryRun(context, make_launcher("local", 0))
    with suppress(StoreError):  # required files are missing, as the last line states
        benchmark.run(plan, rehearsal)
    crew = options.crew
    processes_per_run, places = crew.processes * crew.nodes, min(crew.processes, workers)
    steps = rehearsal.steps.values()
    figures = partial(estimated, context=context)
    stages = costs(steps, context.store, figures, processes_per_run, places, clock=clock_of(context.device))
    return emit(CostEstimate(stages, context, workers, 2 * started + STORY + waking()), options.format)
