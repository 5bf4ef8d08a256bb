"""Miniature datasets in their published layouts."""

import gzip
import io
import struct

import numpy as np
import pytest
from PIL import Image

from nescio.datasets import load, readers


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """No dataset of another test, and none of this machine's."""
    readers._load.cache_clear()
    monkeypatch.delenv("NESCIO_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def pictures(n, size, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, size, size, channels), np.uint8)


def smooth(seed, width, height):
    """A picture that survives JPEG and resizing: a ramp in two colours."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    level = (seed * 37) % 120
    return np.stack([level + 100 * x, level + 100 * y, np.full_like(x, level)], 2).astype(np.uint8)


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def jpeg(path, pixels, kind="JPEG"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, kind, **({"quality": 95} if kind == "JPEG" else {}))


def idx(array):
    return b"\x00\x00\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(root, folder="mnist", packed=()):
    shown, asked = pictures(30, 28, 1, seed=1)[..., 0], pictures(12, 28, 1, seed=2)[..., 0]
    labels, answers = np.arange(30, dtype=np.uint8) % 10, np.arange(12, dtype=np.uint8)[::-1] % 10
    files = {
        "train-images-idx3-ubyte": shown,
        "train-labels-idx1-ubyte": labels,
        "t10k-images-idx3-ubyte": asked,
        "t10k-labels-idx1-ubyte": answers,
    }
    for number, (name, array) in enumerate(files.items()):
        if number in packed:
            write(root / folder / f"{name}.gz", gzip.compress(idx(array)))
        else:
            write(root / folder / name, idx(array))
    return (shown[..., None], labels), (asked[..., None], answers)


class Python2:
    """Pickles as cPickle of Python 2 wrote them at protocol 2: texts are byte strings, arrays name numpy.core."""

    def __init__(self, value):
        self.out, self.memo = io.BytesIO(), 0
        self.out.write(b"\x80\x02")
        self.save(value)
        self.out.write(b".")

    def put(self, data):
        self.out.write(data)
        self.memo += 1
        self.out.write(b"q" + bytes([self.memo]) if self.memo < 256 else b"r" + struct.pack("<I", self.memo))

    def text(self, data):
        self.put((b"U" + bytes([len(data)]) if len(data) < 256 else b"T" + struct.pack("<I", len(data))) + data)

    def save(self, value):
        write = self.out.write
        if isinstance(value, dict):
            self.put(b"}")
            write(b"(")
            for key, each in value.items():
                self.save(key)
                self.save(each)
            write(b"u")
        elif isinstance(value, list):
            self.put(b"]")
            write(b"(")
            for each in value:
                self.save(each)
            write(b"e")
        elif isinstance(value, str):
            self.text(value.encode())
        elif isinstance(value, int):
            small = 0 <= value < 256
            write(b"K" + bytes([value]) if small else b"M" + struct.pack("<H", value))
        else:
            self.array(value)

    def array(self, value):
        self.put(b"cnumpy.core.multiarray\n_reconstruct\n")
        self.put(b"cnumpy\nndarray\n")
        self.put(b"K\x00\x85")
        self.text(b"b")
        self.put(b"\x87")
        self.put(b"R")
        self.out.write(b"(K\x01")
        for side in value.shape:
            self.save(side)
        self.put(b"\x86")
        self.put(b"cnumpy\ndtype\n")
        self.text(b"u1")
        self.put(b"K\x00K\x01\x87")
        self.put(b"R")
        self.out.write(b"(K\x03")
        self.text(b"|")
        self.put(b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00t")
        self.out.write(b"b\x89")
        self.text(value.tobytes())
        self.put(b"t")
        self.out.write(b"b")


def python2(value):
    return Python2(value).out.getvalue()


def flat(pixels):
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).reshape(len(pixels), 3072)


CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def write_cifar10(root):
    folder, parts = root / "cifar-10-batches-py", []
    for number, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        pixels, labels = pictures(20, 32, seed=number), [(7 * row + number) % 10 for row in range(20)]
        title = f"training batch {number + 1} of 5" if number < 5 else "testing batch 1 of 1"
        files = [f"{CIFAR10[label]}_s_{row:06d}.png" for row, label in enumerate(labels)]
        held = {"batch_label": title, "labels": labels, "data": flat(pixels), "filenames": files}
        write(folder / name, python2(held))
        parts.append((pixels, labels))
    meta = {"num_cases_per_batch": 20, "label_names": CIFAR10, "num_vis": 3072}
    write(folder / "batches.meta", python2(meta))
    train = np.concatenate([pixels for pixels, _ in parts[:5]]), np.concatenate([labels for _, labels in parts[:5]])
    return train, (parts[5][0], np.array(parts[5][1]))


def write_cifar100(root):
    folder, parts = root / "cifar-100-python", []
    for number, (name, rows) in enumerate({"train": 200, "test": 100}.items()):
        pixels, fine = pictures(rows, 32, seed=number), [(row * 37 + number) % 100 for row in range(rows)]
        held = {
            "filenames": [f"x_s_{row:06d}.png" for row in range(rows)],
            "batch_label": f"{name}ing batch 1 of 1",
            "fine_labels": fine,
            "coarse_labels": [label // 5 for label in fine],
            "data": flat(pixels),
        }
        write(folder / name, python2(held))
        parts.append((pixels, np.array(fine)))
    names = {"fine_label_names": [f"fine {n}" for n in range(100)], "coarse_label_names": [f"c {n}" for n in range(20)]}
    write(folder / "meta", python2(names))
    return tuple(parts)


STL = ["airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"]


def write_stl10(root):
    folder, parts = root / "stl10_binary", []
    for number, (name, rows) in enumerate({"train": 20, "test": 10}.items()):
        pixels, labels = pictures(rows, 96, seed=number), np.arange(rows) * 3 % 10
        # (n, channels, columns, rows): Matlab's order
        write(folder / f"{name}_X.bin", np.ascontiguousarray(pixels.transpose(0, 3, 2, 1)).tobytes())
        write(folder / f"{name}_y.bin", (labels + 1).astype(np.uint8).tobytes())
        parts.append((pixels, labels))
    write(folder / "class_names.txt", "".join(f"{name}\n" for name in STL).encode())
    write(folder / "unlabeled_X.bin", b"")
    write(folder / "fold_indices.txt", b"0 1 2 3\n")
    return tuple(parts)


WNIDS = ["n02124075", "n01443537", "n07749582"]  # the published file is not sorted either


def write_tiny(root):
    folder = root / "tiny-imagenet-200"
    write(folder / "wnids.txt", "".join(f"{wnid}\n" for wnid in WNIDS).encode())
    words = {
        "n00001740": "entity",
        WNIDS[0]: "Egyptian cat",
        WNIDS[1]: "goldfish, Carassius auratus",
        WNIDS[2]: "lemon",
    }
    write(folder / "words.txt", "".join(f"{wnid}\t{word}\n" for wnid, word in words.items()).encode())
    for number, wnid in enumerate(WNIDS):
        for row in (0, 1, 2, 10):
            jpeg(folder / f"train/{wnid}/images/{wnid}_{row}.JPEG", smooth(10 * number + row, 64, 64))
        boxes = "".join(f"{wnid}_{row}.JPEG\t0\t10\t63\t58\n" for row in (0, 1, 2, 10))
        write(folder / f"train/{wnid}/{wnid}_boxes.txt", boxes.encode())
    notes = []
    for row, number in enumerate((2, 0, 1, 1)):
        jpeg(folder / f"val/images/val_{row}.JPEG", smooth(50 + row, 64, 64))
        notes.append(f"val_{row}.JPEG\t{WNIDS[number]}\t0\t32\t44\t62\n")
    write(folder / "val/val_annotations.txt", "".join(notes).encode())
    jpeg(folder / "test/images/test_0.JPEG", smooth(99, 64, 64))
    return folder


def write_folders(place, rows, kind="JPEG", names=("n01", "n02", "n03"), start=0, width=80, height=60):
    for number, name in enumerate(names):
        for row in range(rows):
            ending = "JPEG" if kind == "JPEG" else "png"
            picture = smooth(start + 10 * number + row, width, height)
            jpeg(place / name / f"{name}_{row}.{ending}", picture, kind)


def write_imagenet(root):
    write_folders(root / "imagenet/train", 4)
    write_folders(root / "imagenet/val", 2, start=50)


WRITERS = {
    "mnist": write_mnist,
    "fashion-mnist": lambda root: write_mnist(root, "fashion-mnist"),
    "cifar10": write_cifar10,
    "cifar100": write_cifar100,
    "stl10": write_stl10,
    "tiny-imagenet": write_tiny,
    "imagenet": write_imagenet,
}


def same(dataset, train, test):
    for images, (pixels, labels) in ((dataset.train, train), (dataset.test, test)):
        assert np.array_equal(images.labels, labels)
        assert np.array_equal(images.pixels, pixels)
        assert images.labels.dtype == np.int64
    everything = np.concatenate([dataset.train.index, dataset.test.index])
    assert np.array_equal(everything, np.arange(len(everything)))


def close(pixels, expected, far=6):
    """JPEG and resizing move a smooth picture by a few levels only."""
    assert np.abs(pixels.astype(int) - expected.astype(int)).max() <= far


def encode(pixels):
    held = io.BytesIO()
    Image.fromarray(pixels).save(held, "PNG")
    return held.getvalue()


def pack(path, words=("train", "train", "test"), pixels=None, labels=None, **more):
    """Twelve encoded images, end to end."""
    pixels = pictures(12, 16) if pixels is None else pixels
    data = [encode(each) for each in pixels]
    np.savez(
        path,
        blob=np.frombuffer(b"".join(data), np.uint8),
        offsets=np.cumsum([0, *map(len, data)]),
        y=np.arange(12, dtype=np.int16) // 3 if labels is None else labels,
        split=np.array(words * 4),
        **more,
    )


def cut(path, keep):
    data = path.read_bytes()
    path.write_bytes(data[: keep if keep >= 0 else len(data) + keep])


def revision(spec, root):
    readers._load.cache_clear()
    return load(spec, root).revision
