"""Distributed steps: several processes on one or more nodes, started by torch's elastic launcher.

The worker keeps the lock of the step. A temporary folder contains the call, the outcomes and the logs:

    store/.team/<stage>-<key>-<token>/

The token is that of the lock, so that the last processes of a killed worker write to another folder.

On every node an agent (`torch.distributed.run`) starts the processes and ends them together. The worker starts the
agent of its node. On other nodes, a helper of the launcher waits for commands in a rendezvous folder that all nodes
share.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TypeVar

from nescio.errors import describe_error
from nescio.files import read_list
from nescio.work.launchers import PARENT, describe_exit, end_with_parent, python_path, use_one_thread
from nescio.work.locks import Lock
from nescio.work.step_folder import StepFolder, shutdown_requested
from nescio.work.store_errors import Interrupted, readable_errors

FOLDER, CALL, DISMISSED = ".team", "call", "over"
PLACES = "NESCIO_PLACES"  # environment variable of a local worker: indices of the GPUs for its task, such as 2,3
CHECK_SECONDS = 0.2  # seconds between two checks of processes or of the rendezvous folder
SHUTDOWN_DELAY = 5.0  # maximum seconds between the shutdown requests of processes on different nodes
C = TypeVar("C")
CHECKPOINT_SECONDS = 40.0  # seconds that processes have to write a checkpoint: their agent ends them after 30


class TeamFailed(RuntimeError):
    """A process of a distributed step died."""


@dataclass
class Rendezvous:
    """The folder that processes of other nodes watch, and the address to which processes connect."""

    folder: Path
    host: str
    port: int
    calls: int = 0

    def call(self, command: Sequence[str]) -> None:
        """Make every helper start a command."""
        _write(self.folder / str(self.calls), json.dumps(list(command)).encode())
        self.calls += 1


_rendezvous: Rendezvous | None = None  # of the current step, if it runs on several nodes


def make_rendezvous_folder(root: Path) -> Path:
    """A new folder of the store, where the helpers of one step wait."""
    with readable_errors(root):
        (root / FOLDER).mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="nodes-", dir=root.absolute() / FOLDER))


@contextmanager
def rendezvous_at(folder: Path, host: str, port: int) -> Iterator[None]:
    """Use the helpers that wait in a folder for the steps of this block; dismiss them at its end."""
    global _rendezvous
    _rendezvous = Rendezvous(folder, host, port)
    try:
        yield
    finally:
        dismiss(folder)
        _rendezvous = None


def dismiss(folder: Path) -> None:
    """Dismiss the helpers."""
    with suppress(OSError):  # a store that became read-only: whoever started them ends them
        _write(folder / DISMISSED, b"")


def serve_node(folder: Path) -> None:
    """Run a helper: start the commands of the first node until it is dismissed."""
    for number in count():
        while not (call := folder / str(number)).is_file():
            if shutdown_requested.is_set() or (folder / DISMISSED).is_file() or not folder.is_dir():
                return
            time.sleep(CHECK_SECONDS)
        _run(read_list(call), folder / f"{socket.gethostname()}-{os.getpid()}.log")


def clear(goal: Path) -> None:
    """Remove the folders of the processes of STORE/stage/key."""
    for folder in (goal.parent.parent / FOLDER).glob(f"{goal.parent.name}-{goal.name}-*"):
        shutil.rmtree(folder, ignore_errors=True)


def make_distributed(
    make: Callable[[StepFolder, C], object], step_folder: StepFolder, context: C, processes: int, nodes: int
) -> None:
    """Call `make` in processes × nodes processes; the first has the step folder and writes its files."""
    clear(step_folder.goal)
    stage = step_folder.goal.absolute().parent
    folder = stage.parent / FOLDER / f"{stage.name}-{step_folder.key}-{step_folder.lock.owner['token']}"
    folder.mkdir(parents=True, mode=0o700)  # no other user may write pickles that are loaded
    lock = step_folder.lock.folder.absolute(), step_folder.lock.number, step_folder.lock.owner
    call = make, step_folder.goal.absolute(), step_folder.path.absolute(), lock, step_folder.document, context
    _write(folder / CALL, pickle.dumps(call))
    command = [sys.executable, "-m", "nescio.work.team", "agent", str(folder), str(processes), str(nodes)]
    if nodes > 1:
        assert _rendezvous is not None, "only launchers that have several nodes are given such steps"
        _rendezvous.call([*command, _rendezvous.host, str(_rendezvous.port), "false"])
        command += [_rendezvous.host, str(_rendezvous.port), "true"]
    code = _run(command, folder / "agent.log")
    _raise_outcome(folder, processes * nodes, code)
    step_folder.env["processes"] = processes * nodes


def _run(command: Sequence[str], log: Path) -> int:
    """Run an agent and return its exit code; it ends with this process or at a shutdown request."""
    environment = os.environ | {"PYTHONPATH": python_path(), PARENT: str(os.getpid())}
    if devices := os.environ.get(PLACES):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        numbers = visible.split(",") if visible else None
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(
            numbers[int(device)] if numbers and int(device) < len(numbers) else device for device in devices.split(",")
        )
    with _sigterm_noted() as terminated:  # before the agent starts: a signal in between would leave it behind
        with log.open("wb") as file:
            agent = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, start_new_session=True
            )
        try:
            while not (shutdown_requested.is_set() or terminated.is_set()):
                with suppress(subprocess.TimeoutExpired):
                    return agent.wait(CHECK_SECONDS)
        finally:
            if agent.poll() is None:
                agent.terminate()
                try:
                    agent.wait(CHECKPOINT_SECONDS)
                except subprocess.TimeoutExpired:
                    agent.kill()
    if terminated.is_set():
        sys.exit(128 + signal.SIGTERM)
    return agent.wait()


@contextmanager
def _sigterm_noted() -> Iterator[threading.Event]:
    """Make SIGTERM set the event unless it has a handler, so that child processes end before this one."""
    terminated = threading.Event()
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield terminated
        return
    signal.signal(signal.SIGTERM, lambda *_: terminated.set())
    try:
        yield terminated
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _raise_outcome(folder: Path, world: int, code: int) -> None:
    """Raise the error of the first process that failed; Interrupted if all were interrupted."""
    outcomes = {}
    for path in sorted(folder.glob("*.outcome"), key=lambda path: path.stat().st_mtime_ns):
        outcomes[int(path.stem)] = pickle.loads(path.read_bytes())
    if not code and len(outcomes) == world and not any(outcomes.values()):
        return
    errors = [error for error in outcomes.values() if isinstance(error, Exception)]
    codes = {int(path.stem): int(path.read_text()) for path in folder.glob("*.code")}
    for rank, exit_code in sorted(codes.items()):
        if rank not in outcomes:
            raise TeamFailed(
                f"The process of rank {rank}, one of {world}, {describe_exit(exit_code)}. Log: {folder / f'{rank}.log'}"
            )
    if errors:
        raise errors[0]
    if shutdown_requested.is_set() or (any(outcomes.values()) and shutdown_requested.wait(SHUTDOWN_DELAY)):
        raise Interrupted
    if any(outcomes.values()):
        raise TeamFailed(f"The {world} processes were stopped, or a node was lost. Log: {folder / 'agent.log'}")
    raise TeamFailed(f"The launcher of {world} processes {describe_exit(code)}. Log: {folder / 'agent.log'}")


def _write(path: Path, content: bytes) -> None:
    """Replace a file as a whole."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_bytes(content)
    os.replace(fresh, path)


# ---- in the processes


class _OwnersLock(Lock):
    """The lock of the worker, which sends its heartbeats."""

    def __post_init__(self) -> None:
        pass


def _agent(folder: str, processes: str, nodes: str, host: str = "", port: str = "", first: str = "") -> None:
    """Run the processes of this node; write the exit codes of those that failed first."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    end_with_parent(int(os.environ[PARENT]), signal.SIGTERM)
    os.environ[PARENT] = str(os.getpid())  # of the processes: they end when this one is gone
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # the signal is meant for the processes
    argv = ["--standalone"]
    if host:
        address = host if first == "true" else _address_towards(host, int(port))
        argv = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{host}:{port}", "--rdzv-id", Path(folder).name]
        argv += ["--rdzv-conf", f"is_host={first}", "--local-addr", address]
    argv += ["--nnodes", nodes, "--nproc-per-node", processes, "-m", "nescio.work.team", "member", folder]
    try:
        run(parse_args(argv))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        earliest = min(failure.timestamp for failure in error.failures.values())
        for rank, failure in error.failures.items():
            if failure.timestamp <= earliest + 1:  # later, the agent has ended it
                _write(Path(folder) / f"{rank}.code", str(failure.exitcode).encode())
        raise


def _address_towards(host: str, port: int) -> str:
    """The address of this machine as seen by another."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # of a datagram socket: nothing is sent
        return str(probe.getsockname()[0])


def _member(folder: str) -> None:
    """Run one process of a step and write its outcome; the first has the step folder."""
    team_folder, rank = Path(folder), os.environ["RANK"]
    with (team_folder / f"{rank}.log").open("wb") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    end_with_parent(int(os.environ[PARENT]), signal.SIGKILL)
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, lambda *_: shutdown_requested.set())
    use_one_thread()
    outcome: BaseException | None = None
    try:
        make, goal, inside, lock, document, context = pickle.loads((team_folder / CALL).read_bytes())
        step_folder = StepFolder(goal, inside, _OwnersLock(*lock), document) if rank == "0" else None
        files = make(step_folder, context) or {}
        if step_folder is not None:
            for name, content in files.items():
                step_folder.write(name, content)
    except (Exception, Interrupted) as error:
        traceback.print_exc()
        error.add_note("".join(traceback.format_exception(error)))  # a traceback does not reach the worker, a note does
        outcome = error
    _write(team_folder / f"{rank}.outcome", _packed(outcome))
    sys.exit(outcome is not None)  # also where it was stopped: else agents of other nodes wait for this one's


def _packed(outcome: BaseException | None) -> bytes:
    """A pickled outcome; an error that cannot be unpickled is replaced by its reason."""
    try:
        packed = pickle.dumps(outcome)
        pickle.loads(packed)
    except Exception:  # the constructor of a plug-in's error can raise anything
        assert isinstance(outcome, Exception), "None and Stopped are plain"
        failed = TeamFailed(describe_error(outcome))
        failed.__notes__ = outcome.__notes__
        packed = pickle.dumps(failed)
    return packed


if __name__ == "__main__":
    from nescio.work.team import _agent, _member  # its TeamFailed is the worker's; that of __main__ is not

    role, *words = sys.argv[1:]
    (_agent if role == "agent" else _member)(*words)
