"""Steps on a real Ray cluster of two nodes on this machine: whatever dies, the rows are those of the local launcher."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from nescio.errors import BadInput
from nescio.work.launchers import Task, make_launcher
from nescio.work.steps import Context, Work
from nescio.work.store import Store
from nescio.work.store_errors import StoreError
from tests.support.cluster_help import (
    Unknown,
    begun_by,
    cards,
    die,
    died,
    evaluated,
    fall,
    lines,
    log,
    occupied,
    predicted,
    protecting,
    refuse,
    settings,
    undisturbed,
    without_torch,
)
from tests.support.disks import disk_of, remount
from tests.support.waiting import until

pytestmark = pytest.mark.cluster
pytest.importorskip("ray")
MEMORY = 80 * 2**20  # bytes of a node's object store


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        made = two_nodes()
        yield made
        made.shutdown()


def two_nodes(**head):
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": MEMORY}
    made = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False, **head})
    made.add_node(**node)
    return made


@pytest.fixture
def light(tmp_path, monkeypatch):
    without_torch(tmp_path, monkeypatch)


def test_task__every_task_is_done_once_and_a_failure_costs_its_own_task(cluster, light, tmp_path):
    tasks = [Task(f"t{i}", log, (tmp_path, f"t{i}")) for i in range(6)]
    tasks[3:3] = [
        Task("broken", fall, ("it broke\nTraceback of many lines",)),
        Task("wrong", refuse, ("The labels are wrong.",)),
        Task("deadly", die, (tmp_path,), died),
        Task("odd", divmod, (Unknown(), 1)),
        Task("busy", occupied, (tmp_path,)),
        Task("answer", divmod, (7, 3)),
    ]
    seen = []
    with make_launcher("ray", 1, address=cluster.address, retries=2) as launcher:
        assert launcher.workers == 2
        failures = launcher.run(tasks, lambda *counts: seen.append(counts))
    assert [len(lines(tmp_path, f"t{i}")) for i in range(6)] == [1] * 6
    reasons = {each.name: (each.refused, each.reason) for each in failures}
    assert reasons["broken"] == (False, "RuntimeError: it broke") and reasons["wrong"] == (
        True,
        "The labels are wrong.",
    )
    assert "a_plug_in_that_is_not_there" in reasons["odd"][1] and reasons["deadly"][1].startswith("The worker was kill")
    assert len(lines(tmp_path, "deaths")) == 3 and (tmp_path / "died").read_text() == reasons["deadly"][1]
    assert len(lines(tmp_path, "busy")) == 3 and sorted(reasons) == ["broken", "deadly", "odd", "wrong"]
    assert [done for done, *_ in seen] == list(range(13)) and seen[-1][:3] == (12, 4, 12)
    assert (2, 1) in [answer for *_, answer in seen]


def test_ray__workers_have_the_folder_and_the_settings_of_the_command(cluster, light, tmp_path, monkeypatch):
    monkeypatch.setenv("NESCIO_X", "7")
    monkeypatch.chdir(tmp_path)
    seen = []
    with make_launcher("ray", 1, address=cluster.address) as launcher:
        assert launcher.run([Task("t", settings, ())], lambda *counts: seen.append(counts[3])) == []
    assert seen[-1] == ({"NESCIO_X": "7", "NESCIO_THREADS": "1", "OMP_NUM_THREADS": "1"}, str(tmp_path))


def test_ray__the_head_is_not_flooded(cluster, light, monkeypatch):
    import ray

    submitted, wait = [], ray.wait
    monkeypatch.setattr(ray, "wait", lambda refs, **how: submitted.append(len(refs)) or wait(refs, **how))
    with make_launcher("ray", 1, address=cluster.address, in_flight=3) as launcher:
        assert launcher.run([Task("t", time.sleep, (0.01,))] * 30) == []
    assert max(submitted) == 3


def test_ray__what_no_node_has_is_refused_at_once(cluster):
    for wanted in ({"cpus": 2.0}, {"gpus": 0.5}):
        with (
            pytest.raises(BadInput, match="No node of the Ray cluster has"),
            make_launcher("ray", 1, address=cluster.address, **wanted),
        ):
            pass


def test_ray__no_cluster_at_an_address_is_one_sentence():
    with (
        pytest.raises(BadInput, match="No Ray cluster answers at 127"),
        make_launcher("ray", 1, address="127.0.0.1:1"),
    ):
        pass


# ---- studies


def test_ray__twenty_kills_in_one_sweep_and_the_rows_are_the_same(cluster, light, tmp_path):
    context, over, killed = Context(Store(tmp_path / "store")), threading.Event(), []
    context.store.root.mkdir()

    def kill():
        while len(killed) < 20 and not over.is_set():
            time.sleep(random.Random(len(killed)).uniform(0.05, 0.2))
            begun = begun_by(context.store.root)
            if begun and begun[-1] not in killed:
                os.kill(begun[-1], signal.SIGKILL)
                killed.append(begun[-1])

    with make_launcher("ray", 1, address=cluster.address, retries=20) as launcher:
        killer = threading.Thread(target=kill)
        killer.start()
        work = evaluated(context, launcher, cards(60))
        over.set()
        killer.join()
    assert len(killed) == 20 and work.failures == []
    assert work.rows == undisturbed(tmp_path / "local", 60)
    assert {run.state for run in context.store.runs()} == {"finished"}


def test_store__a_full_object_store_stops_nothing(cluster, light, tmp_path):
    import numpy as np
    import ray

    with make_launcher("ray", 1, address=cluster.address) as launcher:
        full = [ray.put(np.ones(MEMORY // 8, np.uint8)) for _ in range(12)]  # more than it holds
        work = evaluated(Context(Store(tmp_path / "store")), launcher, cards(6, 0.05))
        assert len(full) == 12 and work.failures == [] and work.rows == undisturbed(tmp_path / "local", 6)


def test_store__a_store_made_read_only_in_the_middle_is_one_sentence_and_the_next_command_goes_on(
    cluster, light, tmp_path
):
    with disk_of(tmp_path / "disk", "20m") as disk:
        context = Context(Store(disk / "store"))
        context.store.root.mkdir()
        protector = protecting(disk, context)
        sentence = "the file system is read-only: choose another folder."
        with (
            pytest.raises(StoreError, match=f"^{disk}/store: {sentence}$"),
            make_launcher("ray", 1, address=cluster.address) as launcher,
        ):
            evaluated(context, launcher, cards(20))
        protector.join()
        assert remount(disk, "rw")
        with make_launcher("ray", 1, address=cluster.address) as launcher:
            work = evaluated(context, launcher, cards(20))
        begun = len(lines(context.store.root, "begun"))
        assert begun < 24 and work.failures == [] and work.rows == undisturbed(tmp_path / "local", 20)


def test_ray__a_full_disk_of_one_node_costs_its_steps_and_the_next_run_goes_on(light, tmp_path, monkeypatch):
    """The node has its own mounts: there the store lies on a small disk without room."""
    import ray
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    context = Context(Store(tmp_path / "store"))
    context.store.root.mkdir()
    node = {"num_cpus": 1, "object_store_memory": MEMORY}
    made = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    join = f"ray start --address={made.address} --num-cpus=1 --object-store-memory={MEMORY} --block"
    full = f"mount -t tmpfs -o size=64k tmpfs {context.store.root} && head -c 1M /dev/zero >{context.store.root}/all"
    command = ["unshare", "--mount", "sh", "-c", f"{full}; mountpoint -q {context.store.root} && exec {join}"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    other = subprocess.Popen(command, env=os.environ | {"PATH": path}, stdout=subprocess.DEVNULL)
    try:
        with make_launcher("ray", 1, address=made.address) as launcher:
            until(lambda: other.poll() is not None or len(ray.nodes()) == 2)
            if other.poll() is not None:
                pytest.skip("a process cannot have its own mounts here")
            work = evaluated(context, launcher, cards(40))
        other.terminate()
        other.wait()
        assert work.failures and len(work.failures) + len(work.rows) == 40
        assert all("disk is full: make room and" in failure.reason for failure in work.failures)
        with make_launcher("ray", 1, address=made.address) as launcher:
            work = evaluated(context, launcher, cards(40))
    finally:
        other.kill()
        made.shutdown()
    assert work.failures == [] and work.rows == undisturbed(tmp_path / "local", 40)
    assert len(lines(context.store.root, "begun")) == 40


def eat(gigabytes):
    taken = [b"x" * 2**20 for _ in range(int(gigabytes * 1024))]
    time.sleep(30)
    return len(taken)


def test_ray__a_step_that_is_killed_for_memory_costs_that_step(light, tmp_path, monkeypatch):
    memory = {line.split(":")[0]: int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines()}
    used, total = memory["MemTotal"] - memory["MemAvailable"], memory["MemTotal"]
    monkeypatch.setenv("RAY_memory_usage_threshold", str(round((used + 2 * 2**20) / total, 3)))  # 2 GiB more than now
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "100")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    made = two_nodes()
    try:
        with make_launcher("ray", 1, address=made.address, retries=0) as launcher:
            failures = launcher.run([Task("large", eat, (4,)), Task("small", log, (tmp_path, "small"))])
    finally:
        made.shutdown()
    assert [each.name for each in failures] == ["large"] and "no memory left" in failures[0].reason
    assert len(lines(tmp_path, "small")) == 1


COMMAND = """
    import signal
    import sys
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which the children of a background job ignore
    sys.path[:0] = {path!r}
    import nescio.work.ray
    from tests.support import cluster_help
    from nescio.work.launchers import start
    from nescio.work.ray import EngineLost
    from nescio.work.steps import Context
    from nescio.work.store import Store
    nescio.work.ray.CHECK_SECONDS, nescio.work.ray.HEAD_TIMEOUT = 0.5, 2.0
    if __name__ == "__main__":
        try:
            with start("ray", 1, address={address!r}) as launcher:
                cluster_help.evaluated(Context(Store({store!r})), launcher, cluster_help.cards(40))
        except (EngineLost, KeyboardInterrupt) as error:
            sys.exit(f"{{type(error).__name__}}: {{error}}")
"""


@pytest.mark.parametrize("ending", ["head", "SIGINT", "SIGKILL"])
def test_store__a_sweep_that_ends_half_way_leaves_the_store_whole_and_the_next_goes_on(
    light, tmp_path, ending, monkeypatch
):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    store, made = Store(tmp_path / "store"), two_nodes()
    store.root.mkdir()
    path = [str(tmp_path / "no-torch"), *sys.path]
    code = textwrap.dedent(COMMAND).format(path=path, address=made.address, store=str(store.root))
    (tmp_path / "main.py").write_text(code)
    process = subprocess.Popen([sys.executable, tmp_path / "main.py"], stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: len(lines(store.root, "begun")) > 8)
        if ending == "head":
            made.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
        else:
            process.send_signal(signal.Signals[ending])
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        made.shutdown()
    assert process.returncode != 0
    if ending == "head":
        (line,) = said.splitlines()
        assert "The head of the Ray cluster" in line and "same command again" in line
    finished = [run for run in store.runs() if run.state == "finished"]
    assert 5 < len(finished) < 40
    begun = len(lines(store.root, "begun"))
    work = evaluated(Context(store), make_launcher("local", 0), cards(40, 0))
    assert work.rows == undisturbed(tmp_path / "local", 40) and work.failures == []
    assert len(lines(store.root, "begun")) == begun + 40 - len(finished)


def study(store, launcher, watch=None):
    from nescio.benchmarks import base
    from nescio.benchmarks.uimnet import Plan
    from nescio.trials import Training

    budget = Training(epochs=60, batch_size=64, augment="none")  # seconds
    plan = Plan(
        methods=("erm",), backbones=("mlp",), spectral=(None,), trials=2, seeds=3, oracle=False, training=budget
    )
    return base.run(base.registry["uimnet"], plan, Work(Context(store, device="cpu"), launcher, watch))


def lose_a_node(made, node=None):
    """A node goes with everything that runs on it."""
    node = node or next(iter(made.worker_nodes))
    raylet = node.all_processes["raylet"][0].process.pid
    parents = {int(path.parent.name): path.read_text().rpartition(")")[2].split()[1] for path in stats()}
    for pid in [raylet, *(pid for pid, parent in parents.items() if int(parent) == raylet)]:
        os.kill(pid, signal.SIGKILL)
    made.remove_node(node, allow_graceful=False)


def stats():
    return [path for path in Path("/proc").glob("[0-9]*/stat") if path.exists()]


def test_ray__a_node_is_killed_in_the_middle_of_a_study_and_the_table_is_the_local_one(tmp_path, monkeypatch):
    import torch

    torch.set_num_threads(1)  # as workers have
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    made = two_nodes()
    lost = []

    def watch(stage, done, *_):
        if done == 2 and not lost:
            lost.append(stage)
            lose_a_node(made)

    try:
        with make_launcher("ray", 1, address=made.address) as launcher:
            found = study(Store(tmp_path / "ray"), launcher, watch)
    finally:
        made.shutdown()
    with make_launcher("local", 0) as launcher:
        wanted = study(Store(tmp_path / "local"), launcher)
    assert lost and found.failures == [] and json.dumps(found.rows) == json.dumps(wanted.rows)


def test_ray__the_command_line_gives_the_same_bytes(cluster, tmp_path):
    words = "run uimnet --data digits --methods erm --backbones mlp --trials 1 --seeds 1 --epochs 1 --device cpu"
    words += " --format json"
    ways = {"local": ["--workers", "0"], "ray": ["--launcher", "ray", "--address", cluster.address, "--in-flight", "2"]}
    said = {}
    for name, how in ways.items():
        command = [sys.executable, "-m", "nescio", *words.split(), "--store", str(tmp_path / name), *how]
        said[name] = subprocess.run(command, check=True, capture_output=True).stdout
    assert said["ray"] == said["local"] and json.loads(said["ray"])


# ---- predictions


def test_ray__ranges_of_rows_are_predicted_on_all_nodes_and_joined(cluster, tmp_path):
    with make_launcher("ray", 1, address=cluster.address) as launcher:
        made = predicted(Store(tmp_path / "ray"), launcher, 3)
    with make_launcher("local", 1) as launcher:
        assert made == predicted(Store(tmp_path / "local"), launcher, 1)


def content(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_train__members_predictions_and_the_zoo_are_the_same_on_the_cluster(cluster, tmp_path):
    ways = {"local": ["--workers", "1"], "ray": ["--launcher", "ray", "--address", cluster.address]}
    made = {}
    for name, how in ways.items():
        store = tmp_path / name / "store"

        def run(words, *more, how=how, store=store):
            command = [sys.executable, "-m", "nescio", *words.split(), "--store", str(store), "--device", "cpu", *how]
            return subprocess.run([*command, *more], check=True, capture_output=True).stdout

        run("train --method erm --data digits --backbone mlp --epochs 1 --ensemble-size 2")
        first, second = sorted(path.name for path in (store / "train").iterdir())
        run(f"predict {first} --shards 2", "--output", str(tmp_path / name / "dump"))
        rows = run(f"zoo store:{first} store:{second} --data digits --shards 2 --format json")
        weights = [(store / "train" / key / "weights.safetensors").read_bytes() for key in (first, second)]
        made[name] = weights, content(tmp_path / name / "dump"), rows
    assert made["ray"] == made["local"] and json.loads(made["ray"][2])
