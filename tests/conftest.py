import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# A loaded machine must not fail a test: no deadlines, and the same cases on every run.
settings.register_profile("nescio", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("nescio")


# The same tests on every machine: a GPU rounds differently, so only `make test-gpu` lets the tests see one.
GPU = bool(os.environ.get("NESCIO_TEST_GPU"))
if not GPU:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # tests write nothing into the home folder

SEED = int(os.environ.get("NESCIO_TEST_SEED", "0"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not GPU:
        pytest.skip("needs a GPU: make test-gpu")
    seed_generators()


def seed_generators() -> None:
    """Every test draws the same numbers in every run, alone or among others: torch starts with a seed by chance.

    NESCIO_TEST_SEED=1 pytest … asks which tests pass by the luck of their numbers.
    """
    np.random.seed(SEED)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(SEED)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shuffle the files, and the tests of each file, by the seed in NESCIO_TEST_ORDER: finds tests that need another.

    Every process of `pytest -n` draws the same order.
    """
    seed = os.environ.get("NESCIO_TEST_ORDER")
    if seed:
        draw = random.Random(seed)
        files: dict[Path, list[pytest.Item]] = {}
        for item in items:
            files.setdefault(item.path, []).append(item)
        shuffled = list(files.values())
        draw.shuffle(shuffled)
        for tests in shuffled:
            draw.shuffle(tests)
        items[:] = [item for tests in shuffled for item in tests]


def pytest_collectstart(collector: pytest.Collector) -> None:
    """What a file draws when it is imported is drawn alike too."""
    seed_generators()


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator of this test alone: with one for a file, its numbers depend on the tests before it."""
    return np.random.default_rng(SEED)


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Commands that start at once, for every file that runs some with torch."""
    from tests.support.warm import Warm

    server = Warm(tmp_path_factory.mktemp("warm"))
    yield server
    server.close()


@pytest.fixture
def light(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that start at once: to them torch is not installed."""
    (tmp_path / "no-torch").mkdir()
    (tmp_path / "no-torch" / "torch.py").write_text("raise ImportError('not here')")
    monkeypatch.syspath_prepend(tmp_path / "no-torch")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test marked fresh_process in a process of its own, because it forks and trains in the child.

    A child of fork has none of its parent's threads: pools of OpenMP, BLAS and autograd that other tests started are
    broken in it. Which of them made such tests fail in some runs is not known: after a matrix product on two threads, a
    backward pass, or numba's kernels, a child trains. nescio starts its workers by spawn; only image decoders are
    forked, and they use none of these pools.
    """
    if pyfuncitem.get_closest_marker("fresh_process") is None or "NESCIO_FRESH_PROCESS" in os.environ:
        return None
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", pyfuncitem.nodeid]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    environment |= {"NESCIO_FRESH_PROCESS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # plug-ins of others warn
    done = subprocess.run(words, cwd=pyfuncitem.config.rootpath, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return True
