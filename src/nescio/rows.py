"""Rows: one number each, long and tidy. Tables, selection and figures are group-bys over them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nescio.errors import BadInput

Row = dict[str, Any]
TYPES = {  # column → Arrow type; every column but metric and value may be empty
    "protocol": "string",
    "version": "int64",
    "task": "string",  # classification, segmentation …
    "dataset": "string",  # what the network learnt from
    "target": "string",  # another dataset that it is evaluated on
    "backbone": "string",
    "params": "int64",
    "spectral": "float64",
    "method": "string",
    "trial": "int64",
    "data_seed": "int64",
    "init_seed": "int64",
    "sample": "int64",  # number of a random sample of rows: references, a few shots
    "members": "int64",
    "calibrated": "bool",
    "split": "string",
    "condition": "string",  # what was changed or chosen: fog, rotation, cosine …
    "level": "float64",  # … and how much of it: severity, degrees, k
    "group": "string",
    "measure": "string",
    "metric": "string",
    "value": "float64",
    "low": "float64",
    "high": "float64",
    "n": "int64",
}
NEEDED = ("metric", "value")  # what a file of rows cannot be without
COLUMNS = tuple(TYPES)


def to_parquet(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """The rows as a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = list(rows)
    arrays = [pa.array([row.get(name) for row in rows], getattr(pa, kind)()) for name, kind in _ARROW.items()]
    buffer = io.BytesIO()
    pq.write_table(pa.table(arrays, names=list(_ARROW)), buffer, compression="zstd")
    return buffer.getvalue()


def from_parquet(path: str | Path) -> list[Row]:
    """The rows of a Parquet file that `to_parquet` wrote, now or before columns were added: those are then empty."""
    import pyarrow.parquet as pq

    try:
        rows: list[Row] = pq.ParquetFile(path).read().to_pylist()  # read_table would import pandas
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} is not a Parquet file of rows: {error}.") from None
    found = rows[0].keys() if rows else TYPES.keys()
    if missing := [name for name in NEEDED if name not in found]:
        raise BadInput(f"{path} has no column {missing[0]}, so it holds no rows of nescio.")
    if strange := [name for name in found if name not in TYPES]:
        raise BadInput(
            f"{path} has the column {strange[0]}, which this version of nescio does not know: update nescio to read it."
        )
    empty = dict.fromkeys(TYPES)
    return [empty | row for row in rows]


_ARROW = {name: {"bool": "bool_"}.get(kind, kind) for name, kind in TYPES.items()}
