"""Steps as tasks of a Ray cluster: of one that runs already (--address), or of one of this machine.

Only small messages go through Ray. What a step makes goes into the store, which lies on a file system of all nodes.
"""

from __future__ import annotations

import os
import pickle
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nescio.errors import BadInput
from nescio.options import option
from nescio.work.launchers import (
    BLAS,
    Counts,
    Failure,
    Queue,
    Task,
    attempt_packed,
    follow,
    launcher,
    one_thread,
    search_path,
    threads,
)

LOOK = 5.0  # seconds between two looks at the head
GONE = 20.0  # seconds without a head, after which it is gone: after 60, Ray itself ends this process without a word
MEMORY = 80 * 2**20  # bytes of shared memory of a cluster of our own, near Ray's least: nothing large goes through it


class EngineLost(RuntimeError):
    """The cluster is gone; what was finished is in the store."""


@launcher("ray")
@dataclass
class RayTasks:
    """One Ray task for each step, with CPUs and GPUs of its own; one whose worker or node dies is tried again."""

    workers: int  # steps that the cluster runs at once: its nodes say, once it is entered
    address: str | None = option(
        None,
        "head of a cluster that runs, such as 10.0.0.1:6379; auto: the one of this machine",
        unset="$RAY_ADDRESS, else a cluster of this machine alone",
    )
    cpus: float = option(1.0, "cores of a step")
    gpus: float = option(0.0, "GPUs of a step; 0.5: two steps share one")
    retries: int = option(3, "tries more for a step whose worker or node dies")
    in_flight: int | None = option(None, "steps submitted at once", unset="twice as many as the nodes can run")
    head: str = ""  # its address, once it is entered

    def __post_init__(self) -> None:
        for name, value in (("--cpus", self.cpus), ("--gpus", self.gpus)):
            if value < 0 or (value > 1 and value % 1):
                raise BadInput(f"{name} of a step is a whole number, or a part of one, not {value:g}.")
        if self.retries < 0:
            raise BadInput(f"--retries is a number from 0 on, not {self.retries}.")
        if self.in_flight is not None and self.in_flight < 1:
            raise BadInput(f"--in-flight is a number from 1 on, not {self.in_flight}.")

    def __enter__(self) -> RayTasks:
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # else Ray reports of its nodes on stdout
        import ray

        address = self.address or os.environ.get("RAY_ADDRESS")
        alone: dict[str, Any] = {} if address else {"include_dashboard": False, "object_store_memory": MEMORY}
        environment = {"env_vars": self._environment()}
        try:
            if address and address != "auto" and not _answers_at(address):  # Ray itself would wait for it without end
                raise ConnectionError
            ray.init(address, log_to_driver=False, logging_level="ERROR", runtime_env=environment, **alone)
        except ConnectionError:
            raise BadInput(
                f"No Ray cluster answers at {address}: start one with `ray start --head`, and name its HOST:PORT, "
                "or omit --address."
            ) from None
        self.head = ray.get_runtime_context().gcs_address
        try:
            self.workers = self._at_once()
        except BaseException:
            ray.shutdown()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        import ray

        ray.shutdown()  # tasks of ours that still run end with it

    def run(self, tasks: Sequence[Task], watch: Counts | None = None) -> list[Failure]:
        """Does every task once and returns what failed and why."""
        return follow(tasks, self._answers, watch)

    def _environment(self) -> dict[str, str]:
        """Of the workers: threads, GPUs only where --gpus says so, and what this process has of its own for nescio."""
        ours = {name: value for name, value in os.environ.items() if name in BLAS or name.startswith("NESCIO_")}
        ours |= {"PYTHONPATH": search_path(), "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1"}
        return threads(max(1, int(self.cpus))) | ours

    def _at_once(self) -> int:
        """How many steps the nodes can run at once."""
        import ray

        wanted = {name: count for name, count in (("CPU", self.cpus), ("GPU", self.gpus)) if count}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        places = [[int(node.get(name, 0) / count) for name, count in wanted.items()] for node in nodes]
        steps = sum(min(each, default=1) for each in places)
        if not steps and self.in_flight is None:
            raise BadInput(
                f"No node of the Ray cluster has {self.cpus:g} CPUs and {self.gpus:g} GPUs for a step: ask for less; "
                "of a cluster that grows by itself, say with --in-flight how many steps to submit."
            )
        return steps or self.in_flight or 1

    def _answers(self, queue: Queue) -> Iterator[tuple[Task, str, Any]]:
        """(task, what became of it, why or what it returned), as they come; one put back into the queue comes again."""
        import ray

        submit = ray.remote(_work).options(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=0).remote
        room, folder, head = self.in_flight or 2 * self._at_once(), os.getcwd(), _Head(self.head)
        running: dict[Any, Task] = {}
        deaths: Counter[int] = Counter()
        while queue or running:
            while len(running) < room and (task := queue.next()) is not None:
                running[submit(pickle.dumps(task), folder)] = task
            if not running:
                time.sleep(queue.pause() or 0)
                continue
            pause = queue.pause() if len(running) < room else None
            ready, _ = ray.wait([*running], timeout=LOOK if pause is None else min(pause, LOOK))
            head.check()
            for ref in ready:
                task = running.pop(ref)
                state, answer = _answer(ref)
                deaths[id(task)] += state == "died"
                if state == "died" and deaths[id(task)] <= self.retries:
                    queue.ready.append(task)
                else:
                    yield task, state, answer


class _Head:
    """Looks now and then whether the head of the cluster answers."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.looked = self.seen = time.monotonic()

    def check(self) -> None:
        now = time.monotonic()
        if now - self.looked < LOOK:
            return
        self.looked = now
        if _answers_at(self.address):
            self.seen = now
        elif now - self.seen >= GONE:
            raise EngineLost(
                f"The head of the Ray cluster, {self.address}, is gone. What was finished is in the store: "
                "give the same command again once there is a cluster."
            )


def _answers_at(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=LOOK).close()
    except (OSError, ValueError):  # refused, silent, or no HOST:PORT at all
        return False
    return True


# ---- in a worker


def _work(packed: bytes, folder: str) -> tuple[str, Any]:
    """What becomes of a task in a Ray worker, which works in the folder where the command was given."""
    try:
        os.chdir(folder)
    except OSError:
        reason = f"There is no {folder} on {socket.gethostname()}: all nodes need the file system of the store."
        return "failed", (reason, "OSError")
    one_thread()
    return attempt_packed(packed)


def _answer(ref: Any) -> tuple[str, Any]:
    """What a worker said of its task, or how it died."""
    import ray
    from ray.exceptions import NodeDiedError, OutOfMemoryError, RayError

    try:
        state, answer = ray.get(ref)
        return state, answer
    except OutOfMemoryError:
        return "died", "Ray ended the worker because its node had no memory left: give a step more --cpus."
    except NodeDiedError:
        return "died", "The node of the worker was lost."
    except RayError as error:
        return "died", f"The worker was killed ({type(error).__name__}); most often the machine had no memory left."
