"""Steps as tasks of a Ray cluster: of one that runs already (--address), or of one of this machine.

Only small messages go through Ray. What a step makes goes into the store, which lies on a file system of all nodes.
"""

from __future__ import annotations

import os
import pickle
import shutil
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from nescio.errors import BadInput
from nescio.options import option
from nescio.work.launchers import (
    BLAS,
    Failure,
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
from nescio.work.team import dismiss, make_rendezvous_folder, meeting, serve_node

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
    cpus: float = option(1.0)
    gpus: float = option(0.0)
    retries: int = option(3)
    in_flight: int | None = option(None, unset="twice as many as the nodes can run")
    head: str = ""  # its address, once it is entered
    many_nodes: ClassVar[bool] = True  # can work on one step

    def __post_init__(self) -> None:
        for name, value in (("--cpus", self.cpus), ("--gpus", self.gpus)):
            if value < 0 or (value > 1 and value % 1):
                raise BadInput(f"{name} of a step is a whole number, or a part of one, not {value:g}.")
        if self.retries < 0:
            raise BadInput(f"retries is a number from 0 on, not {self.retries}.")
        if self.in_flight is not None and self.in_flight < 1:
            raise BadInput(f"in_flight is a number from 1 on, not {self.in_flight}.")

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
                "or omit address."
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

    def run(self, tasks: Sequence[Task], watch: ProgressCallback | None = None) -> list[Failure]:
        """Does every task once and returns what failed and why."""
        return run_queue(tasks, self._answers, watch)

    def _environment(self) -> dict[str, str]:
        """Of the workers: threads, GPUs only where --gpus says so, and what this process has of its own for nescio."""
        ours = {name: value for name, value in os.environ.items() if name in BLAS or name.startswith("NESCIO_")}
        ours |= {"PYTHONPATH": python_path(), "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1"}
        return thread_environment(max(1, int(self.cpus))) | ours

    def _at_once(self) -> int:
        """How many steps the nodes can run at once."""
        return sum(self._by_node(1)) or self.in_flight or 1

    def _wanted(self, processes: int) -> dict[str, float]:
        """What a step takes of a node: for each of several processes its cores, and a whole GPU at least."""
        gpus = max(1.0, self.gpus) if self.gpus and processes > 1 else self.gpus
        return {"CPU": processes * self.cpus, "GPU": processes * gpus}

    def _by_node(self, processes: int, nodes: int = 1) -> list[int]:
        """How many steps of so many processes each node can run at once; BadInput where too few can run any."""
        import ray

        wanted = self._wanted(processes)
        there = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        places = [[int(node.get(name, 0) / count) for name, count in wanted.items() if count] for node in there]
        steps = [min(each, default=1) for each in places]
        if sum(count > 0 for count in steps) < nodes and self.in_flight is None:
            which = "No node of the Ray cluster has" if nodes == 1 else f"The Ray cluster has no {nodes} nodes of"
            raise BadInput(
                f"{which} {wanted['CPU']:g} CPUs and {wanted['GPU']:g} GPUs for a step: ask for less; "
                "of a cluster that grows by itself, set in_flight to the number of steps to submit."
            )
        return steps

    def _submit(self, task: Task, folder: str, work: Any, helper: Any) -> _Submitted:
        """The task in the cluster; of several nodes one bundle each: it works in the first, helpers in the others."""
        wanted = self._wanted(task.processes)
        how: dict[str, Any] = {"num_cpus": wanted["CPU"], "num_gpus": wanted["GPU"], "max_retries": 0}
        if task.nodes == 1:
            return _Submitted(task, work.options(**how).remote(pickle.dumps(task), folder))
        from ray.util import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        assert task.folder is not None, "what several nodes make is in a store"
        place = make_rendezvous_folder(task.folder.parents[1])
        bundle = {name: count for name, count in wanted.items() if count}
        bundles = placement_group([bundle] * task.nodes, "STRICT_SPREAD")
        first, *others = [PlacementGroupSchedulingStrategy(bundles, number) for number in range(task.nodes)]
        ref = work.options(scheduling_strategy=first, **how).remote(pickle.dumps(task), folder, place)
        helpers = [helper.options(scheduling_strategy=other, **how).remote(place) for other in others]
        return _Submitted(task, ref, helpers, bundles, place)

    def _answers(self, queue: Queue) -> Iterator[tuple[Task, str, Any]]:
        """(task, what became of it, why or what it returned), as they come; one put back into the queue comes again."""
        import ray

        for processes, nodes in {(task.processes, task.nodes) for task in queue.ready}:
            self._by_node(processes, nodes)
        work, helper = ray.remote(_work), ray.remote(_help)
        room, folder, head = self.in_flight or 2 * self._at_once(), os.getcwd(), _Head(self.head)
        running: dict[Any, _Submitted] = {}
        deaths: Counter[int] = Counter()
        while queue or running:
            while len(running) < room and (task := queue.next()) is not None:
                submitted = self._submit(task, folder, work, helper)
                running[submitted.ref] = submitted
            if not running:
                time.sleep(queue.pause() or 0)
                continue
            pause = queue.pause() if len(running) < room else None
            ready, _ = ray.wait([*running], timeout=LOOK if pause is None else min(pause, LOOK))
            head.check()
            for ref in ready:
                submitted = running.pop(ref)
                task, state, answer = submitted.task, *submitted.answer()
                deaths[id(task)] += state == "died"
                if state == "died" and deaths[id(task)] <= self.retries:
                    queue.ready.append(task)
                else:
                    yield task, state, answer


@dataclass
class _Submitted:
    """A task in the cluster."""

    task: Task
    ref: Any
    helpers: Sequence[Any] = ()  # on other nodes,
    bundles: Any = None  # what is theirs of all nodes,
    place: Path | None = None  # and where they meet

    def answer(self) -> tuple[str, Any]:
        """What became of it, once it ended; a helper that died is what it died of."""
        state, answer = _answer(self.ref)
        if self.place is None:
            return state, answer
        import ray
        from ray.util import remove_placement_group

        dismiss(self.place)
        ready, late = ray.wait([*self.helpers], num_returns=len(self.helpers), timeout=LOOK)
        ends = [_answer(helper) for helper in ready]
        remove_placement_group(self.bundles)  # ends those that are late
        for helper in late:
            _answer(helper)
        shutil.rmtree(self.place, ignore_errors=True)
        deaths = [end for end in ends if end[0] == "died"]
        return deaths[0] if state == "failed" and deaths else (state, answer)


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


def _work(packed: bytes, folder: str, place: Path | None = None) -> tuple[str, Any]:
    """What becomes of a task in a Ray worker, which works in the folder where the command was given.

    place  where helpers on other nodes wait
    """
    try:
        os.chdir(folder)
    except OSError:
        reason = f"There is no {folder} on {socket.gethostname()}: all nodes need the file system of the store."
        return "failed", (reason, "OSError")
    use_one_thread()
    if place is None:
        return run_pickled_task(packed)
    import ray

    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    with meeting(place, ray.util.get_node_ip_address(), port):
        return run_pickled_task(packed)


def _help(place: Path) -> tuple[str, Any]:
    """What a worker on another node does for a task."""
    serve_node(place)
    return "done", None


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
