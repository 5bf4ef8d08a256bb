"""The command line: what people type, what they read, how it ends."""

import csv
import io
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from nescio.cli import main
from nescio.commands import COMMANDS
from tests.support import malformed
from tests.support.paths import ROOT


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dumps")
    rng = np.random.default_rng(0)
    for name, shift in (("test", 0.0), ("val", 0.1), ("other", 0.4), ("out", 3.0)):
        labels = rng.integers(0, 4, 200)
        logits = 3 * np.eye(4)[labels] + rng.normal(size=(200, 4)) * (1 + shift)
        np.savez(folder / f"{name}.npz", labels=labels, logits=logits)
    test = dict(np.load(folder / "test.npz"))
    np.savez(folder / "other.npz", labels=test["labels"], logits=test["logits"] + rng.normal(size=(200, 4)))
    np.savez(folder / "grouped.npz", **test, **{"groups/site": test["labels"] % 2})
    return folder


def ask(capsys, *words):
    code = main([str(word) for word in words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_cli__json_is_strict_and_alone(capsys, files):
    code, out, err = ask(
        capsys,
        "evaluate",
        files / "test.npz",
        "--val",
        files / "val.npz",
        "--ood",
        f"far={files}/out.npz",
        "--format",
        "json",
    )
    assert code == 0 and err == ""
    held = json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    (one,) = held["files"]
    assert one["file"] == str(files / "test.npz")
    metrics = {(r["measure"], r["metric"], r["split"]) for r in one["rows"]}
    assert {(None, "accuracy", "test"), ("entropy", "auroc", "far"), ("entropy", "out_as_out", "far")} <= metrics
    assert all(set(r) == {"measure", "metric", "split", "reason"} for r in one["reasons"])


@pytest.mark.parametrize("form", ["csv", "markdown", "latex"])
def test_cli__other_forms(capsys, files, form):
    code, out, _ = ask(capsys, "evaluate", files / "test.npz", "--format", form)
    assert code == 0
    if form == "csv":
        assert len(list(csv.DictReader(io.StringIO(out)))) > 50
    else:
        assert {"markdown": "| ", "latex": "\\toprule"}[form] in out


def test_cli__the_few_things_that_matter_come_first_and_the_rest_with_all(capsys, files, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    words = ("evaluate", files / "test.npz", "--val", files / "val.npz", "--ood", f"far={files}/out.npz")
    code, out, _ = ask(capsys, *words)
    assert code == 0 and len(out.splitlines()) <= 40
    for sentence in ("Accuracy 9", "T = ", "misclassification detection: `", "--all"):
        assert sentence in " ".join(out.split())
    _, longer, _ = ask(capsys, *words, "--all")
    assert len(longer.splitlines()) > 100


def test_cli__the_table_reads_well(capsys, files):
    code, out, _ = ask(capsys, "evaluate", files / "test.npz", "--all")
    assert code == 0
    for words in ("Accuracy and calibration", "Misclassification detection", "ECE", "give --val"):
        assert words in out


def test_cli__report_writes_a_page_and_tables(capsys, files, tmp_path):
    code, out, _ = ask(capsys, "evaluate", files / "test.npz", files / "other.npz", "--output", tmp_path / "out")
    assert code == 0 and "index.html" in out
    assert {"index.html", "rows.csv", "tables.md", "tables.tex"} <= {p.name for p in (tmp_path / "out").iterdir()}


def test_cli__bootstrap_fills_intervals_that_hold_the_value(capsys, files):
    _, out, _ = ask(capsys, "evaluate", files / "test.npz", "--bootstrap", 200, "--format", "json")
    rows = json.loads(out)["files"][0]["rows"]
    filled = [r for r in rows if r["low"] is not None]
    assert filled and all(r["low"] <= r["high"] for r in filled)
    accuracy = next(r for r in filled if r["metric"] == "accuracy")
    assert accuracy["low"] <= accuracy["value"] <= accuracy["high"]


def test_cli__compare(capsys, files):
    code, out, _ = ask(
        capsys, "compare", files / "test.npz", files / "other.npz", "--format", "json", "--bootstrap", 200
    )
    held = json.loads(out)
    assert code == 0
    best = {r["method"]: r["best"] for r in held["rows"] if r["metric"] == "nll"}
    assert best == {"test": True, "other": False}
    code, out, _ = ask(capsys, "compare", files / "test.npz", files / "other.npz", "--bootstrap", 100)
    assert code == 0 and "other" in out
    assert [line for line in out.splitlines() if line][1].startswith("Verdict: ")  # below the title


@pytest.mark.parametrize("what", ["metrics", "measures"])
def test_cli__listings(capsys, what):
    code, out, _ = ask(capsys, what)
    assert code == 0 and ("auroc" if what == "metrics" else "entropy") in out
    code, out, _ = ask(capsys, what, "aurc" if what == "metrics" else "energy")
    assert (code == 0 and "Σ" in out) or "log" in out
    code, _, err = ask(capsys, what, "nonsense")
    assert code == 2 and "There is no" in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), ""),
        (("evaluate",), "required"),
        (("evaluate", "a.npz", "--nonsense"), "--nonsense"),
        (("nonsense",), "nonsense"),
        (("evaluate", "missing.npz"), "missing.npz"),
        (("evaluate", "{test}", "--ood", "far"), "NAME=FILE"),
        (("evaluate", "{test}", "--ood", "a={out}", "--ood", "a={out}"), "twice"),
        (("evaluate", "{test}", "--group-by", "weather"), "weather"),
        (("evaluate", "{test}", "--bootstrap", "-3"), "-3"),
        (("evaluate", "{test}", "--calibration", "platt"), "platt"),
        (("compare", "{test}", "{test}"), "twice"),
        (("compare", "{test}", "{other}", "--measure", "entropi"), "entropi"),
        (("compare", "{test}", "{other}", "--metrics", "aurrc"), "aurrc"),
        (("compare", "{test}", "{other}", "--level", "2"), "level"),
    ],
)
def test_cli__bad_input_ends_with_2_and_one_sentence(capsys, files, words, sentence):
    names = {name: str(files / f"{name}.npz") for name in ("test", "other", "out")}
    code = main([word.format(**names) for word in words])
    said = capsys.readouterr()
    assert code == 2
    assert sentence in said.err and "Traceback" not in said.err
    assert said.err.count("\n") <= 1


@pytest.mark.parametrize(
    ("name", "build", "pattern"), malformed.MALFORMED, ids=[case[0] for case in malformed.MALFORMED]
)
def test_evaluate__malformed_files_end_with_2_and_one_line(capsys, tmp_path, name, build, pattern):
    code = main(["evaluate", str(build(tmp_path))])
    said = capsys.readouterr()
    assert code == 2 and said.out == ""
    assert said.err.count("\n") == 1 and "Traceback" not in said.err
    assert re.search(pattern, said.err)


def test_cli__out_domain_labels_need_no_marking(capsys, files, tmp_path):
    out = dict(np.load(files / "out.npz"))
    np.savez(tmp_path / "out.npz", labels=out["labels"] + 4, logits=out["logits"])
    code, _, _ = ask(capsys, "evaluate", files / "test.npz", "--ood", f"far={tmp_path}/out.npz")
    assert code == 0


def test_cli__help_of_every_command(capsys):
    for words in (["--help"], *([name, "--help"] for name in COMMANDS)):
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == 0
        assert len(capsys.readouterr().out.splitlines()) > 4


def test_cli__every_module_of_commands_is_listed():
    modules = {path.stem for path in (ROOT / "src/nescio/commands").glob("*.py") if not path.stem.startswith("_")}
    assert modules == {*COMMANDS, "config", "parsing", "option_table"}


def test_cli__overview_fits_one_screen_and_has_one_imperative_line_per_command(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40 and all(len(line) <= 80 for line in lines)
    for name, sentence in COMMANDS.items():
        (line,) = [line for line in lines if line.split()[:1] == [name]]
        assert line.endswith(sentence) and sentence[0].islower() and not sentence.endswith(".")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["evaluate", "a.npz", "--calibraton", "vector"],
            "no option --calibraton. Did you mean '--calibration'?",
        ),
        (["evaluat", "a.npz"], "There is no command 'evaluat'. Did you mean 'evaluate'?"),
        (
            ["evaluate", "a.npz", "--calibration", "vectr"],
            "not 'vectr'. Did you mean 'vector'?",
        ),
        (["evaluate", "a.npz", "--bootstrap", "many"], "--bootstrap is a whole number, not 'many'."),
        (["metrics", "auroc", "aurc"], "'aurc' is an unexpected argument."),
        (["threshold", "a.npz", "--format", "json", "promise.json"], "--format json > promise.json"),
        (["run", "uimnt"], "There is no benchmark 'uimnt'. Did you mean 'uimnet'?"),
        (["store", "prun"], "There is no action 'prun'. Did you mean 'prune'?"),
        (["store", "prune", "--dryrun"], "no option --dryrun. Did you mean '--dry-run'?"),
        (
            ["evaluate", "{folder}/grouped.npz", "--group-by", "sites"],
            "no group named 'sites'. Did you mean 'site'?",
        ),
        (["evaluate", "{folder}/tst.npz"], "there is no such file or folder. Did you mean 'test.npz'?"),
        (["choose", "{folder}/tst.npz"], "Did you mean 'test.npz'?"),
        (["report", "{results}", "--only", "tabel2"], "no report named 'tabel2'. Did you mean 'table2'?"),
        (["train", "--log", "tensorbord:x"], "not 'tensorbord:x'. Did you mean 'tensorboard'?"),
        (["train", "--hparams", "momentu=0.1", "--method", "duq"], "Did you mean 'momentum'?"),
        (["evaluate", "{test}", "--map", "logitz=x"], "did you mean 'logits'?"),
    ],
)
def test_cli__near_misses_are_named(capsys, files, words, sentence):
    places = {"test": files / "test.npz", "folder": files, "results": ROOT / "results/uimnet/rows.parquet"}
    assert main([word.format(**places) for word in words]) == 2
    err = capsys.readouterr().err
    assert sentence in err and err.count("\n") == 1


HEAVY = ("torch", "sklearn", "scipy.stats", "altair", "jinja2", "numba", "pandas")


def fresh(code, **env):
    held = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **env}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=held, check=False)


def test_cli__evaluation_leaves_heavy_packages_alone(files):
    code = (
        "import sys; from nescio.cli import main\n"
        f"main(['evaluate', r'{files / 'test.npz'}'])\n"
        f"print('HEAVY', [m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = fresh(code)
    assert done.stdout.rstrip().endswith("HEAVY []"), done.stdout[-500:] + done.stderr


def test_cli__pages_are_drawn_without_pandas(files, tmp_path):
    """Altair takes its rows as they are."""
    (tmp_path / "pandas.py").write_text("raise ImportError('not here')")
    code = (
        f"import sys; sys.path.insert(0, r'{tmp_path}')\n"
        "from nescio.cli import main\n"
        f"one = main(['evaluate', r'{files / 'test.npz'}', '--val', r'{files / 'val.npz'}', "
        f"'--ood', r'far={files / 'out.npz'}', '--output', r'{tmp_path / 'one'}'])\n"
        f"study = main(['report', r'{ROOT / 'results/uimnet/rows.parquet'}', '--output', r'{tmp_path / 'study'}'])\n"
        "print('CODES', one, study, 'altair' in sys.modules)"
    )
    done = fresh(code)
    assert done.stdout.rstrip().endswith("CODES 0 0 True"), done.stdout[-500:] + done.stderr
    assert all((tmp_path / name / "index.html").stat().st_size > 100_000 for name in ("one", "study"))


def test_cli__imports_leave_torch_alone():
    names = (
        "nescio.metrics nescio.measures nescio.analysis.scorecard nescio.report nescio.testing "
        "nescio.analysis.comparison nescio.work.store"
    )
    code = (
        f"import sys, importlib\nfor n in '{names}'.split(): importlib.import_module(n)\nprint('torch' in sys.modules)"
    )
    assert fresh(code).stdout.strip() == "False"


def test_cli__no_exported_name_is_a_submodule():
    import nescio

    modules = {p.stem for p in (ROOT / "src/nescio").iterdir() if not p.name.startswith("_")}
    assert not modules & set(nescio.__all__)


@pytest.mark.parametrize(
    "words",
    [
        ("--all",),
        (
            "--format",
            "json",
        ),
    ],
)
def test_cli__a_reader_that_stops_reading_is_no_failure_and_loses_no_file(files, tmp_path, words):
    command = [sys.executable, "-m", "nescio", "evaluate", str(files / "test.npz"), "--output", str(tmp_path / "out")]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen([*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait() == 0
    assert (tmp_path / "out" / "index.html").stat().st_size > 10_000 and (tmp_path / "out" / "rows.csv").is_file()


@pytest.mark.parametrize("flag", ["--val", "--train", "--ood"])
def test_evaluate__rows_of_one_model_are_not_used_for_another(tmp_path, monkeypatch, capsys, flag):
    """Calibration, densities and detection are of the model whose rows they are."""
    monkeypatch.chdir(tmp_path)
    rng, labels = np.random.default_rng(0), np.arange(60) % 3
    for name in ("a", "b", "more"):
        np.savez(f"{name}.npz", labels=labels, logits=2 * np.eye(3)[labels] + rng.normal(size=(60, 3)))
    word = "far=more.npz" if flag == "--ood" else "more.npz"
    assert main(["evaluate", "a.npz", "b.npz", flag, word]) == 2
    assert f"{flag} " in capsys.readouterr().err
    assert main(["evaluate", "a.npz", flag, word]) == 0
