"""Columns of a table that are named by classes, such as cat, dog or prob_cat, prob_dog."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from nescio.arrays.types import Array
from nescio.errors import BadInput
from nescio.predictions.names import FlatFields, printable

CLASS_PREFIXES = {  # prefix of columns named by classes → their field; None: the numbers decide
    **dict.fromkeys(("prob_", "probs_", "proba_", "p_"), "probs"),
    **dict.fromkeys(("logit_", "logits_"), "logits"),
    **dict.fromkeys(("score_", "scores_", ""), None),
}
ROUNDED = 2e-2  # tolerance for the sum of a row of rounded probabilities


class ClassColumns(NamedTuple):
    """Columns that are named by classes, as fields."""

    positions: list[int]
    fields: FlatFields


def find_class_columns(
    columns: list[str], labels_position: int, free: Mapping[str, int], reader: Callable[[int, str], Array]
) -> ClassColumns | None:
    """Columns named by the classes in labels, alone or with a prefix such as prob_; None if there are none.

    Without such a prefix, rows that sum to one are probabilities, others logits.

    free  positions of the columns that are not fields
    """
    distinct = np.unique(reader(labels_position, "labels")).tolist()
    labels = {str(int(label) if isinstance(label, float) else label) for label in distinct}
    for prefix, field in CLASS_PREFIXES.items():
        positions = {
            column.removeprefix(prefix): position for column, position in free.items() if column.startswith(prefix)
        }
        if len(positions) < 2 or not labels <= set(positions) or (len(labels) == 1 and not prefix):
            continue
        if not prefix and len(positions) > len(labels):
            positions = _classes_among(positions, labels, reader)
        return _class_fields(positions, columns, field, reader)
    return None


def _classes_among(positions: dict[str, int], labels: set[str], reader: Callable[[int, str], Array]) -> dict[str, int]:
    """The class columns, if there are more columns than classes in labels."""
    values = {name: reader(position, "labels") for name, position in positions.items()}
    numeric = {name: position for name, position in positions.items() if values[name].dtype.kind in "fiub"}
    label_columns = {name: position for name, position in positions.items() if name in labels}
    for columns in (numeric, label_columns):
        if columns == label_columns == numeric or _rows_sum_to_one([values[name] for name in columns]):
            return columns
    unlisted, example = next((name for name in numeric if name not in labels), ""), printable(next(iter(label_columns)))
    raise BadInput(
        f"labels names {len(labels)} of the {len(numeric)} numeric columns, and {printable(unlisted)} may be a class "
        f"without rows or no class: rename the class columns to prob_NAME or logit_NAME, such as logit_{example}."
    )


def _rows_sum_to_one(values: list[Array]) -> bool:
    if any(array.dtype.kind not in "fiub" for array in values):
        return False
    table = np.stack(values, axis=1).astype(np.float64)
    return bool((table >= 0).all() and (np.abs(table.sum(1) - 1) <= ROUNDED).all())


def _class_fields(
    positions: dict[str, int], columns: list[str], field: str | None, reader: Callable[[int, str], Array]
) -> ClassColumns:
    """The columns of classes as logits or probabilities, with the names of the classes in the columns' order."""
    order = list(positions)
    if all(name.isdecimal() for name in order):
        order.sort(key=int)
        if list(map(int, order)) != list(range(len(order))):
            raise BadInput(f"columns {', '.join(order[:5])} are class numbers: they must count from 0 without a gap.")
    values = [reader(positions[name], "labels") for name in order]
    if text := next((name for name, array in zip(order, values, strict=True) if array.dtype.kind not in "fiub"), None):
        raise BadInput(f"column {printable(columns[positions[text]])} is named by a class, but contains text.")
    table = np.stack(values, axis=1).astype(np.float64)
    if field is None and table.min() >= 0 and not _rows_sum_to_one(values):
        if np.allclose(table.sum(1), 100, rtol=0.02):
            field = "probs"  # a later check refuses percentages
        elif table.max() <= 1:
            first = printable(order[0])
            raise BadInput(
                f"the columns named by classes ({first} …) are between 0 and 1 and do not sum to one: call them "
                f"prob_{first} …, or logit_{first} … if they are unnormalised scores."
            )
    field = field or ("probs" if _rows_sum_to_one(values) else "logits")
    fields: FlatFields = {field: table}
    if not all(name.isdecimal() for name in order):
        fields["class_names"] = np.array(order, str)
    return ClassColumns(list(positions.values()), fields)
