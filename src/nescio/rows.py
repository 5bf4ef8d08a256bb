"""Results: one number each, long and tidy, and facts about networks in a table of their own.

    builder = RowBuilder({"benchmark": "shift", "version": 1, "method": "erm", "backbone": "conv", "data_seed": 0})
    builder.add("auroc", 0.9, 1000, measure="entropy", shift="fog", severity=2.0)
    builder.describe(train_accuracy=0.99)

A column means the same in every benchmark. Tables, selection and figures are group-bys over results.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, get_type_hints

from nescio.errors import BadInput, Undefined
from nescio.files import read_small
from nescio.identity import ContentName

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

Row = dict[str, Any]


class Columns(TypedDict, total=False):
    """The columns that identify a number. A column that does not apply is None."""

    benchmark: str | None
    version: int | None
    task: str | None  # classification, segmentation …
    network: str | None  # identifier in the table of networks
    dataset: str | None  # the training data
    target: str | None  # another dataset, of the evaluated images
    backbone: str | None
    spectral: float | None  # bound of spectral normalisation
    method: str | None
    trial: int | None  # number of the hyper-parameters
    data_seed: int | None
    init_seed: int | None
    draw: int | None  # number of the random draw of references
    members: int | None  # networks that are averaged
    epoch: int | None  # epoch of the checkpoint, when training goes on after it
    shots: int | None  # labelled images of each target class, used for fine-tuning
    calibrated: bool | None
    evaluation: str | None  # what was measured: search, shift, misclassification, far-ood …
    split: str | None  # val, test, out, the name of an out-of-distribution set …
    subgroup: str | None  # evaluated rows: GROUP=VALUE of a predictions file
    averaged: str | None  # comma-separated names of the sets that the value averages
    shift: str | None  # change of the images: clean, fog, rotation …
    shift_kind: str | None  # corruption, if the dataset has shifts of its own
    severity: float | None  # strength of the shift, or of the distance to training classes; None: all together
    fitted_on: str | None  # split on which the measure was fitted
    ood_share: float | None  # share of out-of-distribution rows in a mixture
    coverage: float | None  # share of accepted rows, at a point of a risk–coverage curve
    quantile: float | None
    distance: str | None  # between embeddings: cosine, euclidean
    k: int | None  # nearest neighbours
    components: int | None  # of a mixture
    sweep: str | None  # quantity that is varied: k, M (networks), C (components)
    score_input: str | None  # what a score reads: the image, or the gallery
    criterion: str | None  # metric by which networks are compared
    reference: str | None  # backbone of the network that this one is compared with
    image: str | None  # key of one image
    image_class: str | None
    predicted_class: str | None
    measure: str | None
    low: float | None  # ends of the 95 % interval
    high: float | None
    key: str | None  # of the evaluation in the store that measured it


class Result(Columns, total=False):
    """One number, and the columns that identify it."""

    metric: str
    value: float
    n: int | None  # images or rows behind it


class NetworkFacts(TypedDict, total=False):
    """Facts about a network, or an average of networks, other than results."""

    params: int | None
    train_accuracy: float | None  # the lowest of its members
    undertrained: bool | None  # the training accuracy is far below the reference accuracy
    strength: float | None  # regularisation strength
    at_bound: float | None  # share of layers that the spectral bound limits
    rows_per_feature: float | None  # training rows of a class, for each feature of a Gaussian
    own_augmentation: bool | None  # trained with other augmentations than the plan's
    hparams: str | None  # searched hyper-parameters
    chosen_by: str | None  # comma-separated criteria that chose its hyper-parameters
    chosen_measure: str | None  # measure by which it was chosen
    stopped_epoch: int | None  # epoch of early stopping
    input_size: float | None
    embedding_size: float | None
    published_accuracy: float | None
    out_classes: int | None  # out-of-distribution classes that were graded
    window: int | None  # classes of a severity
    epoch_seconds: float | None
    inference_ms: float | None  # milliseconds of an image


IDENTITY = (
    *("network", "task", "dataset", "backbone", "spectral", "method", "trial", "data_seed", "init_seed", "members"),
    *("epoch", "shots"),
)  # columns that identify a network
_ARROW_TYPES = {str: "string", int: "int64", float: "float64", bool: "bool_"}


def _types(columns: type) -> dict[str, str]:
    """Column → Arrow type, of a TypedDict."""
    hints = get_type_hints(columns)
    return {name: _ARROW_TYPES[getattr(hint, "__args__", (hint,))[0]] for name, hint in hints.items()}


_LAST = ("metric", "value", "low", "high", "n", "key")
COLUMNS = (*(name for name in get_type_hints(Result) if name not in _LAST), *_LAST)
TYPES = {name: _types(Result)[name] for name in COLUMNS}
FACTS = _types(NetworkFacts)
NETWORK_TYPES = {name: TYPES[name] for name in IDENTITY} | FACTS
_REASON_COLUMNS = ("method", "backbone", "members", "target", "split", "shift", "severity", "measure", "metric")
MAX_ROWS = 2_000_000  # of a study: 5 GB of memory
NEEDED = ("metric", "value")  # columns with a value in every row
CHECKSUM, UNKNOWN = "nescio.sha256", b"0" * 64  # key of the file's metadata; its value while it is computed


# ---- making rows


def network_id(facts: Mapping[str, object], *more: object) -> str | None:
    """The identifier of the network with these columns; None if they name none.

    more  further facts that distinguish two networks
    """
    cells = [facts.get(name) for name in IDENTITY if name != "network"]
    if facts.get("method") is None:
        return None
    plain = [cell.content if isinstance(cell, ContentName) else cell for cell in (*cells, *more)]
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()[:12]


@dataclass
class RowBuilder:
    """Gathers the results of one network, the facts about it, and the reasons for missing results.

    facts     columns of all its results; `network` is computed if it is not among them
    reported  which of these columns reasons have
    """

    facts: Row
    reported: Sequence[str] = ("method",)
    rows: list[Row] = field(default_factory=list)
    reasons: list[Row] = field(default_factory=list)
    networks: list[Row] = field(default_factory=list)
    times: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        network_facts = {name: value for name, value in self.facts.items() if name in FACTS}
        self.facts = {"network": network_id(self.facts), "calibrated": False} | {
            name: value for name, value in self.facts.items() if name not in FACTS
        }
        if network_facts:
            self.networks.append(self._named(network_facts))

    def add(self, metric: str, value: float, n: int | None, **columns: Unpack[Columns]) -> None:
        self.rows.append(
            dict.fromkeys(COLUMNS) | self.facts | {"metric": metric, "value": float(value), "n": n} | columns
        )

    def attempt(self, metric: str, compute: Callable[[], float], n: int, **columns: Unpack[Columns]) -> None:
        """Add a result, or the reason why it is undefined."""
        try:
            self.add(metric, compute(), n, **columns)
        except Undefined as reason:
            self.omit(reason, metric=metric, **columns)

    def omit(self, reason: object, **columns: Any) -> None:
        """Note why results are missing."""
        kept = {name: columns[name] for name in _REASON_COLUMNS if columns.get(name) is not None}
        whose = {name: self.facts.get(name) for name in self.reported}
        entry = whose | {"split": self.facts.get("split"), "measure": None, "metric": None} | kept
        entry["reason"] = str(reason)
        if entry not in self.reasons:
            self.reasons.append(entry)

    def describe(self, **facts: Unpack[NetworkFacts]) -> None:
        """Note facts about the network."""
        self.networks.append(self._named(facts))

    def time(self, **facts: Unpack[NetworkFacts]) -> None:
        """Note measured times, which differ between runs."""
        self.times.append(self._named(facts))

    def _named(self, facts: Mapping[str, object]) -> Row:
        return {name: self.facts.get(name) for name in IDENTITY} | {k: v for k, v in facts.items() if v is not None}


def merge_networks(entries: Iterable[Mapping[str, object]]) -> list[Row]:
    """One entry for every network, with all facts about it."""
    networks: dict[object, Row] = {}
    for entry in entries:
        filled = {name: value for name, value in entry.items() if value is not None}
        networks.setdefault(entry["network"], {}).update(filled)
    return list(networks.values())


# ---- files


def to_parquet(rows: Iterable[Mapping[str, object]], types: Mapping[str, str] = TYPES) -> bytes:
    """The rows as a Parquet file, whose metadata contain the SHA-256 of its bytes with 64 zeros in its place.

    types  column → Arrow type
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = list(rows)
    arrays = [pa.array([row.get(name) for row in rows], getattr(pa, kind)()) for name, kind in types.items()]
    buffer = io.BytesIO()
    table = pa.table(arrays, names=list(types)).replace_schema_metadata({CHECKSUM: UNKNOWN})
    pq.write_table(table, buffer, compression="zstd")
    content = buffer.getvalue()
    start = _checksum_place(content)
    assert start is not None
    return content[:start] + hashlib.sha256(content).hexdigest().encode() + content[start + len(UNKNOWN) :]


def _checksum_place(content: bytes) -> int | None:
    """Position of the checksum in the metadata at the end of the file."""
    matches = list(re.finditer(re.escape(CHECKSUM.encode()) + rb"\x18\x40(?=[0-9a-f]{64})", content))
    return matches[-1].end() if matches else None


def from_parquet(
    path: str | Path, *, verified: bool = False, types: Mapping[str, str] = TYPES, needed: Sequence[str] = NEEDED
) -> list[Row]:
    """The rows of a Parquet file that `to_parquet` wrote; columns that were added later are empty.

    types     column → Arrow type
    needed    columns that have a value in every row

    verified  the store has compared its bytes already, so that it needs no checksum
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    content = read_small(path)
    if not verified:
        start = _checksum_place(content)
        if start is None:
            raise BadInput(f"{path} has no checksum, so nescio did not write it in this form: copy it again.")
        digest, end = content[start : start + len(UNKNOWN)].decode(), start + len(UNKNOWN)
        if hashlib.sha256(content[:start] + UNKNOWN + content[end:]).hexdigest() != digest:
            raise BadInput(f"{path} does not match the checksum in its metadata: it was changed or damaged.")
    try:
        file = pq.ParquetFile(pa.BufferReader(content))
        schema, count = file.schema_arrow, file.metadata.num_rows
    except (OSError, ValueError, OverflowError) as error:
        raise BadInput(f"{path} is not a Parquet file of rows: {error}.") from None
    if missing := [name for name in needed if name not in schema.names]:
        raise BadInput(f"{path} has no column {missing[0]}, so it is no table of nescio's rows.")
    for name, kind in zip(schema.names, schema.types, strict=True):
        if name not in types:
            raise BadInput(
                f"{path} has the column {name}, which is unknown to this version of nescio: update nescio to read it."
            )
        if kind not in (expected := getattr(pa, types[name])(), pa.null()):
            raise BadInput(f"{path} has the column {name} as {kind}: nescio writes it as {expected}.")
    if count > MAX_ROWS:
        raise BadInput(f"{path} announces {count:,} rows, more than {MAX_ROWS:,}: it is damaged.")
    try:
        rows: list[Row] = file.read(_filled_columns(file.metadata), use_threads=False).to_pylist()
    except (OSError, ValueError, OverflowError) as error:
        raise BadInput(f"{path} is not a Parquet file of rows: {error}.") from None
    if lacking := [name for name in needed if any(row.get(name) is None for row in rows)]:
        raise BadInput(f"{path} has a row without a {lacking[0]}: nescio writes it in every row.")
    empty = dict.fromkeys(types)
    return [empty | row for row in rows]


def _filled_columns(metadata: FileMetaData) -> list[str]:
    """The columns with a value in some row: in most files most columns have none."""
    chunks = [
        metadata.row_group(i).column(j) for i in range(metadata.num_row_groups) for j in range(metadata.num_columns)
    ]
    empty = (chunk.statistics is not None and chunk.statistics.null_count == chunk.num_values for chunk in chunks)
    return list(
        dict.fromkeys(chunk.path_in_schema for chunk, is_empty in zip(chunks, empty, strict=True) if not is_empty)
    )


def without_empty(rows: Iterable[Mapping[str, object]]) -> list[Row]:
    """The rows without the columns that are empty in all of them."""
    rows = list(rows)
    filled = {name for row in rows for name, value in row.items() if value is not None}
    return [{name: value for name, value in row.items() if name in filled} for row in rows]
