"""Counts of pixels from folders of maps: the metrics of all pixels at once, and sentences when maps do not fit."""

import json
import os
import tracemalloc
from functools import partial

import numpy as np
import pytest
from sklearn.metrics import jaccard_score

from nescio import metrics
from nescio.analysis import pixels
from nescio.analysis.pixels import PixelCounts
from nescio.cli import main
from nescio.datasets.decode import opened_map
from nescio.errors import BadInput, Undefined
from tests.support.shapes import grey_png

Image = pytest.importorskip("PIL.Image")
VOID = 255
count_folders = partial(pixels.count_folders, open_image=opened_map)


def save(folder, name, array):
    folder.mkdir(exist_ok=True)
    if name.endswith(".npz"):
        np.savez(folder / name, u=array)
    elif name.endswith(".npy"):
        np.save(folder / name, array)
    else:
        Image.fromarray(array).save(folder / name)


@pytest.fixture
def folders(tmp_path):
    """Three images of two shapes, in folders; (truth, answers, scores) of their known pixels."""
    rng, kept = np.random.default_rng(0), []
    for number, shape in enumerate([(6, 10), (6, 10), (9, 4)]):
        truth = rng.integers(0, 4, shape, np.uint8)
        called = np.where(rng.random(shape) < 0.7, truth, rng.integers(0, 4, shape)).astype(np.uint8)
        u = (rng.random(shape) + 0.4 * (truth != called)).astype(np.float16)
        truth[rng.random(shape) < 0.2] = VOID
        save(tmp_path / "truth", f"{number}.png", truth)
        save(tmp_path / "answers", f"{number}.png", called)
        save(tmp_path / "half", f"{number}.npy", u)
        save(tmp_path / "single", f"{number}.npz", u.astype(np.float32))
        save(tmp_path / "png", f"{number}.png", (u.astype(np.float64) * 20000).astype(np.uint16))
        known = truth != VOID
        kept.append((truth[known], called[known], u[known]))
    return tmp_path, *(np.concatenate(arrays) for arrays in zip(*kept, strict=True))


def test_pixel_counts__scores_that_differ_in_their_last_digits_are_ranked():
    """As log-densities do: sixteen leading bits of such numbers are the same."""
    rng = np.random.default_rng(0)
    wrong = rng.random((40, 50)) < 0.3
    truth, called = np.zeros((40, 50), np.uint8), wrong.astype(np.uint8)
    for centre, kind in ((1500.0, np.float32), (-1500.0, np.float32), (1e7, np.int32), (1500.0, np.float64)):
        u = (centre + (1000 if kind is np.int32 else 1) * (rng.normal(size=wrong.shape) + wrong)).astype(kind)
        counts = PixelCounts.from_maps(truth[:20], called[:20], {"u": u[:20]}, 2) + PixelCounts.from_maps(
            truth[20:], called[20:], {"u": u[20:]}, 2
        )
        for name, metric in (("auroc", metrics.auroc), ("raulc", metrics.raulc)):
            (value,) = [row["value"] for row in counts.rows()[0] if row["metric"] == name]
            assert value == pytest.approx(metric(u.ravel().astype(float), wrong.ravel()), abs=1e-12)


def test_pixel_counts__counts_say_how_exact_they_are_and_are_kept(tmp_path):
    rng = np.random.default_rng(0)
    wrong, u = rng.random((40, 50)) < 0.3, rng.normal(size=(40, 50)).astype(np.float32)
    truth, called = np.zeros((40, 50), np.uint8), wrong.astype(np.uint8)
    counts = PixelCounts.from_maps(truth, called, {"u": u, "half": u.astype(np.float16)}, 2, distinct=64)
    bounds = {row["measure"]: row["value"] for row in counts.rows()[0] if row["metric"] == "bound"}
    assert set(bounds) == {"u"} and 0 < bounds["u"] < 0.2
    path = tmp_path / "counts.npz"
    path.write_bytes(counts.save())
    assert PixelCounts.load(path).rows() == counts.rows()


def test_pixels__folders_give_the_metrics_of_all_pixels(folders):
    place, truth, called, u = folders
    counts = count_folders(
        place / "truth", place / "answers", {name: place / name for name in ("half", "single", "png")}
    )
    assert counts.miou == pytest.approx(metrics.miou(called, truth, 4))
    np.testing.assert_allclose(counts.iou[:4], jaccard_score(truth, called, average=None))
    assert np.isnan(counts.iou[4:]).all()
    assert counts.accuracy == pytest.approx(np.mean(called == truth)) and counts.n == len(truth)
    rows, reasons = counts.rows()
    values = {(row["measure"], row["metric"]): row["value"] for row in rows if "measure" in row}
    for name in ("auroc", "raulc", "aurc"):
        exact = getattr(metrics, name)(u.astype(float), truth != called)
        assert values["half", name] == pytest.approx(exact, abs=1e-12)  # float16 is counted exactly
        assert abs(values["single", name] - exact) <= counts.bound + 1e-9
        assert values["png", name] == pytest.approx(exact, abs=counts.bound + 2e-3)
    assert not reasons and counts.bound < 0.05


def test_pixel_counts__void_counts_nowhere(folders):
    place, truth, *_ = folders
    assert count_folders(place / "truth", place / "answers", {}, None).n > len(truth)
    counts = PixelCounts.from_maps(np.full((2, 2), VOID), np.zeros((2, 2), np.uint8), {}, 4, VOID)
    with pytest.raises(Undefined, match="no pixel"):
        counts.rows()


def test_pixels__scores_at_void_pixels_are_not_looked_at(folders):
    """As where a network masks what it does not judge."""
    place = folders[0]
    before = count_folders(place / "truth", place / "answers", {"half": place / "half"}).rows()
    for number in range(3):
        u = np.load(place / "half" / f"{number}.npy")
        u[np.asarray(Image.open(place / "truth" / f"{number}.png")) == VOID] = (np.inf, -np.inf, np.nan)[number]
        np.save(place / "half" / f"{number}.npy", u)
    assert count_folders(place / "truth", place / "answers", {"half": place / "half"}).rows() == before


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_pixel_counts__a_score_that_is_not_finite_costs_its_own_rows_alone(tmp_path, kind):
    rng = np.random.default_rng(0)
    truth, called = rng.integers(0, 2, (2, 4, 5))
    bad, good = rng.random((2, 4, 5)).astype(kind)
    one = PixelCounts.from_maps(truth, called, {"bad": bad, "good": good}, 2)
    bad = bad.copy()
    bad[0, :3] = np.inf, -np.inf, np.nan
    counts = one + PixelCounts.from_maps(truth, called, {"bad": bad, "good": good}, 2) + one
    (tmp_path / "counts.npz").write_bytes(counts.save())
    rows, reasons = PixelCounts.load(tmp_path / "counts.npz").rows()
    assert {row["measure"] for row in rows if "measure" in row} == {"good"}
    assert {row["metric"] for row in rows} == {"miou", "accuracy", "auroc", "raulc", "aurc"}
    assert [reason.endswith("3 pixels.") for reason in reasons] == [True]


def test_pixels__blocks_of_pixels_are_counted_as_all_at_once(folders, monkeypatch):
    place = folders[0]
    count = partial(count_folders, place / "truth", place / "answers", {"half": place / "half", "png": place / "png"})
    whole = count()
    monkeypatch.setattr(pixels, "BLOCK", 25)  # two lines of one image, six of another
    assert count().rows() == whole.rows() and np.array_equal(count().confusion, whole.confusion)


def test_pixel_counts__blocks_take_the_room_of_a_block():
    """A map of 48 million pixels must not take gigabytes."""
    truth = np.zeros((4000, 3000), np.uint8)
    u = np.random.default_rng(0).random(truth.shape, np.float32)
    tracemalloc.start()
    PixelCounts.from_maps(truth, (u > 0.7).astype(np.uint8), {"u": u}, 2)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 200 * pixels.BLOCK < 50 * truth.size


def test_pixel_counts__what_is_undefined_has_a_reason():
    truth = np.array([[0, 1, 1]], np.uint8)
    rows, reasons = PixelCounts.from_maps(truth, truth, {"u": np.zeros((1, 3), np.float16)}, 2).rows()
    assert {row["metric"] for row in rows} == {"miou", "accuracy", "aurc"} and len(reasons) == 2


@pytest.mark.parametrize(
    ("folder", "name", "array", "words"),
    [
        ("answers", "1.png", np.zeros((5, 10), np.uint8), "\\(5, 10\\)"),
        ("answers", "1.png", np.zeros((6, 10, 3), np.uint8), "8 bits"),
        ("answers", "1.png", np.full((6, 10), VOID, np.uint8), "255"),
        ("half", "1.npy", np.zeros((6, 10, 2)), "scores are one number per pixel"),
        ("half", "1.npy", np.full((6, 10), np.nan, np.float16), r"half.1\.npy has no finite score at \d+ pixels that"),
        ("half", "1.npy", np.zeros((6, 10), np.float32), "of half"),
        ("truth", "9.png", np.zeros((6, 10), np.uint8), "predictions .* 9, .* labels"),
        ("answers", "9.png", np.zeros((6, 10), np.uint8), "labels .* 9, .* predictions"),
        ("half", "9.npy", np.zeros((6, 10), np.float16), "labels .* 9, .* half"),
        ("half", "1.png", np.zeros((6, 10), np.uint16), "1.npy and 1.png"),
    ],
)
def test_pixels__maps_that_do_not_fit_are_one_sentence(folders, folder, name, array, words):
    place = folders[0]
    save(place / folder, name, array)
    with pytest.raises(BadInput, match=words):
        count_folders(place / "truth", place / "answers", {"half": place / "half"})


@pytest.mark.parametrize("folder", ["truth", "answers", "png"])
@pytest.mark.parametrize("kind", [1, 2, 4, "JPEG"])
def test_pixels__maps_whose_values_would_not_be_those_written_are_refused(folders, folder, kind):
    """Of two equal maps, one written with 4 bits, the accuracy was 0.5."""
    labels, file = np.zeros((6, 10), np.uint8), folders[0] / folder / "1.png"
    Image.fromarray(labels).save(file, "JPEG") if kind == "JPEG" else file.write_bytes(grey_png(labels, kind))
    with pytest.raises(BadInput, match=r"1\.png (has \d bits|is a JPEG)"):
        count_folders(folders[0] / "truth", folders[0] / "answers", {"u": folders[0] / "png"})


@pytest.mark.parametrize("kind", ["answers/1.png", "half/1.npy", "single/1.npz", "png/1.png"])
def test_pixels__damaged_maps_are_sentences(folders, kind):
    """Flips and cuts of a map, and a pipe in its place: counted, or one sentence that names the file."""
    place, rng = folders[0], np.random.default_rng(2)
    folder, good = kind.partition("/")[0], (folders[0] / kind).read_bytes()
    scores = {} if folder == "answers" else {folder: place / folder}
    refused = 0
    for number in range(60):
        content = bytearray(good)
        if number % 2:
            content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
        else:
            del content[rng.integers(len(content)) :]
        (place / kind).write_bytes(content)
        try:
            count_folders(place / "truth", place / "answers", scores)
        except BadInput as sentence:
            assert "1." in str(sentence)
            refused += 1
    assert refused >= 20
    (place / kind).unlink()
    os.mkfifo(place / kind)
    with pytest.raises(BadInput, match="regular file"):
        count_folders(place / "truth", place / "answers", scores)


def test_pixels__folders_that_are_not_there(folders):
    place = folders[0]
    with pytest.raises(BadInput, match=r"255.*300"):
        count_folders(place / "truth", place / "answers", {}, void=300)
    with pytest.raises(BadInput, match="There is no folder"):
        count_folders(place / "nowhere", place / "answers", {})
    with pytest.raises(BadInput, match=r".png files"):
        count_folders(place / "half", place / "answers", {})
    (place / "answers" / "2.png").write_bytes(b"no image")
    with pytest.raises(BadInput, match=r"2\.png cannot be"):
        count_folders(place / "truth", place / "answers", {})


def test_pixels__maps_that_are_large_are_read_and_those_that_fill_the_memory_refused(folders, monkeypatch, recwarn):
    place = folders[0]
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)  # Pillow warns above it, and refuses above its double
    count_folders(place / "truth", place / "answers", {})
    assert not recwarn
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    with pytest.raises(BadInput, match=r"0\.png"):
        count_folders(place / "truth", place / "answers", {})


def test_evaluate__the_command(folders, capsys):
    place, truth, called, u = folders
    words = ["evaluate", "--labels", str(place / "truth"), "--predictions", str(place / "answers")]
    assert (
        main([*words, "--score-maps", f"u={place / 'half'}", "--score-maps", str(place / "single"), "--format", "json"])
        == 0
    )
    rows = json.loads(capsys.readouterr().out)["rows"]
    found = {(row.get("measure"), row["metric"]): row["value"] for row in rows}
    assert found[None, "miou"] == pytest.approx(metrics.miou(called, truth, 4))
    assert found["u", "auroc"] == pytest.approx(metrics.auroc(u.astype(float), truth != called))
    assert ("single", "raulc") in found
    assert main(words) == 0 and "IoU per class" in capsys.readouterr().out
    assert main([*words, "--ignore-label", "none"]) == 0
    assert main(["evaluate", "--predictions", str(place / "answers")]) == 2
    said = capsys.readouterr().err
    assert "--labels" in said and "--predictions" in said
    assert main([*words, "--score-maps", str(place / "half"), "--score-maps", f"half={place / 'single'}"]) == 2


@pytest.mark.parametrize(
    "words",
    [("--limit", "1"), ("--bootstrap", "10"), ("--group-by", "city"), ("--ood", "x=no.npz"), ("--val", "no.npz")],
)
def test_pixels__options_about_rows_are_refused(folders, capsys, words):
    place = folders[0]
    given = ["evaluate", "--labels", str(place / "truth"), "--predictions", str(place / "answers")]
    assert main([*given, *words]) == 2
    assert words[0] in capsys.readouterr().err


@pytest.mark.parametrize("name", ["labels", "predictions"])
def test_pixels__a_score_cannot_take_the_place_of_the_labels(folders, name):
    place = folders[0]
    with pytest.raises(BadInput, match=name):
        count_folders(place / "truth", place / "answers", {name: place / "half"})
