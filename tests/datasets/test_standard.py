"""Datasets whose images are arrays, from tiny files in their published layouts."""

import gzip
import os
import pickle
import shlex
from pathlib import Path

import numpy as np
import pytest

from nescio.datasets import load, readers
from nescio.datasets.standard import read_pickle
from nescio.errors import BadInput
from tests.support.published_layouts import (
    CIFAR10,
    STL,
    WRITERS,
    cut,
    fresh,  # noqa: F401  (used by every test)
    python2,
    same,
    write_cifar10,
    write_cifar100,
    write_mnist,
    write_stl10,
)


class Payload:
    def __init__(self, what):
        self.what = what

    def __reduce__(self):
        return self.what


@pytest.mark.parametrize("packed", [(), (0, 1, 2, 3), (0, 3)])
def test_standard__mnist_is_read_plain_and_gzipped(tmp_path, packed):
    parts = write_mnist(tmp_path, packed=packed)
    found = load("mnist", tmp_path)
    same(found, *parts)
    assert (found.channels, found.size, found.classes) == (1, 28, tuple("0123456789"))
    readers._load.cache_clear()
    write_mnist(tmp_path / "plain")
    assert load("mnist", tmp_path / "plain").revision == found.revision


def test_standard__fashion_mnist_is_not_taken_for_mnist(tmp_path):
    parts = write_mnist(tmp_path, "FashionMNIST/raw", packed=range(4))
    found = load("fashion-mnist", tmp_path)
    same(found, *parts)
    assert found.classes[0] == "T-shirt/top" and found.classes[9] == "Ankle boot"
    with pytest.raises(BadInput, match="mnist was not"):
        load("mnist", tmp_path)


@pytest.mark.filterwarnings("error")  # NumPy warns of what pickles of Python 2 hold
def test_standard__cifar10_is_read(tmp_path):
    parts = write_cifar10(tmp_path)
    found = load("cifar10", tmp_path)
    same(found, *parts)
    assert (len(found.train), len(found.test), found.channels, found.size) == (100, 20, 3, 32)
    assert found.classes == tuple(CIFAR10)


def test_standard__cifar10_pickled_again_by_todays_numpy_is_read(tmp_path):
    parts = write_cifar10(tmp_path)
    for path in (tmp_path / "cifar-10-batches-py").iterdir():
        held = pickle.loads(path.read_bytes(), encoding="bytes")
        path.write_bytes(pickle.dumps(held, 4))
    same(load("cifar10", tmp_path), *parts)


def test_standard__cifar100_has_its_fine_labels(tmp_path):
    parts = write_cifar100(tmp_path)
    found = load("cifar100", tmp_path)
    same(found, *parts)
    assert found.classes[37] == "fine 37" and len(found.classes) == 100


def test_standard__the_miniature_pickle_is_that_of_python_2():
    start = python2({"batch_label": "training batch 1 of 5", "labels": [6, 9]})
    # The first bytes of the published data_batch_1.
    assert start.startswith(
        b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x15training batch 1 of 5q\x03U\x06labelsq\x04]q\x05(K\x06K\t"
    )


def test_standard__stl10_is_read_column_by_column_and_its_labels_from_one(tmp_path):
    parts = write_stl10(tmp_path)
    found = load("stl10", tmp_path)
    same(found, *parts)
    assert found.classes == tuple(STL) and found.size == 96


def test_standard__the_digits_are_pinned():
    found = load("digits")
    assert (len(found.train), len(found.test), found.channels, found.size) == (1198, 599, 1, 8)
    assert np.abs(np.bincount(found.train.labels) - 2 * np.bincount(found.test.labels)).max() <= 2
    assert found.train.pixels.min() == 0 and found.train.pixels.max() == 255
    from sklearn.datasets import load_digits

    known = {image.tobytes() for image in np.round(load_digits().images * (255 / 16)).astype(np.uint8)}
    assert {image.tobytes() for image in np.concatenate([found.train.pixels, found.test.pixels])} == known
    assert found.revision == "e0b31388f8b0f5e5"


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("run", ["system", "eval", "getattr"])
def test_standard__a_malicious_pickle_is_refused_and_nothing_runs(tmp_path, run, protocol):
    write_cifar10(tmp_path)
    mark = tmp_path / "ran"
    payload = {
        "system": Payload((os.system, (f"touch {shlex.quote(str(mark))}",))),
        "eval": Payload((eval, (f"open({str(mark)!r}, 'w').close()",))),
        "getattr": Payload((exec, (f"import pathlib; getattr(pathlib.Path({str(mark)!r}), 'touch')()",))),
    }[run]
    data = pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [0], b"x": payload}, protocol)
    pickle.loads(data)
    assert mark.exists()  # it does harm where nobody watches
    mark.unlink()
    bad = tmp_path / "cifar-10-batches-py/data_batch_3"
    bad.write_bytes(data)
    with pytest.raises(BadInput, match=r"data_batch_3 .* would run [\w.]+,"):
        load("cifar10", tmp_path)
    assert not mark.exists()


def test_standard__a_pickle_that_damages_memory_is_refused(tmp_path):
    """A dtype of objects in place of bytes, by the state of the dtype: NumPy would follow the bytes as addresses."""
    write_cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-py/data_batch_3"
    whole = path.read_bytes()
    for code in (b"O8", b"V8", b"f8"):
        path.write_bytes(whole.replace(b"U\x02u1", b"U\x02" + code))
        with pytest.raises(BadInput, match="data_batch_3 is not"):
            load("cifar10", tmp_path)
    state = pickle.dumps(np.dtype("u1"), 2)
    assert b"u1" in state
    twice = {b"labels": [[0] * 2] * 2, b"data": np.zeros((2, 3072), np.uint8)}
    path.write_bytes(pickle.dumps(twice, 4))
    with pytest.raises(BadInput, match="lacks `data`"):
        load("cifar10", tmp_path)


def test_standard__a_list_that_doubles_itself_is_refused(tmp_path):
    """Thirty lists, each twice the one before: written out, a thousand million labels."""
    write_cifar10(tmp_path)
    labels = [0]
    for _ in range(30):
        labels = [labels, labels]
    held = {b"data": np.zeros((2, 3072), np.uint8), b"labels": labels}
    (tmp_path / "cifar-10-batches-py/data_batch_3").write_bytes(pickle.dumps(held, 4))
    with pytest.raises(BadInput, match="lacks `data`, bytes of shape"):
        load("cifar10", tmp_path)


def test_standard__no_reader_but_that_of_cifar_unpickles():
    for path in Path(readers.__file__).parent.glob("*.py"):
        text = path.read_text()
        assert "allow_pickle=True" not in text
        assert path.name == "standard.py" or ("import pickle\n" not in text and "Unpickler" not in text)


@pytest.mark.parametrize(
    "program",
    [
        b"cos\nsystem\n(S'true'\ntR.",  # a call
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.",  # the same, named on the stack
        b"(S'true'\nios\nsystem\n.",  # INST
        b"(cos\nsystem\nS'true'\no.",  # OBJ
        b"\x80\x02}r\xff\xff\xff\x7f.",  # a memo of 2³¹ entries
        b"\x80\x02cnumpy\nndarray\n.",  # not a dictionary
        b"cnumpy.core.multiarray\n_reconstruct\n(K\x01tR(K\x01J\xff\xff\xff\x7f\x85cnumpy\ndtype\n(U\x02u1tR\x89U\x01xtb.",
        b"\x80\x82\x01.",  # an extension
        b"(" * 9,
    ],
)
def test_read_pickle_calls_nothing(tmp_path, monkeypatch, program):
    monkeypatch.setattr("os.system", lambda command: pytest.fail(command))
    (tmp_path / "data").write_bytes(program)
    try:
        assert read_pickle(tmp_path / "data") == {}
    except BadInput as error:
        assert str(tmp_path / "data") in str(error)


def test_standard__names_of_classes_that_are_no_utf_8_are_read_as_far_as_they_go(tmp_path):
    write_stl10(tmp_path)
    names = tmp_path / "stl10_binary/class_names.txt"
    names.write_bytes(names.read_bytes().replace(b"bird", b"b\xffrd"))
    assert load("stl10", tmp_path).classes[1] == "b\ufffdrd"


def test_standard__a_gzip_bomb_is_refused(tmp_path):
    write_mnist(tmp_path)
    head = b"\0\0\x08\x03" + np.array([300_000, 32, 32], ">u4").tobytes()
    for file in (tmp_path / "mnist").glob("train-images*"):
        file.unlink()
    with gzip.open(tmp_path / "mnist/train-images-idx3-ubyte.gz", "wb", compresslevel=1) as file:
        file.write(head)
        for _ in range(10):
            file.write(bytes(1_000_000))
    with pytest.raises(BadInput, match=r"train-images-idx3-ubyte.gz would take 0\.307 GB of memory"):
        load("mnist", tmp_path)


@pytest.mark.parametrize(
    ("name", "file", "keep"),
    [
        ("mnist", "mnist/train-images-idx3-ubyte", -1),
        ("mnist", "mnist/train-images-idx3-ubyte", 9),
        ("mnist", "mnist/t10k-labels-idx1-ubyte", 0),
        ("cifar10", "cifar-10-batches-py/data_batch_5", -1),
        ("cifar10", "cifar-10-batches-py/data_batch_5", 5000),
        ("cifar10", "cifar-10-batches-py/batches.meta", 40),
        ("cifar100", "cifar-100-python/test", 0),
        ("stl10", "stl10_binary/train_X.bin", -7),
        ("tiny-imagenet", "tiny-imagenet-200/val/images/val_2.JPEG", 300),
        ("tiny-imagenet", "tiny-imagenet-200/val/val_annotations.txt", 20),
        ("imagenet@32", "imagenet/train/n02/n02_1.JPEG", 0),
    ],
)
def test_standard__a_file_that_is_cut_short_is_named(tmp_path, name, file, keep):
    WRITERS[name.split("@")[0]](tmp_path)
    cut(tmp_path / file, keep)
    with pytest.raises(BadInput, match=Path(file).name):
        found = load(name, tmp_path)
        found.train.pixels, found.test.pixels  # noqa: B018  (images are decoded when they are looked at)


def test_standard__a_gz_file_that_is_cut_short_is_named(tmp_path):
    write_mnist(tmp_path, packed=range(4))
    cut(tmp_path / "mnist/train-images-idx3-ubyte.gz", -20)
    with pytest.raises(BadInput, match=r"ubyte.gz is not"):
        load("mnist", tmp_path)


def test_standard__fewer_labels_than_images_are_refused(tmp_path):
    write_stl10(tmp_path)
    cut(tmp_path / "stl10_binary/test_y.bin", -1)
    with pytest.raises(BadInput, match="stl10 has 10 test images and 9 test labels"):
        load("stl10", tmp_path)


def test_standard__labels_outside_the_classes_are_refused(tmp_path):
    write_stl10(tmp_path)
    (tmp_path / "stl10_binary/test_y.bin").write_bytes(bytes(range(10)))  # counted from 0
    with pytest.raises(BadInput, match="test labels outside 0 to 9"):
        load("stl10", tmp_path)
