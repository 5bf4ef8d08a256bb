"""One training over several processes and nodes of a real Ray cluster and SLURM: it learns what one process does.

Both have two nodes on this machine, so that each has its own agent, helpers and addresses; not tried: GPUs.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

import nescio.work.slurm
from nescio.errors import BadInput
from nescio.training import train_step
from nescio.trials import Training
from nescio.work.launchers import make_launcher
from nescio.work.steps import Context, Work
from nescio.work.store import Store
from tests.support.cluster_help import said
from tests.support.trainings import trial_of
from tests.support.waiting import until

pytestmark = pytest.mark.cluster
SCRIPT = Path(__file__).parent / "slurm" / "cluster.sh"
SHORT = Training(epochs=1, batch_size=128, augment="none", lr=0.1)
LONG = trial_of(training=replace(SHORT, epochs=500))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Weights by one process: of batches as they are, and with batch-norm of their two halves."""
    store = tmp_path_factory.mktemp("alone")
    halves = trial_of(backbone="conv", training=replace(SHORT, accumulate=2))
    with make_launcher("local", 1) as launcher:
        return weights(store, launcher, [trial_of(training=SHORT), halves])


def weights(store, launcher, trials, **context):
    from safetensors.torch import load_file

    steps = [train_step(trial) for trial in trials]
    work = Work(Context(Store(store), device="cpu", **context), launcher)
    assert work.run_stage("train", steps) == steps, work.failures
    assert not list((Path(store) / ".team").glob("*"))
    return [load_file(step.folder(work.store) / "weights.safetensors") for step in steps]


def apart(one, two):
    learnt = [name for name in one if "running" not in name and "num_batches" not in name]
    return max(float((one[name] - two[name]).abs().max()) for name in learnt)


def assert_learns_the_same(store, launcher, alone, **context):
    trials = [trial_of(training=SHORT), trial_of(backbone="conv", training=SHORT)]
    for one, two in zip(alone, weights(store, launcher, trials, **context), strict=True):
        assert apart(one, two) < 1e-5


def images(store):
    """How many images the last process that trained saw: fewer than all where it went on from a checkpoint."""
    (facts,) = Path(store).glob("train/*/facts.json")
    return json.loads(facts.read_text())["images"]


def at_work(store):
    """Processes that train for a store."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode().split("\0")
        except OSError:
            continue
        if any(word.startswith(f"{store}/.team/") for word in words):
            found.append(int(path.parent.name))
    return found


def beginning(store, processes):
    """Waits until so many processes, and an agent on every node, have trained for a while."""
    until(lambda: len(at_work(store)) >= processes)
    until(lambda: list((Path(store) / ".team").glob("train-*/1.log")))
    time.sleep(3)


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


# ---- Ray


@pytest.fixture
def cluster(monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "object_store_memory": 80 * 2**20}
    made = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    made.add_node(**node)
    made.node = node
    yield made
    made.shutdown()


@pytest.mark.parametrize(("processes", "nodes"), [(2, 1), (1, 2)])
def test_team_launchers__ray_trains_over_several_processes_and_nodes(cluster, alone, tmp_path, processes, nodes):
    with make_launcher("ray", 1, address=cluster.address) as launcher:
        assert_learns_the_same(tmp_path, launcher, alone, processes=processes, nodes=nodes)


def test_team_launchers__what_ray_does_not_have_is_refused_at_once(cluster, tmp_path):
    with make_launcher("ray", 1, address=cluster.address) as launcher:
        for processes, nodes, sentence in ((3, 1, "No node of"), (1, 3, "no 3 nodes of 1 CPUs"), (3, 2, "no 2 nodes")):
            with pytest.raises(BadInput, match=sentence):
                weights(tmp_path, launcher, [LONG], processes=processes, nodes=nodes)


def test_team_launchers__a_lost_node_of_a_training_is_replaced_and_it_ends_the_same(cluster, tmp_path):
    from tests.cluster.test_ray import lose_a_node

    cluster.add_node(**cluster.node)  # one more than it needs

    def lose():
        beginning(tmp_path / "ray", 4)
        raylets = {parent(parent(pid)) for pid in at_work(tmp_path / "ray")}  # of the agents
        nodes = [node for node in cluster.worker_nodes if node.all_processes["raylet"][0].process.pid in raylets]
        lose_a_node(cluster, nodes[0])

    thread = threading.Thread(target=lose)
    thread.start()
    with make_launcher("ray", 1, address=cluster.address) as launcher:
        (lost,) = weights(tmp_path / "ray", launcher, [LONG], nodes=2, checkpoint_seconds=0.5)
    thread.join()
    with make_launcher("local", 0) as launcher:
        (whole,) = weights(tmp_path / "local", launcher, [LONG], processes=2)
    assert apart(lost, whole) == 0 and images(tmp_path / "ray") < images(tmp_path / "local")


def test_team_launchers__no_process_outlives_a_command_of_ray(cluster, tmp_path):
    store = tmp_path / "store"
    words = f"train --backbone mlp --augment none --epochs 5000 --batch-size 128 --device cpu --store {store}"
    words += f" --launcher ray --address {cluster.address} --nodes 2"
    code = "import signal; from nescio.cli import main; signal.signal(2, signal.default_int_handler); exit(main())"
    command = subprocess.Popen([sys.executable, "-c", code, *words.split()], stderr=subprocess.DEVNULL)
    beginning(store, 4)
    command.send_signal(signal.SIGINT)
    command.wait(timeout=60)
    until(lambda: not at_work(store))
    assert [run.state for run in Store(store).runs()] == ["stopped"]


# ---- SLURM


@pytest.fixture(scope="module")
def slurm():
    pytest.importorskip("submitit")
    folder = tempfile.mkdtemp(prefix="slurm-")
    started = subprocess.run([SCRIPT, "start", folder, "2"], capture_output=True, text=True)
    if started.returncode:
        pytest.skip(started.stderr)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", f"{folder}/slurm.conf")
        patch.setattr(nescio.work.slurm, "POLL_SECONDS", 0.2)
        until(
            lambda: said("sinfo", "--noheader", "--Node", "--partition=normal", "--format=%T").split() == ["idle"] * 2
        )
        yield folder
    subprocess.run([SCRIPT, "stop", folder], check=True)
    shutil.rmtree(folder)


@pytest.mark.parametrize(("processes", "nodes"), [(2, 1), (1, 2)])
def test_team_launchers__slurm_trains_over_several_processes_and_nodes(slurm, alone, tmp_path, processes, nodes):
    with make_launcher("slurm", 1, mem="3500M") as launcher:
        assert_learns_the_same(tmp_path, launcher, alone, processes=processes, nodes=nodes)
    assert not list((tmp_path / ".slurm" / "log").glob("*_0_*"))  # what the jobs wrote is gone


@pytest.mark.parametrize("ending", ["scancel", "time"])
def test_team_launchers__a_training_of_two_nodes_that_ends_half_way_goes_on_to_the_same_end(slurm, tmp_path, ending):
    store = tmp_path / "slurm"

    def end():
        beginning(store, 4)
        (job,) = said("squeue", "--noheader", "--array", "--format=%i").split()
        if ending == "scancel":
            return subprocess.run(["scancel", job], check=True)
        subprocess.run(["scancel", "--signal=USR2", job], check=True)  # as SLURM does before the time is up
        until(lambda: job in said("squeue", "--noheader", "--array", "--states=PENDING", "--format=%i").split())
        until(lambda: not subprocess.run(["scontrol", "update", f"jobid={job}", "starttime=now+2"]).returncode)

    thread = threading.Thread(target=end)
    thread.start()
    with make_launcher("slurm", 1, mem="3500M") as launcher:
        (stopped,) = weights(store, launcher, [LONG], nodes=2, checkpoint_seconds=1e6)  # none but at the end of a job
    thread.join()
    with make_launcher("local", 0) as launcher:
        (whole,) = weights(tmp_path / "local", launcher, [LONG], processes=2)
    assert apart(stopped, whole) == 0 and images(store) < images(tmp_path / "local")
    assert not at_work(store)
