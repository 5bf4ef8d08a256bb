"""Tables, .parquet and .csv: a row for each row, a column a number, or in Parquet a column of lists for a matrix."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from nescio.arrays.types import Array
from nescio.errors import BadInput
from nescio.files import check_growth, parse_json
from nescio.predictions.footer import column_count, table_size
from nescio.predictions.names import Flat, Names, shown, unknown
from nescio.predictions.outputs import Predictions

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
COLUMNS = [
    "index",
    "label",
    "in_distribution",
    "pred",
    "correct",
    "conf",
    "logit_0 …",
    "prob_0 …",
    "logprob_0 …",
    "u_NAME",
]
COLUMNS += ["emb_0 …", "vote_0 …", "group_NAME", "variant_NAME_0 …"]
MEANT_COLUMN = {
    **dict.fromkeys(("labels", "y", "target", "targets", "y_true"), "label"),
    **dict.fromkeys(("id", "ids", "idx"), "index"),
    **dict.fromkeys(("softmax", "probabilities"), "prob_0 …"),
    **dict.fromkeys(("prediction", "preds", "y_pred"), "pred"),
    **dict.fromkeys(("u", "uncertainty", "score", "scores"), "u_NAME"),
    **dict.fromkeys(("group", "domain"), "group_NAME"),
    **dict.fromkeys(("embedding", "features"), "emb_0 …"),
}
CLASS_PREFIXES = {  # of columns that are named by classes → what they hold, None where their numbers tell
    **dict.fromkeys(("prob_", "probs_", "proba_", "p_"), "probs"),
    **dict.fromkeys(("logit_", "logits_"), "logits"),
    **dict.fromkeys(("score_", "scores_", ""), None),
}
ROUNDED = 2e-2  # by which a row of rounded probabilities may be off one
TEXT_FIELDS = (
    "index",
    "labels",
    "predicted",
    "in_distribution",
    "correct",
)  # beside groups: a table may hold text there
TRUTH = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
MOST_COLUMNS = 50_000  # a table of more takes longer to open than to read
MOST_LINE = 1 << 24  # bytes of a line of a .csv file
FEW_COLUMNS = 2000  # of which the footer is read by hand
FORMULA = re.compile(r"'*[=+\-@\t\r]")  # where a spreadsheet would compute a cell
PARQUET_KEY = b"nescio"  # of the facts beside the columns
PARQUET_CHECKSUM = "sha256"  # among these facts


# ---- columns and fields


def _field(column: str, names: Names) -> str | None:
    """The field that one column alone is; None for a numbered one and for one that is passed over."""
    if column in names.field_of:
        return names.field_of[column]
    match = COLUMN.fullmatch(column)
    if match is None:
        return None
    field = SINGLE.get(column) or WHOLE.get(column)
    if match["named"]:
        field = f"{'scores' if match['named'] == 'u' else 'groups'}/{match['name']}"
    return None if field in names.given else field


def _may_be_text(column: str, names: Names) -> bool:
    """Whether a column may hold text: that of a few fields, and one that is no field."""
    field = _field(column, names)
    if field is None:
        return _numbered(column, names) is None
    return field in TEXT_FIELDS or field.startswith("groups/")


def _numbered(column: str, names: Names) -> tuple[str, str, int] | None:
    """(prefix, field, number) of one column of many."""
    mapped = names.numbered(column)
    if mapped:
        return names.given[mapped[0]], *mapped
    match = COLUMN.fullmatch(column)
    if match is None or not (match["at"] or match["number"]):
        return None
    if match["variant"]:
        return f"variant_{match['variant']}", f"variants/{match['variant']}", int(match["at"])
    field = NUMBERED[match["field"]]
    return None if field in names.given else (match["field"], field, int(match["number"]))


def _is_read(column: str, names: Names) -> bool:
    return _field(column, names) is not None or _numbered(column, names) is not None


def _from_columns(columns: list[str], names: Names, read: Callable[[int, str], Array]) -> Flat:
    """Flat fields from table columns; class columns are ordered by their integer suffix."""
    flat: Flat = {}
    wide: dict[tuple[str, str], dict[int, int]] = {}
    _check_names(columns)
    by_class = _by_class(columns, names, read)
    if by_class is not None:
        flat |= by_class.fields
    for position, column in enumerate(columns):
        if by_class is not None and position in by_class.positions:
            continue
        field, numbered = _field(column, names), _numbered(column, names)
        if field is not None:
            names.field(column)
            if field in flat:
                raise BadInput(f"{field} is given twice.")
            flat[field] = read(position, field)
        elif numbered is not None:
            prefix, field, number = numbered
            places = wide.setdefault((prefix, field), {})
            if number in places:
                raise BadInput(f"column {shown(column)} has the number of column {shown(columns[places[number]])}.")
            places[number] = position
        elif names.given:
            names.passed_over.append(column)
        else:
            raise BadInput(unknown("column", column, MEANT_COLUMN, COLUMNS, columns))
    names.check(columns)
    if ("logit", "logits") in wide and ("logprob", "logits") in wide:
        raise BadInput("there are logit_ and logprob_ columns: give one of them.")
    for (prefix, field), places in wide.items():
        if field in flat:
            raise BadInput(f"{field} is given twice.")
        missing = next((number for number in range(len(places)) if number not in places), None)
        if missing is not None:
            raise BadInput(f"column {prefix}_{missing} is missing: the columns {prefix}_* count from 0 without a gap.")
        flat[field] = np.stack([read(places[number], field) for number in range(len(places))], axis=1)
    if ("logprob", "logits") in wide:
        flat["normalized"] = True
    return flat


class _ByClass(NamedTuple):
    """Columns that are named by classes, as fields."""

    positions: list[int]
    fields: Flat


def _by_class(columns: list[str], names: Names, read: Callable[[int, str], Array]) -> _ByClass | None:
    """Columns named by the classes that labels names, alone or behind a prefix such as prob_; None if there are none.

    Without a prefix that tells, rows that sum to one are probabilities, others logits.
    """
    fields = {_field(column, names): position for position, column in enumerate(columns)}
    free = {column: at for at, column in enumerate(columns) if not _is_read(column, names)}
    if "labels" not in fields or not free or {"logits", "probs"} & set(fields):
        return None
    labels = {str(int(label) if isinstance(label, float) else label) for label in _distinct(read, fields["labels"])}
    for prefix, field in CLASS_PREFIXES.items():
        known = {column.removeprefix(prefix): at for column, at in free.items() if column.startswith(prefix)}
        if len(known) < 2 or not labels <= set(known) or (len(labels) == 1 and not prefix):
            continue
        if not prefix and len(known) > len(labels):
            known = _classes_among(known, labels, read)
        return _class_fields(known, columns, field, read)
    return None


def _distinct(read: Callable[[int, str], Array], at: int) -> list[Any]:
    """The different values of a column of labels."""
    return list(np.unique(read(at, "labels")).tolist())


def _classes_among(known: dict[str, int], labels: set[str], read: Callable[[int, str], Array]) -> dict[str, int]:
    """The columns of classes among more than labels names: others, or those of classes without a row."""
    values = {name: read(at, "labels") for name, at in known.items()}
    numeric = {name: at for name, at in known.items() if values[name].dtype.kind in "fiub"}
    named = {name: at for name, at in known.items() if name in labels}
    for columns in (numeric, named):
        if columns == named == numeric or _rows_sum_to_one([values[name] for name in columns]):
            return columns
    more, first = next((name for name in numeric if name not in labels), ""), shown(next(iter(named)))
    raise BadInput(
        f"labels names {len(labels)} of the {len(numeric)} columns of numbers, and {shown(more)} may be a class "
        f"without a row or none: call the columns of classes prob_NAME or logit_NAME, such as logit_{first}."
    )


def _rows_sum_to_one(values: list[Array]) -> bool:
    if any(array.dtype.kind not in "fiub" for array in values):
        return False
    table = np.stack(values, axis=1).astype(np.float64)
    return bool((table >= 0).all() and (np.abs(table.sum(1) - 1) <= ROUNDED).all())


def _class_fields(
    known: dict[str, int], columns: list[str], field: str | None, read: Callable[[int, str], Array]
) -> _ByClass:
    """The columns of classes as logits or probabilities, with the names of the classes in the columns' order."""
    order = list(known)
    if all(name.isdecimal() for name in order):
        order.sort(key=int)
        if list(map(int, order)) != list(range(len(order))):
            raise BadInput(
                f"columns {', '.join(order[:5])} are numbers of classes: they must count from 0 without a gap."
            )
    values = [read(known[name], "labels") for name in order]
    if text := next((name for name, array in zip(order, values, strict=True) if array.dtype.kind not in "fiub"), None):
        raise BadInput(f"column {shown(columns[known[text]])} is named by a class and holds text, not numbers.")
    table = np.stack(values, axis=1).astype(np.float64)
    if field is None and table.min() >= 0 and not _rows_sum_to_one(values):
        if np.allclose(table.sum(1), 100, rtol=0.02):
            field = "probs"  # which are refused as percentages
        elif table.max() <= 1:
            first = shown(order[0])
            raise BadInput(
                f"the columns named by classes ({first} …) lie between 0 and 1 and do not sum to one: call them "
                f"prob_{first} …, or logit_{first} … if they are unnormalised scores."
            )
    field = field or ("probs" if _rows_sum_to_one(values) else "logits")
    fields: Flat = {field: table}
    if not all(name.isdecimal() for name in order):
        fields["class_names"] = np.array(order, str)
    return _ByClass(list(known.values()), fields)


def _check_count(columns: int) -> None:
    if columns > MOST_COLUMNS:
        raise BadInput(f"there are {columns} columns, and a table may have {MOST_COLUMNS}: save .npz.")


def _check_names(columns: list[str]) -> None:
    _check_count(len(columns))
    seen: set[str] = set()
    for position, column in enumerate(columns):
        if not column.strip() or column.startswith(("__index_level_", "Unnamed: ")):
            raise BadInput(f"column {position + 1} has no name: write the table without its row numbers.")
        if column in seen:
            raise BadInput(f"column {shown(column)} is there twice.")
        seen.add(column)


def _to_columns(predictions: Predictions, ending: str) -> dict[str, Array]:
    """Column name -> values."""
    if predictions.draws > 1 or predictions.members is not None:
        what = f"{predictions.draws} draws" if predictions.draws > 1 else "members"
        raise BadInput(f"a {ending} table cannot hold {what}: save a folder, .npz or .safetensors.")
    columns: dict[str, Array] = {}
    for key, array in predictions.columns():
        field, _, name = key.partition("/")
        prefix = {
            **{"labels": "label", "logits": "logprob" if predictions.normalized else "logit", "embeddings": "emb"},
            **{"annotations": "vote", "scores": f"u_{name}", "groups": f"group_{name}", "variants": f"variant_{name}"},
            **{"predicted": "pred", "confidence": "conf"},
        }.get(field, field)
        if array.ndim == 1:
            columns[prefix] = array
        else:
            table = np.asarray(array).reshape(len(array), -1)
            columns.update({f"{prefix}_{number}": table[:, number] for number in range(table.shape[1])})
    return columns


# ---- .parquet


def read_parquet(path: Path, names: Names) -> Flat:
    import pyarrow as pa
    import pyarrow.parquet as pq

    size = path.stat().st_size
    footer = read_footer(path)
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        schema, leaves = file.schema_arrow, [file.schema.column(place) for place in range(len(file.schema))]
        _check_names(schema.names)
        facts = (schema.metadata or {}).get(PARQUET_KEY)
        if facts != (file.metadata.metadata or {}).get(PARQUET_KEY):  # they are written twice
            raise BadInput("the facts beside the columns are damaged: save it again.")
        texts_beside = _checked_facts(facts, schema)
        if len(leaves) <= FEW_COLUMNS:
            table = table_size(footer)
            check_growth("the table", max(8 * table.values, table.written), size)
        elif any(leaf.max_repetition_level for leaf in leaves):
            raise BadInput(f"it holds lists in {len(leaves)} columns: keep lists in {FEW_COLUMNS} columns at most.")
        else:
            check_growth("the table", 8 * file.metadata.num_rows * len(leaves), size)
    texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    # Texts stay what they are in the file, a list of different ones and numbers: written out they may be endless.
    with pq.ParquetFile(path, page_checksum_verification=True, read_dictionary=texts) as file:
        numeric = {
            field.name for field in schema if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        }
        columns = [column for column in schema.names if not names.given or _is_read(column, names) or column in numeric]
        names.passed_over += [column for column in schema.names if column not in columns]
        content = file.read(columns if names.given else None)
    flat = _from_columns(columns, names, lambda at, field: _column(content.column(at), columns[at], field, size))
    return flat | texts_beside


def _facts_checksum(schema: Any, facts: Mapping[str, Any]) -> str:
    """Of the names and types of the columns and the facts beside them: the checksums of the pages do not cover them."""
    columns = [[column.name, str(column.type)] for column in schema]
    return hashlib.sha256(json.dumps([columns, facts], sort_keys=True).encode()).hexdigest()


def _checked_facts(content: bytes | None, schema: Any) -> Flat:
    """The facts beside the columns; those that nescio wrote have a checksum."""
    facts = parse_json(content, "the facts beside the columns") if content else {}
    if not isinstance(facts, dict):
        raise BadInput("the facts beside the columns are damaged: save it again.")
    checksum = facts.pop(PARQUET_CHECKSUM, None)
    if checksum not in (None, _facts_checksum(schema, facts)):
        raise BadInput("its columns or facts do not have the checksum beside them: it was changed or damaged.")
    return facts


def read_footer(path: Path) -> bytes:
    """The description of the columns, at the end of the file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - 8))
        length, magic = int.from_bytes(file.read(4), "little"), file.read()
        if magic != b"PAR1" or length > size - 8:
            raise BadInput("this is not a whole .parquet file; it may have been cut short: save it again.")
        file.seek(size - 8 - length)
        footer = file.read(length)
    _check_count(column_count(footer))
    return footer


def _column(column: Any, name: str, field: str, stored: int) -> Array:
    """An Arrow column as an array. (Its own `to_numpy` imports pandas, which takes longer than the reading.)"""
    import pyarrow as pa

    types = pa.types
    if column.null_count:
        row = next(row for row, value in enumerate(column.is_null().to_pylist()) if value)
        raise BadInput(f"column {shown(name)} has no value in row {row}: fill it or leave the row out.")
    if types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
        return _lists(column, name, field, stored)
    if types.is_dictionary(column.type):
        text = [
            _texts(chunk.dictionary, name, field, stored, len(column))[np.from_dlpack(chunk.indices)]
            for chunk in column.chunks
        ]
        return np.concatenate(text) if text else np.empty(0, str)
    if types.is_boolean(column.type):
        return _column(column.cast(pa.uint8()), name, field, stored).astype(bool)
    if types.is_integer(column.type) or types.is_floating(column.type):
        return np.concatenate([np.from_dlpack(chunk) for chunk in column.chunks if len(chunk)] or [np.empty(0)])
    return _texts(column, name, field, stored, len(column))


def _lists(column: Any, name: str, field: str, stored: int) -> Array:
    """Lists of one length as a matrix; lists of lists as draws."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = pc.unique(pc.list_value_length(column)).to_pylist()
    if len(lengths) != 1:
        raise BadInput(f"column {shown(name)} holds lists of different lengths: every row needs as many numbers.")
    inner = _column(pa.chunked_array([chunk.flatten() for chunk in column.chunks]), name, field, stored)
    return inner.reshape(len(column), lengths[0], *inner.shape[1:])


def _texts(values: Any, name: str, field: str, stored: int, rows: int) -> Array:
    """Texts as an array whose every entry is as wide as the longest: `rows` of them must fit into memory."""
    import pyarrow as pa

    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    if not is_text or not (field in TEXT_FIELDS or field.startswith("groups/")):
        kind = "string" if is_text else str(values.type)[:60]
        raise BadInput(f"column {shown(name)} holds {kind}, not numbers.")
    texts = values.to_pylist()
    if None in texts:
        raise BadInput(f"column {shown(name)} has no value in row {texts.index(None)}: fill it or leave the row out.")
    check_growth(f"column {shown(name)}", 4 * rows * max(map(len, texts), default=0), stored)
    return np.array(texts, str)


def write_parquet(predictions: Predictions, file: IO[bytes]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = _to_columns(predictions, ".parquet")
    table = pa.table({name: pa.array(np.ascontiguousarray(array)) for name, array in columns.items()})
    facts = {"class_names": predictions.class_names, "notes": predictions.notes}
    kept: dict[str, Any] = {key: list(value) for key, value in facts.items() if value}
    kept[PARQUET_CHECKSUM] = _facts_checksum(table.schema, kept)
    table = table.replace_schema_metadata({PARQUET_KEY: json.dumps(kept)})
    pq.write_table(table, file, write_page_checksum=True)


# ---- .csv


def read_csv(path: Path, names: Names) -> Flat:
    check_text(path)
    columns = _first_line(path)
    _check_names(columns)
    table = _csv_table(path, columns, names)
    size = path.stat().st_size

    def read(position: int, field: str) -> Array:
        values = _column(table.column(position), columns[position], field, size)
        if values.dtype.kind != "U":
            return values
        if field in ("in_distribution", "correct"):
            return _truth(values, columns[position])
        return _numbers_or_text(values)

    return _from_columns(columns, names, read)


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
    """Refuses bytes that are no text, a line without end, and a quote that is never closed."""
    quotes = length = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            if b"\0" in block:
                raise BadInput("this is not text in UTF-8: save it again as CSV.")
            first, last = block.find(b"\n"), block.rfind(b"\n")
            length = length + len(block) if first < 0 else max(length + first, len(block) - last)
            if length > MOST_LINE:
                raise BadInput(f"a line has more than {MOST_LINE:,} bytes: write one row per line.")
            length = length if first < 0 else len(block) - last - 1
            quotes += block.count(b'"')
    if quotes % 2:
        raise BadInput("a quote is opened and not closed: put every quote inside a text twice.")


def _csv_table(path: Path, columns: list[str], names: Names) -> Any:
    """The table, columns called by their position; labels and the like are numbers, or all texts where one is none."""
    import pyarrow as pa
    import pyarrow.csv as pacsv

    texts = [_may_be_text(column, names) for column in columns]
    always = [
        text and _field(column, names) not in ("labels", "predicted")
        for text, column in zip(texts, columns, strict=True)
    ]
    failure = None
    for text in [always] if always == texts else [always, texts]:
        try:
            return pacsv.read_csv(
                path,
                read_options=pacsv.ReadOptions(column_names=[str(at) for at in range(len(columns))], skip_rows=1),
                parse_options=pacsv.ParseOptions(newlines_in_values=True),
                convert_options=pacsv.ConvertOptions(
                    column_types={str(at): pa.string() if text[at] else pa.float64() for at in range(len(columns))}
                ),
            )
        except pa.ArrowException as error:
            failure = error
    raise BadInput(_not_csv(columns, str(failure))) from None


def _not_csv(columns: list[str], reason: str) -> str:
    """What Arrow found, for people; its errors are of one type, and their text alone knows the place."""
    value = re.search(r"column #(\d+): .*invalid value '(.*?)'", reason, re.DOTALL)
    if value:
        return f"column {columns[int(value[1])]} holds '{shown(value[2])}', which is not a number."
    width = re.search(r"Expected (\d+) columns, got (\d+)", reason)
    if width:
        return f"a row has {width[2]} values, the first line names {width[1]} columns: they must be as many."
    if "UTF8" in reason:
        return "this is not text in UTF-8: save it again as CSV."
    return "the table cannot be read: the first line must name the columns and every other line must hold a row."


def _truth(values: Array, column: str) -> Array:
    words = [value.strip().lower() for value in values.tolist()]
    for word in words:
        if word not in TRUTH:
            raise BadInput(f"column {column} holds '{shown(word)}': it must hold True and False.")
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
    """The text that `escaped` was given."""
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell


def write_csv(predictions: Predictions, file: IO[bytes]) -> None:
    import pyarrow as pa
    import pyarrow.csv as pacsv

    columns = _to_columns(predictions, ".csv")
    for name, array in columns.items():
        if array.dtype.kind == "f":
            columns[name] = array.astype(np.float64)  # the shortest text of a float32 is another float64
        elif array.dtype.kind == "b":
            columns[name] = array.astype(np.int8)
        elif array.dtype.kind == "U":
            if _numbers_or_text(array).dtype.kind != "U":
                raise BadInput(
                    f"column {name} holds text that reads as numbers, which .csv cannot tell: save .parquet."
                )
            columns[name] = np.array([escaped(text) for text in array.tolist()], str)
    pacsv.write_csv(pa.table({name: pa.array(np.ascontiguousarray(array)) for name, array in columns.items()}), file)
