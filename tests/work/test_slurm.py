"""What needs no SLURM: its options, the sentence without submitit, and what `nescio runs` makes of the queue."""

import json
import os
import sys

import pytest

from nescio.cli import main
from nescio.errors import BadInput
from nescio.work.launchers import make_launcher
from nescio.work.step_folder import shutdown_requested
from nescio.work.store import Store
from nescio.work.store_errors import Interrupted


@pytest.mark.parametrize("how", [{"cpus": 0}, {"retries": -1}, {"in_flight": 0}, {"slurm": ("constraint",)}])
def test_make_launcher__options_that_cannot_be(how):
    with pytest.raises(BadInput):
        make_launcher("slurm", 1, **how)


def test_slurm__without_submitit_one_sentence_says_what_to_install(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "submitit", None)
    words = ["run", "uimnet", "--data", "digits", "--launcher", "slurm", "--store", str(tmp_path)]
    assert main(words) == 2
    assert "pip install 'nescio[slurm]'" in capsys.readouterr().err


def queue_of(folder, monkeypatch, script):
    """A squeue that does what the script says."""
    squeue = folder / "squeue"
    squeue.write_text(f"#!/bin/sh\n{script}\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_runs_shows_the_queue_and_the_logs_of_what_failed(tmp_path, monkeypatch, capsys):
    store = Store(tmp_path / "store")
    with store.work("toy", {"x": 0}):
        pass
    store.fail("toy", {"x": 1}, "It broke.")
    keys = [store.key("toy", {"x": x}) for x in range(4)]
    (store.root / ".slurm").mkdir()
    for number, key in enumerate(keys):
        note = {"job": f"7_{number}", "title": f"step {number}", "log": f"/log/{number}"}
        (store.root / ".slurm" / f"toy-{key}.json").write_text(json.dumps(note))
    queue_of(tmp_path, monkeypatch, "echo '7_1|FAILED|None'; echo '7_2|PENDING|Resources'; echo '7_3|OUT_OF_MEMORY|x'")
    assert main(["runs", "--format", "json", "--store", str(store.root)]) == 0
    shown = {run["key"]: run for run in json.loads(capsys.readouterr().out)}
    assert [shown[key]["state"] for key in keys] == ["finished", "failed", "queued", "failed"]
    assert shown[keys[1]]["reason"] == "It broke. Log: /log/1"
    assert shown[keys[2]]["owner"] == "SLURM job 7_2, pending (Resources)"
    assert "more --mem" in shown[keys[3]]["reason"] and shown[keys[3]]["reason"].endswith("Log: /log/3")


def test_runs__jobs_that_another_user_submitted_are_in_the_queue_as_well(tmp_path, monkeypatch, capsys):
    store = Store(tmp_path / "store")
    (store.root / ".slurm").mkdir(parents=True)
    note = {"job": "7", "title": "a step", "log": "/log", "user": 4242}
    (store.root / ".slurm" / f"toy-{'0' * 16}.json").write_text(json.dumps(note))
    queue_of(tmp_path, monkeypatch, """case "$*" in *--user=*4242*) echo '7|PENDING|Priority' ;; esac""")
    assert main(["runs", "--format", "json", "--store", str(store.root)]) == 0
    (run,) = json.loads(capsys.readouterr().out)
    assert (run["state"], run["owner"]) == ("queued", "SLURM job 7, pending (Priority)")


def test_make_launcher__jobs_that_slurm_holds_are_one_line_and_said_once(caplog):
    launcher = make_launcher("slurm", 1)
    launcher.jobs = dict.fromkeys(["7_0", "7_1", "8"])
    held = {"7_0": ("PENDING", "JobHeldUser"), "7_1": ("PENDING", "JobHeldUser"), "8": ("PENDING", "Priority")}
    for states in (held, held, held | {"8": ("PENDING", "launch failed requeued held")}):
        launcher._warn_of_held_jobs(states)
    first, second = caplog.messages
    assert "(JobHeldUser)" in first and "`scontrol release 7_0,7_1`" in first and "`scontrol release 8`" in second


def test_store__work_stops_with_a_checkpoint_when_its_process_is_to_end(tmp_path):
    store = Store(tmp_path)
    with store.work("toy", {}) as step_folder:
        assert not step_folder.due(float("inf"), 0.0)
        shutdown_requested.set()
        try:
            assert step_folder.due(float("inf"), 0.0)
            with pytest.raises(Interrupted):
                step_folder.save_checkpoint({}, {"done": 3})
        finally:
            shutdown_requested.clear()
        assert step_folder.load_checkpoint().meta == {"done": 3}


@pytest.mark.parametrize("option", [{"time": "nan"}, {"time": "-5"}, {"gpus": "-1"}, {"gpus": "0"}, {"gpus": "a100:"}])
def test_make_launcher__limits_of_a_job_that_slurm_would_refuse_are_refused_before(option):
    with pytest.raises(BadInput, match=f"{next(iter(option))} "):
        make_launcher("slurm", 1, **option)


def test_make_launcher__limits_of_a_job_as_slurm_writes_them():
    for time in ("90", "12:00:00", "2-00:00:00", "1-12"):
        assert make_launcher("slurm", 1, time=time, gpus="a100:2").time == time
