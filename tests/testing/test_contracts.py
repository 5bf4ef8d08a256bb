"""Registered means tested: every entry of the registries keeps its promises, and a broken one is caught."""

import numpy as np
import pytest

from nescio import measures, metrics
from nescio.measures import Measure, measure
from nescio.metrics._spec import Metric
from nescio.testing import check_measure, check_metric


@pytest.mark.parametrize("name", list(metrics.registry))
def test_check_metric__metric(name):
    assert check_metric(name)


@pytest.mark.parametrize("name", list(measures.registry))
def test_check_measure__measure(name):
    assert check_measure(name)


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (lambda u, positive: float(positive[np.argsort(u)][: len(u) // 2].mean()), "shuffled"),
        (lambda u, positive: float(u[positive].mean()), "monotone|edge|finite|shuffled"),
        (lambda u, positive: -metrics.auroc(u, positive), "prefer"),
        (lambda u, positive: float("nan"), "shuffled|finite"),
    ],
)
def test_check_metric__a_broken_metric_is_caught(monkeypatch, broken, sentence):
    broken.__doc__ = "Broken on purpose."
    part = Metric("broken", broken, ("ranking",), "higher", False)
    monkeypatch.setitem(metrics.registry._parts, "broken", part)
    with pytest.raises(AssertionError, match=sentence):
        check_metric("broken")


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (lambda p: -measures.entropy(p), "less confident"),
        (lambda p: np.sort(measures.entropy(p)), "order"),
        (lambda p: measures.entropy(p)[:, None], "per row"),
        (lambda p: np.zeros(len(p)), "without"),
    ],
)
def test_check_measure__a_broken_measure_is_caught(monkeypatch, broken, sentence):
    broken.__doc__ = "Broken on purpose."
    monkeypatch.setitem(measures.registry._parts, "broken", Measure("broken", broken, "plain", ("logits",)))
    with pytest.raises(AssertionError, match=sentence):
        check_measure("broken")


def test_check_measure__no_name_of_a_measure_spares_it_a_promise(monkeypatch):
    surer = Measure("variance_of_draws", lambda p: -measures.entropy(p), "plain", ("logits",))
    surer.function.__doc__ = "Broken on purpose."
    monkeypatch.setitem(measures.registry._parts, surer.name, surer)
    with pytest.raises(AssertionError, match="less confident"):
        check_measure(surer.name)


def plug_in(kind, function, **example):
    measure(kind, needs=("embeddings",), name="plug-in", example=example)(function)


@pytest.fixture
def clean():
    yield
    measures.registry._parts.pop("plug-in", None)


def test_contracts__a_plug_in_that_needs_options_brings_them_itself(clean):
    def ball(reference, *, radius):
        """Distance to the nearest reference row beyond a radius, which has no default."""
        return lambda test: measures.knn_distance(reference, k=1, metric="euclidean")(test) / radius

    plug_in("fitted", ball, radius=2.0)
    assert check_measure("plug-in")
    measures.registry._parts.pop("plug-in")
    plug_in("fitted", ball)
    with pytest.raises(TypeError, match="radius"):
        check_measure("plug-in")


def test_contracts__a_plug_in_of_members_brings_its_options_itself(clean):
    def spread(references, tests, *, power):
        """Feature variance, raised to a power which has no default."""
        assert references is not None
        return measures.feature_variance(tests) ** power

    plug_in("ensemble", spread, power=0.5)
    assert check_measure("plug-in")


def test_check_metric__parts_may_be_named_by_their_function():
    assert check_metric(metrics.auroc) and check_measure(measures.entropy)
    with pytest.raises(ValueError, match="not registered"):
        check_metric(len)


def test_contracts__a_broken_plug_in_is_left_out_with_one_line(monkeypatch, capsys):
    import importlib.metadata

    from nescio.registry import Registry

    class Point:
        value = "nowhere:thing"

        def load(self):
            raise ImportError("no module named nowhere")

    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [Point()])
    registry = Registry("gadget")
    registry.add("good", 1)
    assert list(registry) == ["good"]
    assert "'nowhere:thing'" in capsys.readouterr().err
