"""Arrow columns as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from nescio.arrays.types import Array
from nescio.errors import BadInput
from nescio.files import check_growth
from nescio.predictions.names import printable
from nescio.predictions.table_columns import TEXT_FIELDS


def arrow_array(column: Any, name: str, field: str, stored: int) -> Array:
    """An Arrow column as an array. Arrow's `to_numpy` imports pandas, which takes longer than reading."""
    import pyarrow as pa

    types = pa.types
    if column.null_count:
        row = next(row for row, value in enumerate(column.is_null().to_pylist()) if value)
        raise BadInput(f"column {printable(name)} has no value in row {row}: fill it or leave the row out.")
    if types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
        return _matrix_of_lists(column, name, field, stored)
    if types.is_dictionary(column.type):
        text = [
            _text_array(chunk.dictionary, name, field, stored, len(column))[np.from_dlpack(chunk.indices)]
            for chunk in column.chunks
        ]
        return np.concatenate(text) if text else np.empty(0, str)
    if types.is_boolean(column.type):
        return arrow_array(column.cast(pa.uint8()), name, field, stored).astype(bool)
    if types.is_integer(column.type) or types.is_floating(column.type):
        return np.concatenate([np.from_dlpack(chunk) for chunk in column.chunks if len(chunk)] or [np.empty(0)])
    return _text_array(column, name, field, stored, len(column))


def _matrix_of_lists(column: Any, name: str, field: str, stored: int) -> Array:
    """Lists of one length as a matrix; lists of lists as draws."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = pc.unique(pc.list_value_length(column)).to_pylist()
    if len(lengths) != 1:
        raise BadInput(f"column {printable(name)} holds lists of different lengths: every row needs as many numbers.")
    inner = arrow_array(pa.chunked_array([chunk.flatten() for chunk in column.chunks]), name, field, stored)
    return inner.reshape(len(column), lengths[0], *inner.shape[1:])


def _text_array(values: Any, name: str, field: str, stored: int, rows: int) -> Array:
    """Texts as an array whose every entry is as wide as the longest: `rows` of them must fit into memory."""
    import pyarrow as pa

    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    if not is_text or not (field in TEXT_FIELDS or field.startswith("groups/")):
        kind = "string" if is_text else str(values.type)[:60]
        raise BadInput(f"column {printable(name)} holds {kind}, not numbers.")
    texts = values.to_pylist()
    if None in texts:
        raise BadInput(
            f"column {printable(name)} has no value in row {texts.index(None)}: fill it or leave the row out."
        )
    check_growth(f"column {printable(name)}", 4 * rows * max(map(len, texts), default=0), stored)
    return np.array(texts, str)
