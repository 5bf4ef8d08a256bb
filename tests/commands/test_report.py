"""`nescio report STORE`: a study is read byte for byte as it was kept, and the newest is known without a clock."""

import os
import shutil
from dataclasses import replace

import pytest

from nescio.benchmarks.base import keep, kept, page_name, read_kept, story_of
from nescio.cli import main
from nescio.errors import BadInput
from nescio.provenance import recorded_command
from nescio.report.studies import Study, files
from nescio.rows import from_parquet
from nescio.work.store import Store
from nescio.work.store_errors import Corrupted

ROW = {"benchmark": "uimnet", "version": 4, "method": "erm", "split": "test", "metric": "accuracy", "value": 0.5}


def study(value):
    return Study(benchmark="uimnet", version=4, rows=[ROW | {"value": value}], plan={"data": "digits"})


def test_report__a_flipped_bit_in_the_rows_is_named(tmp_path, capsys):
    store = Store(tmp_path)
    keep(study(0.5), store)
    (run,) = kept(store)
    assert read_kept(store, run).rows[0]["value"] == 0.5
    rows = run.folder / "rows.parquet"
    content = bytearray(rows.read_bytes())
    content[len(content) // 2] ^= 1
    rows.write_bytes(content)
    with pytest.raises(Corrupted, match=r"rows\.parquet changed"):
        read_kept(store, run)
    assert main(["report", str(tmp_path)]) == 1
    assert "rows.parquet changed" in capsys.readouterr().err


def test_report__the_newest_study_is_the_one_kept_last_whatever_the_clock_says(tmp_path):
    store = Store(tmp_path)
    for value in (0.1, 0.2, 0.3):
        keep(study(value), store)
    newest = kept(store)[0]
    for run in kept(store):  # a clock that runs backwards
        moment = 10**9 - int(read_kept(store, run).rows[0]["value"] * 10) * 10**6
        os.utime(run.folder, (moment, moment))
    assert read_kept(store, kept(store)[0]).rows[0]["value"] == 0.3
    assert kept(store)[0].key == newest.key


def test_report__rows_of_no_known_benchmark_are_refused(tmp_path):
    store = Store(tmp_path)
    keep(Study(benchmark="nobody", version=1, rows=[ROW | {"benchmark": "nobody"}]), store)
    with pytest.raises(BadInput, match=r"benchmark.* 'nobody'"):
        story_of(read_kept(store, kept(store)[0]))


def test_report__a_damaged_study_is_named_and_the_next_one_is_shown(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path / "store")
    for value in (0.25, 0.5):
        keep(study(value), store)
    newest = kept(store)[0]
    (newest.folder / "config.json").write_text("[" * 100_000)
    (newest.folder / "env.json").unlink()
    os.mkfifo(newest.folder / "env.json")
    assert main(["report", str(store.root), "--format", "csv"]) == 1
    said = capsys.readouterr()
    assert newest.key in said.err and "0.25" in said.out and said.err.count("config.json is damaged") == 1
    assert main(["report", str(store.root), "--format", "csv", "--study", newest.key]) == 1
    assert not capsys.readouterr().out


def test_report__a_source_is_only_read_and_links_are_not_followed(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sent, victim = tmp_path / "sent", tmp_path / "victim"
    keep(study(0.5), Store(tmp_path / "store"))
    shutil.copytree(kept(Store(tmp_path / "store"))[0].folder, sent)
    (sent / "report").mkdir()
    victim.write_text("mine")
    for folder in (sent / "report", tmp_path / "page"):
        folder.mkdir(exist_ok=True)
        (folder / "rows.csv").symlink_to(victim)
    before = sorted(sent.rglob("*"))
    assert main(["report", str(sent)]) == 0 and sorted(sent.rglob("*")) == before
    assert (tmp_path / "nescio-report" / "uimnet" / "index.html").is_file()
    assert main(["report", str(sent), "--output", "page"]) == 0  # a link in the folder is replaced
    assert victim.read_text() == "mine" and not (tmp_path / "page" / "rows.csv").is_symlink()
    shutil.rmtree(tmp_path / "nescio-report")
    (tmp_path / "nescio-report").symlink_to(sent)
    capsys.readouterr()
    assert main(["report", str(sent)]) == 2 and "--output" in capsys.readouterr().err
    assert sorted(sent.rglob("*")) == before


def test_report__rows_that_lack_what_a_table_needs_end_in_a_sentence(tmp_path, capsys):
    odd = replace(study(0.5), rows=[ROW | {"method": None, "split": None}], reasons=[{"x": 1}], plan={"data": [1]})
    for name, content in files(odd).items():
        (tmp_path / name).write_bytes(content)
    assert main(["report", str(tmp_path), "--format", "csv"]) in (0, 2)


def test_report__every_study_of_a_store_has_a_page_of_its_own(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path)
    studies = [study(value) for value in (0.1, 0.2)]
    for each in studies:
        keep(each, store)
    folders = [tmp_path / "nescio-report" / page_name(each) for each in studies]
    assert len({each.key for each in studies}) == len(set(folders)) == 2
    assert main(["report", str(tmp_path)]) == 0
    values = [from_parquet(folder / "rows.parquet")[0]["value"] for folder in folders]
    assert values == [0.1, 0.2]
    out = capsys.readouterr().out
    assert all(each.key in out for each in studies)


def test_report__one_damaged_study_does_not_hide_the_others(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path)
    studies = [study(value) for value in (0.1, 0.2)]
    for each in studies:
        keep(each, store)
    (store.path("study", studies[1].key) / "rows.parquet").unlink()
    assert main(["report", str(tmp_path)]) == 1
    assert studies[1].key in capsys.readouterr().err and (tmp_path / "nescio-report" / page_name(studies[0])).is_dir()


def test_report__a_study_keeps_the_command_that_made_it_first(tmp_path):
    store = Store(tmp_path)
    with recorded_command(["run", "uimnet", "--plugin", "my method.py"]):
        keep(study(0.5), store)
    again = study(0.5)
    with recorded_command(["run", "uimnet"]):
        keep(again, store)
    assert [each.command for each in again.provenance] == ["nescio run uimnet --plugin 'my method.py'"]
    (run,) = kept(store)
    assert read_kept(store, run).provenance == again.provenance


def test_report__a_bug_in_the_report_of_a_store_is_not_called_odd_input(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keep(study(0.5), Store(tmp_path / "store"))

    def broken(*_):
        raise KeyError("a bug")

    monkeypatch.setattr("nescio.report.studies.write_story", broken)
    with pytest.raises(KeyError, match="a bug"):
        main(["report", "store"])
