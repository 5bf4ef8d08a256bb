"""Paths of the repository and of its tests."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent


def page_of(store: Path, name: str) -> Path:
    """The folder of the newest page of this name in a store: a study that failed in part has one of its own."""
    return max((store / "report").glob(f"{name}-*"), key=lambda folder: (folder / "index.html").stat().st_mtime_ns)
