"""`nescio report STORE`: a study is read byte for byte as it was kept, and the newest is known without a clock."""

import os

import pytest

from nescio.cli import main
from nescio.errors import BadInput
from nescio.protocols.base import keep, kept, read_kept
from nescio.report.studies import Study
from nescio.work.store import Damaged, Store

ROW = {"protocol": "uimnet", "version": 4, "method": "erm", "split": "test", "metric": "accuracy", "value": 0.5}


def study(value):
    return Study(protocol="uimnet", version=4, rows=[ROW | {"value": value}], plan={"data": "digits"})


def test_a_flipped_bit_in_the_rows_is_named(tmp_path, capsys):
    store = Store(tmp_path)
    keep(study(0.5), store)
    (run,) = kept(store)
    assert read_kept(store, run).rows[0]["value"] == 0.5
    rows = run.folder / "rows.parquet"
    content = bytearray(rows.read_bytes())
    content[len(content) // 2] ^= 1
    rows.write_bytes(content)
    with pytest.raises(Damaged, match=r"rows\.parquet changed"):
        read_kept(store, run)
    assert main(["report", str(tmp_path)]) == 1
    assert "rows.parquet changed" in capsys.readouterr().err


def test_the_newest_study_is_the_one_kept_last_whatever_the_clock_says(tmp_path):
    store = Store(tmp_path)
    for value in (0.1, 0.2, 0.3):
        keep(study(value), store)
    newest = kept(store)[0]
    for run in kept(store):  # a clock that runs backwards
        moment = 10**9 - int(read_kept(store, run).rows[0]["value"] * 10) * 10**6
        os.utime(run.folder, (moment, moment))
    assert read_kept(store, kept(store)[0]).rows[0]["value"] == 0.3
    assert kept(store)[0].key == newest.key


def test_rows_of_no_known_protocol_are_refused(tmp_path):
    store = Store(tmp_path)
    keep(Study(protocol="nobody", version=1, rows=[ROW | {"protocol": "nobody"}]), store)
    with pytest.raises(BadInput, match="no protocol named 'nobody'"):
        read_kept(store, kept(store)[0])
