"""--limit of the protocols that show images: a random part by a seed, stamped on the study; no key moves without it."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")

from nescio.datasets.images import ImageSet
from nescio.protocols import posthoc, shift, url
from nescio.protocols.posthoc.steps import own_images
from nescio.protocols.shift.steps import CLEAN, note_ends, with_clean
from nescio.protocols.url.steps import Downstream, human

STRANGER = SimpleNamespace(trial=None)


def shown(protocol, **options):
    """The test images of a protocol."""
    if protocol == "shift":
        return with_clean(replace(shift.Plan(), data="digits", **options), [])[CLEAN]
    if protocol == "url":
        return Downstream("digits", "digits", (), tuple(range(10))).images("test", replace(url.Plan(), **options))
    return own_images(replace(posthoc.Plan(), data="digits", **options), STRANGER, None)["test"]


@pytest.mark.parametrize("protocol", ["shift", "url", "posthoc"])
def test_a_random_part_of_the_images_is_shown(protocol):
    rows = {seed: shown(protocol, limit=60, seed=seed).load().index for seed in (0, 1)}
    again = shown(protocol, limit=60).load().index
    assert all(len(own) == 60 for own in rows.values()) and np.array_equal(rows[0], again)
    assert len(set(rows[0]) & set(rows[1])) < 60, "another seed draws others"
    counts = np.bincount(shown(protocol, limit=60).load().labels, minlength=10)
    assert counts.max() > 6, "drawn over all images, not evenly over the classes"


def test_without_a_limit_the_images_are_described_as_before():
    assert shown("shift") == ImageSet("digits", "test")
    assert {shown("url").sample, shown("url").limit, human("digits", url.Plan(), None).sample} == {None}


def test_the_part_is_stamped():
    said = []
    work = SimpleNamespace(rows=[], note=lambda *sentences: said.extend(sentences))
    note_ends(replace(shift.Plan(), limit=1500, seed=3), work)
    note_ends(shift.Plan(), work)
    assert said == ["A random part: at most 1,500 test images (seed 3)."]
