"""Errors of the store, and a context that turns errors of the system into them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nescio.errors import describe_error


class StoreError(RuntimeError):
    """The store failed: the message states what is wrong, where, and what to do."""


class Corrupted(StoreError):
    """The files of finished work have changed since they were written."""


class LockLost(StoreError):
    """Another process took the work over, because this one sent no heartbeat."""


class Busy(RuntimeError):
    """Another live process is doing the work."""


class Interrupted(BaseException):
    """This process must end; its work has a checkpoint."""


@contextmanager
def readable_errors(path: Path | None = None) -> Iterator[None]:
    """Turn an OSError into a StoreError; `path` is where it happened, if the error has no file name."""
    try:
        yield
    except OSError as error:
        raise StoreError(describe_error(error, path)) from error
