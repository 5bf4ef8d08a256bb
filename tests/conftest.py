import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent
# helpers lie in tests/, and some tests share the made-up data of others
sys.path[:0] = [str(TESTS), *sorted({str(path.parent) for path in TESTS.rglob("test_*.py")} - {str(TESTS)})]

# A loaded machine must not fail a test: no deadlines, and the same cases on every run.
settings.register_profile("nescio", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("nescio")
