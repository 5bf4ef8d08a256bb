"""Steps as arrays of SLURM jobs, through submitit; jobs continue without this process.

The store lists the jobs in the queue, so that a repeated command waits for them and submits only the rest:

    store/.slurm/<stage>-<key>.json    the job of a step, from its submission until it is done
    store/.slurm/log/                  files of submitit: the call, its result, the logs
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from nescio.errors import BadInput
from nescio.files import read_json, write_file
from nescio.options import option
from nescio.work.launchers import (
    RETRY_SECONDS,
    Failure,
    Outcome,
    ProgressCallback,
    Queue,
    Task,
    launcher,
    python_path,
    run_pickled_task,
    run_queue,
    thread_environment,
    use_one_thread,
)
from nescio.work.step_folder import shutdown_requested
from nescio.work.store import Run, Store
from nescio.work.store_errors import Interrupted, readable_errors
from nescio.work.team import rendezvous_at, serve_node

if TYPE_CHECKING:
    from submitit.core.utils import JobPaths

JOBS, LOGS = ".slurm", "log"
POLL_SECONDS = 5.0  # seconds between two requests of the queue
FILE_DELAY = 60.0  # seconds that a shared file system may take to show what a job has written
STABLE_SECONDS = 3.0  # seconds that a job's end must last: one that is requeued passes through other states
PORTS = 20_000  # first port for the rendezvous of a job's nodes, and the number of such ports
GONE = "GONE"  # state of a job that SLURM no longer lists
ENDED = {
    *("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL"),
    *("DEADLINE", "REVOKED", GONE),
}
END_REASONS = {
    "FAILED": "its process was killed or could not start",
    "CANCELLED": "a user cancelled it",
    "NODE_FAIL": "its node was lost",
}
HOPELESS = {  # a retry would end in the same way
    "OUT_OF_MEMORY": "it exceeded its memory, give more --mem",
    "TIMEOUT": "it exceeded its time limit and has no checkpoint to resume from, give more --time",
}
log = logging.getLogger(__name__)


@launcher("slurm")
@dataclass
class SlurmJobs:
    """One job per step; a job that is cancelled or dies is submitted again and resumes from its checkpoint."""

    workers: int  # maximum number of jobs in the queue: that of in_flight
    partition: str | None = option(
        None,
        "partition of the jobs",
        unset="the cluster's",
        name="slurm-partition",  # benchmarks have a --partition of classes
        metavar="NAME",
    )
    account: str | None = option(None, "account that the jobs are charged to", unset="yours")
    qos: str | None = option(None, "quality of service", unset="the cluster's")
    gpus: str | None = option(None, "GPUs per job, such as 1 or a100:2", name="job-gpus", metavar="GPUS", unset="none")
    cpus: int = option(1, "CPU cores per job", name="job-cpus", metavar="N")
    time: str | None = option(
        None,
        "time limit of a job, such as 90 (minutes), 12:00:00 or 2-00:00:00; a training that needs more goes on in the "
        "next job",
        unset="the partition's",
    )
    mem: str | None = option(None, "memory of a job, such as 16G", unset="the cluster's")
    slurm: tuple[str, ...] = option((), "any other option of sbatch", metavar="KEY=VALUE", style="repeats")
    retries: int = option(3)
    in_flight: int = option(500)
    jobs: dict[str, _Job] = field(default_factory=dict)  # in the queue, by number
    stuck: set[str] = field(default_factory=set)  # those of them that SLURM does not start
    many_nodes: ClassVar[bool] = True  # can work on one step

    def __post_init__(self) -> None:
        for name, value, least in (
            ("cpus", self.cpus, 1),
            ("retries", self.retries, 0),
            ("in_flight", self.in_flight, 1),
        ):
            if value < least:
                raise BadInput(f"{name} must be at least {least}, got {value}.")
        for word in self.slurm:
            if not all(word.partition("=")):
                raise BadInput(f"slurm takes KEY=VALUE, such as constraint=a100, not {word!r}.")
        if self.time is not None and not re.fullmatch(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}", self.time, re.ASCII):
            raise BadInput(f"time is {self.time!r}: give minutes, HH:MM:SS or D-HH:MM:SS, such as 12:00:00.")
        if self.gpus is not None and not re.fullmatch(r"(\w[\w.-]*:)?[1-9]\d*", self.gpus):
            raise BadInput(f"gpus is {self.gpus!r}: give a number of at least 1, or TYPE:N, such as a100:2.")
        self.workers = self.in_flight

    def __enter__(self) -> SlurmJobs:
        import submitit  # noqa: F401  (here, so that it is missing before any work)

        for program in ("sbatch", "squeue", "srun"):
            if shutil.which(program) is None:
                raise BadInput(f"There is no {program} on this machine: set launcher=slurm only if SLURM is installed.")
        return self

    def __exit__(self, *_: object) -> None:
        if self.jobs:
            arrays = " ".join(dict.fromkeys(number.partition("_")[0] for number in self.jobs))
            print(
                f"{len(self.jobs)} jobs stay in the queue of SLURM: the same command waits for them again, "
                f"`nescio runs` shows them, `scancel {arrays}` ends them.",
                file=sys.stderr,
            )

    def run(self, tasks: Sequence[Task], watch: ProgressCallback | None = None) -> list[Failure]:
        """Run every task once and return the failures."""
        return run_queue(tasks, self._outcomes, watch)

    def _outcomes(self, queue: Queue) -> Iterator[tuple[Task, Outcome]]:
        """Every task with its outcome, as they finish."""
        tries: Counter[int] = Counter()
        self._attach(queue)
        while queue or self.jobs:
            self._submit_waiting(queue)
            time.sleep(POLL_SECONDS)
            for job, outcome in self._ended():
                del self.jobs[job.number]
                tries[id(job.task)] += 1
                if outcome.status == "done":
                    job.forget()
                    yield job.task, outcome
                elif isinstance(outcome.result, tuple):  # refused or failed
                    reason, kind = outcome.result
                    yield job.task, Outcome(outcome.status, (f"{reason} {job.where}", kind))
                elif outcome.status in HOPELESS or tries[id(job.task)] > self.retries:
                    yield job.task, Outcome("died", f"{_describe_end(job.number, outcome.status)} {job.where}")
                else:
                    queue.ready.append(job.task)

    @readable_errors()
    def _attach(self, queue: Queue) -> None:
        """Attach to jobs that an earlier command submitted, and remove their tasks from the queue."""
        jobs = [_Job(note.job, task, note.user) for task in queue.ready if (note := _read(_note(task)))]
        if not jobs:
            return
        while (states := _states(job.user for job in jobs)) is None:
            log.warning(SILENT)
            time.sleep(POLL_SECONDS)
        for job in jobs:
            if states.get(job.number, (GONE,))[0] not in ENDED:
                self.jobs[job.number] = job
                queue.ready.remove(job.task)

    @readable_errors()
    def _submit_waiting(self, queue: Queue) -> None:
        """Submit tasks up to the limit; tasks that SLURM rejects now are submitted later."""
        from submitit.core.utils import FailedJobError

        tasks = list(islice(_same_resources(queue), self.in_flight - len(self.jobs)))
        if not tasks:
            return
        try:
            with _uninterrupted():
                for number, task in zip(self._submit(tasks), tasks, strict=True):
                    self.jobs[number] = job = _Job(number, task)
                    job.note()
        except FailedJobError as error:
            queue.ready.extendleft(reversed(tasks))
            if not self.jobs and _states() is not None:  # SLURM responds, so the refusal is permanent
                raise BadInput(f"SLURM does not take the jobs ({_last_line(str(error))}).") from error

    def _submit(self, tasks: Sequence[Task]) -> list[str]:
        """The numbers of new jobs, of one array if there are several."""
        import submitit

        executor = submitit.SlurmExecutor(_note(tasks[0]).parent / LOGS)
        options = self._sbatch_options(tasks[0])
        cpus = {"SRUN_CPUS_PER_TASK": str(options["cpus-per-task"])}
        environment = {**thread_environment(self.cpus), "PYTHONPATH": python_path(), **cpus}
        executor.update_parameters(
            job_name="nescio",
            time=None,
            wckey=None,
            array_parallelism=self.in_flight,
            setup=[f"export {name}={shlex.quote(value)}" for name, value in environment.items()],
            srun_args=["--kill-on-bad-exit=1"],  # no node waits for one that died
            additional_parameters=options,
        )
        with executor.batch():
            jobs = [executor.submit(_work, pickle.dumps(task)) for task in tasks]
        return [job.job_id for job in jobs]

    def _sbatch_options(self, task: Task) -> dict[str, object]:
        """Options of sbatch, by name; free-form options take precedence. Several processes have a GPU each."""
        by_name = {name: getattr(self, name) for name in ("partition", "account", "qos", "time", "mem")}
        by_name |= {"cpus-per-task": self.cpus * task.processes, "requeue": True}
        if self.gpus:
            *kind, count = self.gpus.split(":")
            by_name["gres"] = ":".join(["gpu", *kind, count if task.processes == 1 else str(task.processes)])
        if task.nodes > 1:
            by_name |= {"nodes": task.nodes, "ntasks-per-node": 1}
        free = {key.lstrip("-"): value for key, _, value in (word.partition("=") for word in self.slurm)}
        return {key: value for key, value in by_name.items() if value is not None} | free

    def _ended(self) -> Iterator[tuple[_Job, Outcome]]:
        """Ended jobs with their outcome; its status is SLURM's state if they left no result."""
        states = _states(job.user for job in self.jobs.values())
        if states is None:
            log.warning(SILENT)
        else:
            self._warn_of_held_jobs(states)
        for job in [*self.jobs.values()]:
            if (outcome := job.outcome()) is not None:
                yield job, outcome
            elif states is not None:
                state, _ = states.get(job.number, (GONE, ""))
                if state not in ENDED:
                    job.seen = None
                elif job.overdue(FILE_DELAY if state == "COMPLETED" and not job.finished else STABLE_SECONDS):
                    yield job, Outcome("done" if job.finished else state)

    def _warn_of_held_jobs(self, states: Mapping[str, tuple[str, str]]) -> None:
        """Warn once about held SLURM jobs, for example after a node failed to start them."""
        stuck = {number for number in self.jobs if "held" in states.get(number, ("", ""))[1].lower()}
        if fresh := sorted(stuck - self.stuck):
            log.warning(STUCK, states[fresh[0]][1], ",".join(fresh))
        self.stuck = stuck


STUCK = "SLURM has put jobs on hold (%s): once the cause is gone, `scontrol release %s` lets them start."
SILENT = "The controller of SLURM does not respond. Jobs continue without it; waiting."


class _Note(NamedTuple):
    """The description of a job, in a file of the store."""

    job: str
    title: str
    log: str
    user: int


@dataclass
class _Job:
    """A job in the queue and its task."""

    number: str  # as SLURM writes it: 12_3 is of the array 12
    task: Task
    user: int = field(default_factory=os.getuid)  # whose job it is: another one may have submitted it
    seen: float | None = None  # when it was first found to have ended without an outcome

    @property
    def paths(self) -> JobPaths:
        from submitit.core.utils import JobPaths

        return JobPaths(_note(self.task).parent / LOGS, self.number)

    @property
    def finished(self) -> bool:
        """Whether its work is finished; another command may have read its result."""
        return self.task.folder is not None and self.task.folder.is_dir()

    @property
    def where(self) -> str:
        return f"Log: {self.paths.stderr}"

    def note(self) -> None:
        note = _Note(self.number, self.task.name, str(self.paths.stderr), self.user)
        write_file(_note(self.task), json.dumps(note._asdict()))

    @readable_errors()
    def outcome(self) -> Outcome | None:
        """The outcome that the job wrote; None before."""
        try:
            status, result = pickle.loads(self.paths.result_pickle.read_bytes())
        except FileNotFoundError:
            return None
        return Outcome(*result) if status == "success" else Outcome("failed", (_last_line(result), ""))

    def overdue(self, seconds: float) -> bool:
        """Whether its result is missing `seconds` after its end."""
        self.seen = self.seen or time.monotonic()
        return time.monotonic() - self.seen >= seconds

    @readable_errors()
    def forget(self) -> None:
        paths = self.paths
        for path in (_note(self.task), paths.submitted_pickle, paths.result_pickle, paths.stdout, paths.stderr):
            path.unlink(missing_ok=True)
        for path in paths.folder.glob(f"{self.number}_*") if self.task.nodes > 1 else ():  # of other nodes
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _same_resources(queue: Queue) -> Iterator[Task]:
    """Tasks from the queue with the resources of the first, because the jobs of an array have equal resources."""
    team = None
    while (task := queue.first()) and team in (None, (task.processes, task.nodes)):
        team = task.processes, task.nodes
        queue.next()
        yield task


def _note(task: Task) -> Path:
    """The file that describes the job of a task."""
    if task.folder is None:
        raise BadInput(f"{task.name} has no step folder in a store, which SLURM jobs need: set launcher=local.")
    return task.folder.parents[1].absolute() / JOBS / f"{task.folder.parent.name}-{task.folder.name}.json"


def _read(note: Path) -> _Note | None:
    """The description of a job; None if the file has none."""
    try:
        facts = read_json(note)
        return _Note(str(facts["job"]), str(facts["title"]), str(facts["log"]), int(facts.get("user", os.getuid())))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _describe_end(number: str, state: str) -> str:
    """A description of the end of a job without a result."""
    why = (END_REASONS | HOPELESS).get(state, f"its SLURM state is {state.lower().replace('_', ' ')}")
    return f"SLURM job {number} ended: {why}."


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1].strip() if text.strip() else "no reason given"


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Defer Ctrl-C: an interrupt between submission and bookkeeping would lose jobs."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ---- the queue


def _states(users: Iterable[int] = ()) -> dict[str, tuple[str, str]] | None:
    """Job → (state, reason) of the users' jobs, ended ones included; None if the controller does not respond."""
    user = ",".join(map(str, sorted({os.getuid(), *users})))
    command = ["squeue", f"--user={user}", "--states=all", "--array", "--noheader", "--format=%i|%T|%r"]
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode:
        return None
    lines = [line.split("|", 2) for line in answer.stdout.splitlines()]
    return {number: (state, reason) for number, state, reason in lines}


def with_queue(store: Store) -> list[Run]:
    """The work of a store, with the states of its SLURM jobs."""
    runs = {f"{run.stage}-{run.key}": run for run in store.runs()}
    notes = {path.stem: note for path in sorted((store.root / JOBS).glob("*.json")) if (note := _read(path))}
    states = _states(note.user for note in notes.values()) if notes and shutil.which("squeue") else None
    for name, note in notes.items():
        stage, _, key = name.rpartition("-")
        run = runs.get(name) or Run(stage, key, "queued", store.path(stage, key), {}, title=note.title)
        if run.state != "finished":
            runs[name] = _with_job(run, note, states)
    return list(runs.values())


def _with_job(run: Run, note: _Note, states: Mapping[str, tuple[str, str]] | None) -> Run:
    job = f"SLURM job {note.job}"
    if states is None:
        return replace(run, owner=f"{job}, which squeue does not list here")
    state, reason = states.get(note.job, (GONE, ""))
    if state not in ENDED:
        description = f"{job}, {state.lower()}" + (f" ({reason})" if reason not in ("", "None") else "")
        owner = f"{run.owner}, {description}" if run.state == "running" else description
        return replace(run, state="running" if run.state == "running" else "queued", owner=owner, reason="")
    reason = run.reason or _describe_end(note.job, state)
    if note.log not in reason:
        reason = f"{reason} Log: {note.log}"
    return replace(run, state="failed" if run.state == "queued" else run.state, reason=reason)


# ---- in a job


def _work(packed: bytes) -> Outcome:
    """Run a task in a job. Before the time limit, a training saves a checkpoint and the job is requeued.

    SIGUSR2 announces the time limit. After SIGTERM (scancel, pre-emption), the sender handles the next job.
    """
    received: list[int] = []

    def end(number: int, _: object) -> None:
        received.append(number)
        shutdown_requested.set()

    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, end)
    with _nodes():
        return _attempt(packed, received)


@contextmanager
def _nodes() -> Iterator[None]:
    """Run the block on the first node of a job; the other nodes help it and exit."""
    from submitit import JobEnvironment

    job = JobEnvironment()
    if job.num_nodes == 1:
        yield
        return
    folder = job.paths.folder / f"{job.job_id}_nodes_{os.environ.get('SLURM_RESTART_COUNT', 0)}"
    folder.mkdir(exist_ok=True)
    if job.global_rank:
        serve_node(folder)
        sys.exit(0)  # without an outcome: the first node writes it
    with rendezvous_at(folder, socket.gethostname(), PORTS + int(os.environ["SLURM_JOB_ID"]) % PORTS):
        yield


def _attempt(packed: bytes, received: Sequence[int]) -> Outcome:
    use_one_thread()
    try:
        while (outcome := run_pickled_task(packed)).status == "busy":
            if shutdown_requested.is_set():
                raise Interrupted
            time.sleep(RETRY_SECONDS)
        return outcome
    except Interrupted:
        if signal.SIGUSR2 in received:
            subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=True)
        sys.exit(128 + signal.SIGTERM)
