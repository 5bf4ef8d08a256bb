"""Dense predictions by counts of their pixels: mIoU, accuracy and ranking metrics over all pixels in fixed memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np

from nescio.arrays.npz import npz_bytes, read_npz
from nescio.arrays.parallel import blocks
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.metrics import MAX_SCORES, Float16Counts, ScoreCounts, aurc, auroc, class_ious, mean_iou, raulc
from nescio.predictions.files import naming_file, read_array
from nescio.rows import Row

ImageOpener = Callable[[str], AbstractContextManager[Any]]  # the image in a file
LABELS = 256  # of label maps in files: 8 bits a pixel
BLOCK = 1 << 21  # pixels that are counted at once: those of an image of Cityscapes
DISTINCT = 1 << 16  # different scores in the counts of one level of a shift, which are kept in a file each
RANKING = {"auroc": auroc, "raulc": raulc, "aurc": aurc}  # of right and wrong pixels by score
MAPS, SCORES = (".png",), (".npy", ".npz", ".png")  # endings of files with labels, and with scores


@dataclass(frozen=True, eq=False)
class PixelCounts:
    """What is kept of dense predictions: enough for mIoU, and for AUROC and rAULC over all pixels. Shards add up, and
    so do the levels of a shift that are pooled."""

    confusion: Array  # (c, c) pixels of each true class (line) by predicted class (column), void left out
    scores: dict[str, Float16Counts | ScoreCounts]  # right and wrong pixels by key of each score
    infinite: dict[str, int] = field(default_factory=dict)  # other scores, and at how many pixels they are not finite

    @classmethod
    def of(
        cls,
        truth: Array,
        predicted: Array,
        scores: Mapping[str, Array],
        classes: int,
        void: int | None = None,
        distinct: int = DISTINCT,
    ) -> PixelCounts:
        """Counts the pixels of some images, a block at a time. truth, predicted and scores: arrays of one shape."""
        rows = max(1, BLOCK // max(1, math.prod(truth.shape[1:])))
        count = partial(cls._of, classes=classes, void=void, distinct=distinct)
        parts = (
            count(truth[part], predicted[part], {name: score[part] for name, score in scores.items()})
            for part in blocks(len(truth), rows)
        )
        return reduce(add, parts)

    @classmethod
    def _of(
        cls,
        truth: Array,
        predicted: Array,
        scores: Mapping[str, Array],
        classes: int,
        void: int | None,
        distinct: int,
    ) -> PixelCounts:
        known = np.ones(truth.shape, bool) if void is None else truth != void
        true, answers = truth[known].astype(np.int64), predicted[known].astype(np.int64)
        if true.max(initial=0) >= classes:
            raise BadInput(
                f"A label map has the label {true.max()}, and the network has {classes} classes, from 0 on: if it "
                "marks pixels that do not count, name it as `void` in the file."
            )
        confusion = np.bincount(true * classes + answers, minlength=classes**2).reshape(classes, classes)
        wrong = true != answers
        kept = {name: score[known] for name, score in scores.items()}
        infinite = {name: int(np.count_nonzero(~np.isfinite(score))) for name, score in kept.items()}
        finite = {name: count_scores(score, wrong, distinct) for name, score in kept.items() if not infinite[name]}
        return cls(confusion, finite, {name: count for name, count in infinite.items() if count})

    def __add__(self, other: PixelCounts) -> PixelCounts:
        infinite = {
            name: self.infinite.get(name, 0) + other.infinite.get(name, 0) for name in self.infinite | other.infinite
        }
        scores = {}
        for name, counts in self.scores.items():
            if name in infinite:
                continue
            if type(counts) is not type(more := other.scores[name]):
                raise BadInput(f"The maps of {name} have numbers of different kinds: give all of them one.")
            scores[name] = counts + more  # type: ignore[operator]
        return PixelCounts(self.confusion + other.confusion, scores, infinite)

    def save(self) -> bytes:
        """An .npz file of the counts."""
        arrays = {"confusion": self.confusion}
        arrays |= {f"{name}/infinite": np.array(count) for name, count in self.infinite.items()}
        for name, counts in self.scores.items():
            if isinstance(counts, Float16Counts):
                arrays[f"{name}/table"] = counts.table
            else:
                kept = {"keys": counts.keys, "rows": counts.rows, "kept": np.array([counts.digits, counts.most])}
                arrays |= {f"{name}/{part}": array for part, array in kept.items()}
        return npz_bytes(arrays)

    @classmethod
    def load(cls, path: Path) -> PixelCounts:
        arrays = read_npz(path)
        scores: dict[str, Float16Counts | ScoreCounts] = {}
        infinite: dict[str, int] = {}
        for name, part in (entry.rsplit("/", 1) for entry in arrays if "/" in entry):
            if part == "table":
                scores[name] = Float16Counts(arrays[f"{name}/table"])
            elif part == "keys":
                digits, most = arrays[f"{name}/kept"].tolist()
                scores[name] = ScoreCounts(arrays[f"{name}/keys"], arrays[f"{name}/rows"], digits, most)
            elif part == "infinite":
                infinite[name] = int(arrays[f"{name}/infinite"])
        return cls(arrays["confusion"], scores, infinite)

    @property
    def n(self) -> int:
        return int(self.confusion.sum())

    @property
    def iou(self) -> Array:
        """(c,) intersection over union of each class; NaN where it occurs nowhere."""
        return class_ious(np.diag(self.confusion), self.confusion.sum(1), self.confusion.sum(0))

    @property
    def miou(self) -> float:
        """Mean IoU over the classes that occur; `metrics.miou` of all pixels."""
        return mean_iou(self.iou)

    @property
    def accuracy(self) -> float:
        """Share of pixels whose class is predicted right."""
        if not self.n:
            raise Undefined("Accuracy is undefined: no pixel has a label other than void.")
        return float(np.trace(self.confusion) / self.n)

    @property
    def bound(self) -> float:
        """How far a ranking metric can be from its value on the scores themselves: only so many are distinguished."""
        return max(self.bounds.values(), default=0.0)

    @property
    def bounds(self) -> dict[str, float]:
        """The same of every score."""
        found = dict.fromkeys(self.scores, 0.0)
        for name, counts in self.scores.items():
            for function in RANKING.values():
                with suppress(Undefined):
                    found[name] = max(found[name], counts.bound(function))
        return found

    def rows(self) -> tuple[list[Row], list[str]]:
        """One row per metric, of each score as its `measure`, and a sentence for every metric that is undefined."""
        rows: list[Row] = [
            {"task": "segmentation", "metric": "miou", "value": self.miou, "n": self.n},
            {"task": "segmentation", "metric": "accuracy", "value": self.accuracy, "n": self.n},
        ]
        reasons = [f"{name}: It is not finite at {count} pixels." for name, count in self.infinite.items()]
        for name, counts in self.scores.items():
            for metric, function in RANKING.items():
                try:
                    value = function(counts.ranking())
                    rows.append(
                        {"task": "segmentation", "measure": name, "metric": metric, "value": value, "n": counts.n}
                    )
                except Undefined as reason:
                    reasons.append(f"{name}: {reason}")
        for name, bound in self.bounds.items():
            if bound:
                rows.append({"task": "segmentation", "measure": name, "metric": "bound", "value": bound, "n": self.n})
        return rows, reasons


def count_scores(u: Array, wrong: Array, distinct: int) -> Float16Counts | ScoreCounts:
    """Right and wrong pixels by score. All float16 scores are distinguished; of others as many as there is room for,
    wherever they lie: log-densities differ in digits that a table of fixed keys leaves out."""
    if u.dtype == np.float16:
        return Float16Counts.count(u, wrong)
    if not len(u):  # an image of void alone
        return ScoreCounts(np.zeros(0, np.uint64), np.zeros((0, 2), np.int64), 0, distinct)
    return ScoreCounts.count(u, wrong, distinct)


# ---- folders of maps


def count_folders(
    labels: str | Path,
    predictions: str | Path,
    scores: Mapping[str, str | Path],
    void: int | None = 255,
    *,
    opened: ImageOpener,
) -> PixelCounts:
    """Counts the pixels of label maps, predicted maps and score maps in folders, matched by the stems of their files.

    labels, predictions  .png of 8 bits a pixel, each value a class
    scores               name → folder of .npy, .npz (of one array) or .png of 16 bits; higher = less sure
    opened               `datasets.decode.opened_map`, which this room cannot import
    """
    if void is not None and not 0 <= void < LABELS:
        raise BadInput(f"No pixel of a label map can be {void}: void is a label from 0 to {LABELS - 1}, or none.")
    for name in ("labels", "predictions"):
        if name in scores:
            raise BadInput(f"A score cannot be called {name}, as the {name} themselves are: write NAME=DIR.")
    folders = {"labels": _by_stem(labels, MAPS), "predictions": _by_stem(predictions, MAPS)}
    folders |= {name: _by_stem(folder, SCORES) for name, folder in scores.items()}
    for name in folders:
        for one, other in (("labels", name), (name, "labels")):
            if lacking := sorted(folders[one].keys() - folders[other].keys()):
                raise BadInput(
                    f"There is no map {lacking[0]} of {other}, and there is one of {one} ({len(lacking)} are lacking)."
                )
    return reduce(add, _each(folders, list(scores), void, opened))


def _each(
    folders: Mapping[str, Mapping[str, Path]], scores: Iterable[str], void: int | None, opened: ImageOpener
) -> Iterator[PixelCounts]:
    for stem in sorted(folders["labels"]):
        truth, predicted = (_classes(folders[name][stem], opened) for name in ("labels", "predictions"))
        uncertainties = {name: _scores(folders[name][stem], opened) for name in scores}
        for name, array in {"predictions": predicted, **uncertainties}.items():
            if array.shape != truth.shape:
                raise BadInput(
                    f"{folders[name][stem]} has {array.shape} pixels and {folders['labels'][stem]} {truth.shape}: maps "
                    "of one image have one size."
                )
        if void is not None and ((predicted == void) & (truth != void)).any():
            raise BadInput(f"{folders['predictions'][stem]} calls pixels {void}, which is void: it is no class.")
        counts = PixelCounts.of(truth, predicted, uncertainties, LABELS, void, MAX_SCORES)
        for name, count in counts.infinite.items():
            raise BadInput(
                f"{folders[name][stem]} has no finite score at {count} pixels that are not void: correct it."
            )
        yield counts


def _by_stem(folder: str | Path, endings: tuple[str, ...]) -> dict[str, Path]:
    """The files of a folder by their names without endings."""
    if not Path(folder).is_dir():
        raise BadInput(f"There is no folder {folder} with maps of pixels.")
    paths = [path for path in sorted(Path(folder).iterdir()) if path.suffix.lower() in endings]
    files = {path.stem: path for path in paths}
    if double := next((path for path in paths if files[path.stem] != path), None):
        raise BadInput(f"{folder} holds both {double.name} and {files[double.stem].name}: keep one map of each image.")
    if not files:
        raise BadInput(f"{folder} holds no maps of pixels: they are {', '.join(endings)} files.")
    if odd := next((path for path in files.values() if not path.is_file()), None):  # a pipe would never end
        raise BadInput(f"{odd} is not a regular file.")
    return files


def _classes(path: Path, opened: ImageOpener) -> Array:
    array = _png(path, opened)
    if array.dtype != np.uint8 or array.ndim != 2:
        raise BadInput(f"{path} is no label map: it needs one channel of 8 bits, and each value is a class.")
    return array


def _scores(path: Path, opened: ImageOpener) -> Array:
    if path.suffix.lower() == ".png":
        array = _png(path, opened)
    else:
        with naming_file(path, "read"):
            array = read_array(path)
    if array.ndim != 2 or array.dtype.kind not in "fui":
        raise BadInput(f"{path} has shape {array.shape} and kind {array.dtype}: scores are one number per pixel.")
    return array


def _png(path: Path, opened: ImageOpener) -> Array:
    with opened(str(path)) as image:
        return np.asarray(image)
