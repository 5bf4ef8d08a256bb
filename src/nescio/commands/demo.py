"""Run a small benchmark in a few minutes: ten methods on handwritten digits, with unseen digits as OOD data.

Every method is trained on the digits 0 to 5, with two hyper-parameter settings on two splits of the data. The networks
are calibrated, ensembled and evaluated on those digits and on 6 to 9. The demo prints a table and writes a page.
Nothing is downloaded. A second run reads the finished work.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nescio.api.storage import StoreOptions, WorkerOptions
from nescio.api.studies import BenchmarkResult
from nescio.commands._output import say
from nescio.commands._studies import emit_study
from nescio.options import option
from nescio.work.store import Store


@dataclass(frozen=True, kw_only=True)
class Options:
    output: str = option("demo")
    workers: int | None = option(None, unset="one per core")


def run(options: Options) -> int:
    import torch  # noqa: F401  (the demo trains networks: a missing torch is reported before any work)

    from nescio.api.run import BenchmarkOptions, run_plan
    from nescio.benchmarks.base import registry

    folder = Path(options.output)
    storage = StoreOptions(store=str(folder / "store"), device="cpu")
    benchmark = registry["uimnet"]
    options_of_run = BenchmarkOptions(storage, WorkerOptions(workers=options.workers))
    result = run_plan(benchmark, benchmark.presets["demo"], options_of_run)
    assert isinstance(result, BenchmarkResult)
    code = emit_study(result, folder)
    say("Open it in a browser. What lies behind it:")
    say(f"  nescio runs --store {storage.store}     every training and prediction, finished or failed")
    say("  nescio verify                    the evidence that each method does what it claims")
    for file in _test_predictions(Store(storage.store))[:1]:
        say(f"  nescio evaluate {file}     everything about one network")
    return code


def _test_predictions(store: Store) -> list[Path]:
    """Predictions of networks on test images of their training classes."""
    from nescio.predictions.model_predictions import PREDICTIONS, STAGE

    runs = [run for run in store.runs() if (run.stage, run.state) == (STAGE, "finished")]
    test = [
        run.folder / PREDICTIONS for run in runs if "keeping" in run.config and run.config["images"]["split"] == "test"
    ]
    return [file for file in test if file.exists()]
