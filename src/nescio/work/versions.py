"""Versions of the stages of a store: a change of the results of a stage raises its version.

This module does not import torch, so that commands about a store start fast.
Versions of the stages `evaluate` and `study` are those of the benchmarks.
"""

from __future__ import annotations

TRAIN = 10
PREDICT = 7
COUNT = 8
PIXELS = 3

STAGES = {
    **{"train": TRAIN, "features": TRAIN, "predict": PREDICT, "shard": PREDICT, "count": COUNT},
    **{"pixels": PIXELS, "damaged": PIXELS},
}
RETIRED_STAGES = ("zoo", "embed")  # stages of older versions, which nothing reads any more
