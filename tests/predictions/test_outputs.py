"""Predictions: what goes in comes out, in memory and through every file format."""

import json
import mmap
import os
import subprocess
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nescio import BadInput, Predictions, join, stack
from nescio.arrays.checks import release_pages
from nescio.predictions import files

ENDINGS = ["", ".npz", ".safetensors", ".parquet", ".csv"]


def full(n=7, s=1, c=4, d=3, dtype=np.float32, text=True, members=False, normalized=False, seed=0):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, s, c))
    if normalized:
        logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    logits = logits.astype(dtype)
    return Predictions(
        index=np.array([f"row {i} ☂" for i in range(n)]) if text else rng.permutation(n) + 2**60,
        labels=rng.integers(0, c, n),
        in_distribution=rng.random(n) < 0.8,
        logits=logits,
        members=np.arange(s) // 2 if members else None,
        variants={"tta": rng.normal(size=(n, c)).astype(dtype), "a_1": rng.normal(size=(n, c))},
        embeddings=rng.normal(size=(n, d)).astype(dtype),
        scores={"native": rng.normal(size=n).astype(dtype), "with/slash, and comma": 1e300 * rng.normal(size=n)},
        annotations=rng.integers(1, 5, (n, c)),
        groups={"severity": rng.integers(0, 3, n), "seen": rng.random(n) < 0.5, "share": rng.random(n)}
        | ({"domain": rng.choice(["real", "", "NA", "café\nbar", "1_000"], n)} if text else {}),
        normalized=normalized,
    )


def assert_same(a, b, widths=True):
    one, other = dict(a.columns()), dict(b.columns())
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)
        if widths:
            assert array.dtype == other[name].dtype, name
    assert a.normalized == b.normalized
    assert (a.members is None) == (b.members is None)
    if a.members is not None:
        np.testing.assert_array_equal(a.members, b.members)


# ---- files


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("normalized", [False, True])
def test_outputs__what_is_saved_is_loaded(tmp_path, ending, dtype, normalized):
    p = full(dtype=dtype, text=ending != ".safetensors", normalized=normalized)
    path = p.save(tmp_path / f"dump{ending}")
    assert_same(p, Predictions.load(path), widths=ending != ".csv")
    assert_same(p, Predictions.load(str(path)), widths=ending != ".csv")
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("ending", ["", ".npz", ".safetensors"])
def test_outputs__draws_and_members_are_kept(tmp_path, ending):
    p = full(s=4, members=True, text=False, dtype=np.float16)
    assert_same(p, Predictions.load(p.save(tmp_path / f"dump{ending}")))


@pytest.mark.parametrize("ending", ENDINGS)
@given(data=st.data())
def test_outputs__any_fields_survive(tmp_path_factory, ending, data):
    n = data.draw(st.integers(1, 5))
    number = st.floats(width=32, allow_nan=False, allow_infinity=False)

    def rows(shape):
        size = int(np.prod(shape))
        return np.array(data.draw(st.lists(number, min_size=size, max_size=size)), np.float32).reshape(shape)

    fields = {"logits": rows((n, 1, 3)), "scores": {"native": rows((n,))}, "embeddings": rows((n, 2))}
    p = Predictions(**{name: value for name, value in fields.items() if data.draw(st.booleans())} or fields)
    path = tmp_path_factory.mktemp("any") / f"dump{ending}"
    assert_same(p, Predictions.load(p.save(path)), widths=ending != ".csv")


@pytest.mark.parametrize("ending", ENDINGS)
def test_outputs__saving_again_replaces_even_what_is_mapped(tmp_path, ending):
    path = full(text=False).save(tmp_path / f"dump{ending}")
    mapped = Predictions.load(path)
    mapped.take(slice(3)).save(path)
    assert_same(mapped.take(slice(3)), Predictions.load(path))
    assert len(mapped) == 7 and np.isfinite(mapped.logits).all()
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("ending", ENDINGS)
def test_outputs__a_failed_save_leaves_nothing_and_breaks_nothing(tmp_path, ending, monkeypatch):
    p = full(text=False)
    path = p.save(tmp_path / f"dump{ending}")

    def full_disk(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full_disk)
    with pytest.raises(BadInput, match=r"dump.*cannot be written: No.*left on device\.$"):
        p.take(slice(2)).save(path)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert len(Predictions.load(path)) == 7


def test_outputs__permissions_follow_the_umask(tmp_path):
    path = full().save(tmp_path / "dump.npz")
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_outputs__a_folder_is_memory_mapped_and_checked(tmp_path):
    p = full(text=False)
    folder = p.save(tmp_path / "dump")
    loaded = Predictions.load(folder)
    base = loaded.logits
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(base, mmap.mmap)
    manifest = json.loads((folder / "manifest.json").read_text())
    for entry in manifest["arrays"].values():
        assert zlib.crc32((folder / entry["file"]).read_bytes()) == entry["crc32"]
    assert {"logits.npy", "scores/native.npy"} <= {entry["file"] for entry in manifest["arrays"].values()}


def test_outputs__memory_of_a_mapped_dump_is_given_back(tmp_path):
    """A 64 MB dump is loaded with a few MB of resident memory, and forgotten rows read the same again."""
    logits = np.tile(np.arange(1000, dtype=np.float32), (16_384, 1))
    folder = Predictions(logits=logits).save(tmp_path / "dump")
    code = (
        "import resource, sys; from nescio import Predictions; import nescio.predictions.files\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"p = Predictions.load({str(folder)!r})\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    if hasattr(mmap, "MADV_DONTNEED") and sys.platform == "linux":
        assert float(run.stdout) < 24
    loaded = Predictions.load(folder)
    release_pages(loaded.logits)
    release_pages(loaded.logits[3:17])
    np.testing.assert_array_equal(loaded.logits[:, 0], logits)


def test_outputs__forgetting_never_touches_memory_that_can_be_written():
    array = np.arange(100_000.0)
    release_pages(array)
    release_pages(array[::2])
    np.testing.assert_array_equal(array, np.arange(100_000.0))


def test_outputs__npz_written_by_numpy(tmp_path):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(6, 3))
    arrays = {"labels": [0, 1, 2, 0, 1, 2], "logits": logits.astype(">f4"), "scores/native": rng.random(6)}
    for write in (np.savez, np.savez_compressed):
        write(tmp_path / "a.npz", **arrays, **{"groups/domain": np.array(list("aabbcc"))})
        p = Predictions.load(tmp_path / "a.npz")
        assert p.logits.dtype == np.float32 and p.logits.dtype.isnative and p.logits.shape == (6, 1, 3)
        np.testing.assert_array_equal(p.logits[:, 0], logits.astype("f4"))
        assert p.groups["domain"].tolist() == list("aabbcc") and not p.normalized
    full().save(tmp_path / "b.npz")
    with np.load(tmp_path / "b.npz") as archive:
        assert {"scores/native", "variants/tta", "groups/domain", "normalized"} <= set(archive.files)


def test_outputs__safetensors_both_ways_with_the_library(tmp_path):
    library = pytest.importorskip("safetensors.numpy")
    p = full(text=False, s=2, members=True)
    held = library.load_file(p.save(tmp_path / "a.safetensors"))
    np.testing.assert_array_equal(held["logits"], p.logits)
    np.testing.assert_array_equal(held["scores/native"], p.scores["native"])
    library.save_file({**held, "labels": held["labels"].astype(np.int32)}, tmp_path / "b.safetensors")
    assert_same(p, Predictions.load(tmp_path / "b.safetensors"))


def test_outputs__bfloat16_without_torch(tmp_path):
    """The upper halves of float32 numbers, read at an odd offset too."""
    exact = np.array([[1.0, -2.5], [0.15625, 3e30]], np.float32)
    half = (exact.view(np.uint32) >> 16).astype("<u2").tobytes()
    for pad in (0, 1):
        header = {
            "groups/g": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},
            "logits": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [2 + pad, 10 + pad]},
        }
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        blob = len(text).to_bytes(8, "little") + text + b"\1\2" + b"\0" * pad + half
        (tmp_path / "a.safetensors").write_bytes(blob)
        logits = Predictions.load(tmp_path / "a.safetensors").logits
        np.testing.assert_allclose(logits[:, 0], exact, rtol=2**-8)
        assert logits.dtype == np.float32


def test_outputs__class_columns_are_ordered_by_their_number(tmp_path):
    c = 12
    columns = [f"logit_{i}" for i in sorted(range(c), key=str)]
    lines = [",".join(["label", *columns, "u_native"])]
    lines += [",".join([str(y), *(name[6:] for name in columns), "0.5"]) for y in (0, 11)]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    p = Predictions.load(tmp_path / "a.csv")
    np.testing.assert_array_equal(p.logits[:, 0], np.tile(np.arange(c), (2, 1)))
    assert p.labels.tolist() == [0, 11] and p.scores["native"].tolist() == [0.5, 0.5]


def test_outputs__tables_written_by_pandas(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"label": [0, 1], "prob_0": [0.75, 0.5], "prob_1": [0.25, 0.5], "in_distribution": [True, False]}
    )
    frame["group_site"] = pandas.Categorical(["x", "y"])
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    for name in ("a.csv", "a.parquet"):
        p = Predictions.load(tmp_path / name)
        assert p.normalized and p.in_distribution.tolist() == [True, False] and p.groups["site"].tolist() == ["x", "y"]
        np.testing.assert_allclose(np.exp(p.logits[:, 0]), [[0.75, 0.25], [0.5, 0.5]])


def test_outputs__csv_starts_like_a_spreadsheet_writes_it(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbf"label","u_native","group_id"\r\n0,1e-3,007\r\n1,2,x\r\n')
    p = Predictions.load(tmp_path / "a.csv")
    assert p.scores["native"].tolist() == [0.001, 2.0] and p.groups["id"].tolist() == ["007", "x"]


def test_outputs__a_late_fraction_in_a_long_column(tmp_path):
    """Column types are stated, not inferred from the first megabyte."""
    n = 200_000
    text = "label,logit_0,logit_1\n" + "1,2,3\n" * n + "0,0.5,1\n"
    (tmp_path / "a.csv").write_text(text)
    assert Predictions.load(tmp_path / "a.csv").logits[-1, 0, 0] == 0.5


def test_outputs__dicts_flat_and_nested():
    logits = np.eye(3)
    flat = Predictions.load({"logits": logits, "scores/native": [1, 2, 3], "labels": None})
    nested = Predictions.load({"logits": logits, "scores": {"native": [1, 2, 3]}})
    assert_same(flat, nested)
    assert Predictions.load(flat) is flat


def test_outputs__reading_tables_needs_no_pandas(tmp_path):
    p = full()
    names = [str(p.save(tmp_path / f"a{ending}")) for ending in (".csv", ".parquet", ".npz")]
    code = (
        "import sys; from nescio import Predictions\n"
        f"for name in {names!r}: Predictions.load(name)\n"
        "print(sorted({'pandas', 'torch', 'sklearn', 'safetensors'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_outputs__outside_rows_were_not_taught(tmp_path):
    path = tmp_path / "ood.npz"
    np.savez(path, logits=np.eye(3), labels=[7, 8, 9])
    assert Predictions.load(path, ood=True).in_distribution.tolist() == [False] * 3
    with pytest.raises(BadInput, match="labels contains 7"):
        Predictions.load(path)
    mixed = {"logits": np.eye(3), "labels": [7, 1, 9], "in_distribution": [False, True, False]}
    assert Predictions.load(mixed, ood=True).in_distribution.tolist() == [False, True, False]
    assert not Predictions.load(Predictions(logits=np.eye(3)), ood=True).in_distribution.any()


@pytest.mark.parametrize("ending", [".npz", ".safetensors", ".parquet", ".csv"])
def test_outputs__damaged_files_never_show_a_traceback(tmp_path, ending):
    """Bytes flipped, cut and inserted anywhere: a sentence, or (where a format has no checksum) other numbers."""
    rng = np.random.default_rng(0)
    whole = full(text=ending != ".safetensors").save(tmp_path / f"whole{ending}").read_bytes()
    path = tmp_path / f"damaged{ending}"
    for trial in range(150):
        blob = bytearray(whole)
        at = int(rng.integers(len(blob) if trial % 2 else min(len(blob), 400)))
        if trial % 3 == 0:
            blob[at] ^= int(rng.integers(1, 256))
        elif trial % 3 == 1:
            del blob[at:]
        else:
            blob[at:at] = rng.bytes(5)
        path.write_bytes(bytes(blob))
        try:
            Predictions.load(path)
        except BadInput as no:
            assert str(no).startswith(f"{path}") and "\n" not in str(no) and str(no).endswith(".")


# ---- probabilities


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_outputs__probs_become_log_probabilities(dtype):
    probs = np.array([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]], dtype)
    p = Predictions(probs=probs)
    assert p.normalized and p.logits.shape == (2, 1, 3)
    assert p.logits.dtype == (np.float32 if dtype == np.float16 else dtype)
    with np.errstate(divide="ignore"):
        expected = np.log(probs.astype(np.float64))
    assert expected[1].tolist() == [0, -np.inf, -np.inf]
    np.testing.assert_allclose(p.logits[:, 0], expected, rtol=1e-6)


@pytest.mark.parametrize(("dtype", "slack"), [(np.float16, 1e-2), (np.float32, 1e-3), (np.float64, 1e-3)])
def test_outputs__how_far_a_row_may_be_from_one(dtype, slack):
    Predictions(probs=np.array([[0.5, 0.5 + 0.9 * slack]], dtype))
    with pytest.raises(BadInput, match=r"row 0 is off by .*logits"):
        Predictions(probs=np.array([[0.5, 0.5 + 1.2 * slack]], dtype))


def test_outputs__many_rows_of_probs_on_threads():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(100), 40_000).astype(np.float32)
    np.testing.assert_array_equal(Predictions(probs=probs).logits[:, 0], np.log(probs))
    probs[33_333, 7] += 0.5
    with pytest.raises(BadInput, match=r"row 33333 is off by 0\.5"):
        Predictions(probs=probs)


def test_outputs__the_first_row_that_is_not_finite_is_named():
    for dtype in (np.float16, np.float32, np.float64):
        logits = np.zeros((3000, 500), dtype)
        Predictions(logits=logits + np.finfo(dtype).max)  # the sum of squares overflows, the numbers are finite
        for bad in (np.nan, np.inf):
            logits[2345, 67] = bad
            with pytest.raises(BadInput, match=r"^.*logits.*row 2345:.*\.$"):
                Predictions(logits=logits)


# ---- fields


def test_outputs__defaults():
    p = Predictions(logits=[[1, 2], [3, 4], [5, 6]])
    assert p.index.tolist() == [0, 1, 2] and p.logits.shape == (3, 1, 2) and p.logits.dtype == np.float64
    assert (len(p), p.draws, p.classes, p.labels, p.normalized) == (3, 1, 2, None, False)
    assert repr(p) == "Predictions(index 3, logits 3×1×2)"
    assert Predictions(logits=np.eye(2), in_distribution=False).in_distribution.tolist() == [False, False]


def test_outputs__arrays_are_not_copied():
    logits = np.zeros((5, 2, 3), np.float16)
    assert np.shares_memory(Predictions(logits=logits).logits, logits)


def test_outputs__tensors_are_taken_without_importing_torch():
    torch = pytest.importorskip("torch")
    value = torch.tensor([[1.0, 2.0], [3.0, -4.0]], requires_grad=True)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        p = Predictions(logits=value.to(dtype), labels=torch.tensor([0, 1]))
        np.testing.assert_array_equal(p.logits[:, 0], [[1, 2], [3, -4]])


def test_outputs__text_of_any_kind_is_a_key():
    for keys in (np.array([b"a", b"b"]), np.array(["a", "b"], object), ["a", "b"]):
        assert Predictions(index=keys, labels=[0, 1]).index.tolist() == ["a", "b"]
    assert Predictions(index=[1.0, 2.0], labels=[0, 1]).index.tolist() == [1, 2]


def test_outputs__row_blocks_cover_every_row_once():
    p = Predictions(logits=np.zeros((1000, 3, 50), np.float16))
    for size in (None, 1, 7, 5000):
        rows = np.concatenate([np.arange(len(p))[part] for part in p.blocks(size)])
        np.testing.assert_array_equal(rows, np.arange(1000))


def test_outputs__replace():
    p = full()
    assert p.replace(labels=None).labels is None and p.replace(labels=None).normalized == p.normalized
    q = p.replace(probs=np.full((7, 4), 0.25))
    assert q.normalized and np.allclose(q.logits, np.log(0.25))


def test_join__take_select_and_join_move_every_field_together():
    p = full(n=9)
    order = np.random.default_rng(1).permutation(9)
    q = p.take(order)
    for name, array in p.columns():
        np.testing.assert_array_equal(dict(q.columns())[name], array[order], err_msg=name)
    assert_same(q.select(p.index), p)
    assert_same(p.take(np.arange(9) % 2 == 0), p.take([0, 2, 4, 6, 8]))
    assert_same(p.take(slice(2, 5)), p.take([2, 3, 4]))
    one, other = join(p.take(slice(0, 6)), q.take(q.index != p.index[3]))
    assert one.index.tolist() == other.index.tolist() == [k for k in p.index[:6] if k != p.index[3]]
    assert_same(one, other)
    assert [a.index.tolist() for a in join(p, q)] == [p.index.tolist()] * 2
    assert_same(p.select(p.index[4]), p.take([4]))


def test_stack_joins_on_index_and_names_members():
    a, b = full(s=2, text=False, seed=0), full(s=3, text=False, seed=0)
    b = b.replace(labels=a.labels, in_distribution=a.in_distribution, index=a.index)
    shuffled = b.take(np.random.default_rng(2).permutation(7))
    both = stack([a, shuffled])
    assert both.draws == 5 and both.members.tolist() == [0, 0, 1, 1, 1]
    np.testing.assert_array_equal(both.logits, np.concatenate([a.logits, b.logits], 1))
    mean = np.log((np.exp(a.variants["tta"].astype(float)) + np.exp(b.variants["tta"].astype(float))) / 2)
    np.testing.assert_allclose(both.variants["tta"], mean, rtol=1e-6)
    assert not both.scores and both.embeddings is None
    assert stack([both, a]).members.tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert stack([a]).members.tolist() == [0, 0]


def test_outputs__what_was_written_into_a_private_map_is_not_forgotten(tmp_path):
    np.save(tmp_path / "logits.npy", np.zeros((1 << 14, 4)))
    private = np.load(tmp_path / "logits.npy", mmap_mode="c")
    private[:] = 1
    rows = private.view()
    rows.flags.writeable = False
    release_pages(rows)
    assert (private == 1).all()
