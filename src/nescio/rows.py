"""Rows: one number each, long and tidy. Tables, selection and figures are group-bys over them."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nescio.errors import BadInput
from nescio.files import check_growth, read_small

Row = dict[str, Any]
TYPES = {  # column → Arrow type; every column but metric and value may be empty
    "benchmark": "string",
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
    "key": "string",  # of the evaluation in the store that measured it
}
NEEDED = ("metric", "value")  # what a file of rows cannot be without
COLUMNS = tuple(TYPES)
CHECKSUM, UNKNOWN = "nescio.sha256", b"0" * 64  # key of the file's metadata; its value while it is computed


def to_parquet(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """The rows as a Parquet file, whose metadata contain the SHA-256 of its bytes with 64 zeros in its place."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = list(rows)
    arrays = [pa.array([row.get(name) for row in rows], getattr(pa, kind)()) for name, kind in _ARROW.items()]
    buffer = io.BytesIO()
    table = pa.table(arrays, names=list(_ARROW)).replace_schema_metadata({CHECKSUM: UNKNOWN})
    pq.write_table(table, buffer, compression="zstd")
    content = buffer.getvalue()
    start = _checksum_place(content)
    assert start is not None
    return content[:start] + hashlib.sha256(content).hexdigest().encode() + content[start + len(UNKNOWN) :]


def _checksum_place(content: bytes) -> int | None:
    """Where the checksum starts, in the metadata at the end of the file."""
    matches = list(re.finditer(re.escape(CHECKSUM.encode()) + rb"\x18\x40(?=[0-9a-f]{64})", content))
    return matches[-1].end() if matches else None


def from_parquet(path: str | Path, *, verified: bool = False) -> list[Row]:
    """The rows of a Parquet file that `to_parquet` wrote; columns that were added later are empty.

    verified  the store has compared its bytes already, so that it needs no checksum
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    content = read_small(path)
    if not verified:
        start = _checksum_place(content)
        if start is None:
            raise BadInput(f"{path} has no checksum, so it is not as nescio wrote it: copy it again.")
        digest, end = content[start : start + len(UNKNOWN)].decode(), start + len(UNKNOWN)
        if hashlib.sha256(content[:start] + UNKNOWN + content[end:]).hexdigest() != digest:
            raise BadInput(f"{path} does not have the checksum in its metadata: it was changed or damaged.")
    try:
        file = pq.ParquetFile(pa.BufferReader(content))
        schema, count = file.schema_arrow, file.metadata.num_rows
    except (OSError, ValueError, OverflowError) as error:
        raise BadInput(f"{path} is not a Parquet file of rows: {error}.") from None
    if missing := [name for name in NEEDED if name not in schema.names]:
        raise BadInput(f"{path} has no column {missing[0]}, so it holds no rows of nescio.")
    for name, kind in zip(schema.names, schema.types, strict=True):
        if name not in TYPES:
            raise BadInput(
                f"{path} has the column {name}, which this version of nescio does not know: update nescio to read it."
            )
        if kind not in (wanted := getattr(pa, _ARROW[name])(), pa.null()):
            raise BadInput(f"{path} has the column {name} as {kind}: nescio writes it as {wanted}.")
    check_growth(str(path), 64 * count * len(schema.names), len(content))
    try:
        rows: list[Row] = file.read().to_pylist()  # read_table would import pandas
    except (OSError, ValueError, OverflowError) as error:
        raise BadInput(f"{path} is not a Parquet file of rows: {error}.") from None
    if any(row["value"] is None or row["metric"] is None for row in rows):
        raise BadInput(f"{path} has a row without a metric or a value: nescio writes both in every row.")
    empty = dict.fromkeys(TYPES)
    return [empty | row for row in rows]


def without_empty(rows: Iterable[Mapping[str, Any]]) -> list[Row]:
    """The rows without the columns that are empty in all of them."""
    rows = list(rows)
    filled = {name for row in rows for name, value in row.items() if value is not None}
    return [{name: value for name, value in row.items() if name in filled} for row in rows]


_ARROW = {name: {"bool": "bool_"}.get(kind, kind) for name, kind in TYPES.items()}
