"""Overhead of launchers on a thousand steps of ten milliseconds and on a finished study."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from nescio.work.launchers import Launcher, Task, make_launcher
from nescio.work.step_folder import StepFolder
from nescio.work.steps import Context, Step, Work, evaluation_files, make_evaluation
from nescio.work.store import Store

STEPS, SECONDS, CORES = 1000, 0.01, 2


def nap() -> None:
    time.sleep(SECONDS)


def napped_rows(step_folder: StepFolder, context: Context, number: int) -> dict[str, bytes]:
    nap()
    return evaluation_files([{"metric": "number", "value": float(number)}])


def steps() -> list[Step]:
    return [
        make_evaluation("bench", 1, f"step {i}", {"number": i}, (), partial(napped_rows, number=i))
        for i in range(STEPS)
    ]


def overhead(seconds: float) -> float:
    """Milliseconds of a core per step, minus those of its work."""
    return 1000 * (seconds * CORES / STEPS - SECONDS)


def timed(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def bare_ray() -> float:
    """Run the same naps in a loop over ray.remote, after the workers have started."""
    import ray

    napping = ray.remote(nap)
    ray.get([napping.remote() for _ in range(2 * CORES)])
    return timed(lambda: ray.get([napping.remote() for _ in range(STEPS)]))


def measure(launcher: Launcher) -> tuple[float, float]:
    """Seconds of a thousand naps as tasks, and as steps that write rows into a store."""
    launcher.run([Task("start", nap, ())] * 2 * CORES)  # start the workers before timing
    tasks = timed(lambda: launcher.run([Task("nap", nap, ())] * STEPS))
    with tempfile.TemporaryDirectory() as folder:
        stored = timed(lambda: Work(Context(Store(folder)), launcher).evaluate("bench", steps()))
    return tasks, stored


def row(work: str, seconds: float, target: str, peer: float | None = None, note: str = "") -> dict[str, Any]:
    return {
        "work": work,
        "peer": "bare ray.remote loop" if peer else "",
        "peer_s": peer,
        "ours_s": seconds,
        "ratio": seconds / peer if peer else None,
        "target": target,
        "note": note or f"{overhead(seconds):.1f} ms a step beyond its own 10",
    }


def recognised() -> dict[str, Any]:
    """Time a finished study: every step is found by its folder, and its rows are read and checked."""
    with tempfile.TemporaryDirectory() as folder, make_launcher("local", 0) as launcher:
        Work(Context(Store(folder)), launcher).evaluate("bench", steps())
        second_work = Work(Context(Store(folder)), launcher)
        seconds = timed(lambda: second_work.evaluate("bench", steps()))
    assert len(second_work.rows) == STEPS
    return row(f"finished study of {STEPS:,} steps", seconds, "≤ 3 s", note="keys, folders, rows verified and read")


def run() -> list[dict[str, Any]]:
    sys.path.insert(0, str(Path(__file__).parent))  # workers import this module from here
    import bench_launchers as benchmark

    os.environ["NESCIO_THREADS"] = "1"
    naps = f"{STEPS:,} naps of 10 ms on {CORES} cores"
    rows = []
    with make_launcher("local", CORES) as launcher:
        tasks, stored = benchmark.measure(launcher)
        rows += [row(f"local, {naps}", tasks, "≤ 5 ms"), row(f"local, {naps}, kept in a store", stored, "")]
    with make_launcher("ray", CORES) as launcher:
        bare = benchmark.bare_ray()
        tasks, stored = benchmark.measure(launcher)
        rows += [
            row(f"ray, {naps}", tasks, "≤ 20 ms; ratio ≤ 1.5", bare),
            row(f"ray, {naps}, kept in a store", stored, ""),
        ]
    return [*rows, benchmark.recognised()]


if __name__ == "__main__":
    from _table import show

    show(run())
