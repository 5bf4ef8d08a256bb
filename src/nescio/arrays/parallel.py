"""Row blocks on threads: NumPy releases Python's lock in its loops, so no processes are needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from nescio.errors import BadInput

Item = TypeVar("Item")
Result = TypeVar("Result")


def thread_count() -> int:
    """Number of cores that this process may use (NESCIO_THREADS overrides it); 1 within `use_one_thread`."""
    if _little_work:
        return 1
    requested = os.environ.get("NESCIO_THREADS") or "0"
    if not (requested.isascii() and requested.isdigit()):
        raise BadInput(f"NESCIO_THREADS is {requested!r}: it must be a whole number, or 0 for all cores.")
    return int(requested) or len(os.sched_getaffinity(0))


def blocks(n: int, size: int) -> list[slice]:
    """Consecutive slices that cover n rows."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


_little_work: list[None] = []  # not empty within `use_one_thread`
_limits: list[None] = []  # not empty within `one_blas_thread`: each search for BLAS takes a millisecond


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Run BLAS on one thread, for code that starts threads and for small work; nested uses have no effect."""
    from threadpoolctl import threadpool_limits

    if _limits:
        yield
        return
    with threadpool_limits(1, user_api="blas"):
        _limits.append(None)
        try:
            yield
        finally:
            _limits.clear()


@contextmanager
def use_one_thread() -> Iterator[None]:
    """Run BLAS and `run_on_threads` on one thread: for small work, threads mostly wait for each other."""
    with one_blas_thread():
        _little_work.append(None)
        try:
            yield
        finally:
            _little_work.pop()


def run_on_threads(work: Callable[[int, int], Result], workers: int | None = None) -> list[Result]:
    """Run work(i, workers) for every worker i on a separate thread; worker i takes items i, i + workers, …"""
    workers = workers or thread_count()
    if workers == 1:
        return [work(0, 1)]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda i: work(i, workers), range(workers)))


def map_on_threads(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """[work(item) for item in items], spread over the threads."""
    queue = list(items)
    workers = min(thread_count(), len(queue))
    results = run_on_threads(lambda i, workers: [work(item) for item in queue[i::workers]], workers)
    return [results[number % workers][number // workers] for number in range(len(queue))]
