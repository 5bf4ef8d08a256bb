"""Removal of work of older versions, which nothing reads any more because keys have changed."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nescio.work.store import REMOVED, Run, Store
from nescio.work.store_errors import Busy
from nescio.work.versions import RETIRED_STAGES, STAGES


@dataclass(frozen=True)
class OldWork:
    """Finished, failed or stopped work of an older version, and its size in bytes."""

    run: Run
    bytes: int


def old_work(store: Store, benchmarks: Mapping[str, int]) -> list[OldWork]:
    """The work of older versions, without running work and unknown stages.

    benchmarks  name → current version
    """
    return [OldWork(run, _size(run.folder)) for run in store.runs() if _old(run, benchmarks)]


def _old(run: Run, benchmarks: Mapping[str, int]) -> bool:
    if run.state == "running" or run.version is None:
        return False
    today = STAGES.get(run.stage) or benchmarks.get(str(run.config.get("benchmark")), 0)
    return run.stage in RETIRED_STAGES or run.version < today


def damaged_work(store: Store) -> list[Run]:
    """Work without a version in its config.json: it may be old, and is not removed."""
    return [run for run in store.runs() if run.version is None and run.state != "running"]


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # it is being removed by another process
            total += path.stat().st_size if path.is_file() else 0
    return total


def prune(store: Store, old: Iterable[OldWork]) -> list[OldWork]:
    """Remove old work and the rest of interrupted removals; return the removed work.

    Work that another process has resumed stays.
    """
    removed = []
    for work in old:
        with suppress(Busy):
            store.remove(work.run)
            removed.append(work)
    for rest in store.root.glob(f"*/{REMOVED}*"):
        shutil.rmtree(rest, ignore_errors=True)
    return removed
