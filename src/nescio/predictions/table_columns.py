"""Fields of predictions in the columns of a table; Arrow columns as arrays."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from nescio.arrays.types import Array
from nescio.errors import BadInput
from nescio.files import check_growth
from nescio.predictions.class_columns import ClassColumns, find_class_columns
from nescio.predictions.names import SYNONYMS, FieldNames, FlatFields, printable, unknown_name
from nescio.predictions.outputs import Predictions

if TYPE_CHECKING:
    import pyarrow as pa

NUMBERED = {"logit": "logits", "prob": "probs", "logprob": "logits", "emb": "embeddings", "vote": "annotations"}
SINGLE = {"index": "index", "label": "labels", "in_distribution": "in_distribution", "correct": "correct"}
SINGLE |= {"pred": "predicted", "predicted": "predicted", "conf": "confidence", "confidence": "confidence"}
WHOLE = {"logits": "logits", "logit": "logits", "probs": "probs", "prob": "probs", "embeddings": "embeddings"}
WHOLE |= {"annotations": "annotations"}  # lists, or one number of a binary classifier
COLUMN = re.compile(
    rf"(?P<one>{'|'.join(SINGLE)})|(?P<whole>{'|'.join(WHOLE)})"
    r"|(?P<field>logit|prob|logprob|emb|vote)_(?P<number>\d{1,9})"
    r"|variant_(?P<variant>.+)_(?P<at>\d{1,9})|(?P<named>u|group)_(?P<name>.+)",
    re.DOTALL | re.ASCII,
)
COLUMN_OF = {  # field → its column, or the first of its columns
    **{"index": "index", "labels": "label", "in_distribution": "in_distribution", "predicted": "pred"},
    **{"correct": "correct", "confidence": "conf", "logits": "logit_0 …", "probs": "prob_0 …", "embeddings": "emb_0 …"},
    **{"annotations": "vote_0 …", "scores/NAME": "u_NAME", "groups/NAME": "group_NAME"},
    **{"variants/NAME": "variant_NAME_0 …"},
}
COLUMNS = [*COLUMN_OF.values(), "logprob_0 …"]
COLUMN_SYNONYMS = COLUMN_OF | {synonym: COLUMN_OF[field] for synonym, field in SYNONYMS.items()}
TEXT_FIELDS = ("index", "labels", "predicted", "in_distribution", "correct")  # and groups: may be text in a table
MAX_COLUMNS = 50_000  # maximum number; a table of more takes longer to open than to read


def field_of_column(column: str, names: FieldNames) -> str | None:
    """The field of a single column; None for numbered and for ignored columns."""
    if column in names.field_of:
        return names.field_of[column]
    match = COLUMN.fullmatch(column)
    if match is None:
        return None
    field = SINGLE.get(column) or WHOLE.get(column)
    if match["named"]:
        field = f"{'scores' if match['named'] == 'u' else 'groups'}/{match['name']}"
    return None if field in names.mapping else field


def may_be_text(column: str, names: FieldNames) -> bool:
    """Whether a column may contain text: those of a few fields, and those that are no field."""
    field = field_of_column(column, names)
    if field is None:
        return _numbered(column, names) is None
    return field in TEXT_FIELDS or field.startswith("groups/")


def _numbered(column: str, names: FieldNames) -> tuple[str, str, int] | None:
    """(prefix, field, number) of one column of many."""
    mapped = names.numbered(column)
    if mapped:
        return names.mapping[mapped[0]], *mapped
    match = COLUMN.fullmatch(column)
    if match is None or not (match["at"] or match["number"]):
        return None
    if match["variant"]:
        return f"variant_{match['variant']}", f"variants/{match['variant']}", int(match["at"])
    field = NUMBERED[match["field"]]
    return None if field in names.mapping else (match["field"], field, int(match["number"]))


def is_field_column(column: str, names: FieldNames) -> bool:
    return field_of_column(column, names) is not None or _numbered(column, names) is not None


def fields_from_columns(columns: list[str], names: FieldNames, reader: Callable[[int, str], Array]) -> FlatFields:
    """FlatFields fields from table columns; class columns are ordered by their integer suffix."""
    flat: FlatFields = {}
    wide: dict[tuple[str, str], dict[int, int]] = {}
    check_column_names(columns)
    by_class = _class_columns(columns, names, reader)
    if by_class is not None:
        flat |= by_class.fields
    for position, column in enumerate(columns):
        if by_class is not None and position in by_class.positions:
            continue
        field, numbered = field_of_column(column, names), _numbered(column, names)
        if field is not None:
            names.field(column)
            if field in flat:
                raise BadInput(f"{field} is given twice.")
            flat[field] = reader(position, field)
        elif numbered is not None:
            prefix, field, number = numbered
            positions = wide.setdefault((prefix, field), {})
            if number in positions:
                raise BadInput(
                    f"column {printable(column)} has the number of column {printable(columns[positions[number]])}."
                )
            positions[number] = position
        elif names.mapping:
            names.ignored.append(column)
        else:
            raise BadInput(unknown_name("column", column, COLUMN_SYNONYMS, COLUMNS, columns))
    names.check(columns)
    if ("logit", "logits") in wide and ("logprob", "logits") in wide:
        raise BadInput("there are logit_ and logprob_ columns: give one of them.")
    for (prefix, field), positions in wide.items():
        if field in flat:
            raise BadInput(f"{field} is given twice.")
        missing = next((number for number in range(len(positions)) if number not in positions), None)
        if missing is not None:
            raise BadInput(f"column {prefix}_{missing} is missing: the columns {prefix}_* count from 0 without a gap.")
        flat[field] = np.stack([reader(positions[number], field) for number in range(len(positions))], axis=1)
    if ("logprob", "logits") in wide:
        flat["normalized"] = True
    return flat


def _class_columns(columns: list[str], names: FieldNames, reader: Callable[[int, str], Array]) -> ClassColumns | None:
    """The columns that are named by classes, if there are labels and no other columns of logits or probabilities."""
    fields = {field_of_column(column, names): position for position, column in enumerate(columns)}
    free = {column: position for position, column in enumerate(columns) if not is_field_column(column, names)}
    if "labels" not in fields or not free or {"logits", "probs"} & set(fields):
        return None
    return find_class_columns(columns, fields["labels"], free, reader)


def check_column_count(columns: int) -> None:
    if columns > MAX_COLUMNS:
        raise BadInput(f"there are {columns} columns, and a table may have {MAX_COLUMNS}: save .npz.")


def check_column_names(columns: list[str]) -> None:
    check_column_count(len(columns))
    seen: set[str] = set()
    for position, column in enumerate(columns):
        if not column.strip() or column.startswith(("__index_level_", "Unnamed: ")):
            raise BadInput(f"column {position + 1} has no name: write the table without its row numbers.")
        if column in seen:
            raise BadInput(f"column {printable(column)} occurs twice.")
        seen.add(column)


def columns_of(predictions: Predictions, ending: str) -> dict[str, Array]:
    """Column name -> values."""
    if predictions.draws > 1 or predictions.members is not None:
        content = f"{predictions.draws} draws" if predictions.draws > 1 else "members"
        raise BadInput(f"a {ending} table cannot contain {content}: save a folder, .npz or .safetensors.")
    columns: dict[str, Array] = {}
    for key, array in predictions.columns():
        field, _, name = key.partition("/")
        template = COLUMN_OF[f"{field}/NAME" if name else field].removesuffix("_0 …")
        prefix = "logprob" if field == "logits" and predictions.normalized else template.replace("NAME", name)
        if array.ndim == 1:
            columns[prefix] = array
        else:
            table = np.asarray(array).reshape(len(array), -1)
            columns.update({f"{prefix}_{number}": table[:, number] for number in range(table.shape[1])})
    return columns


# ---- Arrow columns


def arrow_array(column: pa.ChunkedArray, name: str, field: str, stored: int) -> Array:
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


def _matrix_of_lists(column: pa.ChunkedArray, name: str, field: str, stored: int) -> Array:
    """Lists of one length as a matrix; lists of lists as draws."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = pc.unique(pc.list_value_length(column)).to_pylist()
    if len(lengths) != 1:
        raise BadInput(f"column {printable(name)} contains lists of different lengths: rows need equal lengths.")
    inner = arrow_array(pa.chunked_array([chunk.flatten() for chunk in column.chunks]), name, field, stored)
    return inner.reshape(len(column), lengths[0], *inner.shape[1:])


def _text_array(values: pa.Array, name: str, field: str, stored: int, rows: int) -> Array:
    """Texts as an array whose every entry is as wide as the longest: `rows` of them must fit into memory."""
    import pyarrow as pa

    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    if not is_text or not (field in TEXT_FIELDS or field.startswith("groups/")):
        kind = "string" if is_text else str(values.type)[:60]
        raise BadInput(f"column {printable(name)} must be numbers, got {kind}.")
    texts = values.to_pylist()
    if None in texts:
        raise BadInput(
            f"column {printable(name)} has no value in row {texts.index(None)}: fill it or leave the row out."
        )
    check_growth(f"column {printable(name)}", 4 * rows * max(map(len, texts), default=0), stored)
    return np.array(texts, str)
