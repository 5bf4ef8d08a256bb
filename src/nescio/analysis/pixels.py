"""Metrics of dense predictions from counts of pixels: mIoU, accuracy and ranking metrics in fixed memory."""

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

ImageOpener = Callable[[str], AbstractContextManager[Any]]  # path → opened image
LABELS = 256  # number of labels of 8 bits
BLOCK = 1 << 21  # pixels per block: one image of Cityscapes
DISTINCT = 1 << 16  # distinct scores in the counts of one severity, which are saved in one file
RANKING = {"auroc": auroc, "raulc": raulc, "aurc": aurc}  # ranking metrics of correct and wrong pixels
MAPS, SCORES = (".png",), (".npy", ".npz", ".png")  # file endings of label maps, and of score maps


@dataclass(frozen=True, eq=False)
class PixelCounts:
    """Counts of dense predictions for mIoU, AUROC and rAULC over all pixels; add shards or severities with +."""

    confusion: Array  # (c, c) pixels by true class (row) and predicted class (column), without void
    scores: dict[str, Float16Counts | ScoreCounts]  # score → counts of correct and wrong pixels by value
    infinite: dict[str, int] = field(default_factory=dict)  # score → number of pixels where it is not finite

    @classmethod
    def from_maps(
        cls,
        truth: Array,
        predicted: Array,
        scores: Mapping[str, Array],
        classes: int,
        void: int | None = None,
        distinct: int = DISTINCT,
    ) -> PixelCounts:
        """Count the pixels of some images, one block at a time; all arrays have one shape."""
        size = max(1, BLOCK // max(1, math.prod(truth.shape[1:])))
        count = partial(cls._from_block, classes=classes, void=void, distinct=distinct)
        counts = (
            count(truth[rows], predicted[rows], {name: score[rows] for name, score in scores.items()})
            for rows in blocks(len(truth), size)
        )
        return reduce(add, counts)

    @classmethod
    def _from_block(
        cls,
        truth: Array,
        predicted: Array,
        scores: Mapping[str, Array],
        classes: int,
        void: int | None,
        distinct: int,
    ) -> PixelCounts:
        counted = np.ones(truth.shape, bool) if void is None else truth != void
        true, classified = truth[counted].astype(np.int64), predicted[counted].astype(np.int64)
        if true.max(initial=0) >= classes:
            raise BadInput(
                f"A label map has the label {true.max()}, and the network has {classes} classes: if it "
                "marks pixels without a class, declare it as `void` in the file."
            )
        confusion = np.bincount(true * classes + classified, minlength=classes**2).reshape(classes, classes)
        wrong = true != classified
        counted_scores = {name: score[counted] for name, score in scores.items()}
        infinite = {name: int(np.count_nonzero(~np.isfinite(score))) for name, score in counted_scores.items()}
        finite = {
            name: count_scores(score, wrong, distinct) for name, score in counted_scores.items() if not infinite[name]
        }
        return cls(confusion, finite, {name: count for name, count in infinite.items() if count})

    def __add__(self, other: PixelCounts) -> PixelCounts:
        infinite = {
            name: self.infinite.get(name, 0) + other.infinite.get(name, 0) for name in self.infinite | other.infinite
        }
        scores = {}
        for name, counts in self.scores.items():
            if name in infinite:
                continue
            if type(counts) is not type(added := other.scores[name]):
                raise BadInput(f"The maps of {name} have different number types: give all the same type.")
            scores[name] = counts + added  # type: ignore[operator]
        return PixelCounts(self.confusion + other.confusion, scores, infinite)

    def save(self) -> bytes:
        """The counts as an .npz file."""
        arrays = {"confusion": self.confusion}
        arrays |= {f"{name}/infinite": np.array(count) for name, count in self.infinite.items()}
        for name, counts in self.scores.items():
            if isinstance(counts, Float16Counts):
                arrays[f"{name}/table"] = counts.table
            else:
                fields = {"keys": counts.keys, "rows": counts.rows, "kept": np.array([counts.digits, counts.most])}
                arrays |= {f"{name}/{key}": array for key, array in fields.items()}
        return npz_bytes(arrays)

    @classmethod
    def load(cls, path: Path) -> PixelCounts:
        arrays = read_npz(path)
        scores: dict[str, Float16Counts | ScoreCounts] = {}
        infinite: dict[str, int] = {}
        for name, key in (entry.rsplit("/", 1) for entry in arrays if "/" in entry):
            if key == "table":
                scores[name] = Float16Counts(arrays[f"{name}/table"])
            elif key == "keys":
                digits, most = arrays[f"{name}/kept"].tolist()
                scores[name] = ScoreCounts(arrays[f"{name}/keys"], arrays[f"{name}/rows"], digits, most)
            elif key == "infinite":
                infinite[name] = int(arrays[f"{name}/infinite"])
        return cls(arrays["confusion"], scores, infinite)

    @property
    def n(self) -> int:
        return int(self.confusion.sum())

    @property
    def iou(self) -> Array:
        """(c,) intersection over union of each class; NaN for a class without pixels."""
        return class_ious(np.diag(self.confusion), self.confusion.sum(1), self.confusion.sum(0))

    @property
    def miou(self) -> float:
        """Mean IoU over the classes with pixels, equal to `metrics.miou` of all pixels."""
        return mean_iou(self.iou)

    @property
    def accuracy(self) -> float:
        """Share of pixels with the correct class."""
        if not self.n:
            raise Undefined("Accuracy is undefined: no pixel has a label other than void.")
        return float(np.trace(self.confusion) / self.n)

    @property
    def bound(self) -> float:
        """Largest rounding error of a ranking metric, because scores are rounded."""
        return max(self.bounds.values(), default=0.0)

    @property
    def bounds(self) -> dict[str, float]:
        """Largest rounding error by score."""
        errors = dict.fromkeys(self.scores, 0.0)
        for name, counts in self.scores.items():
            for function in RANKING.values():
                with suppress(Undefined):
                    errors[name] = max(errors[name], counts.bound(function))
        return errors

    def rows(self) -> tuple[list[Row], list[str]]:
        """One row per metric, with the score as `measure`, and a reason for every undefined metric."""
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
    """Count correct and wrong pixels by score: all float16 values, or at most `distinct` rounded values of other types.

    Values are rounded where they are dense: log-densities differ in digits that a fixed table would omit.
    """
    if u.dtype == np.float16:
        return Float16Counts.count(u, wrong)
    if not len(u):  # every pixel is void
        return ScoreCounts(np.zeros(0, np.uint64), np.zeros((0, 2), np.int64), 0, distinct)
    return ScoreCounts.count(u, wrong, distinct)


# ---- folders of maps


def count_folders(
    labels: str | Path,
    predictions: str | Path,
    scores: Mapping[str, str | Path],
    void: int | None = 255,
    *,
    open_image: ImageOpener,
) -> PixelCounts:
    """Count the pixels of label maps, predicted maps and score maps in folders, matched by file stem.

    labels, predictions  .png of 8 bits per pixel, each value a class
    scores               name → folder of .npy, .npz (of one array) or 16-bit .png; higher = less confident
    open_image           `datasets.decode.opened_map`, which this package cannot import
    """
    if void is not None and not 0 <= void < LABELS:
        raise BadInput(f"void must be a label between 0 and {LABELS - 1}, or None, got {void}.")
    for name in ("labels", "predictions"):
        if name in scores:
            raise BadInput(f"A score cannot have the name {name}: rename it.")
    folders = {"labels": _by_stem(labels, MAPS), "predictions": _by_stem(predictions, MAPS)}
    folders |= {name: _by_stem(folder, SCORES) for name, folder in scores.items()}
    for name in folders:
        for present, absent in (("labels", name), (name, "labels")):
            if missing := sorted(folders[present].keys() - folders[absent].keys()):
                raise BadInput(f"{absent} has no map {missing[0]}, which {present} has ({len(missing)} are missing).")
    return reduce(add, _image_counts(folders, list(scores), void, open_image))


def _image_counts(
    folders: Mapping[str, Mapping[str, Path]], scores: Iterable[str], void: int | None, open_image: ImageOpener
) -> Iterator[PixelCounts]:
    for stem in sorted(folders["labels"]):
        truth, predicted = (_classes(folders[name][stem], open_image) for name in ("labels", "predictions"))
        uncertainties = {name: _scores(folders[name][stem], open_image) for name in scores}
        for name, array in {"predictions": predicted, **uncertainties}.items():
            if array.shape != truth.shape:
                raise BadInput(
                    f"{folders[name][stem]} has {array.shape} pixels and {folders['labels'][stem]} {truth.shape}: maps "
                    "of one image must have one size."
                )
        if void is not None and ((predicted == void) & (truth != void)).any():
            raise BadInput(f"{folders['predictions'][stem]} has the value {void}, which is void and not a class.")
        counts = PixelCounts.from_maps(truth, predicted, uncertainties, LABELS, void, MAX_SCORES)
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
    if duplicate := next((path for path in paths if files[path.stem] != path), None):
        raise BadInput(
            f"{folder} contains both {duplicate.name} and {files[duplicate.stem].name}: keep one map per image."
        )
    if not files:
        raise BadInput(f"{folder} contains no maps of pixels: they are {', '.join(endings)} files.")
    if irregular := next((path for path in files.values() if not path.is_file()), None):  # a pipe would never end
        raise BadInput(f"{irregular} is not a regular file.")
    return files


def _classes(path: Path, open_image: ImageOpener) -> Array:
    array = _png(path, open_image)
    if array.dtype != np.uint8 or array.ndim != 2:
        raise BadInput(f"{path} is not a label map: it needs one channel of 8 bits with a class per pixel.")
    return array


def _scores(path: Path, open_image: ImageOpener) -> Array:
    if path.suffix.lower() == ".png":
        array = _png(path, open_image)
    else:
        with naming_file(path, "read"):
            array = read_array(path)
    if array.ndim != 2 or array.dtype.kind not in "fui":
        raise BadInput(f"{path} has shape {array.shape} and kind {array.dtype}: scores are one number per pixel.")
    return array


def _png(path: Path, open_image: ImageOpener) -> Array:
    with open_image(str(path)) as image:
        return np.asarray(image)
