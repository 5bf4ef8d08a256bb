"""Where the repository and its tests lie."""

from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
