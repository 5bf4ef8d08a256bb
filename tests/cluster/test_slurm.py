"""Steps on a real SLURM of this machine: whatever ends a job, the rows are those of the local launcher.

Not tried, because one machine without control groups cannot: GPUs (gres), accounts and qualities of service (they need
SLURM's database), memory limits by cgroup (a limit by SLURM's own accounting is tried).
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from functools import partial
from pathlib import Path

import pytest

import nescio.work.slurm
from nescio.cli import main
from nescio.errors import BadInput
from nescio.work.launchers import Task, make_launcher
from nescio.work.slurm import with_queue
from nescio.work.steps import Context, Work, evaluation_files, make_evaluation
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
    said,
    settings,
    undisturbed,
    without_torch,
)
from tests.support.disks import disk_of, fill, remount
from tests.support.waiting import until

pytestmark = pytest.mark.cluster
pytest.importorskip("submitit")
SCRIPT = Path(__file__).parent / "slurm" / "cluster.sh"


@pytest.fixture(scope="module")
def slurm():
    """The folder of a SLURM that runs."""
    folder = tempfile.mkdtemp(prefix="slurm-")
    started = subprocess.run([SCRIPT, "start", folder], capture_output=True, text=True)
    if started.returncode:
        pytest.skip(started.stderr)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", f"{folder}/slurm.conf")
        patch.setattr(nescio.work.slurm, "POLL_SECONDS", 0.2)
        until(lambda: "idle" in said("sinfo"))
        yield folder
    subprocess.run([SCRIPT, "stop", folder], check=True)
    shutil.rmtree(folder)


@pytest.fixture
def light(slurm, tmp_path, monkeypatch):
    without_torch(tmp_path, monkeypatch)


def queued(*how):
    """Numbers of the jobs that SLURM has not ended."""
    return said("squeue", "--noheader", "--array", "--format=%i", *how).split()


def tasks_in(folder, **calls):
    """name → (function, arguments, and what to call at its death)"""
    return [
        Task(name, call[0], call[1], *call[2:] or (None,), folder=folder / "toy" / f"{number:016x}")
        for number, (name, call) in enumerate(calls.items())
    ]


def test_task__every_task_is_done_once_and_a_failure_costs_its_own_task(light, tmp_path, monkeypatch):
    monkeypatch.setenv("NESCIO_X", "it's 7")
    monkeypatch.chdir(tmp_path)
    tasks = tasks_in(
        tmp_path,
        first=(log, (tmp_path, "first")),
        broken=(fall, ("it broke\nTraceback of many lines",)),
        wrong=(refuse, ("The labels are wrong.",)),
        deadly=(die, (tmp_path,), died),
        odd=(divmod, (Unknown(), 1)),
        busy=(occupied, (tmp_path,)),
        settings=(settings, ()),
    )
    seen = []
    with make_launcher("slurm", 1, retries=1, cpus=2) as launcher:
        failures = launcher.run(tasks, lambda *counts: seen.append(counts))
    reasons = {each.name: (each.refused, each.reason) for each in failures}
    assert sorted(reasons) == ["broken", "deadly", "odd", "wrong"] and seen[-1][:3] == (7, 4, 7)
    assert reasons["broken"][1].startswith("RuntimeError: it broke Log: /") and not reasons["broken"][0]
    assert reasons["wrong"][0] and "a_plug_in_that_is_not_there" in reasons["odd"][1]
    assert len(lines(tmp_path, "deaths")) == 2 and (tmp_path / "died").read_text() == reasons["deadly"][1]
    for _, reason in reasons.values():
        assert Path(reason.rpartition("Log: ")[2]).is_file()
    assert len(lines(tmp_path, "first")) == 1 and len(lines(tmp_path, "busy")) == 3
    wanted = ({"NESCIO_X": "it's 7", "NESCIO_THREADS": "2", "OMP_NUM_THREADS": "1"}, str(tmp_path))
    assert wanted in [answer for *_, answer in seen]


def test_slurm__what_slurm_refuses_is_one_sentence(slurm, tmp_path):
    (task,) = tasks_in(tmp_path, t=(log, (tmp_path, "t")))
    for how in ({"partition": "nowhere"}, {"slurm": ("partition=nowhere",)}, {"mem": "9999G"}):
        refusal = pytest.raises(BadInput, match=r"SLURM does not take")
        with make_launcher("slurm", 1, **how) as launcher, refusal:
            launcher.run([task])


def test_slurm__options_reach_slurm_and_a_free_one_counts_most(light, tmp_path):
    tasks = tasks_in(tmp_path, t=(said, ("scontrol", "show", "job")))
    seen = []
    with make_launcher(
        "slurm", 1, partition="normal", time="30", mem="300M", slurm=("partition=urgent", "nice=7")
    ) as launcher:
        assert launcher.run(tasks, lambda *counts: seen.append(counts[3])) == []
    for word in ("Partition=urgent", "TimeLimit=00:30:00", "MinMemoryNode=300M", "Nice=7", "Requeue=1"):
        assert word in seen[-1], word


# ---- studies


def counts_up(step_folder, context, value, seconds):
    """Work with checkpoints, which are written only when the process is to end."""
    saved = step_folder.load_checkpoint()
    done = 0 if saved is None else saved.meta["done"]
    log(context.store.root, f"from {done > 0}")
    while done < seconds * 10:
        time.sleep(0.1)
        done += 1
        if step_folder.due(time.monotonic(), 1e9):
            step_folder.save_checkpoint({}, {"done": done})
    return evaluation_files([{"metric": "accuracy", "value": value}])


def long_card(seconds, value=1.0):
    return make_evaluation("toy", 1, "long", {"long": value}, (), partial(counts_up, value=value, seconds=seconds))


@pytest.fixture
def context(tmp_path):
    store = Store(tmp_path / "store")
    store.root.mkdir()
    return Context(store)


def trained(context, launcher, steps):
    work = Work(context, launcher)
    assert work.run_stage("train", steps) == steps
    return work


def sweeping(context, steps, run=evaluated, **how):
    """A sweep in a thread of its own: (thread, where its Work comes)."""
    made = []

    def sweep():
        with make_launcher("slurm", 1, **how) as launcher:
            made.append(run(context, launcher, steps))

    thread = threading.Thread(target=sweep, daemon=True)
    thread.start()
    return thread, made


def test_with_queue__twenty_kills_in_one_sweep_and_the_rows_are_the_same(light, context, tmp_path):
    over, killed = threading.Event(), []

    def kill():
        while len(killed) < 20 and not over.is_set():
            time.sleep(random.Random(len(killed)).uniform(0.02, 0.1))
            begun = begun_by(context.store.root)
            if begun and begun[-1] not in killed:
                os.kill(begun[-1], signal.SIGKILL)
                killed.append(begun[-1])

    killer = threading.Thread(target=kill)
    killer.start()
    with make_launcher("slurm", 1, retries=20, mem="400M") as launcher:
        work = evaluated(context, launcher, cards(24, 0.5))
    over.set()
    killer.join()
    assert len(killed) == 20 and work.failures == []
    assert work.rows == undisturbed(tmp_path / "local", 24)
    assert {run.state for run in with_queue(context.store)} == {"finished"}


def test_slurm__no_more_jobs_than_in_flight_and_arrays_of_them(light, context, tmp_path, monkeypatch):
    arrays, submit = [], nescio.work.slurm.SlurmJobs._submit
    monkeypatch.setattr(
        nescio.work.slurm.SlurmJobs,
        "_submit",
        lambda self, tasks: arrays.append((len(tasks), len(self.jobs))) or submit(self, tasks),
    )
    with make_launcher("slurm", 1, in_flight=3) as launcher:
        work = evaluated(context, launcher, cards(7, 0.01))
    assert work.failures == [] and work.rows == undisturbed(tmp_path / "local", 7)
    assert arrays[0] == (3, 0) and sum(new for new, _ in arrays) == 7 and all(new + old <= 3 for new, old in arrays)


def test_slurm__the_controller_is_restarted_in_the_middle(slurm, light, context, tmp_path, caplog):
    thread, made = sweeping(context, cards(8, 0.5), in_flight=3)
    until(lambda: lines(context.store.root, "begun"))
    subprocess.run([SCRIPT, "restart", slurm, "3"], check=True)
    thread.join()
    (work,) = made
    assert work.failures == [] and work.rows == undisturbed(tmp_path / "local", 8)
    assert len(lines(context.store.root, "begun")) == 8
    assert set(caplog.messages) <= {nescio.work.slurm.SILENT}


def test_runs__a_drained_node_makes_jobs_wait_and_runs_says_so(slurm, light, context, tmp_path, capsys):
    node = said("hostname", "-s").strip()
    subprocess.run(["scontrol", "update", f"nodename={node}", "state=drain", "reason=test"], check=True)
    try:
        thread, made = sweeping(context, cards(2))
        until(lambda: len(queued()) == 2)
        until(lambda: all("pending" in run.owner for run in with_queue(context.store)))
        assert main(["runs", "--store", str(context.store.root)]) == 0
        shown = capsys.readouterr().out
        assert "card 0" in shown and "SLURM job" in shown and "2 queued." in shown and not made
    finally:
        subprocess.run(["scontrol", "update", f"nodename={node}", "state=resume"], check=True)
    thread.join()
    assert made[0].rows == undisturbed(tmp_path / "local", 2)


def test_slurm__a_job_that_is_held_is_said_with_the_command_that_lets_it_start(slurm, light, context, tmp_path, caplog):
    first = said("sbatch", "--parsable", "-c2", "-o/dev/null", "--wrap", "sleep 600").strip()  # the others wait
    thread, made = sweeping(context, cards(2))
    (job,) = until(lambda: [number for number in queued("--states=PENDING") if number.endswith("_1")])
    subprocess.run(["scontrol", "hold", job], check=True)
    subprocess.run(["scancel", first], check=True)
    (line,) = until(lambda: caplog.messages)
    until(lambda: queued() == [job])
    assert "(JobHeld" in line and thread.is_alive()
    subprocess.run(line.split("`")[1].split(), check=True)
    thread.join()
    assert made[0].rows == undisturbed(tmp_path / "local", 2) and caplog.messages == [line]


def test_slurm__a_full_disk_of_the_node_stops_its_jobs_and_they_go_on_when_there_is_room(
    slurm, light, context, tmp_path, caplog
):
    """SLURM drains a node that cannot write a job's script; that job fails, or is held until somebody releases it."""
    node, released = said("hostname", "-s").strip(), []
    with disk_of(Path(slurm) / "spool" / node, "64k") as disk:
        fill(disk)
        thread, made = sweeping(context, cards(3))
        until(lambda: caplog.messages or "drain" in said("sinfo"))

    def verified_or_rebuilt():
        subprocess.run(["scontrol", "update", f"nodename={node}", "state=resume"], capture_output=True)
        for line in caplog.messages[len(released) :]:
            released.append(line.split("`")[1].split())
            subprocess.run(released[-1], check=True)
            for job in released[-1][-1].split(","):
                subprocess.run(["scontrol", "update", f"jobid={job}", "starttime=now+2"], check=True)
        return not thread.is_alive()

    until(verified_or_rebuilt)
    assert made[0].failures == [] and made[0].rows == undisturbed(tmp_path / "local", 3)


def hoard(step_folder, context):
    log(context.store.root, "hoards")
    taken = [b"x" * 2**20 for _ in range(600)]
    time.sleep(60)
    return evaluation_files([{"value": len(taken)}])


def test_runs__a_step_that_is_killed_for_memory_costs_that_step(light, context, tmp_path, capsys):
    large = make_evaluation("toy", 1, "large", {"large": 1}, (), hoard)
    with make_launcher("slurm", 1, mem="300M", retries=0) as launcher:
        work = evaluated(context, launcher, [large, *cards(2)])
    (failure,) = work.failures
    assert failure.name == "large" and len(lines(context.store.root, "hoards")) == 1
    assert work.rows == undisturbed(tmp_path / "local", 2)
    assert main(["runs", "--failed", "--format", "json", "--store", str(context.store.root)]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    where = Path(shown["reason"].rpartition("Log: ")[2])
    assert shown["reason"] == failure.reason and "memory limit" in where.read_text()


def test_store__a_store_made_read_only_in_the_middle_is_one_sentence_and_the_next_command_goes_on(
    light, tmp_path, capsys
):
    with disk_of(tmp_path / "disk", "20m") as disk:
        context = Context(Store(disk / "store"))
        context.store.root.mkdir()
        protector = protecting(disk, context)
        refusal = pytest.raises(StoreError, match=f"^{disk}/store.*read-only")
        with refusal, make_launcher("slurm", 1, mem="400M") as launcher:
            evaluated(context, launcher, cards(12, 0.5))
        protector.join()
        assert len(capsys.readouterr().err.splitlines()) <= 1  # that jobs stay in the queue
        until(lambda: not queued())
        assert remount(disk, "rw")
        before = len([run for run in context.store.runs() if run.state == "finished"])
        with make_launcher("slurm", 1, mem="400M") as launcher:
            work = evaluated(context, launcher, cards(12, 0.01))
        assert 0 < before < 12 and work.failures == [] and work.rows == undisturbed(tmp_path / "local", 12)


def requeued(context):
    """Waits until the job of the long card is requeued, and starts it: SLURM would wait for two minutes.

    Two seconds later, not now: slurmd refuses a job in the second in which it was killed (“credential revoked”).
    """
    (first,) = until(lambda: lines(context.store.root, "from False"))
    job = first.split()[1]
    until(lambda: job in queued("--states=PENDING"))
    soon = ["scontrol", "update", f"jobid={job}", "starttime=now+2", "timelimit=9"]
    until(lambda: not subprocess.run(soon).returncode)
    (second,) = until(lambda: lines(context.store.root, "from True"))
    assert second.split()[1:] == [job, "1"]  # the same job, started again


def test_slurm__a_preempted_job_goes_on_from_its_checkpoint(light, context):
    thread, made = sweeping(context, [long_card(8)], partition="normal", cpus=2)
    until(lambda: lines(context.store.root, "from False"))
    subprocess.run(["sbatch", "-p", "urgent", "-c2", "-o/dev/null", "--wrap", "sleep 1"], check=True)
    requeued(context)
    thread.join()
    assert made[0].failures == []


def test_slurm__a_job_out_of_time_goes_on_from_its_checkpoint_and_fails_where_there_is_none(light, context):
    steps = [long_card(60), *cards(1, 200)]
    thread, made = sweeping(context, steps, time="1", slurm=("signal=USR2@10",))
    requeued(context)
    thread.join()
    (failure,) = made[0].failures
    assert failure.name == "card 0" and "give more --time" in failure.reason and len(made[0].rows) == 1


COMMAND = """
    import signal
    import sys
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which the children of a background job ignore
    sys.path[:0] = {path!r}
    import nescio.work.slurm
    from tests.support import cluster_help
    from nescio.work.launchers import start
    from nescio.work.steps import Context
    from nescio.work.store import Store
    nescio.work.slurm.POLL_SECONDS = 0.2
    try:
        with start("slurm", 1) as launcher:
            work = cluster_help.evaluated(Context(Store({store!r})), launcher, cluster_help.cards(6, 1.5))
            assert work.failures == []
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.mark.parametrize("ending", ["SIGINT", "SIGKILL"])
def test_runs__jobs_go_on_without_the_command_which_comes_back_to_them(light, context, tmp_path, ending, capsys):
    path = [str(tmp_path / "no-torch"), *sys.path]
    code = textwrap.dedent(COMMAND).format(path=path, store=str(context.store.root))
    first = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    until(lambda: lines(context.store.root, "begun"))
    left = queued()
    first.send_signal(signal.Signals[ending])
    _, words = first.communicate(timeout=30)
    assert first.returncode and len(left) >= 4
    if ending == "SIGINT":
        assert "the queue of SLURM: the same command" in words
        assert f"scancel {left[0].partition('_')[0]}`" in words
    assert main(["runs", "--store", str(context.store.root)]) == 0
    assert "queued" in capsys.readouterr().out and queued()
    known = set(queued("--states=all"))
    assert subprocess.run([sys.executable, "-c", code], timeout=90).returncode == 0
    assert set(queued("--states=all")) == known  # no job came for the second command
    assert len(lines(context.store.root, "begun")) == 6
    assert evaluated(context, make_launcher("local", 0), cards(6)).rows == undisturbed(tmp_path / "local", 6)


def test_slurm__two_commands_at_once_wait_for_the_same_jobs(light, context, tmp_path):
    """One of them takes the answer of a job; the other sees that its work is finished."""
    first = sweeping(context, cards(6, 0.5))
    until(lambda: lines(context.store.root, "begun"))
    known = set(queued("--states=all"))
    second = sweeping(context, cards(6, 0.5))
    for thread, _ in (first, second):
        thread.join()
    assert (
        set(queued("--states=all")) <= known and len(lines(context.store.root, "begun")) == 6
    )  # old ones are forgotten
    for _, (work,) in (first, second):
        assert work.failures == [] and work.rows == undisturbed(tmp_path / "local", 6)


def test_slurm__a_training_that_is_cancelled_half_way_ends_identical(slurm, tmp_path):
    from nescio.training import train_step
    from nescio.trials import Training
    from tests.support.trainings import trial_of

    trial = trial_of(training=Training(epochs=150, batch_size=64, augment="none"))
    step, folders = train_step(trial), {}
    context = Context(Store(tmp_path / "slurm"), device="cpu", checkpoint_seconds=1e6)  # none but at the end of a job
    thread, made = sweeping(context, [step], run=trained)
    part = step.folder(context.store).with_name(f"{step.key}.part") / ".work"
    until(lambda: list(part.glob("lock.*")))
    time.sleep(1)
    (job,) = queued()
    subprocess.run(["scancel", job], check=True)
    until((part / "checkpoint.safetensors").is_file)
    thread.join()
    assert made[0].failures == []
    local = Context(Store(tmp_path / "local"), device="cpu")
    with make_launcher("local", 1) as launcher:
        trained(local, launcher, [step])
    for place in (context, local):
        folders[place.store.root] = {
            path.name: path.read_bytes() for path in step.folder(place.store).iterdir() if path.suffix == ".safetensors"
        }
    first, second = folders.values()
    assert first and first == second


def test_slurm__the_command_line_gives_the_same_bytes(slurm, tmp_path):
    words = "run uimnet --data digits --methods erm --backbones mlp --trials 1 --seeds 1 --epochs 1 --device cpu"
    words += " --format json"
    ways = {
        "local": ["--workers", "0"],
        "slurm": ["--launcher", "slurm", "--mem", "1G", "--time", "9", "--slurm-partition", "normal"],
    }
    said = {}
    for name, how in ways.items():
        command = [sys.executable, "-m", "nescio", *words.split(), "--store", str(tmp_path / name), *how]
        said[name] = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    assert said["slurm"] == said["local"] and json.loads(said["slurm"])


def test_slurm__ranges_of_rows_are_jobs_and_are_joined(slurm, tmp_path):
    with make_launcher("slurm", 1, mem="1G") as launcher:
        made = predicted(Store(tmp_path / "slurm"), launcher, 2)
    with make_launcher("local", 1) as launcher:
        assert made == predicted(Store(tmp_path / "local"), launcher, 1)
