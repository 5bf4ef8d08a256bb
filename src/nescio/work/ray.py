"""Steps as tasks of a Ray cluster, an existing one or one of this machine.

Only small messages go through Ray. Results are written to the store, on a file system that all nodes share.
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
from nescio.work.team import dismiss, make_rendezvous_folder, rendezvous_at, serve_node

CHECK_SECONDS = 5.0  # seconds between two checks of the head node
HEAD_TIMEOUT = 20.0  # seconds of silence until the head node counts as lost; after 60, Ray ends this process
MEMORY = 80 * 2**20  # bytes of shared memory of a new cluster: near Ray's minimum, because all messages are small


class EngineLost(RuntimeError):
    """The cluster stopped responding; finished work is in the store."""


@launcher("ray")
@dataclass
class RayTasks:
    """One Ray task per step, with its own CPUs and GPUs; a task whose worker or node dies is retried."""

    workers: int  # steps that the cluster runs at once: counted from its nodes on entry
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
        for name, value in (("cpus", self.cpus), ("gpus", self.gpus)):
            if value < 0 or (value > 1 and value % 1):
                raise BadInput(f"{name} of a step must be a whole number or a fraction, got {value:g}.")
        if self.retries < 0:
            raise BadInput(f"retries must be at least 0, got {self.retries}.")
        if self.in_flight is not None and self.in_flight < 1:
            raise BadInput(f"in_flight must be at least 1, got {self.in_flight}.")

    def __enter__(self) -> RayTasks:
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # otherwise Ray writes reports of its nodes to stdout
        import ray

        address = self.address or os.environ.get("RAY_ADDRESS")
        alone: dict[str, Any] = {} if address else {"include_dashboard": False, "object_store_memory": MEMORY}
        environment = {"env_vars": self._environment()}
        try:
            if address and address != "auto" and not _is_reachable(address):  # Ray itself would wait forever
                raise ConnectionError
            ray.init(address, log_to_driver=False, logging_level="ERROR", runtime_env=environment, **alone)
        except ConnectionError:
            raise BadInput(
                f"No Ray cluster answers at {address}: start one with `ray start --head`, and name its HOST:PORT, "
                "or omit address."
            ) from None
        self.head = ray.get_runtime_context().gcs_address
        try:
            self.workers = self._capacity()
        except BaseException:
            ray.shutdown()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        import ray

        ray.shutdown()  # running tasks of this process end with it

    def run(self, tasks: Sequence[Task], watch: ProgressCallback | None = None) -> list[Failure]:
        """Run every task once and return the failures."""
        return run_queue(tasks, self._outcomes, watch)

    def _environment(self) -> dict[str, str]:
        """Environment of the workers: number of threads, GPUs if requested, and nescio's variables of this process."""
        ours = {name: value for name, value in os.environ.items() if name in BLAS or name.startswith("NESCIO_")}
        ours |= {"PYTHONPATH": python_path(), "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1"}
        return thread_environment(max(1, int(self.cpus))) | ours

    def _capacity(self) -> int:
        """Number of steps that the nodes can run at once."""
        return sum(self._by_node(1)) or self.in_flight or 1

    def _resources(self, processes: int) -> dict[str, float]:
        """Resources of a step on a node. Several processes get at least one GPU each."""
        gpus = max(1.0, self.gpus) if self.gpus and processes > 1 else self.gpus
        return {"CPU": processes * self.cpus, "GPU": processes * gpus}

    def _by_node(self, processes: int, nodes: int = 1) -> list[int]:
        """Steps with this number of processes that each node can run at once; BadInput for too few nodes."""
        import ray

        resources = self._resources(processes)
        available = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        capacities = [
            [int(node.get(name, 0) / count) for name, count in resources.items() if count] for node in available
        ]
        steps = [min(counts, default=1) for counts in capacities]
        if sum(count > 0 for count in steps) < nodes and self.in_flight is None:
            subject = "No node of the Ray cluster has" if nodes == 1 else f"The Ray cluster has no {nodes} nodes of"
            raise BadInput(
                f"{subject} {resources['CPU']:g} CPUs and {resources['GPU']:g} GPUs for a step: request less; "
                "for an autoscaling cluster, set in_flight to the number of steps to submit."
            )
        return steps

    def _submit(self, task: Task, folder: str) -> _Submitted:
        """The task in the cluster; of several nodes one bundle each: it works in the first, helpers in the others."""
        import ray

        resources, work, helper = self._resources(task.processes), ray.remote(_work), ray.remote(_run_helper)
        options: dict[str, Any] = {"num_cpus": resources["CPU"], "num_gpus": resources["GPU"], "max_retries": 0}
        if task.nodes == 1:
            return _Submitted(task, work.options(**options).remote(pickle.dumps(task), folder))
        from ray.util import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        assert task.folder is not None, "a task of several nodes needs a step folder"
        rendezvous = make_rendezvous_folder(task.folder.parents[1])
        bundle = {name: count for name, count in resources.items() if count}
        bundles = placement_group([bundle] * task.nodes, "STRICT_SPREAD")
        first, *others = [PlacementGroupSchedulingStrategy(bundles, number) for number in range(task.nodes)]
        ref = work.options(scheduling_strategy=first, **options).remote(pickle.dumps(task), folder, rendezvous)
        helpers = [helper.options(scheduling_strategy=other, **options).remote(rendezvous) for other in others]
        return _Submitted(task, ref, helpers, bundles, rendezvous)

    def _outcomes(self, queue: Queue) -> Iterator[tuple[Task, Outcome]]:
        """Every task with its outcome, as they finish."""
        import ray

        for processes, nodes in {(task.processes, task.nodes) for task in queue.ready}:
            self._by_node(processes, nodes)
        free_slots, folder, head = self.in_flight or 2 * self._capacity(), os.getcwd(), _Head(self.head)
        running: dict[Any, _Submitted] = {}
        deaths: Counter[int] = Counter()
        while queue or running:
            while len(running) < free_slots and (task := queue.next()) is not None:
                submitted = self._submit(task, folder)
                running[submitted.ref] = submitted
            if not running:
                time.sleep(queue.pause() or 0)
                continue
            pause = queue.pause() if len(running) < free_slots else None
            ready, _ = ray.wait([*running], timeout=CHECK_SECONDS if pause is None else min(pause, CHECK_SECONDS))
            head.check()
            for ref in ready:
                submitted = running.pop(ref)
                task, outcome = submitted.task, submitted.outcome()
                deaths[id(task)] += outcome.status == "died"
                if outcome.status == "died" and deaths[id(task)] <= self.retries:
                    queue.ready.append(task)
                else:
                    yield task, outcome


@dataclass
class _Submitted:
    """A task in the cluster."""

    task: Task
    ref: Any
    helpers: Sequence[Any] = ()  # processes on other nodes
    bundles: Any = None  # placement group of all processes
    rendezvous: Path | None = None  # folder in which the processes exchange addresses

    def outcome(self) -> Outcome:
        """The outcome of the finished task, or the death of a helper if the task failed because of it."""
        outcome = _outcome(self.ref)
        if self.rendezvous is None:
            return outcome
        import ray
        from ray.util import remove_placement_group

        dismiss(self.rendezvous)
        ready, unfinished = ray.wait([*self.helpers], num_returns=len(self.helpers), timeout=CHECK_SECONDS)
        ends = [_outcome(helper) for helper in ready]
        remove_placement_group(self.bundles)  # ends helpers that are still running
        for helper in unfinished:
            _outcome(helper)
        shutil.rmtree(self.rendezvous, ignore_errors=True)
        deaths = [end for end in ends if end.status == "died"]
        return deaths[0] if outcome.status == "failed" and deaths else outcome


class _Head:
    """Checks regularly whether the head of the cluster responds."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.looked = self.seen = time.monotonic()

    def check(self) -> None:
        now = time.monotonic()
        if now - self.looked < CHECK_SECONDS:
            return
        self.looked = now
        if _is_reachable(self.address):
            self.seen = now
        elif now - self.seen >= HEAD_TIMEOUT:
            raise EngineLost(
                f"The head of the Ray cluster, {self.address}, is gone. What was finished is in the store: "
                "give the same command again once there is a cluster."
            )


def _is_reachable(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CHECK_SECONDS).close()
    except (OSError, ValueError):  # refused, silent, or no HOST:PORT at all
        return False
    return True


# ---- in a worker


def _work(packed: bytes, folder: str, rendezvous: Path | None = None) -> Outcome:
    """Run a task in a Ray worker, in the working folder of the command.

    rendezvous  the folder where helpers on other nodes wait
    """
    try:
        os.chdir(folder)
    except OSError:
        reason = f"There is no {folder} on {socket.gethostname()}: all nodes need the file system of the store."
        return Outcome("failed", (reason, "OSError"))
    use_one_thread()
    if rendezvous is None:
        return run_pickled_task(packed)
    import ray

    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    with rendezvous_at(rendezvous, ray.util.get_node_ip_address(), port):
        return run_pickled_task(packed)


def _run_helper(rendezvous: Path) -> Outcome:
    """Help a task on another node."""
    serve_node(rendezvous)
    return Outcome("done")


def _outcome(ref: object) -> Outcome:
    """The outcome of a task, or the reason of its worker's death."""
    import ray
    from ray.exceptions import NodeDiedError, OutOfMemoryError, RayError

    try:
        return Outcome(*ray.get(ref))
    except OutOfMemoryError:
        reason = "Ray ended the worker because its node had no memory left: give a step more --cpus."
    except NodeDiedError:
        reason = "The node of the worker was lost."
    except RayError as error:
        reason = f"The worker was killed ({type(error).__name__}); most often the machine had no memory left."
    return Outcome("died", reason)
