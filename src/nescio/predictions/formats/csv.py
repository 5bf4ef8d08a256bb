"""Predictions in .csv tables: one column per number."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from nescio.arrays.types import Array
from nescio.errors import BadInput
from nescio.predictions.names import FieldNames, FlatFields, printable
from nescio.predictions.outputs import Predictions
from nescio.predictions.readers import reader
from nescio.predictions.table_columns import (
    arrow_array,
    check_column_names,
    columns_of,
    field_of_column,
    fields_from_columns,
    may_be_text,
)

if TYPE_CHECKING:
    import pyarrow as pa

TRUTH = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
MAX_LINE_BYTES = 1 << 24  # bytes of a line of a .csv file
FORMULA = re.compile(r"'*[=+\-@\t\r]")  # start of a cell that a spreadsheet would compute


def _first_line(path: Path) -> list[str]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            columns = next(csv.reader(file), [])
    except UnicodeDecodeError:
        raise BadInput("this is not text in UTF-8: save it again as CSV.") from None
    except csv.Error:
        raise BadInput(
            "the first line does not name the columns: a quote is not closed, or a name is too long."
        ) from None
    first = columns[0] if columns else ""
    if first.lower().startswith("sep=") or (len(columns) == 1 and re.search(r"[;\t|]", first)):
        raise BadInput(
            "the columns are not separated by commas: save it with commas between columns and points in numbers."
        )
    return columns


def check_text(path: Path) -> None:
    """Refuse bytes that are not text, endless lines, and unclosed quotes."""
    quotes = length = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            if b"\0" in block:
                raise BadInput("this is not text in UTF-8: save it again as CSV.")
            first, last = block.find(b"\n"), block.rfind(b"\n")
            length = length + len(block) if first < 0 else max(length + first, len(block) - last)
            if length > MAX_LINE_BYTES:
                raise BadInput(f"a line has more than {MAX_LINE_BYTES:,} bytes: write one row per line.")
            length = length if first < 0 else len(block) - last - 1
            quotes += block.count(b'"')
    if quotes % 2:
        raise BadInput("a quote is opened and not closed: put every quote inside a text twice.")


def _csv_table(path: Path, columns: list[str], names: FieldNames) -> pa.Table:
    """The table, with positions as column names; labels and predicted classes are numbers, or all texts if one is."""
    import pyarrow as pa
    import pyarrow.csv as pacsv

    texts = [may_be_text(column, names) for column in columns]
    always = [
        text and field_of_column(column, names) not in ("labels", "predicted")
        for text, column in zip(texts, columns, strict=True)
    ]
    failure = None
    for text in [always] if always == texts else [always, texts]:
        try:
            return pacsv.read_csv(
                path,
                read_options=pacsv.ReadOptions(
                    column_names=[str(position) for position in range(len(columns))], skip_rows=1
                ),
                parse_options=pacsv.ParseOptions(newlines_in_values=True),
                convert_options=pacsv.ConvertOptions(
                    column_types={
                        str(position): pa.string() if text[position] else pa.float64()
                        for position in range(len(columns))
                    }
                ),
            )
        except pa.ArrowException as error:
            failure = error
    raise BadInput(_not_csv(columns, str(failure))) from None


def _not_csv(columns: list[str], reason: str) -> str:
    """A message from Arrow's error, whose text alone names the cell."""
    value = re.search(r"column #(\d+): .*invalid value '(.*?)'", reason, re.DOTALL)
    if value:
        return f"column {columns[int(value[1])]} contains '{printable(value[2])}', which is not a number."
    width = re.search(r"Expected (\d+) columns, got (\d+)", reason)
    if width:
        return f"a row has {width[2]} values, the first line names {width[1]} columns: the numbers must be equal."
    if "UTF8" in reason:
        return "this is not text in UTF-8: save it again as CSV."
    return "the table cannot be read: the first line must name the columns and every other line must be a row."


def _truth(values: Array, column: str) -> Array:
    words = [value.strip().lower() for value in values.tolist()]
    for word in words:
        if word not in TRUTH:
            raise BadInput(f"column {column} contains '{printable(word)}': it must be True or False.")
    return np.array([TRUTH[word] for word in words], bool)


def _numbers_or_text(text: Array) -> Array:
    """The text as whole numbers if every entry is one in its shortest form, as floats if every entry is a number."""
    for form, dtype in ((r"0|-?[1-9]\d*", np.int64), (r"-?(0|[1-9]\d*)(\.\d*)?([eE][+-]?\d+)?", np.float64)):
        if all(map(re.compile(form, re.ASCII).fullmatch, text.tolist())):
            try:
                return text.astype(dtype)
            except OverflowError:
                return text
    return np.array([plain(word) for word in text.tolist()], str)


def escaped(text: str) -> str:
    """A text for a cell of a table: what a spreadsheet would compute gets a quote in front, which `plain` removes."""
    return f"'{text}" if FORMULA.match(text) else text


def plain(cell: str) -> str:
    """The original text of the result of `escaped`."""
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell


def write_csv(predictions: Predictions, file: IO[bytes]) -> None:
    import pyarrow as pa
    import pyarrow.csv as pacsv

    columns = columns_of(predictions, ".csv")
    for name, array in columns.items():
        if array.dtype.kind == "f":
            columns[name] = array.astype(np.float64)  # the shortest text of a float32 is another float64
        elif array.dtype.kind == "b":
            columns[name] = array.astype(np.int8)
        elif array.dtype.kind == "U":
            if _numbers_or_text(array).dtype.kind != "U":
                raise BadInput(
                    f"column {name} contains text that looks like numbers, which .csv cannot represent: save .parquet."
                )
            columns[name] = np.array([escaped(text) for text in array.tolist()], str)
    pacsv.write_csv(pa.table({name: pa.array(np.ascontiguousarray(array)) for name, array in columns.items()}), file)


@reader(".csv", check=check_text, write=write_csv)
def read_csv(path: Path, names: FieldNames) -> FlatFields:
    check_text(path)
    columns = _first_line(path)
    check_column_names(columns)
    table = _csv_table(path, columns, names)
    size = path.stat().st_size

    def read(position: int, field: str) -> Array:
        values = arrow_array(table.column(position), columns[position], field, size)
        if values.dtype.kind != "U":
            return values
        if field in ("in_distribution", "correct"):
            return _truth(values, columns[position])
        return _numbers_or_text(values)

    return fields_from_columns(columns, names, read)
