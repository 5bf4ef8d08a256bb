"""Predictions in .parquet tables: one column per number, or a column of lists for a matrix."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from nescio.errors import BadInput
from nescio.files import check_growth, parse_json
from nescio.predictions.names import FieldNames, FlatFields
from nescio.predictions.outputs import Predictions
from nescio.predictions.parquet_footer import table_size
from nescio.predictions.readers import reader
from nescio.predictions.table_columns import (
    arrow_array,
    check_column_names,
    columns_of,
    fields_from_columns,
    is_field_column,
)

if TYPE_CHECKING:
    import pyarrow as pa

MAX_LIST_COLUMNS = 2000  # maximum number of columns of lists, whose part of the footer is parsed in Python
PARQUET_KEY = b"nescio"  # key of the metadata of the columns
PARQUET_CHECKSUM = "sha256"  # key of the checksum within it


def _facts_checksum(schema: pa.Schema, facts: Mapping[str, object]) -> str:
    """The checksum of column names, column types and metadata, which the checksums of the pages do not cover."""
    columns = [[column.name, str(column.type)] for column in schema]
    return hashlib.sha256(json.dumps([columns, facts], sort_keys=True).encode()).hexdigest()


def _checked_facts(content: bytes | None, schema: pa.Schema) -> FlatFields:
    """The metadata of the columns, with its checksum verified if nescio wrote it."""
    facts = parse_json(content, "the metadata of the columns") if content else {}
    if not isinstance(facts, dict):
        raise BadInput("the metadata of the columns is damaged: save it again.")
    checksum = facts.pop(PARQUET_CHECKSUM, None)
    if checksum not in (None, _facts_checksum(schema, facts)):
        raise BadInput("its columns or metadata do not match the stored checksum: it was changed or damaged.")
    return facts


def read_footer(path: Path) -> bytes:
    """The description of the columns, at the end of the file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - 8))
        length, magic = int.from_bytes(file.read(4), "little"), file.read()
        if magic != b"PAR1" or length > size - 8:
            raise BadInput("this is not a complete .parquet file; it may have been cut short: save it again.")
        file.seek(size - 8 - length)
        footer = file.read(length)
    return footer


def write_parquet(predictions: Predictions, file: IO[bytes]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = columns_of(predictions, ".parquet")
    table = pa.table({name: pa.array(np.ascontiguousarray(array)) for name, array in columns.items()})
    facts = {"class_names": predictions.class_names, "notes": predictions.notes}
    kept: dict[str, object] = {key: list(value) for key, value in facts.items() if value}
    kept[PARQUET_CHECKSUM] = _facts_checksum(table.schema, kept)
    table = table.replace_schema_metadata({PARQUET_KEY: json.dumps(kept)})
    pq.write_table(table, file, write_page_checksum=True)


@reader(".parquet", check=read_footer, write=write_parquet)
def read_parquet(path: Path, names: FieldNames) -> FlatFields:
    import pyarrow as pa
    import pyarrow.parquet as pq

    size = path.stat().st_size
    footer = read_footer(path)
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        schema, leaves = file.schema_arrow, [file.schema.column(number) for number in range(len(file.schema))]
        check_column_names(schema.names)
        facts = (schema.metadata or {}).get(PARQUET_KEY)
        if facts != (file.metadata.metadata or {}).get(PARQUET_KEY):  # the file contains them twice
            raise BadInput("the metadata of the columns is damaged: save it again.")
        texts_beside = _checked_facts(facts, schema)
        if not any(leaf.max_repetition_level for leaf in leaves):
            written = sum(file.metadata.row_group(n).total_byte_size for n in range(file.metadata.num_row_groups))
            check_growth("the table", max(8 * file.metadata.num_rows * len(leaves), written), size)
        elif len(leaves) <= MAX_LIST_COLUMNS:
            table = table_size(footer)
            check_growth("the table", max(8 * table.values, table.written), size)
        else:
            raise BadInput(
                f"it contains lists in {len(leaves)} columns: keep lists in {MAX_LIST_COLUMNS} columns at most."
            )
    texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    # Texts stay dictionary-encoded, because decoded texts may be endless.
    with pq.ParquetFile(path, page_checksum_verification=True, read_dictionary=texts) as file:
        numeric = {
            field.name for field in schema if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        }
        columns = [
            column
            for column in schema.names
            if not names.mapping or is_field_column(column, names) or column in numeric
        ]
        names.ignored += [column for column in schema.names if column not in columns]
        content = file.read(columns if names.mapping else None)
    flat = fields_from_columns(
        columns, names, lambda position, field: arrow_array(content.column(position), columns[position], field, size)
    )
    return flat | texts_beside
