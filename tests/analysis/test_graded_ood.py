"""The division of out-classes and their severities are the plain definitions of Galil et al. 2023, appendix L."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import numpy as np
import pytest

from nescio import metrics
from nescio.analysis.graded_ood import (
    class_severities,
    grade_ood,
    most_agreed_images,
    severity_windows,
    shared_classes,
    split_ood_classes,
    window_severities,
    window_size,
)
from nescio.errors import BadInput
from tests.support.brute_grades import brute_grades

# ---- the division


def keyed(division: Any, index: Any) -> dict[int, tuple[set[Any], set[Any]]]:
    """Class id → the keys that estimate, and those that test."""
    index = np.asarray(index)
    return {
        int(label): (set(index[e].tolist()), set(index[t].tolist()))
        for label, e, t in zip(division.classes, division.estimation, division.test, strict=True)
    }


def labelled(classes: int = 7, images: int = 20) -> tuple[Any, Any]:
    labels = np.repeat(np.arange(classes) * 3, images)
    return labels, np.random.default_rng(1).permutation(10 * len(labels))[: len(labels)]


def test_split_ood_classes__every_class_gives_so_many_of_its_own_images_to_each_side() -> None:
    labels, index = labelled()
    division = split_ood_classes(labels, index, 6, 4)
    assert division.classes.tolist() == [0, 3, 6, 9, 12, 15, 18] and division.scarce == 0
    assert division.estimation.shape == (7, 6) and division.test.shape == (7, 4)
    for label, e, t in zip(division.classes, division.estimation, division.test, strict=True):
        assert set(labels[e]) == set(labels[t]) == {label}
        assert len({*e, *t}) == 10  # no image estimates and tests


def test_split_ood_classes__the_default_is_150_and_50_of_200() -> None:
    labels = np.repeat([0, 1], [200, 199])
    division = split_ood_classes(labels, np.arange(399))
    assert division.classes.tolist() == [0] and division.scarce == 1
    assert division.estimation.shape == (1, 150) and division.test.shape == (1, 50)


@pytest.mark.parametrize("text", [False, True])
def test_split_ood_classes__the_division_is_a_function_of_keys_and_seed(text: bool) -> None:
    labels, index = labelled()
    if text:
        index = np.array([f"class/{key}.jpg" for key in index])
    whole = keyed(split_ood_classes(labels, index, 6, 4), index)
    turned = np.random.default_rng(2).permutation(len(labels))
    assert (
        keyed(split_ood_classes(labels[turned], index[turned], 6, 4), index[turned]) == whole
    )  # not of the order of rows
    some = labels > 5
    fewer = keyed(split_ood_classes(labels[some], index[some], 6, 4), index[some])
    assert fewer == {label: sides for label, sides in whole.items() if label > 5}  # not of other classes
    assert keyed(split_ood_classes(labels, index, 6, 4, excluded=[3]), index) == {
        k: v for k, v in whole.items() if k != 3
    }
    other = keyed(split_ood_classes(labels, index, 6, 4, seed=1), index)
    assert all(other[label] != whole[label] for label in whole)
    if text:  # a longer text elsewhere widens the array, and must not move the others
        wide = index.astype("<U40")
        assert keyed(split_ood_classes(labels, wide, 6, 4), wide) == whole


def test_split_ood_classes__more_estimation_images_only_add() -> None:
    labels, index = labelled()
    few, many = (keyed(split_ood_classes(labels, index, n, 3), index) for n in (5, 9))
    assert all(few[label][0] < many[label][0] for label in few)


def test_split_ood_classes__images_are_drawn_evenly() -> None:
    """Over many seeds every image estimates as often as every other: neighbours in the keys are not drawn together."""
    labels, index = np.zeros(20, int), np.arange(20)
    times, together = np.zeros(20), 0
    for seed in range(2000):
        taken = split_ood_classes(labels, index, 10, 5, seed).estimation[0]
        times[taken] += 1
        together += len({0, 1} & set(taken.tolist())) == 2
    assert np.abs(times / 2000 - 0.5).max() < 0.05  # 4.5 standard errors
    assert abs(together / 2000 - 10 / 20 * 9 / 19) < 0.045


def test_split_ood_classes__class_ids_may_be_any_whole_numbers() -> None:
    labels, index = labelled()
    far = np.array([-5, 10**15, 7, 8, 9, 10, 11])[labels // 3]
    division = split_ood_classes(far, index, 6, 4)
    assert division.classes.tolist() == [-5, 7, 8, 9, 10, 11, 10**15]
    near = keyed(split_ood_classes(labels, index, 6, 4), index)
    assert keyed(division, index)[10**15] == near[3] and keyed(division, index)[-5] == near[0]


def test_split_ood_classes__too_few_images_is_a_sentence_with_an_offer() -> None:
    labels = np.repeat([0, 1, 2], [30, 80, 40])
    with pytest.raises(BadInput, match=r"200 images .* 80.*estimation_images=60, test_images=20"):
        split_ood_classes(labels, np.arange(150))
    assert len(split_ood_classes(labels, np.arange(150), 60, 20).classes) == 1
    with pytest.raises(BadInput, match="200"):
        split_ood_classes([0, 1, 2], [0, 1, 2])
    with pytest.raises(BadInput, match="hierarchy"):
        split_ood_classes(labels, np.arange(150), 6, 4, excluded=[0, 1, 2])
    with pytest.raises(BadInput, match="estimation_images=1, test_images=1"):
        split_ood_classes([0, 0], [0, 1])


# ---- severities, windows, levels


def test_class_severities__severity_divides_by_the_number_of_estimation_images() -> None:
    """The paper prints |c^y|, all 200 images of the class; the mean over the 150 that are summed is meant."""
    u = np.arange(12.0)
    rows = np.array([[0, 1, 2], [9, 10, 11]])
    assert class_severities(u, rows).tolist() == [-1.0, -10.0]


@pytest.mark.parametrize(("k", "window"), [(1, 1), (7, 3), (50, 50), (40, 1), (127, 10)])
def test_window_severities_are_re_summations(k: int, window: int) -> None:
    severity = np.sort(np.random.default_rng(k).normal(size=k))
    plain = [fmean(severity[at : at + window]) for at in range(k - window + 1)]
    assert np.allclose(window_severities(severity, window), plain, rtol=0, atol=1e-12)


def test_severity_windows__levels_are_the_percentiles_of_the_paper() -> None:
    """12,697 classes in windows of 1,000: 11,698 groups, of which eleven are taken, 10 % apart."""
    assert severity_windows(12_697 - 1_000 + 1) == [round(i * 11_697 / 10) for i in range(11)]
    assert (
        severity_windows(11_698)[0] == 0
        and severity_windows(11_698)[-1] == 11_697
        and len(set(severity_windows(11_698))) == 11
    )
    assert severity_windows(91) == list(range(0, 91, 9))
    assert severity_windows(1) == [0] * 11 and severity_windows(3) == [0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2]
    assert severity_windows(5, severities=3) == [0, 2, 4]


def test_window_size__the_window_is_the_in_data_or_half_of_out_classes_that_are_no_more() -> None:
    assert window_size(None, 1000, 12_697) == 1000
    assert window_size(None, 10, 100) == window_size(None, 10, 15) == window_size(None, 10, 11) == 10
    assert window_size(None, 100, 100) == 50 and window_size(None, 100, 7) == 3 and window_size(None, 9, 2) == 1
    assert window_size(70, 10, 100) == 70
    with pytest.raises(BadInput, match="window is 101, more than the 100"):
        window_size(101, 10, 100)
    with pytest.raises(BadInput, match="Only 1"):
        window_size(None, 10, 1)


# ---- grades


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("steps", [0, 5])  # 5: scores on a grid, so that there are ties between rows and classes
def test_grade_ood__grades_equal_the_plain_definition(seed: int, steps: int) -> None:
    rng = np.random.default_rng(seed)
    labels, index = labelled(int(rng.integers(5, 14)), 14)
    u_out = rng.normal(size=len(labels)) + rng.normal(size=60)[labels]
    u_in = rng.normal(size=33) - 1
    if steps:
        u_in, u_out = (np.round(u * steps) / 8 for u in (u_in, u_out))
    division = split_ood_classes(labels, index, 8, 4, seed)
    window, severities = int(rng.integers(1, 5)), int(rng.integers(2, 12))
    grades = grade_ood(u_in, u_out, division, window, severities)
    plain = brute_grades(u_in, u_out, division, window, severities)
    assert [set(division.classes[grades.group(i)].tolist()) for i in range(severities)] == [group for group, _ in plain]
    assert list(grades.aurocs) == [auroc for _, auroc in plain]  # to the last bit
    for level in range(severities):
        rows = division.test[grades.group(level)].ravel()
        both, out = np.concatenate([u_in, u_out[rows]]), np.repeat([False, True], [len(u_in), len(rows)])
        assert grades.aurocs[level] == metrics.auroc(both, out)


def test_grade_ood__severities_never_fall() -> None:
    labels, index = labelled(40, 10)
    u = np.random.default_rng(3).normal(size=len(labels))
    division = split_ood_classes(labels, index, 6, 4)
    assert (np.diff(grade_ood(u[:50], u, division, 9).severities) >= -1e-12).all()


def test_grade_ood__ties_in_severity_go_by_class_id_and_constant_scores_are_chance() -> None:
    labels, index = labelled(12, 10)
    division = split_ood_classes(labels, index, 6, 4)
    grades = grade_ood(np.zeros(5), np.zeros(len(labels)), division, 2)
    assert grades.order.tolist() == list(range(12)) and set(grades.aurocs) == {0.5}


def test_grade_ood__only_estimation_images_choose_and_only_test_images_count() -> None:
    """Estimation images say that class 0 is easy; its test images say the opposite. The AUROC believes the latter."""
    labels, index = labelled(4, 10)
    division = split_ood_classes(labels, index, 6, 4)
    u = np.zeros(len(labels))
    for at, high in enumerate((9.0, 5.0, 4.0, 1.0)):
        u[division.estimation[at]] = high
        u[division.test[at]] = -high
    grades = grade_ood(np.zeros(3), u, division, 1)
    assert grades.order.tolist() == [0, 1, 2, 3] and set(grades.aurocs) == {0.0}


def test_grade_ood__scores_must_be_finite() -> None:
    labels, index = labelled(4, 10)
    division, u = split_ood_classes(labels, index, 6, 4), np.zeros(40)
    with pytest.raises(BadInput, match="u_in is nan"):
        grade_ood(np.array([np.nan]), u, division, 1)
    u[7] = np.inf
    with pytest.raises(BadInput, match="row 7"):
        grade_ood(np.zeros(3), u, division, 1)


# ---- between models


def test_shared_classes_are_those_of_some_and_of_every_group() -> None:
    assert shared_classes([np.array([3, 1, 2]), np.array([2, 3, 9]), np.array([3, 4, 2])]) == (5, 2)
    assert shared_classes([np.array([7]), np.array([8])]) == (2, 0)


def test_most_agreed_images__the_same_answer_to_the_same_image_is_counted_and_single_ones_are_left_out() -> None:
    images = np.array(["a", "b", "a", "b", "c", "a", "b"])
    answers = np.array([1, 5, 1, 5, 1, 2, 5])
    assert most_agreed_images(images, answers, seed=0) == [(1, 3), (0, 2)]
    assert most_agreed_images(images, answers, seed=0, limit=1) == [(1, 3)]
