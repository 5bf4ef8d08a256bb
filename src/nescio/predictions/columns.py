"""Tables and named arrays in files, written atomically: the files of `--output` and of evaluations."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from nescio.arrays.types import Array
from nescio.errors import BadInput
from nescio.files import atomic_write, flush
from nescio.predictions.files import naming_file
from nescio.predictions.formats.csv import escaped

Column = Array | Sequence[object]


def writable_suffix(path: str | Path) -> str:
    """The suffix of a file of columns; BadInput if there is no writer for it."""
    ending = Path(path).suffix
    if ending.lower() not in WRITERS:
        raise BadInput(f"{path}: the suffix {ending or '(none)'} is unknown: use .csv, .parquet or .npz.")
    return ending.lower()


def save_columns(path: str | Path, table: Mapping[str, Column], arrays: Mapping[str, Array] | None = None) -> Path:
    """Write a table as .csv or .parquet, arrays (by default its columns) as .npz; None is an empty cell."""
    target, ending = Path(path), writable_suffix(path)
    content = WRITERS[ending]((arrays or table) if ending == ".npz" else table)
    with naming_file(target, "written"), atomic_write(target) as temporary, temporary.open("xb") as file:
        file.write(content)
        flush(file)
    return target


def to_npz(arrays: Mapping[str, Column]) -> bytes:
    """An .npz file of arrays."""
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **{name: np.asarray(values) for name, values in arrays.items()})
    return file.getvalue()


def from_npz(path: str | Path) -> dict[str, Array]:
    """The arrays of an .npz file; no pickle is loaded."""
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _to_csv(table: Mapping[str, Column]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    columns = [values.tolist() if isinstance(values, np.ndarray) else values for values in table.values()]
    writer.writerows([_cell(value) for value in line] for line in zip(*columns, strict=True))
    return text.getvalue().encode()


def _cell(value: object) -> object:
    """Empty for None; a text that a spreadsheet would compute has a quote in front."""
    return "" if value is None else escaped(value) if isinstance(value, str) else value


def _to_parquet(table: Mapping[str, Column]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(pa.table({name: pa.array(values) for name, values in table.items()}), file)
    return file.getvalue()


WRITERS = {".csv": _to_csv, ".parquet": _to_parquet, ".npz": to_npz}
