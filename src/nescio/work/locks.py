"""Locks of a store: one process works on a step at a time, also on a shared file system.

A lock is the file `lock.N` with the largest N in STORE/stage/key.part/.work. A hard link creates it with its content,
which only one process can do. Without hard links it is created empty, which only one process can do either. The lock
of a dead owner is not removed: the next owner creates lock.N+1, so that only one process takes over. An owner that
was wrongly considered dead (a machine that slept) finds the larger number and stops.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from nescio.errors import BadInput
from nescio.files import open_regular
from nescio.work.disk import flush, json_bytes, read_json_or_empty
from nescio.work.store_errors import Busy, LockLost, StoreError

WORK = ".work"  # the folder of locks and checkpoints in a step folder
MAX_PID = 1 << 31
BEAT, SILENCE = 5.0, 60.0  # seconds between heartbeats, and without one until an owner elsewhere counts as dead
_beats: dict[Path, tuple[float, float]] = {}  # lock → its last heartbeat, and when this process first saw it


@dataclass
class Lock:
    """A lock of this process, kept alive by heartbeats of a thread."""

    folder: Path
    number: int
    owner: dict[str, object]
    gone: bool = False  # moved away with the finished folder
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while not self.stop.wait(BEAT):
            with suppress(OSError):  # a temporary error of the file system: check() tests the lock itself
                os.utime(self.folder / f"lock.{self.number}")

    def is_owned(self) -> bool:
        """Whether this process still owns the lock."""
        return not self.gone and last_lock(self.folder) == (self.number, self.owner)

    def check(self) -> None:
        """Raise LockLost unless this process still owns the lock."""
        if not self.is_owned():
            raise LockLost(f"{self.folder.parent} was taken over by another process, or was removed: this one stops.")

    def release(self) -> None:
        self.stop.set()
        with suppress(OSError):  # the store became read-only: the lock ends with this process
            if self.is_owned():
                (self.folder / f"lock.{self.number}").unlink(missing_ok=True)


def lock_folder(goal: Path) -> Path:
    """The folder of the locks for STORE/stage/key."""
    return goal.with_name(f"{goal.name}.part") / WORK


def acquire(goal: Path, wait: bool) -> Lock | None:
    """The lock for STORE/stage/key; None once that is finished. Raise Busy instead of waiting if not `wait`."""
    folder = lock_folder(goal)
    pause = 0.05
    while not goal.is_dir():
        number, owner = last_lock(folder)
        if number and is_alive(folder / f"lock.{number}", owner):
            if not wait:
                raise Busy(f"{goal.parent.name}/{goal.name} is being done by {describe_owner(owner)}.")
            time.sleep(pause)
            pause = min(2 * pause, 1.0)
            continue
        if folder.is_symlink() or folder.parent.is_symlink():
            raise StoreError(f"{folder.parent} is a symbolic link to another folder: remove the link and run again.")
        folder.mkdir(parents=True, exist_ok=True)
        owner = {**this_machine(), "pid": os.getpid(), "start": start_time(os.getpid()), "token": os.urandom(8).hex()}
        draft = folder / f"draft.{owner['token']}"
        try:
            draft.write_bytes(json_bytes(owner))
            _create(draft, folder / f"lock.{number + 1}")
        except (FileExistsError, FileNotFoundError):  # another process was faster, or finished the work
            continue
        finally:
            draft.unlink(missing_ok=True)
        if goal.is_dir():  # finished between the first check and the lock
            shutil.rmtree(folder.parent, ignore_errors=True)
            return None
        return Lock(folder, number + 1, owner)
    shutil.rmtree(goal / WORK, ignore_errors=True)  # left if the last owner was killed just after the rename
    return None


def _create(draft: Path, lock: Path) -> None:
    """Create a lock with the content of a draft; FileExistsError if another process has it."""
    try:
        os.link(draft, lock)
    except FileExistsError:
        if draft.stat().st_nlink != 2:  # 2: the link was made, and only the reply of a network file system was lost
            raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        with lock.open("xb") as file:  # an empty lock is treated as one of an owner on another machine
            file.write(draft.read_bytes())


def finish(lock: Lock, goal: Path) -> None:
    """Rename the step folder of a lock, whose files are flushed, to its final name."""
    lock.check()
    try:
        os.rename(lock.folder.parent, goal)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise LockLost(f"{goal} was finished by another process.") from None
        raise
    lock.gone = True
    flush(goal.parent)
    shutil.rmtree(goal / WORK, ignore_errors=True)  # last: after a kill before the rename it is needed


def last_lock(folder: Path) -> tuple[int, dict[str, object]]:
    """Number and owner of the valid lock; 0 if there is none."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return 0, {}
    numbers = [int(name[5:]) for name in names if re.fullmatch(r"lock\.\d+", name)]
    return (max(numbers), read_json_or_empty(folder / f"lock.{max(numbers)}")) if numbers else (0, {})


def is_alive(lock: Path, owner: dict[str, object]) -> bool:
    """Whether the owner's process runs on this machine, or sent a heartbeat from another one within SILENCE seconds.

    An owner elsewhere is dead if its last heartbeat is that old by the file system's clock, or if this process saw no
    heartbeat for that long: the date of a heartbeat is ahead of the clock if the clock was set back.
    """
    if {name: owner.get(name) for name in this_machine()} == this_machine():
        pid, start = owner.get("pid"), owner.get("start")
        if type(pid) is not int or not 0 < pid < MAX_PID or type(start) is not int:  # not written by nescio
            return False
        return start_time(pid) in (start, 0)
    try:
        with open_regular(lock) as file:  # opening makes a network file system ask its server
            beat = os.fstat(file.fileno()).st_mtime
        if _file_system_time(lock.parent) - beat >= SILENCE:
            return False
    except (FileNotFoundError, BadInput):  # released, finished, or not a file of nescio
        return False
    if _beats.get(lock, (None, 0.0))[0] != beat:
        _beats[lock] = beat, time.monotonic()
    return time.monotonic() - _beats[lock][1] < SILENCE


def _file_system_time(folder: Path) -> float:
    """The time by the clock of the file system, which may differ from that of every machine."""
    probe = folder / f"clock.{os.urandom(8).hex()}"
    try:
        probe.touch()
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


@cache
def this_machine() -> dict[str, str]:
    """Host, boot and process namespace: only processes that share all three see each other's process ids."""
    machine = {"host": platform.node(), "boot": "", "space": ""}
    with suppress(OSError):
        machine["boot"] = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        machine["space"] = os.readlink("/proc/self/ns/pid")
    return machine


def start_time(pid: int) -> int | None:
    """Start of a process in clock ticks since boot, which distinguishes it from a later process of the same id.

    None if there is no such process, or only a zombie; 0 if it runs and cannot be inspected.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return None if fields[0] in "ZX" else int(fields[19])


def describe_owner(owner: dict[str, object]) -> str:
    return f"process {owner.get('pid', '?')} on {owner.get('host', 'another machine')}"
