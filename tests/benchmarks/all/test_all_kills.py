"""`nescio run all` killed at random moments: resumed to the same bytes of rows, and nothing is done twice."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from nescio.report.studies import ROWS
from tests.support.warm import Warm

NETWORKS = "--methods erm,mc-dropout,simclr,deep-ensemble --backbone mlp --seeds 2 --ensemble-sizes 2"
IMAGES = "--held-out-classes 4 --corruptions fog,gaussian_noise --severities 5"
WORDS = ["run", "all", *NETWORKS.split(), *IMAGES.split(), "--epochs", "2", "--batch-size", "128", "--workers", "2"]
KILLS = 5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    started = Warm(tmp_path_factory.mktemp("server"))
    yield started
    started.close()


def rows_of(store: Path) -> tuple[str, bytes]:
    (study,) = store.glob("study/*")
    return study.name, (study / ROWS).read_bytes()


def finished(store: Path) -> dict[Path, int]:
    """Finished steps, and when they were finished."""
    folders = [path for stage in ("train", "predict", "evaluate") for path in (store / stage).glob("?" * 16)]
    return {path: path.stat().st_mtime_ns for path in folders}


@pytest.mark.slow
def test_all_kills__rows_after_random_kills_are_those_of_a_run_without(server: Warm, tmp_path: Path) -> None:
    whole, store, log = tmp_path / "whole", tmp_path / "store", tmp_path / "log"
    started = time.monotonic()
    code, command = server.run(*WORDS, "--store", whole)
    assert code == 0, command.err
    seconds, moments, killed = time.monotonic() - started, random.Random(), 0
    for _ in range(KILLS):
        before = finished(store)
        command = server.start(*WORDS, "--store", store)
        time.sleep(moments.uniform(0.1, 1.5 * seconds / KILLS))
        killed += command.kill() == -9
        assert before.items() <= finished(store).items(), "finished steps are not touched again"
    assert killed > 1
    code, command = server.run(*WORDS, "--store", store)
    assert code == 0, command.err
    assert rows_of(store) == rows_of(whole)
    before = finished(store)
    code, again = server.run(*WORDS, "--store", store, log=log)
    assert (code, again.out) == (0, command.out), again.err
    assert not log.exists() and finished(store) == before, "a second run trains, predicts and evaluates nothing"
