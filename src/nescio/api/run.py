"""Runs of benchmarks: train or read networks, predict, evaluate."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import process_time
from typing import TYPE_CHECKING

from nescio.api.calls import options_from, signature_of
from nescio.api.dry_run import CostEstimate
from nescio.api.loggers import check_log
from nescio.api.results import status
from nescio.api.storage import StoreOptions, WorkerOptions, working
from nescio.api.studies import BenchmarkResult
from nescio.benchmarks import base
from nescio.errors import BadInput, did_you_mean
from nescio.identity import canonical
from nescio.options import leaves, nested, option, preset_of
from nescio.work.dry_run import DryRun, costs
from nescio.work.steps import TRAIN
from nescio.work.store_errors import StoreError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True)
class BenchmarkOptions:
    """Options that every benchmark takes."""

    storage: StoreOptions = nested(StoreOptions())
    worker_options: WorkerOptions = nested(WorkerOptions())
    log: str | None = option(None, group="output")
    dry_run: bool = option(False, group="output")


def run(benchmark: str, /, *, preset: str | None = None, **parameters: object) -> BenchmarkResult | CostEstimate:
    """Run a benchmark: train or read networks, predict and evaluate; finished work is read from the store.

    preset      set of default values of the benchmark's options
    parameters  options of `nescio run BENCHMARK`, such as data, methods, seeds, networks, store and workers
    """
    chosen = base.registry[benchmark]
    names = {leaf.key for leaf in leaves(chosen.plan)}
    parameter_names = {*names, *signature_of(BenchmarkOptions).parameters}
    if unknown := next(
        (name for name in parameters if name not in parameter_names and "launcher" not in parameters), None
    ):
        raise TypeError(f"run(): {benchmark} has no parameter {unknown!r}.{did_you_mean(unknown, parameter_names)}")
    values = {name: value for name, value in parameters.items() if name in names}
    plan = options_from(chosen.plan, values, preset_of(chosen.plan, chosen.presets, preset, values))
    others = {name: value for name, value in parameters.items() if name not in names}
    start = BenchmarkOptions(worker_options=WorkerOptions(workers=chosen.workers))
    return run_plan(chosen, plan, options_from(BenchmarkOptions, others, start))


def run_plan(
    benchmark: base.Benchmark, plan: DataclassInstance, options: BenchmarkOptions
) -> BenchmarkResult | CostEstimate:
    """Run the missing steps of a plan, or estimate their cost."""
    check_log(options.log)
    if options.dry_run:
        return _cost_estimate(benchmark, plan, options)
    with working(options.storage, options.worker_options, options.log, canonical(plan)) as work:
        finished = work.store.folders(TRAIN)
        result = BenchmarkResult(base.run(benchmark, plan, work))
        trained = work.store.folders(TRAIN) != finished
    if trained:
        _describe_preprocessing(plan, options.storage.root)
    return result


def _describe_preprocessing(plan: DataclassInstance, root: str | None) -> None:
    """Print the preprocessing of the networks that a plan trains; the plan's other networks are described in notes."""
    from nescio import datasets

    data = getattr(plan, "pretraining_data", None) or getattr(plan, "data", None)
    if not data or not getattr(plan, "methods", None) or getattr(plan, "networks", None):
        return
    from nescio.networks.models import training_view
    from nescio.networks.network import group_by_preprocessing

    networks = []
    for name in [data] if isinstance(data, str) else data:
        loaded = datasets.load(name, root)
        networks.append((f"Networks trained on {loaded.name}", str(training_view(loaded)), loaded.mean, loaded.std, ""))
    for sentence in group_by_preprocessing(networks):
        status(sentence)


def _cost_estimate(benchmark: base.Benchmark, plan: DataclassInstance, options: BenchmarkOptions) -> CostEstimate:
    """The steps and the estimated cost of a run."""
    from nescio.benchmarks.costs import STORY, clock_of, estimated, waking
    from nescio.work.launchers import make_launcher, use_one_thread

    started = process_time()  # of this process, and so of a worker
    use_one_thread()
    context, worker_options = options.storage.context(), options.worker_options
    workers = max(1, worker_options.launch(worker_options.count(options.storage.device)).workers)
    if context.store.root.is_file():
        raise BadInput(f"store is a file, {context.store.root}: name a folder.")
    rehearsal = DryRun(context, make_launcher("local", 0))
    with suppress(StoreError):  # required files are missing, as the last line states
        benchmark.run(plan, rehearsal)
    processes_per_run, places = worker_options.processes * worker_options.nodes, min(worker_options.processes, workers)
    figures = partial(estimated, context=context)
    steps = rehearsal.steps.values()
    stages = costs(steps, context.store, figures, processes_per_run, places, clock=clock_of(context.device))
    return CostEstimate(stages, context, workers, 2 * started + STORY + waking())
