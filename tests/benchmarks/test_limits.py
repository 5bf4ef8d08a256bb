"""--limit of the benchmarks that show images: a random subset, stamped on the study; no key moves without it."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")

from nescio.benchmarks import posthoc, shift, url
from nescio.benchmarks.posthoc.steps import evaluation_of
from nescio.benchmarks.shift.steps import add_notes, subjects_of
from nescio.benchmarks.url.steps import Downstream, UrlStudy
from nescio.datasets.image_set import ImageSet
from nescio.evaluations import Subject
from nescio.networks.groups import NetworkGroup
from nescio.work.steps import Context, Work

STRANGER = SimpleNamespace(trial=None)


def shown(benchmark, **options):
    """The test images of a benchmark."""
    if benchmark == "shift":
        plan = replace(shift.Plan(), data="digits", **options)
        return subjects_of(plan, [NetworkGroup((STRANGER,), {})], None)[0].test_images
    if benchmark == "url":
        return (
            Downstream("digits", "digits", (), tuple(range(10))).target("test", replace(url.Plan(), **options)).images
        )
    plan = replace(posthoc.Plan(), **options)
    subject = Subject(NetworkGroup((STRANGER,), {}), "digits", None, plan.limit, plan.seed)
    return evaluation_of(plan, None).image_sets(subject)["test"]


@pytest.mark.parametrize("benchmark", ["shift", "url", "posthoc"])
def test_subjects_of__a_random_part_of_the_images_is_shown(benchmark):
    rows = {seed: shown(benchmark, limit=60, seed=seed).load().index for seed in (0, 1)}
    again = shown(benchmark, limit=60).load().index
    assert all(len(own) == 60 for own in rows.values()) and np.array_equal(rows[0], again)
    assert len(set(rows[0]) & set(rows[1])) < 60, "another seed draws others"
    counts = np.bincount(shown(benchmark, limit=60).load().labels, minlength=10)
    assert counts.max() > 6, "drawn over all images, not evenly over the classes"


def test_url_study__without_a_limit_the_images_are_described_as_before():
    assert shown("shift") == ImageSet("digits", "test")
    (human,) = UrlStudy(replace(url.Plan(), annotated=("digits",)), (), Work(Context(None), None)).human
    assert {shown("url").sample_size, shown("url").limit, human.images.sample_size} == {None}


def test_add_notes__the_part_is_stamped():
    said = []
    work = SimpleNamespace(rows=[], networks=[], add_notes=lambda *sentences: said.extend(sentences))
    add_notes(replace(shift.Plan(), limit=1500, seed=3), work)
    add_notes(shift.Plan(), work)
    assert said == ["A random sample: at most 1,500 test images (seed 3)."]
