"""`nescio run cood`: from files and from a store to tables and a page, on made and on real images."""

from __future__ import annotations

import json
import os
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nescio import Predictions, metrics
from nescio.cli import main
from nescio.report.studies import read_study
from nescio.rows import from_parquet
from nescio.work.store import Store
from tests.benchmarks.cood.test_cood import dumps, group, severities, zoo
from tests.support.brute_grades import brute_grades
from tests.support.paths import page_of


def run(*words: Any) -> int:
    return main(["run", "cood", *map(str, words)])


def refused(capsys: pytest.CaptureFixture[str], sentence: str, *words: Any) -> None:
    """The command ends with 2 and one sentence."""
    capsys.readouterr()
    assert run(*words) == 2
    error = capsys.readouterr().err
    assert re.search(sentence, error) and len(error.strip().splitlines()) == 1


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for seed, name in enumerate("ab"):
        for dump, side in zip(dumps(seed), ("in", "out"), strict=True):
            dump.save(tmp_path / f"{name}-{side}.npz")
    return tmp_path


def pairs(folder: Path, more: str = "") -> list[str]:
    return [w for n in "ab" for w in ("--pair", f"{n}={folder / n}-in.npz,{folder / n}-out.npz{more}")]


FEW = ("--estimation-images", "6", "--test-images", "4")


def test_run__files_become_tables_and_a_page(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*pairs(files), *FEW, "--store", files / "store") == 0
    shown = capsys.readouterr().out
    assert "Two models, 24 OOD classes" in shown
    assert "by severity" in shown and "The page is" in shown
    report = page_of(files / "store", "cood")
    assert {"index.html", "rows.parquet", "rows.csv", "tables.md", "tables.tex", "plan.json"} <= {*os.listdir(report)}
    rows = from_parquet(report / "rows.parquet")
    assert {row["backbone"] for row in rows} == {"a", "b", None} and "mc-dropout" in (report / "index.html").read_text()


def test_report__a_study_is_told_again_from_its_store(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*pairs(files), *FEW, "--store", files / "store") == 0
    capsys.readouterr()
    assert main(["report", str(files / "store"), "--only", "fig6,overlap", "--output", str(files / "figures")]) == 0
    assert "severity 10" in capsys.readouterr().out and (files / "figures" / "fig6.svg").is_file()


def test_run__json_is_alone_on_stdout(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = f",imagenet-o={files / 'b'}-out.npz"
    words = ("--severity-levels", 3, "--group-classes", 5, "--measures", "entropy", "--seed", 4, "--format", "json")
    assert run(*pairs(files, more), *FEW, *words, "--store", files / "store") == 0
    rows = json.loads(capsys.readouterr().out)
    groups = {group(row) for row in rows if row["metric"] == "auroc" and row["split"] == "out"}
    assert groups == {"severity 0", "severity 1", "severity 2", "imagenet-o"}
    assert {row["measure"] for row in rows} == {"entropy", None}
    assert {row["window"] for row in rows if row.get("window")} == {5}
    assert not (files / "store" / "report").exists()


def test_run__a_hierarchy_on_files(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "in.txt").write_text("".join(f"i{y}\n" for y in range(4)))
    (files / "out.txt").write_text("".join(f"o{y}\n" for y in range(24)))
    tree = ("--hierarchy", files / "is_a.txt", "--data-names", files / "in.txt", "--ood-names", files / "out.txt")
    for order, lines in (("parent-child", "i0 o6\no7 i0\n"), ("child-parent", "o6 i0\ni0 o7\n")):
        (files / "is_a.txt").write_text(lines)
        assert run(*pairs(files), *FEW, *tree, "--store", files / order) == 0
        assert "2 of 24 out-classes" in " ".join(capsys.readouterr().out.split())
        rows = read_study(page_of(files / order, "cood")).frame
        assert {row["out_classes"] for row in rows if row.get("out_classes")} == {22}


def test_run__what_failed_is_said_and_counts(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*pairs(files), "--store", files / "store") == 2  # nobody has 200 images a class
    told = capsys.readouterr()
    assert "has 200 images (150 " in told.err and "estimation_images=9, test_images=3" in told.err
    np.savez(files / "b-out.npz", logits=np.zeros((30, 4)), labels=np.arange(30) % 3)
    assert run(*pairs(files), *FEW, "--group-classes", 2, "--store", files / "store") == 0
    np.savez(files / "b-out.npz", logits=np.zeros((30, 4)))
    assert run(*pairs(files), *FEW, "--store", files / "store") == 1  # a's page is written all the same
    told = capsys.readouterr()
    assert "by their labels" in told.err and len([*(files / "store" / "report").glob("cood-*/index.html")]) == 2


@pytest.mark.parametrize(
    ("outside", "sentence"),
    [
        ({"labels": np.arange(30) % 3}, "has 40 images (30 "),
        ({}, "by their labels"),
        ({"labels": np.zeros(60, int), "logits": np.zeros((60, 4))}, "1 OOD class is left"),
        ({"logits": np.zeros((30, 7)), "labels": np.arange(30) % 3}, "has 7 classes"),
    ],
)
@pytest.mark.usefixtures("light")
def test_run__what_no_model_can_be_graded_by_is_bad_input(
    files: Path, outside: dict[str, Any], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(files / "out.npz", **({"logits": np.zeros((30, 4))} | outside))
    words = ("--pair", f"a={files / 'a-in.npz'},{files / 'out.npz'}", "--estimation-images", 30, "--test-images", 10)
    for form in (
        (),
        (
            "--format",
            "json",
        ),
        ("--workers", 1),
    ):
        assert run(*words, *form, "--store", files / "store") == 2
        assert sentence in capsys.readouterr().err


def test_report__a_report_is_found_in_the_newest_study_that_has_it(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(files / "store")
    assert main(["run", "selective", *(f"{n}={files / n}-in.npz" for n in "ab"), "--store", str(store.root)]) == 0
    assert run(*pairs(files), *FEW, "--store", store.root) == 0
    for each in (found := [each for each in store.runs() if each.stage == "study"]):
        place = each.folder / "env.json"
        place.write_text(json.dumps(json.loads(place.read_text()) | {"started": "2023-01-01T00:00:00Z"}))
    os.utime(next(each.folder for each in found if each.config["benchmark"] == "cood"))
    capsys.readouterr()
    to = ("--output", str(files / "figures"))
    assert main(["report", str(store.root), "--only", "fig5,fig6,pareto", *to]) == 0
    written = {*os.listdir(files / "figures")}
    assert {"fig5.svg", "fig5-points.csv", "fig6.svg", "fig6-points.csv", "fig6.csv", "pareto.csv"} <= written
    assert main(["report", str(store.root), "--only", "models", *to]) == 2
    assert "selective/models" in (error := capsys.readouterr().err) and "cood/models" in error, "both have one"
    assert main(["report", str(store.root), "--only", "cood/models", *to]) == 0
    assert "ID-AUROC" in capsys.readouterr().out
    assert main(["report", str(store.root), "--only", "fig99", *to]) == 2
    error = capsys.readouterr().err
    assert "no report named 'fig99'" in error and "overlap" in error and "pareto" in error
    assert main(["report", str(store.root), "--output", str(files / "page")]) == 0
    assert "by severity" in (*(files / "page").glob("cood-*/index.html"),)[0].read_text().lower()
    assert len([*(files / "page").glob("*/index.html")]) == 2, "each study has its page"
    selective = next(each for each in found if each.config["benchmark"] == "selective")
    assert main(["report", str(store.root), "--study", selective.key, "--only", "overlap", *to]) == 2
    assert "`nescio run cood`" in capsys.readouterr().err


def test_run__names_that_are_not_one_a_class_are_refused(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three names for four in-classes would leave an in-class among the new ones."""
    for names, count in (("in", 4), ("few", 3), ("out", 24), ("short", 23)):
        (files / f"{names}.txt").write_text("".join(f"{names}{y}\n" for y in range(count)))
    words = [*pairs(files), *FEW, "--store", files / "store"]
    assert (
        run(*words, "--data-names", files / "in.txt", "--ood-names", files / "out.txt") == 0
    )  # now there are finished rows
    refused(
        capsys,
        r"--data-names has 3 names and .*a-in.npz has 4 classes",
        *words,
        "--data-names",
        files / "few.txt",
        "--ood-names",
        files / "out.txt",
    )
    refused(
        capsys,
        r"--ood-names has 23 names and .*a-out.npz has a class 23",
        *words,
        "--data-names",
        files / "in.txt",
        "--ood-names",
        files / "short.txt",
    )


def test_run__one_file_is_not_both_sides(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inside, outside = files / "a-in.npz", files / "a-out.npz"
    dumps(0)[0].replace(in_distribution=None).save(files / "bare.npz")
    (files / "copy.npz").write_bytes(inside.read_bytes())
    for rest in (inside, files / "copy.npz", f"{outside},hard={inside}"):
        refused(
            capsys,
            "for images of other classes",
            "--pair",
            f"a={inside},{rest}",
            *FEW,
            "--store",
            files / "store",
        )
    refused(
        capsys,
        "for images of other classes",
        "--pair",
        f"a={files / 'bare.npz'},{files / 'bare.npz'}",
        *FEW,
        "--store",
        files / "store",
    )
    known, new = dumps(0)
    both = np.arange(len(known) + len(new))
    Predictions(
        logits=np.concatenate([known.logits, new.logits])[:, 0],
        labels=np.concatenate([known.labels, new.labels]),
        index=both,
        in_distribution=both < len(known),
    ).save(files / "both.npz")  # says which rows are of which side
    assert run("--pair", f"a={files / 'both.npz'},{files / 'both.npz'}", *FEW, "--store", files / "store") == 0


def test_cood_command__a_hierarchy_that_is_not_there_is_named_first(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(
        capsys,
        r"no-tree\.txt cannot be read",
        *pairs(files),
        *FEW,
        "--hierarchy",
        files / "no-tree.txt",
        "--store",
        files / "store",
    )


def test_run__models_of_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(tmp_path / "store")
    for seed, model in enumerate(("resnet50.tv_in1k", "vit_base_patch16_224.augreg_in21k_ft_in1k")):
        inside, outside = dumps(seed)
        zoo(store, model, "digits", inside, False)
        zoo(store, model, "digits", outside, True)  # one set may be asked about as both
    words = ("--store", store.root, "--data", "digits", "--ood-data", "digits", *FEW)
    assert run(*words, "--extra-ood", "hard=digits") == 0
    shown = capsys.readouterr().out
    assert "digits, 24 OOD classes" in " ".join(shown.split()) and "hard" in shown
    rows = read_study(page_of(store.root, "cood")).frame
    assert {row["dataset"] for row in rows if row["backbone"]} == {"digits"}
    assert {row["params"] for row in rows if row["backbone"]} == {5}


def test_run__sets_with_the_same_class_names_lose_those_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Folders are named by class; a class of the in-data is no new class. Numbers are no names."""
    rng = np.random.default_rng(0)

    def packed(name: str, classes: list[str] | None) -> str:
        more = {} if classes is None else {"classes": np.array(classes)}
        images, labels = rng.integers(0, 255, (96, 4, 4, 3), dtype=np.uint8), np.arange(96) % 24
        np.savez(tmp_path / name, x_train=images, y_train=labels, x_test=images, y_test=labels, **more)
        return f"npz:{tmp_path / name}"

    one = packed("one.npz", [f"c{y}" for y in range(24)])
    two = packed("two.npz", [f"c{y}" if y < 3 else f"d{y}" for y in range(24)])
    numbers = packed("numbers.npz", None)
    store = Store(tmp_path / "store")
    inside, outside = dumps()
    zoo(store, "a", one, inside, False)
    for spec in (two, numbers):
        zoo(store, "a", spec, outside, True)
    assert run("--store", store.root, "--data", one, "--ood-data", two, *FEW, "--format", "json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["out_classes"] for row in rows if row.get("out_classes")} == {21}
    assert run("--store", store.root, "--data", one, "--ood-data", numbers, *FEW, "--format", "json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["out_classes"] for row in rows if row.get("out_classes")} == {24}
    (tmp_path / "is_a.txt").write_text("c0 c1\n")
    refused(
        capsys,
        "have numbers, no names",
        "--store",
        store.root,
        "--data",
        one,
        "--ood-data",
        numbers,
        *FEW,
        "--hierarchy",
        tmp_path / "is_a.txt",
    )
    gone = f"npz:{tmp_path / 'gone.npz'}"  # the images went away, the answers are still there
    zoo(store, "a", gone, outside, True)
    assert run("--store", store.root, "--data", one, "--ood-data", gone, *FEW) == 0
    assert "is unknown" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "NAME=IN,OOD"),
        (("--data", "digits"), "NAME=IN,OOD"),
        (("--pair", "a"), "--pair: 'a'"),
        (("--pair", "a=in.npz"), "write NAME=IN,OUT"),
        (("--pair", "a=in.npz,out.npz"), "There is no file or folder of predictions at in.npz"),
        (("--pair", "a=in.npz,out.npz", "--data", "digits"), "--ood-data and --extra-ood"),
        (("--data", "digits", "--ood-data", "x"), "nescio zoo MODEL"),
        (("--estimation-images", 0, "--data", "digits", "--ood-data", "x"), "--estimation-images is 0"),
        (("--measures", "sureness", "--data", "digits", "--ood-data", "x"), "sureness"),
    ],
)
def test_cood_command__bad_words(
    words: tuple[Any, ...], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, sentence, *words, "--store", tmp_path / "store")


def test_cood_command__one_file_of_names_is_not_enough(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "in.txt").write_text("a\nb\n")
    refused(
        capsys,
        "--data-names needs --ood-names",
        *pairs(files),
        *FEW,
        "--data-names",
        files / "in.txt",
        "--store",
        files / "store",
    )


def test_run__every_default_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("--help")
    text = " ".join(capsys.readouterr().out.split()).replace("- ", "-")
    half = "as many as are in-distribution, at most half of the OOD classes"
    for word in ("150", "50", "11", "msp,entropy,mc-dropout", half):
        assert word in text


# ---- real images


@pytest.mark.skipif(
    not (Path(os.environ.get("NESCIO_DATA", "")) / "cifar100_small.npz").is_file(),
    reason="NESCIO_DATA names no folder with cifar100_small.npz",
)
def test_run__real_classes_from_easy_to_hard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CIFAR-100: two nearest-mean classifiers know 20 classes and meet the other 80, 100 + 60 images of each."""
    from nescio import datasets

    found = datasets.load(f"npz:{Path(os.environ['NESCIO_DATA']) / 'cifar100_small.npz'}@32")
    parts = (found.train, found.test)
    pixels = np.concatenate([part.pixels for part in parts]).astype(np.float32) / 255
    labels, index = (np.concatenate([getattr(part, name) for part in parts]) for name in ("labels", "index"))
    shown, known = np.arange(len(labels)) < len(found.train), labels < 20
    words = []
    for name, side in (("coarse", 4), ("fine", 16)):
        block = 32 // side
        features = pixels.reshape(-1, side, block, side, block, 3).mean((2, 4)).reshape(len(pixels), -1)
        means = np.stack([features[shown & (labels == y)].mean(0) for y in range(20)])
        apart = (features**2).mean(1)[:, None] - 2 * features @ means.T / features.shape[1] + (means**2).mean(1)
        logits = -20 * side * apart
        for rows, file in ((known & ~shown, "in"), (~known, "out")):
            dump = Predictions(
                logits=logits[rows], labels=labels[rows], index=index[rows], in_distribution=file == "in"
            )
            dump.save(tmp_path / f"{name}-{file}.npz")
        words += ["--pair", f"{name}={tmp_path / name}-in.npz,{tmp_path / name}-out.npz"]
    assert (
        run(*words, "--estimation-images", 100, "--test-images", 60, "--store", tmp_path / "store", "--format", "json")
        == 0
    )
    rows = json.loads(capsys.readouterr().out)
    assert {row["out_classes"] for row in rows if row.get("out_classes")} == {80}
    assert {row["window"] for row in rows if row.get("window")} == {20}
    from nescio import measures
    from nescio.analysis.graded_ood import split_ood_classes

    for name in ("coarse", "fine"):
        aurocs = severities(rows, name)
        assert aurocs[0] > aurocs[5] > aurocs[10] and aurocs[0] - aurocs[10] > 0.1
        assert all(later < earlier + 0.02 for earlier, later in pairwise(aurocs))
        inside, outside = (Predictions.load(tmp_path / f"{name}-{side}.npz") for side in ("in", "out"))
        u_in, u_out = measures.msp(inside), measures.msp(outside)
        division = split_ood_classes(outside.labels, outside.index, 100, 60)
        slow = [group for group, _ in brute_groups(u_out, division)]
        for level in (0, 10):
            test = np.isin(division.classes, list(slow[level]))
            both = np.concatenate([u_in, u_out[division.test[test].ravel()]])
            out = np.arange(len(both)) >= len(u_in)
            assert aurocs[level] == metrics.auroc(both, out)


def brute_groups(u_out: Any, division: Any) -> list[tuple[set[int], float]]:
    """The groups of the plain definition; one in-row, for its AUROC by pairs takes long."""
    return brute_grades(np.zeros(1), u_out, division, 20, 11)
