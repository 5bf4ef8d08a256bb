"""A store of finished work by content: resumable, shared by many processes, never half-written.

    store/train/<key>/              config.json, env.json and payload of finished work, which never changes
    store/train/<key>.part/         work in progress, interrupted or failed: payload, failure.json, traceback.txt
    store/train/<key>.part/.work/   lock.N, checkpoint.safetensors

Work is done in `.part`. All files are flushed to the disk, then one atomic rename finishes it: work is finished if its
folder exists. For locks, see `nescio.work.locks`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from nescio.errors import BadInput
from nescio.files import read_json
from nescio.identity import canonical, content_names, to_json
from nescio.work.disk import flush, json_bytes, read_json_or_empty, summarize, write_durably
from nescio.work.locks import WORK, acquire, describe_owner, finish, is_alive, last_lock, lock_folder
from nescio.work.step_folder import CONFIG, ENV, FAILURE, StepFolder, payload_files
from nescio.work.store_errors import Busy, Corrupted, LockLost, readable_errors

REMOVED = ".removed-"  # prefix of folders that are being removed
_verified: dict[
    Path, dict[str, tuple[int, int]]
] = {}  # folder → sizes and times of its files when this process verified them


@dataclass(frozen=True)
class Run:
    """A step in the store."""

    stage: str
    key: str
    state: Literal["finished", "running", "failed", "stopped", "queued", "damaged"]  # queued: see work.slurm
    folder: Path
    config: dict[str, Any]  # plain JSON; empty if it cannot be read
    reason: str = ""  # why it failed
    owner: str = ""  # process or job of running or queued work
    version: int | None = None  # of its stage; None if it cannot be read
    parents: tuple[str, ...] = ()  # keys and checksums of its inputs
    title: str = ""  # as shown in progress
    names: Mapping[str, str] = field(default_factory=dict, hash=False)  # content in the config → its name and path


class Store:
    """The folder `root`; it is created when the first work starts, and may be read-only if all work is finished."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(os.path.expanduser(root))

    def key(self, stage: str, config: object, parents: Sequence[str] = (), version: int = 1) -> str:
        """sha256(canonical JSON of stage, config, parents' keys, version of the stage)[:16]."""
        return key_of(stage, config, parents, version)

    def path(self, stage: str, key: str) -> Path:
        if not re.fullmatch(r"[a-z][a-z0-9-]*", stage):
            raise BadInput(f"{stage!r} is not the name of a stage: use small letters, digits and hyphens.")
        return self.root / stage / key

    def finished(self, stage: str, key: str) -> bool:
        with readable_errors(self.root):
            return self.path(stage, key).is_dir()

    def in_progress(self, stage: str, key: str) -> bool:
        """Whether a live process is doing the work."""
        goal = self.path(stage, key)
        folder = lock_folder(goal)
        number, owner = last_lock(folder)
        return bool(number) and not goal.is_dir() and is_alive(folder / f"lock.{number}", owner)

    @contextmanager
    def work(
        self,
        stage: str,
        config: object,
        parents: Sequence[str] = (),
        version: int = 1,
        wait: bool = True,
        title: str = "",
    ) -> Iterator[StepFolder | None]:
        """A folder to fill, or None if the work is finished; leaving the block without an error finishes it.

        While another live process does the work, this waits, or raises Busy if not `wait`. An exception is written to
        failure.json and raised again; the checkpoint stays, and the next call tries again. The title is for `runs`;
        keys do not depend on it.
        """
        document = _document(stage, config, parents, version)
        goal = self.path(stage, _key(document))
        with readable_errors(self.root):
            lock = acquire(goal, wait)
        if lock is None:
            yield None
            return
        labels: dict[str, object] = {"title": title} if title else {}
        if names := content_names(config):
            labels["names"] = names
        step_folder = StepFolder(goal, lock.folder.parent, lock, {**document, **labels})
        try:
            step_folder.begin()
            yield step_folder
            step_folder.finish()
        except (LockLost, Busy):  # Busy: another process does something that this work needs; nothing failed
            raise
        except Exception as error:
            step_folder.fail(error)
            raise
        finally:
            lock.release()

    def fail(
        self, stage: str, config: object, reason: str, parents: Sequence[str] = (), version: int = 1, title: str = ""
    ) -> None:
        """Record the failure of a process that could not (killed, for example), unless the work is finished or busy."""
        with (
            suppress(Busy, _Reported),
            self.work(stage, config, parents, version, wait=False, title=title) as step_folder,
        ):
            if step_folder is not None:
                raise _Reported(reason)

    def record(self, stage: str, key: str) -> dict[str, Any]:
        """config.json of finished work: stage, version, parents, config, and size and checksum of every file."""
        path = self.path(stage, key) / CONFIG
        try:
            with readable_errors(path):
                return read_json(path)
        except ValueError:
            raise Corrupted(f"{path} is damaged: {_advice(path.parent)}") from None

    def names(self, stage: str, key: str) -> dict[str, str]:
        """Content digest → last known name and path, for the content in the config of finished work."""
        return _names(self.record(stage, key))

    def update_names(self, stage: str, key: str, names: Mapping[str, str]) -> None:
        """Store the current names of content; a read-only store keeps the old ones."""
        path = self.path(stage, key) / CONFIG
        document = self.record(stage, key)
        if names and _names(document) != names:
            with suppress(OSError):
                write_durably(path, json_bytes({**document, "names": names}))

    def verify(self, stage: str, key: str) -> None:
        """Raise StoreError if a file of finished work has changed.

        A process verifies the same files again only if their sizes or times have changed.
        """
        folder = self.path(stage, key)
        with readable_errors(folder):
            state = _state(folder)
        if _verified.get(folder) == state:
            return
        record = self.record(stage, key)
        document = {name: record.get(name) for name in ("stage", "version", "parents", "config")}
        if _key(document) != key or not isinstance(record.get("files"), dict):
            raise Corrupted(f"{folder / CONFIG} does not belong to the key {key}: {_advice(folder)}")
        with readable_errors(folder):
            files = {name: summarize(path) for name, path in payload_files(folder).items() if name != ENV}
        names = sorted(name for name in files.keys() | record["files"] if files.get(name) != record["files"].get(name))
        if names:
            raise Corrupted(f"{folder}: {', '.join(names)} changed, are missing or were added later: {_advice(folder)}")
        _verified[folder] = state

    def receive(self, other: Store, stage: str, key: str) -> bool:
        """Copy finished work of another store and verify it; False if this store has it already.

        Raises Busy while a process does the work here. A repeated call copies only the missing files.
        """
        other.verify(stage, key)
        source, goal = other.path(stage, key), self.path(stage, key)
        with readable_errors(self.root):
            lock = acquire(goal, wait=False)
        if lock is None:
            return False
        try:
            with readable_errors(lock.folder.parent):
                _copy(source, lock.folder.parent)
                finish(lock, goal)
        finally:
            lock.release()
        return True

    def find(self, stage: str, prefix: str) -> str:
        """The key of the only finished step of a stage that begins with a prefix."""
        runs = [run for run in self.runs() if run.stage == stage and run.key.startswith(prefix)]
        finished = [run.key for run in runs if run.state == "finished"]
        noun = {"train": "trained network"}.get(stage, stage)
        if len(finished) > 1:
            raise BadInput(f"Several {noun}s begin with {prefix}: {', '.join(finished)}.")
        if not finished:
            state = f"it is {runs[0].state}" if runs else "`nescio runs` lists what there is"
            raise BadInput(f"There is no {noun} {prefix} in {self.root}: {state}.")
        return finished[0]

    def failure(self, stage: str, key: str) -> str | None:
        """The reason of a failure, if the work is not finished since."""
        note = self.path(stage, key).with_name(f"{key}.part") / FAILURE
        return str(read_json_or_empty(note).get("reason", "")) or None

    def runs(self, stage: str = "*") -> list[Run]:
        """All work of the store, or of one stage, with its state."""
        with readable_errors(self.root):
            return [run for folder in self.folders(stage) if (run := self._run(folder)) is not None]

    def folders(self, stage: str = "*") -> list[Path]:
        """The folders of one stage, or of all stages."""
        with readable_errors(self.root):
            stages = [folder for folder in sorted(self.root.glob(stage)) if folder.is_dir()]
            paths = [folder / name for folder in stages for name in sorted(os.listdir(folder))]
            return [path for path in paths if path.is_dir()]

    def _run(self, folder: Path) -> Run | None:
        stage, key = folder.parent.name, folder.name.removesuffix(".part")
        if not re.fullmatch("[0-9a-f]{16}", key):
            return None
        document = read_json_or_empty(folder / CONFIG)
        run = Run(stage, key, "finished", folder, **_facts(document))
        if folder.name == key:
            return run
        number, owner = last_lock(folder / WORK)
        if number and is_alive(folder / WORK / f"lock.{number}", owner):
            return replace(run, state="running", owner=describe_owner(owner))
        if (folder / FAILURE).is_file():
            return replace(run, state="failed", reason=str(read_json_or_empty(folder / FAILURE).get("reason", "")))
        return replace(run, state="stopped") if folder.is_dir() else None  # it may have finished just now

    def remove(self, run: Run) -> None:
        """Remove work, after an atomic rename; raises Busy while another process is doing it."""
        goal = self.path(run.stage, run.key)
        trash = goal.with_name(f"{REMOVED}{run.key}")
        with readable_errors(goal):
            lock = None if run.state == "finished" else acquire(goal, wait=False)
            try:
                shutil.rmtree(trash, ignore_errors=True)
                with suppress(FileNotFoundError):  # another process removed or finished it just now
                    os.rename(run.folder, trash)
            finally:
                if lock is not None:
                    lock.gone = True
                    lock.release()
            shutil.rmtree(trash, ignore_errors=True)


class _Reported(Exception):
    """A failure reported for a process that died."""


# ---- keys and files


def key_of(stage: str, config: object, parents: Sequence[str] = (), version: int = 1) -> str:
    """The key of work: a function of its stage, config, parents and version, in any store."""
    return _key(_document(stage, config, parents, version))


def _document(stage: str, config: object, parents: Sequence[str], version: int) -> dict[str, object]:
    return {"stage": stage, "version": version, "parents": list(parents), "config": canonical(config)}


def _key(document: Mapping[str, object]) -> str:
    in_keys = {"recipe" if name == "config" else name: value for name, value in document.items()}
    return hashlib.sha256(to_json(in_keys).encode()).hexdigest()[:16]


def _state(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file of finished work."""
    state = {}
    for path in sorted(folder.rglob("*")):
        stat = path.stat()
        state[path.relative_to(folder).as_posix()] = stat.st_size, stat.st_mtime_ns
    return state


def _copy(source: Path, target: Path) -> None:
    """Copy the files of a folder and flush them; remove other files of the target, except its `.work`."""
    names = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    for path in [path for path in target.rglob("*") if path.is_file()]:
        name = path.relative_to(target)
        if name.parts[0] != WORK and name not in names:
            path.unlink()
    for name in sorted(names):
        summary, path = summarize(source / name), target / name
        if not path.is_file() or summarize(path) != summary:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, path)
            flush(path)
        if summarize(path) != summary:
            raise Corrupted(f"{path} is not what was read from {source}: run again.")
    for folder in {target, *((target / name).parent for name in names)}:
        flush(folder)


def _facts(document: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a Run in config.json; those of a wrong type are replaced by defaults."""
    config, parents, version = (document.get(name) for name in ("config", "parents", "version"))
    return {
        "config": config if isinstance(config, dict) else {},
        "parents": tuple(map(str, parents)) if isinstance(parents, list) else (),
        "version": version if type(version) is int else None,
        "title": str(document.get("title", "")),
        "names": _names(document),
    }


def _names(document: Mapping[str, object]) -> dict[str, str]:
    names = document.get("names")
    return {str(content): str(name) for content, name in names.items()} if isinstance(names, dict) else {}


def _advice(folder: Path) -> str:
    return f"remove the folder {folder.name} and run again."
