"""Time and peak memory of scoring ten million rows of a hundred classes in a hundred shards, without a peer."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from nescio.predictions import Predictions

ROWS, CLASSES, SHARDS = 10_000_000, 100, 100
MOST_BYTES = 2e9
SCORE = "import sys, bench_shards; bench_shards.score(sys.argv[1])"


def make(folder: Path, rows: int, classes: int, shards: int) -> None:
    """Write shards of float16 logits in which the labelled class often has the largest logit."""
    rows_per_shard = rows // shards
    for number in range(shards):
        rng = np.random.default_rng(number)
        labels = rng.integers(0, classes, rows_per_shard)
        logits = rng.standard_normal((rows_per_shard, classes), np.float32)
        logits[np.arange(rows_per_shard), labels] += 3
        index = np.arange(number * rows_per_shard, (number + 1) * rows_per_shard)
        Predictions(index=index, labels=labels, logits=logits.astype(np.float16)).save(folder / f"{number:03}.npz")


def score(folder: str) -> None:
    """Score the shards; a separate process, so that its peak memory is that of scoring."""
    from nescio.analysis.shard_scores import scorecard_of_shards
    from nescio.predictions.shards import ShardFolder

    begun = time.perf_counter()
    card = scorecard_of_shards(ShardFolder(Path(folder)))
    shown = {"seconds": time.perf_counter() - begun, "notes": card.notes, "rows": len(card.rows)}
    shown["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    shown |= {metric: card.value(metric) for metric in ("accuracy", "nll", "ece")}
    shown |= {metric: card.value(metric, "msp") for metric in ("auroc", "aurc", "augrc")}
    print(json.dumps(shown))


def run(rows: int = ROWS, classes: int = CLASSES, shards: int = SHARDS) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), rows, classes, shards)
        path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
        environment = {**os.environ, "PYTHONPATH": path}
        command = [sys.executable, "-c", SCORE, folder]
        output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    result = json.loads(output.splitlines()[-1])
    peak = result["peak"]
    print(f"{rows:,} rows × {classes} classes in {shards} shards: {result}", file=sys.stderr)
    note = f"peak {peak / 1e9:.2f} GB, {rows / result['seconds']:,.0f} rows/s, {result['rows']} numbers"
    work = f"score {rows:,} rows × {classes} classes, {shards} shards"
    return [
        {"work": work, "ours_s": result["seconds"], "ratio": peak / MOST_BYTES, "target": "≤ 1 (2 GB)", "note": note}
    ]


if __name__ == "__main__":
    from _table import show

    show(run(*map(int, sys.argv[1:])))
