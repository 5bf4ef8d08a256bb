"""`run --dry-run` refuses the options that its run refuses."""

import pytest

from nescio.cli import main


@pytest.mark.parametrize("classes", ["3,99", "999999999999999999999999999999"])
def test_run__a_class_that_the_data_lack_is_named(classes, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "url", "--dry-run", f"--classes={classes}"]) == 2
    assert classes.rpartition(",")[2] in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "--log=inf", "--device inf", "--device /dev/zero", "--processes 1000000000000", "--nodes 0",
        "--output /dev/null/x",
        "--checkpoint-seconds nan", "--strengths 18446744073709551616", "--runs 99999999999",
    ],
)  # fmt: skip
def test_run__a_dry_run_refuses_what_the_run_would(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "sensitivity", "--dry-run", *words.split()]) == 2
    assert words.partition(" ")[0].partition("=")[0] in capsys.readouterr().err
