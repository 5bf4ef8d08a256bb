"""Finished work by the content of its recipe: resumable, shared by many processes, never half-written.

    store/train/<key>/          recipe.json, env.json, payload: finished, and never touched again
    store/train/<key>.part/     in progress, stopped or failed: payload so far, failure.json, traceback.txt
    store/train/<key>.part/.work/   lock.N, checkpoint.safetensors

Work happens in `.part`; everything is flushed to the disk, then one atomic rename: finished = the folder exists.

A lock is the file `lock.N` with the largest N. It appears, with its content, by a hard link, which exactly one process
can make; where a file system has none, it is created empty, which only one can do either. A dead owner's lock is never
removed by others: the next owner makes lock.N+1, and so two that take over at once cannot both win. An owner that was
held for dead (a machine that slept) finds the larger number and gives up.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import platform
import re
import shutil
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from nescio.errors import BadInput
from nescio.files import open_regular, parse_json, parse_list, read_json
from nescio.identity import canonical, content_names, to_json

MOST_PIDS = 1 << 31
BEAT, SILENCE = 5.0, 60.0  # seconds between heartbeats; after so many without one, an owner elsewhere is dead
WORK, CONFIG, ENV, FAILURE, CHECKPOINT = ".work", "config.json", "env.json", "failure.json", "checkpoint.safetensors"
REMOVED = ".removed-"  # begins the name of work that is being removed
PACKAGES = ("nescio", "numpy", "scipy", "scikit-learn", "safetensors", "torch", "torchvision", "timm", "gpytorch")
log = logging.getLogger(__name__)


class StoreError(RuntimeError):
    """The store cannot do its work: one sentence says what is wrong, where, and what to do."""


class Corrupted(StoreError):
    """Finished work is not byte for byte what was written."""


class LockLost(StoreError):
    """Another process took this work over, because this one gave no sign of life."""


class Busy(RuntimeError):
    """Another live process is doing this work."""


class Interrupted(BaseException):
    """This process is to end; what it was doing has its checkpoint, and is stopped half-way."""


shutdown_requested = (
    threading.Event()
)  # set when this process is to end soon: work that can writes a checkpoint and stops


class Checkpoint(NamedTuple):
    tensors: dict[str, Any]  # arrays and bytes, as they were saved
    meta: dict[str, Any]


@dataclass(frozen=True)
class Run:
    """What the store knows about one piece of work."""

    stage: str
    key: str
    state: Literal["finished", "running", "failed", "stopped", "queued", "damaged"]  # queued: see work.slurm
    folder: Path
    config: dict[str, Any]  # plain JSON; empty if it cannot be read
    reason: str = ""  # of a failure
    owner: str = ""  # of running or queued work
    version: int | None = None  # of the stage when the work was begun; None if it cannot be read
    parents: tuple[str, ...] = ()  # keys and checksums that it follows from
    title: str = ""  # what progress called it
    names: Mapping[str, str] = field(default_factory=dict, hash=False)  # content in the recipe → its name and path


class Store:
    """The folder `root`; it is made when the first work starts, and may be read-only if nothing is left to do."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(os.path.expanduser(root))

    def key(self, stage: str, config: Any, parents: Sequence[str] = (), version: int = 1) -> str:
        """sha256(canonical JSON of stage, recipe, parents' keys, version of the stage)[:16]."""
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
        folder = goal.with_name(f"{goal.name}.part") / WORK
        number, owner = _last(folder)
        return bool(number) and not goal.is_dir() and _alive(folder / f"lock.{number}", owner)

    @contextmanager
    def work(
        self,
        stage: str,
        config: Any,
        parents: Sequence[str] = (),
        version: int = 1,
        wait: bool = True,
        title: str = "",
    ) -> Iterator[StepFolder | None]:
        """A part to fill, or None if the work is finished already; leaving the block without an error finishes it.

        While another live process does the work this waits, or raises Busy if `wait` is False. An exception is noted
        in failure.json and goes on; the checkpoint stays, and the next one to ask for the work tries again. The title
        is what `runs` calls the work; no key depends on it.
        """
        document = _document(stage, config, parents, version)
        goal = self.path(stage, _key(document))
        with readable_errors(self.root):
            lock = _acquire(goal, wait)
        if lock is None:
            yield None
            return
        about: dict[str, Any] = {"title": title} if title else {}
        if names := content_names(config):
            about["names"] = names
        step_folder = StepFolder(goal, lock.folder.parent, lock, {**document, **about})
        try:
            step_folder._begin()
            yield step_folder
            step_folder._finish()
        except (LockLost, Busy):  # Busy: something that this work needs is still being done; nothing failed
            raise
        except Exception as error:
            step_folder._fail(error)
            raise
        finally:
            lock.release()

    def fail(
        self, stage: str, config: Any, reason: str, parents: Sequence[str] = (), version: int = 1, title: str = ""
    ) -> None:
        """Notes why work failed whose process could not (killed for memory, say), unless it is finished or going on."""
        with (
            suppress(Busy, _Reported),
            self.work(stage, config, parents, version, wait=False, title=title) as step_folder,
        ):
            if step_folder is not None:
                raise _Reported(reason)

    def record(self, stage: str, key: str) -> dict[str, Any]:
        """recipe.json of finished work: stage, version, parents, recipe, and size and checksum of every file."""
        path = self.path(stage, key) / CONFIG
        try:
            with readable_errors(path):
                return read_json(path)
        except ValueError:
            raise Corrupted(f"{path} is damaged: {_again(path.parent)}") from None

    def names(self, stage: str, key: str) -> dict[str, str]:
        """Of content that the recipe of finished work has by its digest, the name and path where it was last."""
        return _names(self.record(stage, key))

    def update_names(self, stage: str, key: str, names: Mapping[str, str]) -> None:
        """Remembers where the content of finished work is today; a store that is read-only keeps the old names."""
        path = self.path(stage, key) / CONFIG
        document = self.record(stage, key)
        if names and _names(document) != names:
            with suppress(OSError):
                _write(path, _json({**document, "names": names}))

    def verify(self, stage: str, key: str) -> None:
        """Raises StoreError if finished work is not byte for byte what was written.

        A process checks the same files once: again only when their sizes or times have changed.
        """
        folder = self.path(stage, key)
        with readable_errors(folder):
            state = _state(folder)
        if _verified.get(folder) == state:
            return
        config = self.record(stage, key)
        document = {name: config.get(name) for name in ("stage", "version", "parents", "config")}
        if _key(document) != key or not isinstance(config.get("files"), dict):
            raise Corrupted(f"{folder / CONFIG} does not belong to the key {key}: {_again(folder)}")
        with readable_errors(folder):
            found = {name: _summary(path) for name, path in _payload(folder).items() if name != ENV}
        wrong = sorted(name for name in found.keys() | config["files"] if found.get(name) != config["files"].get(name))
        if wrong:
            raise Corrupted(f"{folder}: {', '.join(wrong)} changed, went missing or came in later: {_again(folder)}")
        _verified[folder] = state

    def receive(self, other: Store, stage: str, key: str) -> bool:
        """Copies finished work of another store, checked byte for byte; False if it is here already.

        Busy while a process makes it here. Files that an interrupted copy has left whole are not copied again.
        """
        other.verify(stage, key)
        source, goal = other.path(stage, key), self.path(stage, key)
        with readable_errors(self.root):
            lock = _acquire(goal, wait=False)
        if lock is None:
            return False
        try:
            with readable_errors(lock.folder.parent):
                _copy(source, lock.folder.parent)
                _settle(lock, goal)
        finally:
            lock.release()
        return True

    def find(self, stage: str, start: str) -> str:
        """The key of the one finished piece of work of a stage that begins with these letters."""
        runs = [run for run in self.runs() if run.stage == stage and run.key.startswith(start)]
        finished = [run.key for run in runs if run.state == "finished"]
        what = {"train": "trained network"}.get(stage, stage)
        if len(finished) > 1:
            raise BadInput(f"Several {what}s begin with {start}: {', '.join(finished)}.")
        if not finished:
            state = f"it is {runs[0].state}" if runs else "`nescio runs` lists what there is"
            raise BadInput(f"There is no {what} {start} in {self.root}: {state}.")
        return finished[0]

    def failure(self, stage: str, key: str) -> str | None:
        """Why work failed, if it did and has not been finished since."""
        note = self.path(stage, key).with_name(f"{key}.part") / FAILURE
        return str(_read_json(note).get("reason", "")) or None

    def runs(self, stage: str = "*") -> list[Run]:
        """Everything in the store, or of one stage: finished, running, failed with its reason, and stopped half-way."""
        with readable_errors(self.root):
            return [run for folder in self.folders(stage) if (run := self._run(folder)) is not None]

    def folders(self, stage: str = "*") -> list[Path]:
        """The folders of a stage, or of all; StoreError where one may not look into it."""
        with readable_errors(self.root):
            stages = [place for place in sorted(self.root.glob(stage)) if place.is_dir()]
            return [place / name for place in stages for name in sorted(os.listdir(place)) if (place / name).is_dir()]

    def _run(self, folder: Path) -> Run | None:
        stage, key = folder.parent.name, folder.name.removesuffix(".part")
        if not re.fullmatch("[0-9a-f]{16}", key):
            return None
        document = _read_json(folder / CONFIG)
        run = Run(stage, key, "finished", folder, **_facts_of(document))
        if folder.name == key:
            return run
        number, owner = _last(folder / WORK)
        if number and _alive(folder / WORK / f"lock.{number}", owner):
            return replace(run, state="running", owner=_who(owner))
        if (folder / FAILURE).is_file():
            return replace(run, state="failed", reason=str(_read_json(folder / FAILURE).get("reason", "")))
        return replace(run, state="stopped") if folder.is_dir() else None  # it may have finished just now

    def remove(self, run: Run) -> None:
        """Removes work, after it was moved out of sight at once; Busy while another process is doing it."""
        goal = self.path(run.stage, run.key)
        aside = goal.with_name(f"{REMOVED}{run.key}")
        with readable_errors(goal):
            lock = None if run.state == "finished" else _acquire(goal, wait=False)
            try:
                shutil.rmtree(aside, ignore_errors=True)
                with suppress(FileNotFoundError):  # another process removed it, or finished it just now
                    os.rename(run.folder, aside)
            finally:
                if lock is not None:
                    lock.gone = True
                    lock.release()
            shutil.rmtree(aside, ignore_errors=True)


class _Reported(Exception):
    """The failure of a process that could not speak for itself."""


@dataclass
class StepFolder:
    """Work in progress: files written to `folder` are its payload, `env` is added to env.json."""

    goal: Path
    path: Path
    lock: _Lock
    document: dict[str, Any]
    env: dict[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.time)
    processor: float = field(default_factory=time.process_time)

    @property
    def key(self) -> str:
        return self.goal.name

    def write(self, name: str, content: bytes) -> Path:
        """Writes one file of the payload."""
        parts = Path(name).parts
        if not parts or parts[0] in RESERVED or ".." in parts or Path(name).is_absolute():
            raise BadInput(f"A payload file cannot be named {name!r}.")
        self.lock.check()
        path = self.path / name
        with readable_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return path

    def save_checkpoint(self, tensors: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        """Replaces the checkpoint by these arrays and bytes, and by `meta`, which JSON can hold.

        Raises Stopped then, if this process is to end.
        """
        from safetensors.numpy import save

        arrays = {
            name: np.frombuffer(value, np.uint8) if isinstance(value, bytes) else np.asarray(value, order="C")
            for name, value in tensors.items()
        }
        about = {"meta": json.dumps(meta), "bytes": json.dumps([n for n in tensors if isinstance(tensors[n], bytes)])}
        content = save(arrays, {**about, "sha256": _fingerprint(arrays, about)})
        self.lock.check()
        with readable_errors(self.path / WORK / CHECKPOINT):
            _write(self.path / WORK / CHECKPOINT, content)
        if shutdown_requested.is_set():
            raise Interrupted

    def due(self, saved: float, seconds: float) -> bool:
        """Whether to save a checkpoint: the last is from `saved` (of time.monotonic), or this process is to end."""
        return shutdown_requested.is_set() or time.monotonic() - saved >= seconds

    def load_checkpoint(self) -> Checkpoint | None:
        """The last checkpoint, or None if there is none. A damaged one is never used: a warning, and None."""
        path = self.path / WORK / CHECKPOINT
        with readable_errors(path):
            return read_checkpoint(path) if path.is_file() else None

    def _begin(self) -> None:
        with readable_errors(self.path):
            self._clear()
            _write(self.path / CONFIG, _json(self.document))

    def _clear(self) -> None:
        """Removes all but the checkpoint and the lock: a previous owner may have left it half-written."""
        for path in self.path.iterdir():
            if path.name != WORK:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def _finish(self) -> None:
        with readable_errors(self.path):
            payload = _payload(self.path)
            files = {name: _summary(path) for name, path in payload.items()}
            for place in {self.path, *payload.values(), *(path.parent for path in payload.values())}:
                _flush(place)
            times = {"started": _iso(self.started), "seconds": round(time.time() - self.started, 3)}
            times["processor_seconds"] = round(time.process_time() - self.processor, 3)
            _write(self.path / ENV, _json({**environment(), **times, **self.env}))
            _write(self.path / CONFIG, _json({**self.document, "files": files}))
            _settle(self.lock, self.goal)

    def _fail(self, error: Exception) -> None:
        note = {"reason": describe_error(error, self.path), "kind": type(error).__name__, "when": _iso(time.time())}
        try:
            self.lock.check()
            try:
                self._note(error, note)
            except OSError:  # a full disk: half a payload took the last byte
                self._begin()
                self._note(error, note)
        except (OSError, StoreError):  # the first error is the one to raise, and most often the reason for this one
            log.info("%s: the failure could not be noted.", self.path)

    def _note(self, error: Exception, note: dict[str, Any]) -> None:
        (self.path / "traceback.txt").write_text("".join(traceback.format_exception(error)), "utf-8")
        _write(self.path / FAILURE, _json(note))


RESERVED = (WORK, CONFIG, ENV, FAILURE, "traceback.txt")


def read_checkpoint(path: Path) -> Checkpoint | None:
    """What save_checkpoint wrote; None, with a warning, if a single bit of it is not as it was."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            about = dict(file.metadata())
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if about.pop("sha256") != _fingerprint(arrays, about):
            raise ValueError("checksum")
        texts = set(parse_list(about["bytes"], str(path)))
        meta = parse_json(about["meta"], str(path))
    except (SafetensorError, ValueError, KeyError, TypeError):
        log.warning("%s is damaged and is not used: the work starts again from the beginning.", path)
        return None
    return Checkpoint({name: array.tobytes() if name in texts else array for name, array in arrays.items()}, meta)


# ---- locks


@dataclass
class _Lock:
    folder: Path
    number: int
    owner: dict[str, Any]
    gone: bool = False  # it went away with the finished folder
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while not self.stop.wait(BEAT):
            with suppress(OSError):  # a hiccup of the file system: check() tells whether the lock is still ours
                os.utime(self.folder / f"lock.{self.number}")

    def ours(self) -> bool:
        return not self.gone and _last(self.folder) == (self.number, self.owner)

    def check(self) -> None:
        if not self.ours():
            raise LockLost(f"{self.folder.parent} was taken over by another process, or was removed: this one stops.")

    def release(self) -> None:
        self.stop.set()
        with suppress(OSError):  # a store that became read-only: the lock ends with this process
            if self.ours():
                (self.folder / f"lock.{self.number}").unlink(missing_ok=True)


def _acquire(goal: Path, wait: bool) -> _Lock | None:
    """The lock of the goal's .part, or None once the goal is finished."""
    folder = goal.with_name(f"{goal.name}.part") / WORK
    pause = 0.05
    while not goal.is_dir():
        number, owner = _last(folder)
        if number and _alive(folder / f"lock.{number}", owner):
            if not wait:
                raise Busy(f"{goal.parent.name}/{goal.name} is being done by {_who(owner)}.")
            time.sleep(pause)
            pause = min(2 * pause, 1.0)
            continue
        if folder.is_symlink() or folder.parent.is_symlink():
            raise StoreError(f"{folder.parent} leads elsewhere by a symbolic link: remove the link and run again.")
        folder.mkdir(parents=True, exist_ok=True)
        owner = {**_machine(), "pid": os.getpid(), "start": _start_time(os.getpid()), "token": os.urandom(8).hex()}
        draft = folder / f"draft.{owner['token']}"
        try:
            draft.write_bytes(_json(owner))
            _claim(draft, folder / f"lock.{number + 1}")
        except (FileExistsError, FileNotFoundError):  # another was faster, or finished and took the folder along
            continue
        finally:
            draft.unlink(missing_ok=True)
        if goal.is_dir():  # finished between the first look and the lock
            shutil.rmtree(folder.parent, ignore_errors=True)
            return None
        return _Lock(folder, number + 1, owner)
    shutil.rmtree(goal / WORK, ignore_errors=True)  # left if the last owner was killed just after the rename
    return None


def _claim(draft: Path, lock: Path) -> None:
    """Makes the lock, with the draft's content; FileExistsError if another process has it."""
    try:
        os.link(draft, lock)
    except FileExistsError:
        if draft.stat().st_nlink != 2:  # 2: it is ours, and only the answer of a network file system was lost
            raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        with lock.open("xb") as file:  # without content for a moment: to others it then is of an owner elsewhere
            file.write(draft.read_bytes())


def _settle(lock: _Lock, goal: Path) -> None:
    """Gives work that lies whole on the disk its final name."""
    lock.check()
    try:
        os.rename(lock.folder.parent, goal)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise LockLost(f"{goal} was finished by another process.") from None
        raise
    lock.gone = True
    _flush(goal.parent)
    shutil.rmtree(goal / WORK, ignore_errors=True)  # only now: a kill before the rename needs it


def _last(folder: Path) -> tuple[int, dict[str, Any]]:
    """Number and owner of the lock that counts; 0 if there is none."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return 0, {}
    numbers = [int(name[5:]) for name in names if re.fullmatch(r"lock\.\d+", name)]
    return (max(numbers), _read_json(folder / f"lock.{max(numbers)}")) if numbers else (0, {})


def _alive(lock: Path, owner: dict[str, Any]) -> bool:
    """On this machine: does the process still run? Elsewhere: has the heartbeat been silent for SILENCE seconds?

    It is silent where its last beat lies so far back by the file system's clock, which dates every beat, or where none
    came while this process watched: a beat dated ahead of the clock, which may have been set back, says nothing.
    """
    if {name: owner.get(name) for name in _machine()} == _machine():
        pid, start = owner.get("pid"), owner.get("start")
        if type(pid) is not int or not 0 < pid < MOST_PIDS or type(start) is not int:  # nescio did not write it
            return False
        return _start_time(pid) in (start, 0)
    try:
        with open_regular(lock) as file:  # opening makes a network file system ask its server
            beat = os.fstat(file.fileno()).st_mtime
        if _now(lock.parent) - beat >= SILENCE:
            return False
    except (FileNotFoundError, BadInput):  # released, the folder took its final name, or no file that nescio made
        return False
    if _beats.get(lock, (None, 0.0))[0] != beat:
        _beats[lock] = beat, time.monotonic()
    return time.monotonic() - _beats[lock][1] < SILENCE


_beats: dict[Path, tuple[float, float]] = {}  # of locks: the last beat, and when this process first saw it


def _now(folder: Path) -> float:
    """The time by the file system's own clock, which no machine's clock has to agree with."""
    probe = folder / f"clock.{os.urandom(8).hex()}"
    try:
        probe.touch()
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


@cache
def _machine() -> dict[str, str]:
    """Processes see each other's numbers only under one boot of one host, in one namespace (containers have theirs)."""
    about = {"host": platform.node(), "boot": "", "space": ""}
    with suppress(OSError):
        about["boot"] = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        about["space"] = os.readlink("/proc/self/ns/pid")
    return about


def _start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot: tells it from a later one of the same number.

    None if there is no such process, or only its remains (a zombie); 0 if it runs and cannot be looked into.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    try:
        words = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return None if words[0] in "ZX" else int(words[19])


def _who(owner: dict[str, Any]) -> str:
    return f"process {owner.get('pid', '?')} on {owner.get('host', 'another machine')}"


# ---- keys and files


def key_of(stage: str, config: Any, parents: Sequence[str] = (), version: int = 1) -> str:
    """The key of work: a function of its stage, recipe, parents and version, wherever the store lies."""
    return _key(_document(stage, config, parents, version))


def _document(stage: str, config: Any, parents: Sequence[str], version: int) -> dict[str, Any]:
    return {"stage": stage, "version": version, "parents": list(parents), "config": canonical(config)}


def _key(document: dict[str, Any]) -> str:
    hashed = {"recipe" if name == "config" else name: value for name, value in document.items()}  # keys never change
    return hashlib.sha256(to_json(hashed).encode()).hexdigest()[:16]


def _payload(folder: Path) -> dict[str, Path]:
    """Name -> path of every file but the store's own."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path for name, path in files.items() if name != CONFIG and name.split("/")[0] != WORK}


_verified: dict[Path, Any] = {}  # folders whose files this process has checked, with their sizes and times then


def _state(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file of finished work, its recipe among them."""
    found = {}
    for path in sorted(folder.rglob("*")):
        about = path.stat()
        found[path.relative_to(folder).as_posix()] = about.st_size, about.st_mtime_ns
    return found


def _copy(source: Path, step_folder: Path) -> None:
    """Makes `part` hold the files of `source`, all of them on the disk, and its own `.work`."""
    names = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    for path in [path for path in step_folder.rglob("*") if path.is_file()]:
        name = path.relative_to(step_folder)
        if name.parts[0] != WORK and name not in names:
            path.unlink()
    for name in sorted(names):
        summary, path = _summary(source / name), step_folder / name
        if not path.is_file() or _summary(path) != summary:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, path)
            _flush(path)
        if _summary(path) != summary:
            raise Corrupted(f"{path} is not what was read from {source}: run again.")
    for folder in {step_folder, *((step_folder / name).parent for name in names)}:
        _flush(folder)


def _summary(path: Path) -> dict[str, Any]:
    """Size and checksum of a file."""
    with path.open("rb") as file:
        return {"bytes": os.fstat(file.fileno()).st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _fingerprint(arrays: Mapping[str, Any], about: Mapping[str, str]) -> str:
    shapes = {name: [str(array.dtype), list(array.shape)] for name, array in arrays.items()}
    digest = hashlib.sha256(to_json([shapes, about]).encode())
    for name in sorted(arrays):
        digest.update(arrays[name].reshape(-1).view(np.uint8))
    return digest.hexdigest()


def _write(path: Path, content: bytes) -> None:
    """The whole file or the old one: written beside, flushed, renamed."""
    fresh = path.with_name(f"{path.name}.new")
    try:
        fresh.unlink(missing_ok=True)  # of a killed process, or a link
        with fresh.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
        _flush(path.parent)
    except OSError:
        with suppress(OSError):
            fresh.unlink()  # on a full disk this makes room to say so
        raise


def _flush(place: Path) -> None:
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False).encode()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}


def _facts_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """What recipe.json says of work, as far as it is of the type that nescio writes."""
    config, parents, version = (document.get(name) for name in ("config", "parents", "version"))
    return {
        "config": config if isinstance(config, dict) else {},
        "parents": tuple(map(str, parents)) if isinstance(parents, list) else (),
        "version": version if type(version) is int else None,
        "title": str(document.get("title", "")),
        "names": _names(document),
    }


def _names(document: Mapping[str, Any]) -> dict[str, str]:
    names = document.get("names")
    return {str(content): str(name) for content, name in names.items()} if isinstance(names, dict) else {}


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")


@cache
def environment() -> dict[str, Any]:
    """Versions of Python and of the packages that matter, and the machine."""
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


# ---- sentences

ADVICE = {
    errno.ENOSPC: "the disk is full: make room and run again",
    errno.EDQUOT: "your quota on this disk is used up: make room and run again",
    errno.EROFS: "the file system is read-only: choose another place for the store",
    errno.EACCES: "you may not write there: choose another place for the store, or change its permissions",
    errno.EPERM: "you may not write there: choose another place for the store",
    errno.ENOTDIR: "a file stands where a folder should be: choose another place for the store",
    errno.EEXIST: "a file stands where a folder should be: choose another place for the store",
}


@contextmanager
def readable_errors(path: Path | None = None) -> Iterator[None]:
    """Errors of the system are StoreErrors for people; `path` is where they happen, if they do not say."""
    try:
        yield
    except OSError as error:
        raise StoreError(describe_error(error, path)) from error


def describe_error(error: Exception, path: Path | None = None) -> str:
    """Why, in one line; `path` is where it happened, if the error does not say."""
    if isinstance(error, OSError) and (error.filename or path):
        place = str(error.filename or path)
        advice = ADVICE.get(error.errno or 0, f"{error.strerror or error}".rstrip("."))
        if error.errno == errno.EACCES and os.path.exists(place) and not _readable(place):
            advice = "you may not read it: ask its owner, or change its permissions"
        return f"{place}: {advice}."
    text = " ".join(str(error).split("\n")[0].split())
    if type(error).__name__ == "OutOfMemoryError":  # torch's, which goes on for a page
        return "The device has no memory left: use fewer workers, a smaller batch or a smaller network."
    if type(error).__module__.partition(".")[0] == "nescio" and text:  # a sentence for people
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _readable(place: str) -> bool:
    return os.access(place, os.R_OK, effective_ids=os.access in os.supports_effective_ids)


def _again(folder: Path) -> str:
    return f"remove the folder {folder.name} and run again."
