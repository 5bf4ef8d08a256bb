"""Mean IoU against its definition and scikit-learn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import jaccard_score

from nescio import BadInput, Undefined
from nescio.metrics import _segmentation
from nescio.metrics._segmentation import miou


def brute(predicted, labels, classes, void):
    ious = []
    for c in set(range(classes)) - {void}:
        kept = labels != void
        p, t = (predicted == c) & kept, (labels == c) & kept
        if (p | t).any():
            ious.append((p & t).sum() / (p | t).sum())
    return np.mean(ious)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4) | st.just(255)), min_size=1, max_size=60),
    st.sampled_from([255, 2]),
    st.sampled_from([3, 1000]),
)
def test_miou__equal_to_its_definition(pixels, void, at_once):
    predicted, labels = np.array(pixels).T
    if void != 255:
        labels[labels == 255] = void
    if (labels == void).all():
        with pytest.raises(Undefined, match="other than void"):
            miou(predicted, labels, 5, void)
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_segmentation, "PIXELS", at_once)
        if not set(range(5)) - {void} & (set(predicted[labels != void]) | set(labels[labels != void])):
            return
        assert miou(predicted, labels, 5, void) == pytest.approx(brute(predicted, labels, 5, void), abs=1e-15)


def test_miou__images_and_scikit_learn():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 19, (2, 40, 50)).astype(np.uint8)
    predicted = np.where(rng.random(labels.shape) < 0.7, labels, rng.integers(0, 19, labels.shape)).astype(np.int16)
    expected = jaccard_score(labels.ravel(), predicted.ravel(), average="macro")
    assert miou(predicted, labels, 19) == pytest.approx(expected, abs=1e-14)
    assert miou(predicted, labels, 30) == miou(predicted, labels, 19)  # classes in neither array do not count
    assert miou(labels, labels, 19) == 1
    holes = labels.copy()
    holes[:, :10] = 255
    assert miou(predicted, holes, 19, void=255) == miou(predicted[:, 10:], labels[:, 10:], 19)


def test_miou__a_class_that_is_only_predicted_counts():
    assert miou([0, 1], [0, 0], 2) == 0.25


def test_miou__bad_input():
    for bad, message in [
        (lambda: miou([0, 1], [0], 2), "predicted has shape \\(2,\\), labels has \\(1,\\)"),
        (lambda: miou([0, 2], [0, 1], 2), "predicted contains 2, but there are 2 classes"),
        (lambda: miou([0, 1], [0, 255], 2), "labels contains 255"),
        (lambda: miou([0, 1], [0, -1], 2), "labels contains -1"),
        (lambda: miou([0.5, 1], [0, 1], 2), "whole numbers"),
        (lambda: miou([0, 1], ["a", "b"], 2), "whole numbers"),
        (lambda: miou([0, 1], [0, 1], 0), "classes is 0"),
    ]:
        with pytest.raises(BadInput, match=message):
            bad()
    with pytest.raises(Undefined):
        miou([], [], 2)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (([0], [0], "x"), r"classes is x;.*number.*from 1"),
        (([0], [0], 1.5), "classes is 1.5"),
        (([0], [0], 0), "classes is 0"),
        (([0], [0], None), "classes is None"),
        (([0], [0], 2, "x"), r"void is x;.*whole number"),
        (([[0], [0, 1]], [0], 2), "of different lengths"),
        (([np.inf], [0], 2), "whole numbers"),
    ],
)
def test_miou__odd_arguments_are_one_sentence(arguments, sentence):
    with pytest.raises(BadInput, match=sentence):
        miou(*arguments)
