"""Any file's names, separate files, lists in tables, tensors, and files that hold the first answer only."""

import builtins

import numpy as np
import pytest

from nescio import BadInput, Predictions

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(6, 3)).astype(np.float32)
LABELS = np.arange(6) % 3
NAMES = {"logits": "predictions", "labels": "label_ids"}


def write(path, **arrays):
    """A file of these arrays, by its ending."""
    ending = path.suffix
    if ending == ".npz":
        np.savez(path, **arrays)
    elif ending == ".safetensors":
        pytest.importorskip("safetensors.numpy").save_file(arrays, path)
    elif ending in (".pt", ".pth"):
        torch = pytest.importorskip("torch")
        torch.save({name: torch.tensor(array) for name, array in arrays.items()}, path)
    elif ending == ".parquet":
        pandas = pytest.importorskip("pandas")
        columns = {name: list(array) if array.ndim > 1 else array for name, array in arrays.items()}
        pandas.DataFrame(columns).to_parquet(path)
    else:
        columns = {}
        for name, array in arrays.items():
            wide = array.ndim > 1
            columns |= {f"{name}_{at}": array[:, at] for at in range(array.shape[1])} if wide else {name: array}
        lines = [
            ",".join(columns),
            *(",".join(map(repr, map(float, row))) for row in zip(*columns.values(), strict=True)),
        ]
        path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("ending", [".npz", ".safetensors", ".parquet", ".csv", ".pt", ".pth"])
def test_names__a_map_names_the_fields_of_any_file(tmp_path, ending):
    path = write(tmp_path / f"a{ending}", predictions=LOGITS, label_ids=LABELS, weights=np.ones(6, np.float32))
    p = Predictions.load(path, names=NAMES)
    np.testing.assert_array_equal(p.logits[:, 0], LOGITS)
    np.testing.assert_array_equal(p.labels, LABELS)
    assert len(p.notes) == 1 and p.notes[0].endswith(": weights.")
    with pytest.raises(BadInput, match=r"not a known (field|column)"):
        Predictions.load(path)
    with pytest.raises(BadInput, match=r"a\.\w+: there is no 'nowhere'.*labels.*from: the file contains \w+"):
        Predictions.load(path, names={**NAMES, "labels": "nowhere"})


def test_names__a_map_over_dicts_folders_and_own_names(tmp_path):
    p = Predictions.load({"predictions": LOGITS, "label_ids": LABELS, "x": 1, "scores/u": LABELS}, names=NAMES)
    assert p.labels.tolist() == LABELS.tolist() and list(p.scores) == ["u"]
    folder = Predictions(logits=LOGITS, scores={"a": LABELS}).save(tmp_path / "dump")
    assert Predictions.load(folder, names={"scores/b": "scores/a"}).scores["b"].tolist() == LABELS.tolist()


def test_names__a_map_that_means_nothing_is_refused():
    with pytest.raises(BadInput, match=r"'logit'.*known field.*\(did you mean 'logits'\?\)"):
        Predictions.load({"z": LOGITS}, names={"logit": "z"})
    with pytest.raises(BadInput, match="to two fields"):
        Predictions.load({"z": LOGITS}, names={"logits": "z", "probs": "z"})


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_names__a_mapped_column_takes_the_place_of_the_one_with_the_name_of_the_field(tmp_path, ending):
    path = write(tmp_path / f"a{ending}", label=LABELS * 0, true=LABELS, pred=LABELS, conf=LABELS / 2)
    p = Predictions.load(path, names={"labels": "true"})
    assert p.labels.tolist() == LABELS.tolist() and p.correctness.all() and "label" in p.notes[0]


def test_names__columns_that_nobody_named_may_hold_anything(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    image = [{"bytes": b"x", "path": "a.png"}] * 6
    pq.write_table(pa.table({"image": image, "z": LOGITS.tolist(), "label": LABELS}), tmp_path / "a.parquet")
    p = Predictions.load(tmp_path / "a.parquet", names={"logits": "z"})
    np.testing.assert_allclose(p.logits[:, 0], LOGITS)
    with pytest.raises(BadInput, match=r"'image'.*known column"):
        Predictions.load(tmp_path / "a.parquet")


# ---- a file per field


def test_names__every_field_from_a_file_of_its_own(tmp_path):
    torch = pytest.importorskip("torch")
    np.save(tmp_path / "z.npy", LOGITS)
    torch.save(torch.tensor(LABELS), tmp_path / "y.pt")
    np.savez(tmp_path / "u.npz", anything=LABELS * 0.5)
    p = Predictions.from_files(logits=tmp_path / "z.npy", labels=tmp_path / "y.pt", scores={"u": tmp_path / "u.npz"})
    np.testing.assert_array_equal(p.logits[:, 0], LOGITS)
    assert p.labels.tolist() == LABELS.tolist() and p.scores["u"].tolist() == (LABELS * 0.5).tolist()
    out = Predictions.from_files(logits=str(tmp_path / "z.npy"), ood=True)
    assert not out.in_distribution.any()


def test_names__files_of_one_field_that_cannot_be_used(tmp_path):
    np.savez(tmp_path / "two.npz", a=LABELS, b=LABELS)
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00{'descr'")
    (tmp_path / "a.txt").write_text("1 2 3")
    for name, words in (
        ("two.npz", "2 arrays"),
        ("cut.npy", r"npy array"),
        ("a.txt", r"txt.*give .npy"),
        ("gone.npy", "no such file"),
    ):
        with pytest.raises(BadInput, match=f"{name}: .*{words}"):
            Predictions.from_files(labels=tmp_path / name)
    with pytest.raises(BadInput, match=r"'label'.*known field"):
        Predictions.from_files(label=tmp_path / "two.npz")


# ---- lists in Parquet


@pytest.mark.parametrize("kind", ["list", "large", "fixed"])
def test_names__a_column_of_lists_is_a_matrix(tmp_path, kind, rng):
    import pyarrow as pa
    import pyarrow.parquet as pq

    make = {"list": pa.list_, "large": pa.large_list, "fixed": lambda item: pa.list_(item, 3)}[kind]
    column = pa.chunked_array(
        [pa.array(LOGITS[:2].tolist(), make(pa.float32())), LOGITS[2:].tolist()], make(pa.float32())
    )
    pq.write_table(pa.table({"logits": column, "label": LABELS, "embeddings": LOGITS.tolist()}), tmp_path / "a.parquet")
    p = Predictions.load(tmp_path / "a.parquet")
    np.testing.assert_array_equal(p.logits[:, 0], LOGITS)
    np.testing.assert_allclose(p.embeddings, LOGITS)
    draws = rng.normal(size=(6, 2, 3))
    pq.write_table(pa.table({"logits": draws.tolist(), "label": LABELS}), tmp_path / "b.parquet")
    np.testing.assert_array_equal(Predictions.load(tmp_path / "b.parquet").logits, draws)


# ---- tensors


def test_names__tensors_of_any_kind_are_read_and_objects_are_not(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "a.pt"
    torch.save({"logits": torch.tensor(LOGITS).bfloat16(), "scores": {"u": torch.arange(6)}}, path)
    p = Predictions.load(path)
    np.testing.assert_allclose(p.logits[:, 0], LOGITS, rtol=2**-7)
    assert p.scores["u"].tolist() == list(range(6))
    torch.save({"logits": torch.tensor(LOGITS), "model": Predictions}, path)
    with pytest.raises(BadInput, match=r"a\.pt:.*objects.* pickle"):
        Predictions.load(path)
    torch.save(torch.tensor(LOGITS), path)
    with pytest.raises(BadInput, match=r"a\.pt:.*one tensor"):
        Predictions.load(path)


def test_names__without_torch_a_sentence(tmp_path, monkeypatch):
    path = write(tmp_path / "a.pt", logits=LOGITS)
    real = builtins.__import__

    def without(name, *rest, **more):
        if name == "torch":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BadInput, match=r"reads this file,.*is not installed"):
        Predictions.load(path)


def test_names__a_tensor_that_repeats_one_number_without_end_is_refused(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"logits": torch.zeros(1).expand(10**6, 10**3)}, tmp_path / "a.pt")
    with pytest.raises(BadInput, match=r"a\.pt:.*tensor.*take 8 GB of memory"):
        Predictions.load(tmp_path / "a.pt")


# ---- the first answer only


@pytest.mark.parametrize(
    "lines",
    [
        ("label,pred,conf", "0,0,0.9", "1,2,0.4", "2,2,0.7"),
        ("label,predicted,confidence", "owl,owl,0.9", "cat,owl,0.4", "ant,ant,0.7"),
        ("correct,conf", "True,0.9", "false,0.4", "1,0.7"),
        ("label,correct,conf", "0,1,0.9", "1,0,0.4", "2,1,0.7"),
    ],
)
def test_names__first_answers_in_a_table(tmp_path, lines):
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    p = Predictions.load(tmp_path / "a.csv")
    assert p.correctness.tolist() == [True, False, True] and p.has_outcomes and p.confidence.tolist() == [0.9, 0.4, 0.7]
    for ending in ("", ".npz", ".safetensors", ".parquet", ".csv"):
        again = Predictions.load(p.save(tmp_path / f"b{ending}"))
        assert again.correctness.tolist() == p.correctness.tolist()
        assert again.confidence.tolist() == p.confidence.tolist()


# ---- formulas


def test_names__a_spreadsheet_computes_nothing(tmp_path):
    cells = ["=1+1", "+1", "-x", "@cmd", "\tx", "plain", "'=quoted", "it's", "-1x"]
    p = Predictions(index=cells, labels=np.zeros(9, int), groups={"g": cells[::-1]})
    path = p.save(tmp_path / "a.csv")
    for line in path.read_text().splitlines()[1:]:
        assert not any(cell.strip('"').startswith(tuple("=+-@\t\r")) for cell in line.split(",") if cell)
    again = Predictions.load(path)
    assert again.index.tolist() == cells and again.groups["g"].tolist() == cells[::-1]


def test_names__a_spreadsheet_computes_nothing_of_a_table_of_results(tmp_path):
    from nescio.predictions.columns import save_columns

    path = save_columns(tmp_path / "a.csv", {"model": ["=cmd()", "resnet", "-x"], "value": [-1.5, None, 2.0]})
    assert path.read_text() == "model,value\n'=cmd(),-1.5\nresnet,\n'-x,2.0\n"
