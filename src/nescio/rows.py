"""Rows: one number each, long and tidy. Tables, selection and figures are group-bys over them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nescio.errors import BadInput

Row = dict[str, Any]
TYPES = {
    "protocol": "string",
    "version": "int64",
    "dataset": "string",
    "backbone": "string",
    "params": "int64",
    "spectral": "float64",
    "method": "string",
    "trial": "int64",
    "data_seed": "int64",
    "init_seed": "int64",
    "members": "int64",
    "calibrated": "bool",
    "split": "string",
    "group": "string",
    "measure": "string",
    "metric": "string",
    "value": "float64",
    "low": "float64",
    "high": "float64",
    "n": "int64",
}
COLUMNS = tuple(TYPES)


def to_parquet(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """The rows as a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = list(rows)
    arrays = [pa.array([row.get(name) for row in rows], getattr(pa, kind)()) for name, kind in _ARROW.items()]
    held = io.BytesIO()
    pq.write_table(pa.table(arrays, names=list(_ARROW)), held, compression="zstd")
    return held.getvalue()


def from_parquet(path: str | Path) -> list[Row]:
    """The rows of a Parquet file that `to_parquet` wrote."""
    import pyarrow.parquet as pq

    try:
        rows: list[Row] = pq.ParquetFile(path).read().to_pylist()  # read_table would import pandas
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} is not a Parquet file of rows: {error}.") from None
    if rows and rows[0].keys() != TYPES.keys():
        raise BadInput(f"{path} has other columns than rows have ({', '.join(COLUMNS)}).")
    return rows


_ARROW = {name: {"bool": "bool_"}.get(kind, kind) for name, kind in TYPES.items()}
