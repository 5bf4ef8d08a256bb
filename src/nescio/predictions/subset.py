"""Random samples of rows, equal for all models with the same rows."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from nescio.errors import BadInput
from nescio.predictions.outputs import Predictions


def random_subset(predictions: Predictions, rows: int | None, seed: int = 0) -> Predictions:
    """At most `rows` rows, in their order, with a note; None: all rows.

    Rows are chosen by a hash of the seed and their index: files of other models keep the same rows, in whatever order.
    """
    if rows is not None and rows < 1:
        raise BadInput(f"rows must be at least 1, got {rows}.")
    if rows is None or rows >= len(predictions):
        return predictions
    ranks = [blake2b(f"{seed}:{key}".encode(), digest_size=8).digest() for key in predictions.index.tolist()]
    chosen = np.sort(np.argsort(np.array(ranks, "S8"), kind="stable")[:rows])
    return predictions.take(chosen).replace(
        notes=(*predictions.notes, subset_note(rows, len(predictions), "rows", seed))
    )


def subset_limit_note(rows: int, seed: int, what: str = "rows of every file") -> str:
    """The note for results from a random sample of files or image sets whose rows are not counted yet."""
    return f"A random sample: at most {rows:,} {what} (seed {seed})."


def subset_note(count: int, whole: int, what: str, seed: int) -> str:
    """The note for results from a random sample."""
    return f"A random sample: {count:,} of {whole:,} {what} (seed {seed})."
