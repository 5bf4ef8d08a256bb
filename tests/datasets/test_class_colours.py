"""Colours of classes: all differ, and none is that of void."""

import pytest

from nescio.datasets.class_colours import class_colours
from nescio.datasets.dense import CAMVID, CITYSCAPES


@pytest.mark.parametrize(
    "classes", [tuple(CITYSCAPES), CAMVID, ("road", "tree", "sky", "vegetation"), tuple("abcdefghijk")]
)
def test_class_colours_differ_and_none_is_that_of_void(classes):
    table = class_colours(classes)
    assert len({tuple(colour) for colour in table[: len(classes)]}) == len(classes) and not table[len(classes) :].any()
    assert table[: len(classes)].any(1).all()
