"""Labelled images, and how they are divided: a split is a function of the data's revision and a seed."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache, partial
from inspect import signature
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from nescio.arrays.types import Array
from nescio.datasets import decode
from nescio.errors import BadInput
from nescio.identity import seed_for, to_json
from nescio.registry import Registry, source_file
from nescio.specs import DatasetName

P = TypeVar("P", str, Path)
MOST_CLASSES = 1_000_000
VALIDATION = 0.1  # share of the training set that is held out (UIMNET §2)
SAMPLE_BYTES = 32 << 20  # of the training images, from which mean and deviation are taken
KEPT = 4  # decoded files of a passing kind: the images and the label maps of two levels of a shift


# ---- where the pixels are


class Pixels:
    """uint8 images (m, h, w, ch) in memory. All subsets share them: made when first seen, sent to a device once."""

    def __init__(self, make: Callable[[], Array], encoded: Encoded | None = None) -> None:
        self._make = make
        self.encoded = encoded  # what they are decoded from
        self._copies: dict[Any, Any] = {}

    @cached_property
    def array(self) -> Array:
        # torch does not take memory that it may not write to, such as the bytes of a file.
        return np.require(self._make(), np.uint8, ["C", "W"])

    def read(self, rows: Array) -> Array:
        return self.array[rows]

    def source(self, row: int) -> Any:
        """One image as it came: a path, encoded bytes, or an array (h, w, ch)."""
        return self.array[row] if self.encoded is None else self.encoded.source(row)

    def on(self, device: Any) -> Any:
        """All images as a tensor on a device; on the CPU it is the same memory."""
        import torch

        if device not in self._copies:
            with torch.inference_mode(False):  # what prediction sends there, training uses later
                self._copies[device] = torch.from_numpy(self.array).to(device)
        return self._copies[device]

    @cached_property
    def moments(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of every channel, pixels from 0 to 1, of evenly spaced images."""
        sample = self.array[:: -(-self.array.nbytes // SAMPLE_BYTES) or 1]
        values = np.arange(256) / 255
        means, deviations = [], []
        for channel in np.moveaxis(sample, 3, 0):
            share = np.bincount(channel.ravel(), minlength=256) / channel.size
            mean = share @ values
            means.append(float(f"{mean:.4g}"))
            deviations.append(float(f"{max(np.sqrt(share @ (values - mean) ** 2), 1e-3):.4g}"))
        return tuple(means), tuple(deviations)


class Encoded:
    """Image files, or encoded images in memory, decoded anew whenever they are looked at."""

    moments = decode.IMAGENET_MEAN, decode.IMAGENET_STD

    def __init__(self, sources: Sequence[Any], size: int, crop: float) -> None:
        # An array of bytes instead of a million objects: worker processes share its memory.
        self._are_paths = len(sources) > 0 and isinstance(sources[0], str)
        self._sources = np.array([os.fsencode(source) for source in sources]) if self._are_paths else sources
        self.size, self.crop = size, crop

    def source(self, row: int) -> Any:
        """The path or the encoded bytes of one image."""
        return os.fsdecode(self._sources[row]) if self._are_paths else self._sources[row]

    def __len__(self) -> int:
        return len(self._sources)

    def read(self, rows: Iterable[int]) -> Array:
        return decode.decode_all([self.source(row) for row in rows], self.size, self.crop)


class Frames(Encoded):
    """Whole image files of one shape (height, width), or label maps where a table gives the class of every value."""

    def __init__(
        self, paths: Sequence[str], shape: tuple[int, int], goal: tuple[int, int], table: Array | None = None
    ) -> None:
        super().__init__(paths, max(goal), 1.0)
        self.shape, self.goal, self.table = shape, goal, table

    def one(self, row: int) -> Array:
        """(h, w, ch), scaled to the goal."""
        if self.table is None:
            return decode.frame(self.source(row), self.shape, self.goal)
        return decode.label_map(self.source(row), self.shape, self.goal, self.table)

    def read(self, rows: Iterable[int]) -> Array:
        return decode.on_threads(self.one, list(rows), (*self.goal, 3 if self.table is None else 1))

    def take(self, rows: Iterable[int]) -> Frames:
        """Some of the files."""
        return Frames([self.source(row) for row in rows], self.shape, self.goal, self.table)

    def check(self) -> None:
        """Refuses what cannot be read: every label map, and every image by its head and its end."""

        def look(row: int) -> Array:
            if self.table is None:
                decode.check_head(self.source(row), self.shape)
            else:
                self.one(row)
            return np.empty(0)  # nothing is kept

        decode.on_threads(look, range(len(self)), (0,), "looking at files")


_decoded: deque[Passing] = deque()


class Passing(Pixels):
    """Decoded files of which only the last few sets stay in memory. Levels of a shift are looked at one after the
    other, and all of them together may be many times as large as what fits."""

    def __init__(self, frames: Frames) -> None:
        super().__init__(partial(frames.read, range(len(frames))), frames)
        self.frames = frames

    @cached_property
    def array(self) -> Array:
        made = super().array
        _decoded.append(self)
        while len(_decoded) > KEPT:
            _decoded.popleft().forget()
        return made

    def forget(self) -> None:
        self.__dict__.pop("array", None)
        self._copies.clear()

    def take(self, rows: Iterable[int]) -> Passing:
        """Some of the files: the others are then not decoded with them."""
        return Passing(self.frames.take(rows))


class Joined:
    """The images of several parts as one, the rows of the first part first."""

    def __init__(self, parts: Sequence[Images]) -> None:
        self.parts = parts
        self.starts = np.cumsum([0, *(len(part) for part in parts)])

    def source(self, row: int) -> Any:
        part = int(np.searchsorted(self.starts, row, side="right")) - 1
        return self.parts[part].source(row - int(self.starts[part]))

    def read(self, rows: Array) -> Array:
        whose = np.searchsorted(self.starts, rows, side="right") - 1
        order, pixels = [], []
        for number, part in enumerate(self.parts):
            own = np.flatnonzero(whose == number)
            if len(own):
                order.append(own)
                pixels.append(part.backing.read(part.rows[rows[own] - self.starts[number]]))
        return np.concatenate(pixels)[np.argsort(np.concatenate(order))]


@dataclass(frozen=True, eq=False)
class Images:
    """Rows of images with their labels."""

    labels: Array  # (n,) int64; of images with label maps all 0
    index: Array  # (n,) unique in the whole dataset
    backing: Pixels | Encoded | Joined = field(repr=False)  # shared by all subsets …
    rows: Array  # (n,) … of which these are here
    in_distribution: Array | None = None  # (n,) False where the class is not in training
    annotations: Array | None = None  # (n, c) human votes
    groups: Mapping[str, Array] = field(default_factory=dict)  # (n,) each: domain, corruption, severity …
    maps: Pixels | Frames | Joined | None = field(default=None, repr=False)  # (m, h, w, 1) a label for every pixel

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def pixels(self) -> Array:
        """(n, h, w, ch) uint8; files are read and decoded."""
        return self.backing.read(self.rows)

    def sources(self) -> Sequence[Any]:
        """Every image as it came, before any size was chosen: a path, encoded bytes, or an array (h, w, ch)."""
        return [self.backing.source(row) for row in self.rows.tolist()]

    def source(self, row: int) -> Any:
        """One image as it came, before any size was chosen."""
        return self.backing.source(int(self.rows[row]))

    def check_files(self) -> None:
        """Refuses whole images and label maps in files that cannot be read."""
        for backing in (self.backing, self.maps):
            frames = backing.encoded if isinstance(backing, Pixels) else backing
            if isinstance(frames, Frames):
                frames.check()

    def label_maps(self, rows: Array | slice = slice(None)) -> Array:
        """(n, h, w) labels of every pixel of these images."""
        if self.maps is None:
            raise BadInput("These images have one label each and no label maps.")
        return self.maps.read(self.rows[rows])[..., 0]

    def take(self, rows: Array) -> Images:
        """Some of the rows, in the order given."""

        def some(array: Array | None) -> Array | None:
            return None if array is None else array[rows]

        groups = {name: values[rows] for name, values in self.groups.items()}
        return replace(
            self,
            labels=self.labels[rows],
            index=self.index[rows],
            rows=self.rows[rows],
            in_distribution=some(self.in_distribution),
            annotations=some(self.annotations),
            groups=groups,
        )

    def alone(self) -> Images:
        """The same rows; where images pass through memory, those of other rows do not come along."""
        if not (isinstance(self.backing, Passing) and isinstance(self.maps, Passing)):
            return self
        rows = self.rows.tolist()
        return replace(self, backing=self.backing.take(rows), maps=self.maps.take(rows), rows=np.arange(len(rows)))

    def of(self, classes: Iterable[int]) -> Images:
        """The rows of these classes, renumbered 0, 1, … in the order given, marked as in training."""
        classes = list(classes)
        number = np.full(1 + max(int(self.labels.max(initial=0)), *classes, 0), -1)
        number[classes] = np.arange(len(classes))
        kept = self.take(np.flatnonzero(number[self.labels] >= 0))
        votes = kept.annotations
        return replace(
            kept,
            labels=number[kept.labels],
            in_distribution=np.ones(len(kept), bool),
            annotations=None if votes is None else votes[:, classes],
        )

    def outside(self, classes: Iterable[int]) -> Images:
        """The rows of these classes under their own labels, marked as not in training."""
        kept = self.take(np.flatnonzero(np.isin(self.labels, list(classes))))
        return replace(kept, in_distribution=np.zeros(len(kept), bool))


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test images of one source, pinned by a revision."""

    name: str
    train: Images
    test: Images
    classes: tuple[str, ...]
    channels: int
    shape: tuple[int, int]  # (height, width) of its images
    revision: str  # checksum of labels and images
    labelled: bool = True  # False: the labels mean nothing
    void: int | None = None  # the label of pixels that count nowhere, where images have label maps
    val: Images | None = None  # its own validation set; None: a tenth of the training images is held out
    notes: tuple[str, ...] = ()  # what was left out when it was read
    clean: str | None = None  # of a level of a shift, the name of the set whose test images it shows under that shift

    @cached_property
    def content(self) -> str:
        """A digest of all that a person's own set holds: the revision, names of classes, void, votes and groups."""
        digest = hashlib.sha256(to_json([self.revision, self.classes, self.void, self.labelled]).encode())
        for part in (self.train, self.test):
            votes = part.annotations
            digest.update(b"" if votes is None else f"{votes.shape} {votes.tolist()}".encode())
            for name, values in sorted(part.groups.items()):
                digest.update(f"{name} {values.tolist()}".encode())
        return digest.hexdigest()[:16]

    @property
    def size(self) -> int:
        """Pixels of the longer side."""
        return max(self.shape)

    @property
    def mean(self) -> tuple[float, ...]:
        return self.train.backing.moments[0]

    @property
    def std(self) -> tuple[float, ...]:
        return self.train.backing.moments[1]


# ---- sources


Wanted = Literal["both", "test", "all"]


@dataclass(frozen=True)
class Request:
    """What stands behind a dataset's name, `NAME:PATH@SIZE`, and the folder to look in.

    `wanted` both: training and test images; test: test images, and a reader may leave out the training images; all:
    every labelled image, and a reader may call them all test images.
    """

    root: Path | None = None
    path: str = ""
    size: int = 0
    wanted: Wanted = "both"


@dataclass(frozen=True)
class Source:
    """A reader of one kind of dataset."""

    name: str
    read: Callable[[Request], Dataset]
    path: bool | None  # whether a path must follow the name; None: it may
    size: int | None  # usual size of its images in pixels where another one can be chosen
    words: int = 0  # of a set that is made from another one, named by its path: words after it, each behind a #


class _Sources(Registry[Source]):
    """Readers by name; what stands behind the name of a set, `NAME:PATH@SIZE`, is left as it is."""

    def canonical(self, name: str) -> str:
        kind = DatasetName.of(name).kind
        if kind not in self and Path(os.path.expanduser(name)).exists():
            return name  # a folder of that name is not taken for the set of which it is an alias
        return super().canonical(kind) + name[len(kind) :]


registry: Registry[Source] = _Sources(
    "dataset",
    aliases={
        "cars196": ("stanford_cars",),
        "cub200": ("cub", "cub_200_2011"),
        "fashion-mnist": ("fmnist",),
        "imagenet": ("imagenet-1k", "imagenet1k", "ilsvrc2012", "in1k"),
        "sop": ("stanford_online_products",),
        "tiny-imagenet": ("tiny_imagenet_200",),
    },
    others=dict.fromkeys(
        ("svhn", "kmnist", "emnist", "qmnist", "lsun", "places365", "textures", "dtd", "inaturalist", "cifar10c"), ""
    )
    | dict.fromkeys(("cifar10.1", "cifar100c", "imagenet-o", "imagenet-c", "imagenet-r", "imagenet-v2", "stl"), ""),
)


def source(
    name: str, *, path: bool | None = False, size: int | None = None, words: int = 0
) -> Callable[[Callable[[Request], Dataset]], Callable[[Request], Dataset]]:
    """Registers a function as the reader of one dataset."""

    def add(read: Callable[[Request], Dataset]) -> Callable[[Request], Dataset]:
        try:
            signature(read).bind(None)
        except TypeError:
            raise BadInput(
                f"The dataset {name} ({source_file(read)}): its function must take one argument, the request."
            ) from None
        registry.add(name, Source(name, read, path, size, words))
        return read

    return add


def load(spec: str, root: str | Path | None = None, wanted: Wanted = "both") -> Dataset:
    """A dataset by name (`digits`, `cifar10` …) or by place (`folder:PATH`, `npz:PATH`); `@SIZE` resizes image files.

    Named sets are looked for under `root`, else under $NESCIO_DATA, else under ~/.cache/nescio/data. A process reads a
    dataset once. `wanted` test or all: for models that only predict, a set may lack training images.
    """
    where = None if root is None else str(Path(os.path.expanduser(root)).absolute())
    found = _load(spec, where, os.environ.get("NESCIO_DATA"), os.getcwd(), wanted)
    if wanted == "both" and not len(found.train):
        raise BadInput(f"{spec} has no training images.")
    return found


@lru_cache(maxsize=4)
def _load(spec: str, root: str | None, named: str | None, here: str, wanted: Wanted) -> Dataset:
    """`named` and `here` are not used, but what is found depends on them: they belong into the key of the cache."""
    name, path, size = DatasetName.of(spec)
    if any("\ud800" <= letter <= "\udfff" for letter in spec):
        raise BadInput(f"{spec!r} has bytes that are no UTF-8, and keys and pages name the data: rename the folder.")
    found = _source(spec, name)
    name = found.name
    if found.path and not path:
        raise BadInput(f"{spec!r} names no path: write {name}:PATH.")
    if path is not None and found.path is False:
        raise BadInput(f"{spec!r}: {name} takes no path; the folder in which it lies is named by NESCIO_DATA.")
    if size is not None and (found.size is None or len(size) > 4 or int(size) < 1):
        what = "cannot be resized" if found.size is None else "have from 1 to 9999 pixels a side"
        raise BadInput(f"{spec!r}: the images of {name} {what}.")
    made = found.read(Request(Path(root) if root else None, path or "", int(size or found.size or 0), wanted))
    if not isinstance(made, Dataset):
        raise BadInput(
            f"The dataset {name} ({source_file(found.read)}): its function returns {type(made).__name__}, not a "
            "Dataset: end it with return resident(…)."
        )
    return made


def _source(spec: str, name: str) -> Source:
    """The reader of a set; of a file or a folder that is there, it names the way to say so."""
    place = Path(os.path.expanduser(spec))
    if not spec or name in registry or not place.exists():
        return registry[name]
    if place.suffix == ".npz":
        raise BadInput(f"{spec!r} is a file: write npz:{spec}.")
    if place.is_dir():
        raise BadInput(f"{spec!r} is a folder: write folder:{spec}, or images:{spec} for images without labels.")
    raise BadInput(f"{spec!r} is a file, and images are read from folder:PATH or npz:FILE.")


def places(root: str | Path | None) -> list[Path]:
    """Folders in which datasets are looked for."""
    if root is not None:
        return [Path(root)]
    named = os.environ.get("NESCIO_DATA")
    return [*([Path(os.path.expanduser(named))] if named else []), Path(os.path.expanduser("~/.cache/nescio/data"))]


def place_of(request: Request) -> Path:
    """What the path names, from the current folder or from one in which datasets are looked for."""
    tried = [Path(os.path.expanduser(request.path)), *(place / request.path for place in places(request.root))]
    for place in tried:
        if place.exists():
            return place.resolve()
    raise BadInput(f"There is nothing at {', nor at '.join(map(str, dict.fromkeys(tried)))}.")


def find(
    name: str,
    root: Path | None,
    folders: Iterable[str],
    wanted: Sequence[str],
    published: str,
    endings: Sequence[str] = ("",),
) -> Path:
    """The first folder that holds all wanted files; else a sentence on where it looked and what it wants."""
    looked = [place / folder for place in places(root) for folder in folders]
    for folder in looked:
        if all(any((folder / f"{file}{ending}").exists() for ending in endings) for file in wanted):
            for file in wanted:
                for ending in endings:
                    regular(folder / f"{file}{ending}")
            return folder
    also = f" (or with {' or '.join(endings[1:])})" if len(endings) > 1 else ""
    raise BadInput(
        f"{name} is not there: looked for {', '.join(wanted)}{also} in {', '.join(map(str, looked))}. "
        f"It is published at {published}: unpack it there, or let NESCIO_DATA name the folder that holds it."
    )


# ---- datasets from what the sources read

Part = tuple[Any, Array]  # images and their labels


def _bytes_of(pixels: Array) -> str:
    """How to save images of another type as uint8, as far as their values tell."""
    if pixels.dtype.kind not in "iuf" or not pixels.size or not 0 <= pixels.min() <= pixels.max() <= 255:
        return ""
    unit = pixels.dtype.kind == "f" and pixels.max() <= 1
    return f": save {'(255 * x)' if unit else 'x'}{'.round()' * (pixels.dtype.kind == 'f')}.astype(np.uint8)"


def resident(name: str, train: Part, test: Part, classes: Iterable[str] | None = None) -> Dataset:
    """A dataset of two arrays of uint8 images, (n, h, w) or (n, h, w, ch), and their labels; without `classes` their
    names are numbers. Labels of shape (n, h, w) are label maps."""
    parts: list[tuple[Array, Array]] = []
    for word, (pixels, labels) in (("training", train), ("test", test)):
        if pixels.dtype != np.uint8:
            raise BadInput(
                f"{name} holds {pixels.dtype} {word} images; they must be uint8, from 0 to 255{_bytes_of(pixels)}."
            )
        if pixels.ndim not in (3, 4):
            raise BadInput(
                f"The {word} images of {name} have shape {pixels.shape}; "
                "it must be (n, height, width) or (n, height, width, channels)."
            )
        parts.append((_with_channels(f"the {word} images of {name}", pixels), labels))
    (train_pixels, _), (test_pixels, _) = parts
    if train_pixels.shape[1:] != test_pixels.shape[1:]:
        raise BadInput(
            f"{name} has training images of shape {train_pixels.shape[1:]} and test images of {test_pixels.shape[1:]}."
        )
    _check_labels(name, parts, train_pixels.shape[1:3])
    digest = hashlib.sha256()
    for pixels, labels in parts:
        digest.update(f"{pixels.shape} {labels.tolist() if labels.ndim == 1 else labels.shape}".encode())
        if labels.ndim > 1:
            digest.update(np.ascontiguousarray(labels, np.uint8).tobytes())
        digest.update(memoryview(np.ascontiguousarray(pixels)))  # type: ignore[arg-type]
    backings = [Pixels(partial(np.asarray, pixels)) for pixels, _ in parts]
    height, width, channels = train_pixels.shape[1:]
    return _dataset(name, backings, parts, classes, channels, (height, width), digest)


def _with_channels(what: str, pixels: Array) -> Array:
    """(n, h, w, ch) of (n, h, w), or of the same with 1 or 3 channels last."""
    if pixels.ndim == 4 and pixels.shape[3] not in (1, 3):
        cure = "keep 1 or 3 of its channels, as x[..., :3]"
        if pixels.shape[1] in (1, 3):
            cure = "its channels come first, so save x.transpose(0, 2, 3, 1)"
        raise BadInput(f"{what} have shape {pixels.shape}, and the last axis must be 1 or 3 channels: {cure}.")
    if 0 in pixels.shape[1:]:
        raise BadInput(f"{what} have shape {pixels.shape}: images of 0 pixels show nothing.")
    return pixels if pixels.ndim == 4 else pixels[..., None]


def encoded(
    name: str, train: Part, test: Part, classes: Iterable[str] | None, size: int, crop: float = decode.CROP
) -> Dataset:
    """A dataset of image files, or of encoded images in memory, and their labels.

    Those that fit are decoded once into memory, when they are needed; the others are read over and over. The revision
    is taken over the encoded bytes, so that it is known without decoding and the same under every decoder; of files
    that do not fit it is taken over their names and lengths, without the name of the folder that holds them all.
    """
    parts = [train, test]
    _check_labels(name, parts, (size, size))
    fits = sum(len(sources) for sources, _ in parts) * size * size * 3 <= decode.RESIDENT_BYTES
    digest = hashlib.sha256(f"{size} {crop}".encode())
    files = [] if fits else [entry for sources, _ in parts for entry in sources if isinstance(entry, str)]
    above = os.path.commonpath([os.path.dirname(end(files)) for end in (min, max)]) if files else ""
    for sources, labels in parts:
        digest.update(f"{len(sources)} {labels.tolist()}".encode())
        for entry in sources:
            found = content(entry, fits, above)
            digest.update(len(found).to_bytes(8, "little"))
            digest.update(found)
    backings: list[Any] = [Encoded(sources, size, crop) for sources, _ in parts]
    if fits:
        backings = [
            Pixels(partial(file.read, range(len(part[0]))), file) for file, part in zip(backings, parts, strict=True)
        ]
    return _dataset(name, backings, parts, classes, 3, (size, size), digest)


def content(source: Any, whole: bool, above: str = "") -> Any:
    """What a checksum is taken over: the bytes of an image, or of a file only its class folder, name and length.

    above  the folder of all images, whose name is no class
    """
    if not isinstance(source, str):
        return source
    try:
        size = os.stat(regular(source)).st_size
        if not whole:
            parts = Path(source).parts[-1:] if os.path.dirname(source) == above else Path(source).parts[-2:]
            return f"{'/'.join(parts)} {size}".encode(errors="surrogateescape")
        with open(source, "rb") as file:
            return file.read()
    except OSError as error:
        raise BadInput(f"{source} cannot be read: {error.strerror}.") from None


def checksum(path: str | Path) -> str:
    """The first digits of a file's sha256; a process takes it once, until the file changes."""
    try:
        state = os.stat(regular(os.fspath(path)))
        return _checksum(os.fspath(path), state.st_size, state.st_mtime_ns)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from None


@cache
def _checksum(path: str, size: int, changed: int) -> str:
    """`size` and `changed` are not used, but what is in the file depends on them."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def regular(path: P) -> P:
    """The path of a file or a folder: a pipe under the name of a file would never end."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise BadInput(f"{path} is not a regular file.")
    return path


def _dataset(
    name: str,
    backings: list[Any],
    parts: list[Part],
    classes: Iterable[str] | None,
    channels: int,
    shape: tuple[int, int],
    digest: Any,
) -> Dataset:
    made: list[Images] = []
    start = 0
    names = tuple(classes) if classes is not None else _numbers(name, [labels for _, labels in parts])
    for word, store, (shown, labels) in zip(("training", "test"), backings, parts, strict=True):
        if len(shown) != len(labels):
            raise BadInput(f"{name} has {len(shown)} {word} images and {len(labels)} {word} labels.")
        if not len(labels) and word == "test":
            raise BadInput(f"{name} has no test images.")
        maps = None
        if labels.ndim == 3:
            if labels.max(initial=0) > 255 or labels.min(initial=0) < 0:
                raise BadInput(f"The {word} label maps of {name} hold labels outside 0 to 255.")
            maps = Pixels(partial(np.asarray, labels.astype(np.uint8)[..., None]))
            labels = np.zeros(len(labels), np.int64)
        if labels.min(initial=0) < 0 or labels.max(initial=0) >= len(names):
            raise BadInput(f"{name} has {word} labels outside 0 to {len(names) - 1}.")
        rows = np.arange(len(labels))
        made.append(Images(labels.astype(np.int64), start + rows, store, rows, maps=maps))
        start += len(labels)
    return Dataset(name, made[0], made[1], names, channels, shape, digest.hexdigest()[:16])


def _check_labels(name: str, parts: Iterable[Part], shape: tuple[int, ...]) -> None:
    for word, (_, labels) in zip(("training", "test"), parts, strict=True):
        if (labels.ndim != 1 and labels.shape[1:] != shape) or labels.dtype.kind not in "iu":
            raise BadInput(
                f"The {word} labels of {name} have shape {labels.shape} and kind {labels.dtype}; "
                "they must be whole numbers, one for each image or one for each of its pixels."
            )


def _numbers(name: str, labels: Sequence[Array]) -> tuple[str, ...]:
    """Numbers as the names of classes that have none."""
    most = max((int(part.max()) for part in labels if part.size), default=0)
    if most >= MOST_CLASSES:
        raise BadInput(f"{name} has the label {most}: classes are numbered from 0, and below {MOST_CLASSES}.")
    return tuple(map(str, range(most + 1)))


# ---- splits


@dataclass(frozen=True, eq=False)
class Splits:
    """What a trial trains on, is tuned on and is evaluated on."""

    train: Images
    val: Images
    test: Images
    out: Images


def stratified(labels: Array, share: float, seed: int) -> tuple[Array, Array]:
    """(rest, share) of the rows, in order. Every class gives its rounded share: at least one row, and never its last.

    Every row draws a number, and the lowest of each class are taken. The draws are raw bits of PCG64: NumPy may change
    its permutations from one version to the next, but not these.
    """
    _, kind, counts = np.unique(labels, return_inverse=True, return_counts=True)
    quota = np.minimum(np.maximum(np.rint(share * counts), 1), counts - 1)
    order = np.lexsort((np.random.PCG64(seed).random_raw(len(labels)), kind))
    rank = np.empty(len(labels), np.int64)
    rank[order] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen = rank < quota[kind]
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


@lru_cache(maxsize=8)
def splits(
    dataset: Dataset, classes: tuple[int, ...] | None = None, seed: int = 0, outside: tuple[int, ...] | None = None
) -> Splits:
    """90/10 train and validation of the in-distribution classes, the test set, and the test images of other classes.

    Which training rows are held out depends on the data's revision and the seed alone, so that no choice of classes
    makes a validation row of one study a training row of another.

    classes  in-distribution classes in their new order; None: all
    outside  out-of-distribution classes; None: all others
    """
    every = range(len(dataset.classes))
    inside = classes if classes is not None else tuple(every)
    others = outside if outside is not None else tuple(label for label in every if label not in set(inside))
    for label in (*inside, *others):
        if label not in every:
            raise BadInput(f"{dataset.name} has no class {label}: they run from 0 to {len(every) - 1}.")
    if not inside:
        raise BadInput(f"No class of {dataset.name} is in-distribution: name at least one.")
    named = sorted((*inside, *others))
    twice = [label for label, after in pairwise(named) if label == after]
    if twice:
        raise BadInput(f"Class {twice[0]} is named twice: a class is in- or out-of-distribution, once.")
    if dataset.val is not None:
        train, val = dataset.train.of(inside), dataset.val.of(inside)
    else:
        rest, tenth = stratified(dataset.train.labels, VALIDATION, seed_for("split", dataset.revision, seed))
        train, val = (dataset.train.take(rows).of(inside) for rows in (rest, tenth))
    missing = sorted(set(range(len(inside))) - set(val.labels.tolist()))
    if missing and dataset.train.maps is None:  # of label maps, every image may have every class
        name = dataset.classes[inside[missing[0]]]
        raise BadInput(
            f"Class {name} of {dataset.name} has fewer than two training images: one of them must be held out."
        )
    return Splits(train, val, dataset.test.of(inside), dataset.test.outside(others))
