"""Rows: every column named, older files read, newer ones refused in a sentence."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nescio.errors import BadInput
from nescio.rows import COLUMNS, from_parquet, to_parquet
from tests.support.paths import ROOT

NEW = ("task", "target", "shift", "severity", "draw")


def test_to_parquet__rows_come_back_with_every_column(tmp_path):
    file = tmp_path / "rows.parquet"
    file.write_bytes(to_parquet([{"metric": "auroc", "value": 0.5, "shift": "fog", "severity": 3.0, "draw": 2}]))
    (row,) = from_parquet(file)
    assert row == dict.fromkeys(COLUMNS) | {
        "metric": "auroc", "value": 0.5, "shift": "fog", "severity": 3.0, "draw": 2,
    }  # fmt: skip


def test_from_parquet__rows_of_the_first_schema_are_read_with_new_columns_empty(tmp_path):
    old = [name for name in COLUMNS if name not in NEW]
    row = dict.fromkeys(old) | {"metric": "nll", "value": 1.5, "split": "val", "n": 7}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "rows.parquet")
    (read,) = from_parquet(tmp_path / "rows.parquet", verified=True)
    assert read == row | dict.fromkeys(NEW)


@pytest.mark.parametrize("study", ["uimnet", "reliability"])
def test_from_parquet__published_rows_are_read(study):
    rows = from_parquet(ROOT / "results" / study / "rows.parquet")
    assert len(rows) > 1000 and all(tuple(row) == COLUMNS for row in rows)


def test_from_parquet__a_file_of_something_else_and_a_newer_one_are_refused(tmp_path):
    for column, sentence in (("shine", "column shine"), (None, "has no column metric")):
        row = {"metric": "nll", "value": 1.0, column: 2} if column else {"x": 1}
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / "rows.parquet")
        with pytest.raises(BadInput, match=sentence):
            from_parquet(tmp_path / "rows.parquet", verified=True)


def test_to_parquet__every_flipped_bit_is_found_by_the_checksum(tmp_path):
    content = to_parquet([{"metric": "nll", "value": row / 7, "method": "erm"} for row in range(20)])
    file = tmp_path / "rows.parquet"
    for place in range(0, 8 * len(content), 41):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        file.write_bytes(damaged)
        with pytest.raises(BadInput):
            from_parquet(file)


@pytest.mark.parametrize("name", ["value", "low", "members", "subgroup", "target"])
def test_from_parquet__columns_of_another_type_are_named(tmp_path, name):
    row = {"metric": "nll", "value": 1.0} | {name: [1]}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "rows.parquet")
    with pytest.raises(BadInput, match=name):
        from_parquet(tmp_path / "rows.parquet", verified=True)
