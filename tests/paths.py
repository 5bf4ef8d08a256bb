"""Where the repository and its tests lie."""

from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent


def page_of(store: Path, name: str) -> Path:
    """The folder of the only page of this name in a store."""
    (folder,) = (store / "report").glob(f"{name}-*")
    return folder
