"""Two runs of a benchmark give the same bytes of rows, whatever the hash seed and the number of workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("optuna")

from nescio.report.studies import ROWS, TIMES
from tests.benchmarks.cood.test_cood import dumps
from tests.support.fake_zoo import answers
from tests.support.warm import Warm

TINY = ("--epochs", "1", "--batch-size", "128")
# benchmark → words, and the workers of the second run; the first has none beside itself
RUNS = {
    "all": ("--methods erm,mc-dropout --backbone mlp --seeds 2 --ensemble-sizes none --severities 1,5", "0"),
    "uimnet": (
        "--methods erm,mc-dropout --backbones mlp --spectral-bounds none --ensemble-sizes 1,2 --trials 2 --seeds 1",
        "0",
    ),
    "shift": ("--methods erm,mc-dropout --backbone mlp --seeds 1 --strengths 1 --severities 1,5", "0"),
    "sensitivity": ("--methods ddu,duq --strengths 2 --seeds 1 --degrees 60,180", "0"),
    "url": ("--methods erm,mc-dropout --backbones mlp --trials 2 --seeds 2 --shots 1 --bootstrap 20", "0"),
    "reliability": (
        "--methods simclr,byol --backbones mlp --seeds 2 --reference-size 100 --k 5 --reference-samples 2",
        "0",
    ),
    "posthoc": ("--train-networks erm/mlp,mc-dropout/mlp --held-out-classes 2 --fit-images 200", "0"),
    "selective": ("FILES", "0"),
    "cood": ("PAIRS --estimation-images 6 --test-images 4", "2"),
}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Warm]]:
    """Processes of two hash seeds: sets of texts have another order in each."""
    started = [Warm(tmp_path_factory.mktemp("hash"), PYTHONHASHSEED=seed) for seed in ("1", "2")]
    yield started
    for server in started:
        server.close()


def words_of(name: str, folder: Path) -> list[str]:
    words = RUNS[name][0].split()
    if name == "selective":
        for seed in range(3):
            answers(seed, 400, dropout=seed == 0).save(folder / f"m{seed}.npz")
        return [str(folder / f"m{seed}.npz") for seed in range(3)]
    if name == "cood":
        for seed, model in enumerate("ab"):
            for dump, side in zip(dumps(seed), ("in", "out"), strict=True):
                dump.save(folder / f"{model}-{side}.npz")
        pairs = [w for m in "ab" for w in ("--pair", f"{m}={folder / m}-in.npz,{folder / m}-out.npz")]
        return [*pairs, *words[1:]]
    more = ["--corruptions", "gaussian_noise,fog"] if name in ("all", "shift") else []
    return [*words, *more, *TINY]


SLOW = ("all", "uimnet", "sensitivity", "reliability", "posthoc")
CASES = [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in RUNS]


@pytest.mark.parametrize("name", CASES)
def test_same_rows__rows_do_not_depend_on_hash_seeds_nor_on_workers(
    name: str, servers: list[Warm], tmp_path: Path
) -> None:
    words = words_of(name, tmp_path)
    stores = [tmp_path / "one", tmp_path / "two"]
    commands = [
        server.start("run", name, *words, "--store", store, "--workers", workers, "--format", "json")
        for server, store, workers in zip(servers, stores, ("0", RUNS[name][1]), strict=True)
    ]
    assert [command.wait() for command in commands] == [0, 0], [command.err for command in commands]
    studies = [next(store.glob("study/*")) for store in stores]
    first, second = ((study / ROWS).read_bytes() for study in studies)
    assert first == second
    assert studies[0].name == studies[1].name, "times have no part in a study's key"
    assert (studies[0] / TIMES).is_file() == (name in ("all", "url"))
