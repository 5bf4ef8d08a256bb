"""Timing and printing, shared by the benchmarks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def best_of(work: Callable[[], Any], repeats: int = 3) -> tuple[float, Any]:
    """The minimum seconds over several runs, and the last result."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - start)
    return min(seconds), result


def show(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("work", "peer", "peer s", "nescio s", "ratio", "target", "note")
    for row in rows:
        cells = (row.get(column) for column in ("work", "peer", "peer_s", "ours_s", "ratio", "target", "note"))
        table.add_row(
            *("" if cell is None else f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells)
        )
    Console(width=170).print(table)
