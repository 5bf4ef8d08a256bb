"""Processor time that `nescio run all` adds to an evaluation whose predictions are finished, without a peer."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _table import show

from nescio.benchmarks import lineup
from nescio.evaluations import Evaluation, Outputs, Subject, evaluation
from nescio.evaluations.misclassification import Misclassification
from nescio.evaluations.shift import CorruptionShift
from nescio.rows import RowBuilder
from nescio.trials import Training
from nescio.work.launchers import make_launcher
from nescio.work.steps import Context, Work
from nescio.work.store import Store

SEEDS = 20
SHIFT = CorruptionShift(corruptions=("fog", "contrast"), severities=(1, 3, 5))
BENCHMARK = ("evaluations", 1)


@evaluation("count-rows", question="Number of rows of the test set.")
@dataclass(frozen=True)
class CountRows(Misclassification):
    def measure(self, outputs: Outputs, subject: Subject, results: RowBuilder) -> None:
        results.add("rows", len(outputs["test"]), None)


def run() -> list[dict[str, Any]]:
    training = Training(epochs=1, batch_size=128, augment="none")
    trials = [lineup.plain_trial("erm", "digits", "mlp", training, seed=seed) for seed in range(SEEDS)]
    subjects = [Subject(lineup.average([trial], None), "digits") for trial in trials]
    with tempfile.TemporaryDirectory() as folder:

        def milliseconds(evaluations: list[Evaluation]) -> float:
            """Processor milliseconds per pair of a network and an evaluation."""
            work = Work(Context(Store(Path(folder)), device="cpu"), make_launcher("local", 0))
            started = time.process_time()
            lineup.evaluate(BENCHMARK, subjects, evaluations, work)
            return 1000 * (time.process_time() - started) / (SEEDS * len(evaluations))

        studied: list[Evaluation] = [Misclassification(), SHIFT]
        milliseconds(studied)
        unfinished = milliseconds([CountRows()])
        finished = min(milliseconds([*studied, CountRows()]) for _ in range(3))
    unit = {"unit": "processor ms"}
    return [
        {
            "work": "an evaluation of a network whose predictions are finished, without its metrics",
            "ours_s": unfinished,
            **unit,
        },
        {"work": "a finished evaluation of a network in a second run", "ours_s": finished, **unit},
    ]


if __name__ == "__main__":
    show(run())
