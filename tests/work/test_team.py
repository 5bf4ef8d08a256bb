"""One step, several processes: what they make is what one makes, they stop together, and none outlives the command."""

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from nescio.cli import main
from nescio.errors import BadInput, describe_error
from nescio.work import team
from nescio.work.launchers import Task, make_launcher
from nescio.work.local import LocalWorkers
from nescio.work.step_folder import shutdown_requested
from nescio.work.steps import Context, Step, Work
from nescio.work.store import Store
from nescio.work.store_errors import Interrupted
from nescio.work.team import TeamFailed
from tests.support.waiting import alive, until

# ---- who takes part


def plain(step_folder, context):
    return {"a": b"1"}


def toy(name, parents=(), distributed=False, make=plain):
    return Step(name, "toy", {"name": name}, make, parents, distributed=distributed)


def teams(store, steps, **how):
    work = Work(Context(Store(store), **how), LocalWorkers(0))
    return [(task.processes, task.nodes) for task in map(work._task, steps)]


def test_step__only_what_can_be_made_together_takes_several_processes(tmp_path):
    network = toy("network", distributed=True)
    steps = [network, toy("dump", (network,)), toy("table", (toy("another dump", (network,)),)), toy("free")]
    assert teams(tmp_path, steps, processes=2, nodes=3) == [(2, 3), (2, 3), (2, 3), (1, 1)]
    network.run(Context(Store(tmp_path)))
    assert teams(tmp_path, steps, processes=2, nodes=3) == [(1, 1)] * 4  # what is finished is not made
    assert teams(tmp_path / "other", steps) == [(1, 1)] * 4


def test_team__no_key_depends_on_the_number_of_processes():
    from nescio.training import train_step
    from tests.support.trainings import trial_of

    step = train_step(trial_of())
    assert step.distributed and step.key == replace(step, distributed=False).key


def places(workers, *processes):
    """Which places tasks of so many processes have, if they all begin now; those that wait have none."""
    launcher, given = LocalWorkers(workers), []
    for count in processes:
        free = launcher._free_processors(Task("t", divmod, (7, 3), processes=count))
        given.append(free)
        if free:
            launcher.processes.append(type("Busy", (), {"task": True, "places": free})())
    return given


def test_local_workers__local_processes_share_the_places_of_the_workers():
    """A place is a core, or a GPU that only one training sees."""
    assert places(4, 2, 2, 1) == [[0, 1], [2, 3], []]
    assert places(4, 1, 2, 2, 1) == [[0], [1, 2], [], [3]]
    assert places(1, 2, 1) == [[0, 1], []]  # a GPU has one worker by default, and a training has as many as it wants
    assert places(2, 3, 1) == [[0, 1, 2], []]


def test_task__more_processes_than_cores_are_said(caplog):
    LocalWorkers(0).run([Task("t", divmod, (7, 3), processes=999)])
    assert "The 999 processes of a" in caplog.text
    caplog.clear()
    LocalWorkers(0).run([Task("t", divmod, (7, 3))])
    assert not caplog.text


def seen_gpus(monkeypatch, tmp_path, places, visible):
    monkeypatch.setenv(team.PLACES, places)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    said = tmp_path / "said"
    assert team._run(["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"], said) == 0
    return said.read_text().strip()


def test_run__a_training_sees_the_gpus_of_its_places(monkeypatch, tmp_path):
    assert seen_gpus(monkeypatch, tmp_path, "2,3", None) == "2,3"
    assert seen_gpus(monkeypatch, tmp_path, "2,3", "4,5,6,7") == "6,7"
    assert seen_gpus(monkeypatch, tmp_path, "", "4,5") == "4,5"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--nodes", "2"], "--nodes 2 needs the launcher ray or slurm"),
        (["--processes", "0"], "--processes must be at least 1"),
        (["--nodes", "-1", "--launcher", "ray"], "--nodes must be at least 1"),
        (["--processes", "3", "--batch-size", "64"], "A batch of 64 cannot be cut into 3 equal parts."),
        (["--processes", "2", "--log", "tensorboard:x"], "--log is for one network"),
    ],
)
def test_train__what_cannot_be_is_one_sentence_before_anything_starts(tmp_path, capsys, words, sentence):
    assert main(["train", "--backbone", "mlp", "--store", str(tmp_path / "store"), *words]) == 2
    said = capsys.readouterr()
    assert sentence in said.err and len(said.err.strip().splitlines()) == 1
    assert not (tmp_path / "store").exists()


# ---- what became of them


def outcome(folder, code, codes, **outcomes):
    """What is raised where processes ended with these codes and these outcomes, in this order."""
    folder.mkdir()
    for number, (rank, error) in enumerate(outcomes.items()):
        path = folder / f"{rank[1:]}.outcome"
        path.write_bytes(pickle.dumps(error))
        os.utime(path, (number, number))
    for rank, how in codes.items():
        (folder / f"{rank}.code").write_text(str(how))
    team._raise_outcome(folder, 2, code)


def test_raise_outcome__the_first_cause_is_what_is_raised(tmp_path, monkeypatch):
    lost = RuntimeError("connection closed by peer")
    outcome(tmp_path / "fine", 0, {}, p0=None, p1=None)
    with pytest.raises(BadInput, match="bad"):
        outcome(tmp_path / "first", 1, {1: 1}, p1=BadInput("bad"), p0=lost)
    with pytest.raises(TeamFailed, match=r"The process of rank 1, one of 2, was killed; .* Log: .*dead/1.log"):
        outcome(tmp_path / "dead", 1, {0: 1, 1: -9}, p0=lost)
    with pytest.raises(BadInput, match="bad"):  # 0 had to be killed, long after 1 failed
        outcome(tmp_path / "late", 1, {1: 1}, p1=BadInput("bad"))
    monkeypatch.setattr(team, "SHUTDOWN_DELAY", 0.01)
    with pytest.raises(TeamFailed, match="The 2 processes were stopped"):
        outcome(tmp_path / "stopped", 1, {}, p0=Interrupted(), p1=Interrupted())
    monkeypatch.setattr(shutdown_requested, "wait", lambda seconds: True)  # this process is to end as well
    with pytest.raises(Interrupted):
        outcome(tmp_path / "ending", 1, {}, p0=Interrupted(), p1=Interrupted())
    with pytest.raises(TeamFailed, match=r"The launcher of 2 processes ended with"):
        outcome(tmp_path / "agent", 1, {})
    monkeypatch.setattr(shutdown_requested, "is_set", lambda: True)
    outcome(tmp_path / "made", 0, {}, p0=None, p1=None)  # just before the end


class Odd(Exception):
    """Pickle calls it with one argument when it brings it back."""

    def __init__(self, one, other):
        super().__init__(f"{one} and {other} are odd.")


def test_packed__an_error_that_pickle_cannot_bring_back_is_told_by_its_reason():
    for error, reason in [(Odd(1, 3), "Odd: 1 and 3 are odd."), (BadInput("bad"), "bad")]:
        error.add_note("raised there")
        back = pickle.loads(team._packed(error))
        assert describe_error(back) == reason and back.__notes__ == ["raised there"]


# ---- what they leave


def test_step__each_try_has_a_folder_of_its_own_and_whoever_makes_the_step_removes_them_all(tmp_path, monkeypatch):
    """Processes of a worker that was killed may still write when the next has begun."""
    step, folders = toy("net", distributed=True), []
    others, logs = tmp_path / ".team" / "toy-0000-1", tmp_path / ".team" / f"toy-{step.key}-1"
    logs.mkdir(parents=True)
    others.mkdir()
    monkeypatch.setattr(team, "_run", lambda command, log: folders.append(log.parent) or 1)
    for _ in range(2):
        with pytest.raises(TeamFailed):
            step.run(Context(Store(tmp_path), processes=2))
        assert set(others.parent.iterdir()) == {others, folders[-1]} and (folders[-1] / "call").is_file()
    assert folders[0] != folders[1] != logs
    step.run(Context(Store(tmp_path)))
    assert list(others.parent.iterdir()) == [others]


def test_team__sigterm_ends_the_processes_before_their_worker(tmp_path):
    agent = ["sh", "-c", "echo $$; sleep 60 & wait"]
    code = f"from pathlib import Path; from nescio.work import team; team._run({agent}, Path('log'))"
    worker = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    number = until(lambda: (tmp_path / "log").exists() and (tmp_path / "log").read_text())
    worker.terminate()
    assert worker.wait(120) == 128 + signal.SIGTERM and not alive(int(number))


def test_team__sigterm_while_the_agent_starts_ends_the_agent_too(tmp_path):
    """Between the start of the agent and the first look at it there was no handler: the agent stayed."""
    code = """
import os, pathlib, signal, subprocess
from nescio.work import team
start = subprocess.Popen
def popen(*words, **how):
    agent = start(*words, **how)
    pathlib.Path("agent").write_text(str(agent.pid))
    os.kill(os.getpid(), signal.SIGTERM)
    return agent
subprocess.Popen = popen
team._run(["sleep", "60"], pathlib.Path("log"))
"""
    worker = subprocess.run([sys.executable, "-c", code], cwd=tmp_path)
    agent = int((tmp_path / "agent").read_text())
    left = alive(agent)
    if left:
        os.kill(agent, signal.SIGKILL)
    assert worker.returncode == 128 + signal.SIGTERM and not left


def wait_for_ever(step_folder, context):
    until(lambda: False, 30)


def test_team__a_process_whose_agent_was_killed_before_it_began_ends(tmp_path):
    lock = tmp_path, 1, {}
    (tmp_path / "call").write_bytes(pickle.dumps((wait_for_ever, tmp_path, tmp_path, lock, {}, None)))
    gone = subprocess.Popen(["true"])
    gone.wait()
    environment = os.environ | {"RANK": "0", "PYTHONPATH": os.pathsep.join(sys.path), team.PARENT: str(gone.pid)}
    member = subprocess.Popen([sys.executable, "-m", "nescio.work.team", "member", str(tmp_path)], env=environment)
    assert member.wait(120) == -signal.SIGKILL


# ---- for real


def misbehave(step_folder, context, rank, how):
    """The process of a rank kills itself or fails, once; the others wait for it."""
    first = context.store.root / "once"
    if os.environ["RANK"] == rank and not first.exists():
        first.touch()
        print("I go now", flush=True)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise BadInput("The data is wrong.")
    if not (context.store.root / "twice").exists():
        (context.store.root / "twice").touch()
        until(shutdown_requested.is_set)
        raise Interrupted
    return {"world": os.environ["WORLD_SIZE"].encode()}


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "how"), [("1", "kill"), ("0", "kill"), ("1", "fail")])
def test_step__a_process_that_dies_is_one_line_with_its_log_and_the_step_can_be_made_again(tmp_path, rank, how):
    store = Store(tmp_path)
    step = toy("net", distributed=True, make=partial(misbehave, rank=rank, how=how))
    with make_launcher("local", 1) as launcher:
        work = Work(Context(store, processes=2), launcher)
        assert work.run_stage("train", [step]) == []
        (failure,) = work.failures
        (run,) = store.runs()
        assert run.state == "failed" and run.reason == failure.reason
        if how == "kill":
            sentence, _, log = failure.reason.partition(" Log: ")
            assert f"rank {rank}, one of 2, was killed" in sentence
            assert Path(log).read_text() == "I go now\n"
        else:
            assert (failure.reason, failure.refused, failure.kind) == ("The data is wrong.", True, "BadInput")
            assert "in misbehave" in (run.folder / "traceback.txt").read_text()
        assert work.run_stage("train", [step]) == [step]
    assert (step.folder(store) / "world").read_bytes() == b"2" and not list((tmp_path / ".team").iterdir())


def training_of(**more):
    from nescio.trials import Training
    from tests.support.trainings import trial_of

    return trial_of(training=Training(batch_size=128, augment="none", lr=0.1, **more))


def trained(store, trial, processes, launcher=None, **context):
    from nescio.training import train_step

    step = train_step(trial)
    work = Work(
        Context(Store(store), device="cpu", processes=processes, **context), launcher or make_launcher("local", 0)
    )
    assert work.run_stage("train", [step]) == [step], work.failures
    return step.folder(work.store)


def tensors(folder):
    from safetensors.torch import load_file

    return load_file(folder / "weights.safetensors")


def apart(one, two):
    one, two = tensors(one), tensors(two)
    return max(float((one[name] - two[name]).abs().max()) for name in one if one[name].is_floating_point())


@pytest.mark.slow
def test_make_launcher__two_processes_of_a_local_worker_learn_what_one_does(tmp_path):
    two = trained(tmp_path / "two", training_of(epochs=1), 2)
    one = trained(tmp_path / "one", training_of(epochs=1), 1)
    assert one.name == two.name and apart(one, two) < 1e-5
    assert '"processes": 2' in (two / "env.json").read_text() and not list((tmp_path / "two" / ".team").iterdir())


MAIN = """
    import sys
    sys.path[:0] = {path!r}
    import signal
    from tests.work import test_team
    from nescio.work.launchers import make_launcher
    from nescio.work.step_folder import shutdown_requested
    from nescio.work.store_errors import Interrupted
    if __name__ == "__main__":
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
        signal.signal(signal.SIGUSR2, lambda *_: shutdown_requested.set())
        with make_launcher("local", {workers}) as launcher:
            test_team.trained({store!r}, test_team.training_of(epochs=400), 2, launcher, checkpoint_seconds=1e9)
"""


def begun(tmp_path, workers):
    """A command that trains, once its processes do: (command, its descendants, the folder of its checkpoint)."""
    from nescio.training import train_step

    store, code = tmp_path / "store", tmp_path / "main.py"
    code.write_text(textwrap.dedent(MAIN).format(path=sys.path, store=str(store), workers=workers))
    command = subprocess.Popen([sys.executable, code], stderr=subprocess.PIPE, text=True, start_new_session=True)
    key = train_step(training_of(epochs=400)).key
    until(lambda: list(store.glob(f".team/train-{key}-*/1.log")))
    time.sleep(3)
    family = descendants(command.pid)
    assert len(family) >= 3 + workers  # agent and two processes
    return command, family, store / "train" / f"{key}.part" / ".work"


def descendants(pid):
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    family = [pid]
    for each in family:
        family += [child for child, parent in parents.items() if parent == each]
    return family[1:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "end"), [(0, signal.SIGINT), (1, signal.SIGINT), (1, signal.SIGKILL), (0, signal.SIGKILL)]
)
def test_store__no_process_outlives_the_command(tmp_path, workers, end):
    command, family, _ = begun(tmp_path, workers)
    team = [pid for pid in family if b"nescio.work.team" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    command.send_signal(end)
    command.communicate(timeout=60)
    assert len(team) == 3 and (end == signal.SIGKILL or not any(map(alive, team)))
    until(lambda: not any(map(alive, family)))
    assert {run.state for run in Store(tmp_path / "store").runs()} == {"stopped"}


@pytest.mark.slow
def test_make_launcher__processes_stop_at_the_same_step_and_go_on_to_the_same_end(tmp_path):
    command, family, inside = begun(tmp_path, 0)
    os.kill(command.pid, signal.SIGUSR2)
    command.communicate(timeout=60)
    assert (inside / "checkpoint.safetensors").is_file() and not any(map(alive, family))
    trial = training_of(epochs=400)
    stopped, whole = trained(tmp_path / "store", trial, 2), trained(tmp_path / "whole", trial, 2)
    assert (stopped / "weights.safetensors").read_bytes() == (whole / "weights.safetensors").read_bytes()
    facts = [(folder / "facts.json").read_text() for folder in (stopped, whole)]
    assert '"images": 409600' in facts[1] and '"images": 409600' not in facts[0]  # it did not begin anew


@pytest.mark.slow
def test_team__the_command_line_trains_and_evaluates_with_two_processes(tmp_path):
    words = "run uimnet --data digits --methods erm --backbones mlp --trials 1 --seeds 1 --epochs 1 --device cpu"
    words += " --format json"
    said = [main_of([*words.split(), "--store", str(tmp_path / n), "--processes", n, "--workers", "2"]) for n in "12"]
    values = [[row["value"] for row in rows] for rows in said]
    assert values[0] == pytest.approx(values[1], abs=0.02)  # a row may change sides


def main_of(words):
    import json

    command = [sys.executable, "-m", "nescio", *words]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
