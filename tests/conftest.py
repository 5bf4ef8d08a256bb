import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent
# helpers lie in tests/, and some tests share the made-up data of others
sys.path[:0] = [str(TESTS), *sorted({str(path.parent) for path in TESTS.rglob("test_*.py")} - {str(TESTS)})]

# A loaded machine must not fail a test: no deadlines, and the same cases on every run.
settings.register_profile("nescio", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("nescio")


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Commands that start at once, for every file that runs some with torch."""
    from warm import Warm

    server = Warm(tmp_path_factory.mktemp("warm"))
    yield server
    server.close()


@pytest.fixture
def light(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that start at once: to them torch is not installed."""
    (tmp_path / "no-torch").mkdir()
    (tmp_path / "no-torch" / "torch.py").write_text("raise ImportError('not here')")
    monkeypatch.syspath_prepend(tmp_path / "no-torch")
