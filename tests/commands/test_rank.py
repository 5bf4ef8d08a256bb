"""`nescio rank` of one candidate: scores by definition, its rows, pictures of the page, bad inputs."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from nescio import datasets, measures
from nescio.analysis.representations.candidates import split_references
from nescio.analysis.representations.ranking import chance_nc, default_k
from nescio.cli import main
from nescio.datasets.class_labels import rows_by_key
from nescio.datasets.decode import thumbnail
from nescio.datasets.image_set import ImageSet
from nescio.datasets.names import dataset_name
from nescio.errors import BadInput
from nescio.predictions import Predictions

N, ODD = 120, 12


def ask(capsys, *words):
    code = main([str(word) for word in words])
    said = capsys.readouterr()
    return code, said.out, said.err


def turned(rng, scene, noise=0.05):
    """The scene as another member sees it: turned, stretched, and a little blurred."""
    q, _ = np.linalg.qr(rng.normal(size=(scene.shape[1],) * 2))
    return (scene @ q + noise * rng.normal(size=scene.shape)) * rng.uniform(0.5, 2)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Three models of one scene with 400 references; each sees the first ODD test rows somewhere else."""
    folder = tmp_path_factory.mktemp("embeddings")
    rng = np.random.default_rng(0)
    scene, refs = rng.normal(size=(N, 6)), rng.normal(size=(400, 6))
    for member in range(3):
        both = turned(rng, np.vstack([refs, scene]))
        both[400 : 400 + ODD] = rng.normal(size=(ODD, 6))
        np.savez(folder / f"r{member}.npz", embeddings=both[:400])
        np.savez(folder / f"t{member}.npz", embeddings=both[400:], index=1000 + np.arange(N))
    return folder


def files(place, letter, count=3):
    return [place / f"{letter}{member}.npz" for member in range(count)]


def with_references(place, letter="r"):
    return mine(*files(place, "t"), references=files(place, letter))


def mine(*tests, references=()):
    """The candidate `mine` of these files, which are members, with a file of references for each."""
    members = [f"{ref}:{test}" for ref, test in zip(references, tests, strict=True)] if references else tests
    return "mine=" + ",".join(map(str, members))


def loaded(place, letter, count=3):
    return [Predictions.load(file) for file in files(place, letter, count)]


def read_csv(path):
    with open(path) as file:
        lines = list(csv.DictReader(file))
    assert {line.pop("candidate") for line in lines} == {"mine"}
    return {name: np.array([float(line[name]) for line in lines]) for name in lines[0]}


# ---- the scores


def test_rank__the_file_holds_the_measures_themselves(capsys, place, tmp_path):
    to = tmp_path / "scores.csv"
    code, out, _ = ask(capsys, "rank", with_references(place), "--k", 30, "--row-scores", to)
    assert code == 0 and f"{N} rows" in out and str(to) in out
    held, refs, tests = read_csv(to), loaded(place, "r"), loaded(place, "t")
    assert list(held) == ["index", "nc", "u_nc", "u_dist", "u_norm", "u_ll", "u_fv"]
    np.testing.assert_array_equal(held["index"], tests[0].index)
    np.testing.assert_allclose(held["u_nc"], measures.neighborhood_inconsistency(refs, tests, 30), atol=1e-12)
    np.testing.assert_allclose(held["nc"], 1 - held["u_nc"])
    far = [measures.knn_distance(r, 1)(t) for r, t in zip(refs, tests, strict=True)]
    np.testing.assert_allclose(held["u_dist"], np.mean(far, 0))
    np.testing.assert_allclose(held["u_norm"], np.mean([measures.norm(t) for t in tests], 0))
    np.testing.assert_allclose(held["u_fv"], measures.feature_variance(tests))
    count = measures.choose_components(refs[0], (1, 2, 5, 10, 20, 50)).components
    dense = [measures.vmf_mixture(r, count, 0)(t) for r, t in zip(refs, tests, strict=True)]
    np.testing.assert_allclose(held["u_ll"], np.mean(dense, 0))


@pytest.mark.parametrize("options", [("--distance", "euclidean"), ("--similarity", "overlap")])
def test_rank__distance_and_similarity_are_asked_for(capsys, place, tmp_path, options):
    to, how = tmp_path / "s.csv", {"--distance": "metric", "--similarity": "similarity"}[options[0]]
    words = [*options, "--k", 30, "--components", 0, "--row-scores", to]
    assert ask(capsys, "rank", with_references(place), *words)[0] == 0
    right = measures.neighborhood_inconsistency(loaded(place, "r"), loaded(place, "t"), 30, **{how: options[1]})
    held = read_csv(to)
    np.testing.assert_allclose(held["u_nc"], right, atol=1e-12)
    assert "u_ll" not in held


def test_rank__rows_that_the_models_see_differently_are_the_least_reliable(capsys, place):
    words = ["--components", 3, "--list-rows", ODD, "--format", "json"]
    code, out, _ = ask(capsys, "rank", with_references(place), *words)
    found = json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert code == 0
    (mine,) = found["candidates"]
    assert {row["index"] for row in mine["least"]} == set(range(1000, 1000 + ODD))
    values = [row["nc"] for row in mine["least"]]
    assert values == sorted(values) and mine["quantiles"]["nc"]["median"] > 3 * values[-1]
    assert (mine["members"], found["n"], found["references"], found["k"]) == (3, N, 400, 20)
    assert found["halves"] is False and mine["features"] == [6]
    # rows without anything in common are at the level that the command names, within the noise of ODD rows
    assert np.mean(values) == pytest.approx(found["chance"], abs=0.02)


def test_rank__without_references_each_half_judges_the_other(capsys, place, tmp_path):
    code, out, _ = ask(capsys, "rank", mine(*files(place, "t")), "--components", 0, "--row-scores", tmp_path / "s.csv")
    held, tests = read_csv(tmp_path / "s.csv"), loaded(place, "t")
    assert code == 0 and "two halves" in re.sub(r"\s+", " ", out)
    parts = split_references(tests[0].index, None, 0)
    for refs, asked in parts:
        sides = [[each.select(keys) for each in tests] for keys in (refs, asked)]
        right = dict(zip(asked.tolist(), measures.neighborhood_inconsistency(*sides, default_k(N // 2)), strict=True))
        own = np.isin(held["index"], asked)
        np.testing.assert_allclose(held["u_nc"][own], [right[int(key)] for key in held["index"][own]], atol=1e-12)
    np.testing.assert_array_equal(held["index"], tests[0].index)
    assert set(np.argsort(held["nc"])[:ODD]) & set(range(ODD))


def test_rank__a_part_of_the_rows_as_references_gets_no_score(capsys, place, tmp_path):
    words = ["--split-references", 80, "--row-scores", tmp_path / "s.npz", "--components", 5]
    assert ask(capsys, "rank", mine(*files(place, "t")), *words)[0] == 0
    with np.load(tmp_path / "s.npz") as held:
        ((refs, asked),) = split_references(1000 + np.arange(N), 80, 0)
        assert len(refs) == 80 and set(held["index"]) == set(asked) and not set(asked) & set(refs)
        assert held["mine/nc"].shape == held["mine/u_ll"].shape == (N - 80,)


def test_rank__members_may_have_other_orders_and_other_widths(capsys, place, tmp_path):
    """NC does not mind; the variance between spaces of other widths does not exist, and that is said."""
    first, second = loaded(place, "t", 2)
    order = np.random.default_rng(1).permutation(N)
    wide = np.hstack([second.embeddings, np.zeros((N, 2))])[order]
    Predictions(embeddings=wide, index=second.index[order]).save(tmp_path / "wide.npz")
    pair = mine(place / "t0.npz", tmp_path / "wide.npz")
    code, out, _ = ask(capsys, "rank", pair, "--k", 5, "--row-scores", tmp_path / "a.csv", "--format", "json")
    assert code == 0 and "[6, 8]" in json.loads(out)["candidates"][0]["reasons"]["fv"]
    ask(capsys, "rank", mine(place / "t0.npz", place / "t1.npz"), "--k", 5, "--row-scores", tmp_path / "b.csv")
    a, b = read_csv(tmp_path / "a.csv"), read_csv(tmp_path / "b.csv")
    np.testing.assert_allclose(a["nc"], b["nc"], atol=1e-12)
    assert "u_fv" in b and "u_fv" not in a and len(first) == N


def test_rank__every_format_holds_the_same(capsys, place, tmp_path):
    for ending in ("csv", "parquet", "npz"):
        words = ["--components", 3, "--row-scores", tmp_path / f"s.{ending}"]
        assert ask(capsys, "rank", with_references(place), *words)[0] == 0
    table, held = read_csv(tmp_path / "s.csv"), pq.ParquetFile(tmp_path / "s.parquet").read()
    with np.load(tmp_path / "s.npz") as arrays:
        assert ["candidate", *table] == held.column_names
        assert arrays.files == [name if name == "index" else f"mine/{name}" for name in table]
        for name in table:
            np.testing.assert_array_equal(table[name], arrays[name if name == "index" else f"mine/{name}"])
            np.testing.assert_array_equal(table[name], held.column(name).to_pylist())


# ---- what is stated


def test_rank__usual_k_and_chance():
    assert [default_k(r) for r in (1, 20, 21, 500, 1999, 2000, 5000, 60_000)] == [1, 1, 2, 25, 100, 100, 100, 100]
    rng = np.random.default_rng(0)
    for k, r in ((5, 100), (50, 200), (100, 5000)):
        shared = [len(np.intersect1d(rng.permutation(r)[:k], rng.permutation(r)[:k])) for _ in range(1000)]
        assert np.mean(np.array(shared) / k) == pytest.approx(chance_nc(k, r, "overlap"), abs=0.01)
        jaccard = np.array(shared) / (2 * k - np.array(shared))
        assert jaccard.mean() == pytest.approx(chance_nc(k, r, "jaccard"), abs=0.01)


def test_rank__the_terminal_states_k_and_references(capsys, place):
    code, out, _ = ask(capsys, "rank", with_references(place), "--list-rows", 3)
    words = re.sub(r"\s+", " ", out)
    assert code == 0 and "k = 20 neighbours (Jaccard similarity), 400 references" in words
    assert "NC@20 ↑" in words and "median" in words
    least = words.partition("Least reliable rows")[2]
    assert len(re.findall(r"\b10(?:0\d|1[01])\b", least)) == 3  # the first ODD rows


def test_rank__rows_on_a_reference_are_noted(capsys, place):
    code, _, err = ask(capsys, "rank", with_references(place, "t"), "--k", 5)
    assert code == 0 and f"{N} rows " in err


# ---- the page


def shown(page):
    """(name, picture) in the order of the page, by gallery."""
    galleries = re.findall(r'<ul class="gallery".*?</ul>', page, re.DOTALL)
    found = []
    for each in galleries:
        cells = re.findall(r'alt="([^"]*)" src="data:image/png;base64,([^"]*)"', each)
        found.append([(name, Image.open(io.BytesIO(base64.b64decode(data, validate=True)))) for name, data in cells])
    return found


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Embeddings of the test images of digits: their pixels, seen twice; a few are seen differently."""
    folder, images = tmp_path_factory.mktemp("digits"), datasets.load("digits").test
    rng, pixels = np.random.default_rng(3), images.pixels.reshape(len(images), -1).astype(float)
    odd = rng.permutation(len(images))[:8]
    for member in range(2):
        seen = pixels + 20 * rng.normal(size=pixels.shape)
        seen[odd] = 100 * rng.normal(size=(8, 64))
        np.savez(folder / f"{member}.npz", embeddings=seen, index=images.index)
        np.savez(folder / f"plain{member}.npz", embeddings=seen)
    return folder, images, set(images.index[odd].tolist())


@pytest.mark.parametrize("kind", ["", "plain"])
def test_rank__the_page_shows_the_least_reliable_images(capsys, digits, tmp_path, kind):
    folder, images, odd = digits
    pair = [folder / f"{kind}{member}.npz" for member in range(2)]
    words = [
        "--thumbnails",
        "digits",
        "--output",
        tmp_path / "out",
        "--list-rows",
        8,
        "--components",
        0,
        "--format",
        "json",
    ]
    code, out, _ = ask(capsys, "rank", mine(*pair), *words)
    assert code == 0
    least = [row["index"] for row in json.loads(out)["candidates"][0]["least"]]
    page = (tmp_path / "out" / "index.html").read_text("utf-8")
    galleries = shown(page)
    assert [len(each) for each in galleries] == [8, 8]
    at = {int(key): row for row, key in enumerate(images.index if not kind else range(len(images)))}
    for key, (name, picture) in zip(least, galleries[0], strict=True):
        assert name.startswith(f"{key}, NC ")
        np.testing.assert_array_equal(np.asarray(picture.convert("L")), images.pixels[at[key]][..., 0])
    if not kind:
        assert set(least) == odd
    assert (
        'id="spread"' in page and '"spread":' in page and "http://" not in re.sub(r"<script>.*", "", page, flags=re.S)
    )
    assert {"tables.md", "tables.tex", "tables.csv"} <= {each.name for each in (tmp_path / "out").iterdir()}


def test_rank__a_page_without_images_tells_the_rows_by_index(capsys, place, tmp_path):
    words = ["--output", tmp_path / "out", "--list-rows", 5]
    code, out, _ = ask(capsys, "rank", with_references(place), *words)
    page = (tmp_path / "out" / "index.html").read_text("utf-8")
    assert code == 0 and "index.html" in out and not shown(page)
    section = page.partition('<section id="least">')[2].partition("</section>")[0]
    assert len(re.findall(r'<th scope="row">10\d\d</th>', section)) == 5


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Twelve pictures, each of one colour, in two folders."""
    folder = tmp_path_factory.mktemp("photos")
    (folder / "b").mkdir()
    for number in range(12):
        name = f"b/{number:02}.png" if number > 5 else f"{number:02}.png"
        Image.new("RGB", (300, 150), (20 * number, 0, 255 - 20 * number)).save(folder / name)
    (folder / "notes.txt").write_text("no image")
    return folder


def test_rank__a_folder_of_images_by_order_and_by_name(capsys, photos, tmp_path):
    rng = np.random.default_rng(0)
    names = np.array([f"{number:02}.png" for number in range(12)])
    for member in range(2):
        held = rng.normal(size=(12, 4))
        np.savez(tmp_path / f"by-order{member}.npz", embeddings=held)
        np.savez(tmp_path / f"by-name{member}.npz", embeddings=held[::-1], index=names[::-1])
    for kind in ("by-order", "by-name"):
        pair = [tmp_path / f"{kind}{member}.npz" for member in range(2)]
        words = ["--thumbnails", photos, "--output", tmp_path / kind, "--list-rows", 4, "--k", 2, "--components", 0]
        assert ask(capsys, "rank", mine(*pair), *words)[0] == 0
        galleries = shown((tmp_path / kind / "index.html").read_text("utf-8"))
        for name, picture in galleries[0] + galleries[1]:
            number = int(name[:2])
            assert picture.size == (96, 48) and picture.convert("RGB").getpixel((5, 5)) == (
                20 * number,
                0,
                255 - 20 * number,
            )


def test_rank__images_must_be_those_of_the_rows(photos):
    held = ImageSet(dataset_name(str(photos))).load()
    assert not held.dataset.labelled and len(held) == 12
    np.testing.assert_array_equal(rows_by_key(np.array([3, 0, 11]), held, 12), [3, 0, 11])
    with pytest.raises(BadInput, match=r"index 12, and 12 images for 20 rows"):
        rows_by_key(np.arange(20), held, 20)
    with pytest.raises(BadInput, match=r"no image called 'x\.png'"):
        rows_by_key(np.array(["x.png"]), held, 1)
    digits = ImageSet("digits").load()
    with pytest.raises(BadInput, match="has no files"):
        rows_by_key(np.array(["x.png"]), digits, 1)
    # keys that meet by accident are no keys: the file numbers its rows from 0, the set's test images start later
    first = int(digits.index[0])
    assert 0 < first < len(digits) * 3
    every = np.arange(len(digits))
    np.testing.assert_array_equal(rows_by_key(every, digits, len(digits)), every)


def test_thumbnail__a_thumbnail_is_a_small_png():
    assert Image.open(io.BytesIO(thumbnail(np.zeros((8, 8, 1), np.uint8)))).size == (8, 8)
    assert Image.open(io.BytesIO(thumbnail(np.zeros((500, 250, 3), np.uint8)))).size == (48, 96)


# ---- bad inputs


def saved(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_rank__bad_inputs_are_one_sentence(capsys, place, tmp_path):
    one, two = files(place, "t", 2)
    rows = np.load(one)["embeddings"]
    other = saved(tmp_path / "other.npz", embeddings=rows + 1, index=np.arange(N) + 1001)
    short = saved(tmp_path / "short.npz", embeddings=rows[:-1] + 1)
    text = saved(tmp_path / "text.npz", embeddings=rows + 1, index=np.array([f"r{i}" for i in range(N)]))
    none = saved(tmp_path / "none.npz", labels=np.zeros(N, int), logits=np.ones((N, 3)))
    seventh = np.arange(N)[:, None] == 7
    broken = saved(tmp_path / "broken.npz", embeddings=np.where(seventh, np.nan, rows))
    zero = saved(tmp_path / "zero.npz", embeddings=np.where(seventh, 0, rows), index=1000 + np.arange(N))
    twin = saved(tmp_path / "twin.npz", embeddings=rows, index=1000 + np.arange(N))
    narrow = saved(tmp_path / "narrow.npz", embeddings=np.load(place / "r0.npz")["embeddings"][:, :5])
    pair = mine(one, two)
    cases = [
        ([mine(one, other)], "has other rows than"),
        ([mine(one, other)], "index 1000"),
        ([mine(one, short)], "has other rows than"),
        ([mine(one, text)], "One index is text"),
        ([mine(one, none)], "no embeddings (n, d), only labels, logits"),
        ([mine(one, broken)], "not finite in row 7"),
        ([mine(one, zero)], "index 1007 by member 1 of mine has length zero"),
        ([mine(one, one)], "is given twice: a model always agrees with itself"),
        ([mine(one, twin)], "have the same embeddings"),
        ([mine(one, tmp_path / "missing.npz")], "there is no such file or folder"),
        ([pair, "--k", 61], "--k is 61, but there are only 60 references"),
        ([pair, "--k", 0], "--k must be"),
        ([pair, "--k-dist", 61], "--k-dist is 61, but there are only 60 references"),
        ([pair, "--split-references", N], "it must leave some rows to score"),
        ([pair, "--split-references", 0], "it must leave some rows to score"),
        ([f"mine={place}/r0.npz:{one},{two}"], "REFERENCES:TESTS"),
        ([mine(one, two, references=files(place, "r", 2)), "--split-references", 5], "omit one"),
        ([mine(one, two, references=(narrow, place / "r1.npz"))], "they must come from the same network"),
        ([pair, "--row-scores", tmp_path / "s.xlsx"], "use .csv, .parquet or .npz"),
        ([pair, "--list-rows", 0], "--list-rows"),
        ([pair, "--thumbnails", "digits"], "--output"),
        ([pair, "--thumbnails", tmp_path / "nowhere", "--output", tmp_path / "o"], "nowhere"),
    ]
    for words, sentence in cases:
        code, out, err = ask(capsys, "rank", *words)
        assert (code, out) == (2, ""), words
        assert sentence in err and err.count("\n") == 1 and "Traceback" not in err, (words, err)


def test_rank__dumps_alone_never_import_torch(tmp_path):
    words = [
        "rank",
        f"mine={tmp_path / 'a.npz'},{tmp_path / 'b.npz'}",
        "--output",
        str(tmp_path / "out"),
        "--thumbnails",
        "digits",
    ]
    words += ["--row-scores", str(tmp_path / "s.parquet"), "--format", "json"]
    Predictions(embeddings=np.random.default_rng(0).normal(size=(599, 3))).save(tmp_path / "a.npz")
    Predictions(embeddings=np.random.default_rng(1).normal(size=(599, 3))).save(tmp_path / "b.npz")
    code = f"import sys\nfrom nescio.cli import main\nassert main({words!r}) == 0\nassert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_rank__components_of_ll_are_those_under_which_unseen_references_are_likeliest(tmp_path, capsys):
    rng = np.random.default_rng(5)
    centres = 4 * rng.normal(size=(5, 8))
    for member in "ab":
        points = centres[rng.integers(0, 5, 400)] + rng.normal(size=(400, 8))
        np.savez(tmp_path / f"{member}.npz", embeddings=points)
    words = [mine(tmp_path / "a.npz", tmp_path / "b.npz"), "--bootstrap", 20]
    code, out, _ = ask(capsys, "rank", *words, "--format", "json")
    choice = json.loads(out)["candidates"][0]["components"]
    swept = choice["log_likelihoods"]
    assert code == 0 and choice["components"] == 5 and list(swept) == ["1", "2", "5", "10", "20", "50"]
    assert max(swept, key=swept.get) in ("5", "10")
    _, out, _ = ask(capsys, "rank", *words, "--output", tmp_path / "out")
    title = "Held-out likelihood by number of components"
    assert title in out and "C = 5" in out and title in (tmp_path / "out/index.html").read_text()
    files = {}
    for name, more in (("chosen", []), ("five", ["--components", 5]), ("two", ["--components", 2])):
        files[name] = tmp_path / f"{name}.npz"
        _, out, _ = ask(capsys, "rank", *words, *more, "--row-scores", files[name])
        assert (title in out) == (name == "chosen"), "one number is no choice"
    ll = {name: np.load(file)["mine/u_ll"] for name, file in files.items()}
    assert np.array_equal(ll["chosen"], ll["five"]) and not np.allclose(ll["chosen"], ll["two"])


def test_rank__a_link_to_itself_is_a_sentence(capsys, tmp_path):
    (tmp_path / "a.npz").symlink_to("a.npz")
    code, _, err = ask(capsys, "rank", mine(tmp_path / "a.npz", tmp_path / "b.npz"))
    assert code == 2 and "a.npz" in err
