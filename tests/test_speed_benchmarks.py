"""Speed benchmarks run with today's names: each at a tiny size, without the peers that are not installed."""

from __future__ import annotations

import ast
import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from nescio import evaluations
from tests.support.paths import ROOT

torch = pytest.importorskip("torch")
FOLDER = ROOT / "benchmarks"
NAMES = sorted(path.stem.removeprefix("bench_") for path in FOLDER.glob("bench_*.py"))
SIZES = {
    "bootstrap": {"N": 200, "RESAMPLES": 20, "PEER_SHARE": 5},
    "cood": {"CLASSES": 40, "INSIDE": 100, "WINDOW": 10},
    "density": {
        "COMPONENTS": 3,
        "STEPS": 2,
        "TIMES": 1,
        "SPHERE": (90, 8),
        "PLANE": (200, 4),
        "TESTS": 10,
        "CONSTANTS": 9,
    },
    "evaluations": {"SEEDS": 1},
    "heads": {"CLASSES": 4, "ROWS": 30, "D": 8, "TESTS": 20, "SAMPLE": 3},
    "nc": {"MEMBERS": 3, "TESTS": 20, "REFS": 150, "D": 8},
    "pixels": {"PIXELS": 1000, "IMAGE": (16, 32)},
    "posthoc": {},
    "ranking": {"SIZES": (100, 300), "FILE": 300, "PEER": 300, "STREAMED": (300,), "times_of": lambda n: 1},
    "reliability": {"MEMBERS": 3, "TESTS": 40, "REFS": 1500, "D": 8},
    "retrieval": {"N": 60, "D": 16, "CLASSES": 10, "K": 5},
    "scenes": {"SCENES": 2},
    "shards": {},
    "ssl": {"ROWS": 64, "BATCH": 16},
    "zoo": {"ROWS": 4, "BATCH": 2, "DECODED": 8, "KINDS": 2},
}
ARGUMENTS = {"posthoc": (200, 5, 16), "shards": (200, 5, 2)}
NEEDS = {"bootstrap": "sklearn", "density": "sklearn", "heads": "sklearn", "nc": "sklearn", "ranking": "sklearn"}
NEEDS |= {"zoo": "timm"}
IN_PARTS = {"corruptions", "distributions", "launchers", "recall", "scorecard", "training"}  # with peers, or long


@pytest.fixture
def load(monkeypatch):
    """Import a benchmark and set its sizes; afterwards neither it nor what it registers is left."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(evaluations.registry, "_parts", dict(evaluations.registry.items()))

    def load_benchmark(name, **sizes):
        module = importlib.import_module(f"bench_{name}")
        for size, value in sizes.items():
            assert hasattr(module, size), f"bench_{name} has no {size}"
            monkeypatch.setattr(module, size, value)
        return module

    yield load_benchmark
    for name in [name for name in sys.modules if name.startswith("bench_") or name in ("_table", "_results")]:
        del sys.modules[name]


def test_speed_benchmarks__every_benchmark_is_run():
    assert set(NAMES) == set(SIZES) | IN_PARTS and not set(SIZES) & IN_PARTS


@pytest.mark.parametrize("name", NAMES)
def test_speed_benchmarks__names_exist(name, load):
    """Every attribute of a module of nescio that a benchmark names."""
    module = load(name)
    tree = ast.parse(Path(module.__file__).read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = getattr(module, node.value.id, None)
            if getattr(owner, "__name__", "").startswith("nescio") and isinstance(owner, type(ast)):
                assert hasattr(owner, node.attr), f"{owner.__name__} has no {node.attr}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SIZES)
def test_speed_benchmarks__runs(name, load):
    pytest.importorskip(NEEDS.get(name, "numpy"))
    if name == "reliability":
        load("nc", TESTS=20)
    rows = load(name, **SIZES[name]).run(*ARGUMENTS.get(name, ()))
    assert rows and all(row["work"] and row["ours_s"] for row in rows)


def test_speed_benchmarks__corruptions(load, rng):
    module = load("corruptions")
    images = rng.integers(0, 256, (4, module.SIZE, module.SIZE, 3), dtype=np.uint8)
    pixels, index = torch.from_numpy(images), torch.arange(4)
    for peer in module.PEERS:
        assert len(module.CONSTANTS[peer.__name__][0]) == len(module.SEVERITIES)
        assert module.Corruption(peer.__name__, 1).apply(pixels, index).shape == pixels.shape
    assert {peer.__name__ for peer in module.PEERS} >= set(module.FIVE_TIMES)


def test_speed_benchmarks__distributions(load):
    module = load("distributions", DRAWS=2, MEANS=4, D=32, VALUES=100)
    device = torch.device("cpu")
    assert module.sampling(10.0, device)["ratio"] > 0
    for function in (module.log_normalizer, module.mean_resultant):
        assert module.with_gradient("f", function, device)["ratio"] > 0


def test_speed_benchmarks__launchers(load):
    module = load("launchers", STEPS=4)
    with module.make_launcher("local", 0) as launcher:
        assert len(module.measure(launcher)) == 2
    assert module.recognised()["ours_s"] > 0


def test_speed_benchmarks__recall(load):
    module = load("recall", N=60, D=8, CLASSES=10)
    x, labels = module.data()
    found = module.nearest_other(module.prepare_points(x))
    assert module.recall_at_1(x, labels) == np.mean(labels[found] == labels)


def test_speed_benchmarks__scorecard(load):
    """The numbers of the card are those of SciPy and of the array metrics."""
    pytest.importorskip("scipy")
    module = load("scorecard", N=400, CLASSES=10)
    logits, labels = module.large_file()
    predictions = module.Predictions(logits=logits, labels=labels)
    card = module.scorecard(predictions, classwise=False)
    assert module.check_float64(card, logits, labels) < 1e-7 and module.memory(logits, labels) < 64
    assert card.raw.wrong[int(np.argmin(card.raw.uncertainty["msp"]))] in (False, True)
    for name in ("nll", "accuracy", "accuracy@5", "ece", "auroc", "aurc", "augrc", "brier", "sac@0.95"):
        assert np.isfinite(module.value(card, name)), name
    classwise = module.classwise_ece_from_blocks(module.prob_blocks(predictions))
    assert classwise == pytest.approx(module.metrics.classwise_ece(module.mean_probs(predictions), labels))


@pytest.mark.slow
def test_speed_benchmarks__training(load):
    module = load("training", BATCH=32, EPOCHS=3)
    dataset, runtime = module.data(128), module.runtime_for()
    assert module.ours("erm", dataset, runtime, augment="crop-flip") > 0
    assert module.bare(dataset, runtime) > 0
    assert min(module.prediction(runtime, False, rows=2, batch=1)) > 0


def test_speed_benchmarks__training_of_distributions(load):
    load("ssl", BATCH=16)
    module = load("distributions")
    for name in ("infonce", "mc-infonce", "hib", "elk", "nivmf"):
        assert module.ours(name, module.data(64), module.runtime_for()) > 0


def test_speed_benchmarks__records_replace_those_of_the_same_benchmark_and_machine(load, tmp_path):
    load("cood")
    results = importlib.import_module("_results")
    kept = {"benchmark": "nc", "machine": results.machine()}
    path = tmp_path / "results.json"
    path.write_text(json.dumps([kept, {**kept, "benchmark": "cood"}]), "utf-8")
    results.record("cood", [{"work": "w", "ours_s": 1.23456, "ratio": None}], path)
    first, second = json.loads(path.read_text("utf-8"))
    assert first == kept and second["recorded"]
    assert (second["work"], second["value"], "ratio" in second) == ("w", 1.23, False)
