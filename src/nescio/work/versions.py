"""Versions of the stages of a store, in one table: a change that moves what a stage writes raises its version.

They stand here, away from the code that they are of, so that a store can be looked after without importing torch.
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
RETIRED_STAGES = ("zoo", "embed")  # stages that older versions had: nothing reads them any more
