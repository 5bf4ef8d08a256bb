"""The folder of a step in progress: payload, checkpoint, failure, and its final name."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import shutil
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nescio.errors import BadInput, describe_error
from nescio.files import parse_json, parse_list
from nescio.identity import to_json
from nescio.work.disk import flush, json_bytes, summarize, write_durably
from nescio.work.locks import WORK, Lock, finish
from nescio.work.store_errors import Interrupted, StoreError, readable_errors

CONFIG, ENV, FAILURE, CHECKPOINT = "config.json", "env.json", "failure.json", "checkpoint.safetensors"
TRACEBACK = "traceback.txt"
RESERVED = (WORK, CONFIG, ENV, FAILURE, TRACEBACK)
PACKAGES = ("nescio", "numpy", "scipy", "scikit-learn", "safetensors", "torch", "torchvision", "timm", "gpytorch")
shutdown_requested = threading.Event()  # set before the process ends: running work saves a checkpoint and stops
log = logging.getLogger(__name__)


class Checkpoint(NamedTuple):
    """Saved arrays and bytes, with metadata."""

    tensors: dict[str, Any]  # arrays, or bytes
    meta: dict[str, Any]


@dataclass
class StepFolder:
    """A step in progress: files written to `path` are its payload, `env` is added to env.json."""

    goal: Path  # its final name
    path: Path
    lock: Lock
    document: dict[str, object]  # the content of config.json
    env: dict[str, object] = field(default_factory=dict)
    started: float = field(default_factory=time.time)
    processor: float = field(default_factory=time.process_time)

    @property
    def key(self) -> str:
        return self.goal.name

    def write(self, name: str, content: bytes) -> Path:
        """Write one file of the payload."""
        parts = Path(name).parts
        if not parts or parts[0] in RESERVED or ".." in parts or Path(name).is_absolute():
            raise BadInput(f"A payload file cannot be named {name!r}.")
        self.lock.check()
        path = self.path / name
        with readable_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return path

    def save_checkpoint(self, tensors: Mapping[str, np.ndarray | bytes], meta: Mapping[str, object]) -> None:
        """Replace the checkpoint by these arrays and bytes, and by `meta`, which must be plain JSON.

        Raises Interrupted afterwards if a shutdown is requested.
        """
        from safetensors.numpy import save

        arrays = {
            name: np.frombuffer(value, np.uint8) if isinstance(value, bytes) else np.asarray(value, order="C")
            for name, value in tensors.items()
        }
        texts = [name for name, value in tensors.items() if isinstance(value, bytes)]
        metadata = {"meta": json.dumps(meta), "bytes": json.dumps(texts)}
        content = save(arrays, {**metadata, "sha256": _fingerprint(arrays, metadata)})
        self.lock.check()
        with readable_errors(self.path / WORK / CHECKPOINT):
            write_durably(self.path / WORK / CHECKPOINT, content)
        if shutdown_requested.is_set():
            raise Interrupted

    def due(self, saved: float, seconds: float) -> bool:
        """Whether to save a checkpoint: the last is `seconds` old, or a shutdown is requested.

        saved  time.monotonic() of the last checkpoint
        """
        return shutdown_requested.is_set() or time.monotonic() - saved >= seconds

    def load_checkpoint(self) -> Checkpoint | None:
        """The last checkpoint; None, with a warning if it is damaged, if there is none to use."""
        path = self.path / WORK / CHECKPOINT
        with readable_errors(path):
            return read_checkpoint(path) if path.is_file() else None

    def begin(self) -> None:
        """Remove the files of earlier attempts, and write config.json."""
        with readable_errors(self.path):
            self._clear()
            write_durably(self.path / CONFIG, json_bytes(self.document))

    def _clear(self) -> None:
        """Remove everything but checkpoint and lock: a previous owner may have left files half-written."""
        for path in self.path.iterdir():
            if path.name != WORK:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def finish(self) -> None:
        """Flush all files, write env.json and the checksums, and rename the folder to its final name."""
        with readable_errors(self.path):
            payload = payload_files(self.path)
            files = {name: summarize(path) for name, path in payload.items()}
            for path in {self.path, *payload.values(), *(path.parent for path in payload.values())}:
                flush(path)
            times = {"started": _iso(self.started), "seconds": round(time.time() - self.started, 3)}
            times["processor_seconds"] = round(time.process_time() - self.processor, 3)
            write_durably(self.path / ENV, json_bytes({**environment(), **times, **self.env}))
            write_durably(self.path / CONFIG, json_bytes({**self.document, "files": files}))
            finish(self.lock, self.goal)

    def fail(self, error: Exception) -> None:
        """Write failure.json and the traceback."""
        note = {"reason": describe_error(error, self.path), "kind": type(error).__name__, "when": _iso(time.time())}
        try:
            self.lock.check()
            try:
                self._write_failure(error, note)
            except OSError:  # the disk is full of a half-written payload
                self.begin()
                self._write_failure(error, note)
        except (OSError, StoreError):  # the first error is the one to raise, and most often the cause of this one
            log.info("%s: the failure could not be written.", self.path)

    def _write_failure(self, error: Exception, note: dict[str, str]) -> None:
        (self.path / TRACEBACK).write_text("".join(traceback.format_exception(error)), "utf-8")
        write_durably(self.path / FAILURE, json_bytes(note))


def read_checkpoint(path: Path) -> Checkpoint | None:
    """The checkpoint in a file; None, with a warning, if its checksum is wrong."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            metadata = dict(file.metadata())
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if metadata.pop("sha256") != _fingerprint(arrays, metadata):
            raise ValueError("checksum")
        texts = set(parse_list(metadata["bytes"], str(path)))
        meta = parse_json(metadata["meta"], str(path))
    except (SafetensorError, ValueError, KeyError, TypeError):
        log.warning("%s is damaged and is not used: the work starts again from the beginning.", path)
        return None
    return Checkpoint({name: array.tobytes() if name in texts else array for name, array in arrays.items()}, meta)


def _fingerprint(arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> str:
    shapes = {name: [str(array.dtype), list(array.shape)] for name, array in arrays.items()}
    digest = hashlib.sha256(to_json([shapes, metadata]).encode())
    for name in sorted(arrays):
        digest.update(arrays[name].reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def payload_files(folder: Path) -> dict[str, Path]:
    """Name → path of every file but those of the store."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path for name, path in files.items() if name != CONFIG and name.split("/")[0] != WORK}


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")


@cache
def environment() -> dict[str, Any]:
    """Versions of Python and of the packages that affect results, and the machine."""
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": platform.node(),
        "packages": versions,
    }
