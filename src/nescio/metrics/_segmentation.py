"""Mean intersection over union of predicted and true classes of pixels."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from nescio.arrays.parallel import blocks
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.metrics._outcomes import as_array, as_whole
from nescio.metrics._spec import metric

PIXELS = 1 << 22  # pixels per block


@metric("segmentation", better="higher")
def miou(predicted: ArrayLike, labels: ArrayLike, classes: int, void: int | None = None) -> float:
    """Mean over classes of (pixels that are and are called that class) / (pixels that are or are called it).

    IoU_c = |P_c ∩ L_c| / |P_c ∪ L_c|, averaged over the classes that occur in either array. Pixels labelled `void` are
    ignored, and void is not a class. Arrays of any one shape. Source: Postels et al. 2022, §4.
    """
    p_map, true = _class_map(predicted, "predicted"), _class_map(labels, "labels")
    if p_map.shape != true.shape:
        raise BadInput(
            f"predicted has shape {p_map.shape}, labels has {true.shape}: they must describe the same pixels."
        )
    classes = as_whole(classes, "classes", 1)
    void = None if void is None else as_whole(void, "void")
    p_map, true = p_map.reshape(-1), true.reshape(-1)
    both, labelled, answered = (np.zeros(classes, np.int64) for _ in range(3))
    for block in blocks(len(true), PIXELS):
        p, t = p_map[block], true[block]
        if void is not None:
            is_counted = t != void
            p, t = p[is_counted], t[is_counted]
        for name, ids in (("predicted", p), ("labels", t)):
            if len(ids) and (ids.min() < 0 or ids.max() >= classes):
                invalid = ids[(ids < 0) | (ids >= classes)][0]
                raise BadInput(f"{name} contains {invalid}, but there are {classes} classes (0 to {classes - 1}).")
        both += np.bincount(t[p == t], minlength=classes)
        labelled += np.bincount(t, minlength=classes)
        answered += np.bincount(p, minlength=classes)
    if void is not None and 0 <= void < classes:
        answered[void] = 0
    return mean_iou(class_ious(both, labelled, answered))


def class_ious(both: Array, labelled: Array, answered: Array) -> Array:
    """(c,) IoU of each class from counts (c,) of correct, true and predicted pixels; NaN for absent classes."""
    union = labelled + answered - both
    return np.where(union > 0, both / np.maximum(union, 1), np.nan)


def mean_iou(ious: Array) -> float:
    """The mean over classes that occur."""
    there = ious[~np.isnan(ious)]
    if not len(there):
        raise Undefined("Mean IoU is undefined: no pixel has a label other than void.")
    return float(np.mean(there))


def _class_map(values: ArrayLike, name: str) -> Array:
    array = as_array(values, name)
    if array.dtype.kind in "iub":
        return array.astype(np.uint8) if array.dtype == bool else array
    if array.dtype.kind == "f" and np.isfinite(array).all() and (array == np.rint(array)).all():
        return array.astype(np.int64)
    raise BadInput(f"{name} must be whole numbers, one class per pixel.")
