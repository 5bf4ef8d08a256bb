"""Fixtures for the tests of benchmarks: one thread of torch, a folder for each file of tests, and a store in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nescio.work.steps import Context
from nescio.work.store import Store


@pytest.fixture(scope="module")
def use_one_thread() -> Iterator[None]:
    """Small networks are fastest so, and numbers do not depend on the cores of the machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("benchmark")


@pytest.fixture(scope="module")
def context(place: Path) -> Context:
    return Context(Store(place / "store"), device="cpu")
