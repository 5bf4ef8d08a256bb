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
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nescio.api.run import BenchmarkOptions, run_plan
from nescio.api.storage import WorkerOptions
from nescio.api.studies import BenchmarkResult
from nescio.benchmarks import base
from nescio.commands._output import TextOrJson, check_writable, emit, report_folder
from nescio.commands._studies import emit_study, page_folder
from nescio.commands.config import config_text
from nescio.commands.parsing import add_options
from nescio.options import option, options_of
from nescio.provenance import keep_config


@dataclass(frozen=True)
class RunOptions(BenchmarkOptions):
    """Options of every benchmark, with those of the output."""

    output: str | None = option(None, unset="STORE/report/BENCHMARK-KEY", group="output")
    format: TextOrJson = option("text", group="output")


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
    return RunOptions(worker_options=WorkerOptions(workers=benchmark.workers))


def run(args: argparse.Namespace) -> int:
    benchmark = base.registry[args._benchmark]
    plan = options_of(args, benchmark.plan, benchmark.presets)
    options = options_of(args, RunOptions, start=_start(benchmark))
    keep_config(partial(config_text, ("run", benchmark.name), plan, options, presets=benchmark.presets))
    if options.output is not None and options.format != "json":
        check_writable(Path(options.output), "--output")
    result = run_plan(benchmark, plan, options)
    if not isinstance(result, BenchmarkResult):
        return emit(result, options.format)
    if options.format == "json":
        return emit_study(result, None)
    folder = report_folder(options.output, options.storage.store, "report", base.page_name(result.study))
    return emit_study(result, page_folder(folder, result.study))
