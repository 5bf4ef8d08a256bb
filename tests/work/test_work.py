"""Kills, deaths, damage and full disks: nothing is lost, nothing half-written is read, and the table stays the same."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.support.disks import disk_of, remount
from tests.support.paths import ROOT, page_of

pytest.importorskip("torch")
from nescio.work.store import Store
from tests.support.waiting import until

SWEEP = shlex.split(
    "run uimnet --classes 0-5 --ood-classes 6-9 --methods erm,mc-dropout --backbones mlp --spectral-bounds none "
    "--trials 2 --seeds 1 --epochs 2 --no-oracle --device cpu --checkpoint-seconds 0"
)
LONG_SWEEP = [*SWEEP, "--trials", "5"]  # enough work that twenty kills come before its end
KEPT = ("rows.parquet", "rows.csv", "tables.md", "tables.tex", "plan.json")
PLACES = ("step", "half", "replace", "replaced", "rename", "renamed")


def undisturbed(store, warm, sweep=SWEEP):
    code, command = warm.run(*sweep, "--workers", "0", "--store", store)
    assert code == 0, command.err
    return store


@pytest.fixture(scope="module")
def finished(warm, tmp_path_factory):
    """A store with the finished sweep: never changed by a test."""
    return undisturbed(tmp_path_factory.mktemp("finished") / "store", warm)


def report(store):
    return {name: (page_of(store, "uimnet") / name).read_bytes() for name in KEPT}


def all_is_well(store):
    """Everything is finished and byte for byte as it was written."""
    runs = Store(store).runs()
    assert {each.state for each in runs} == {"finished"}
    for each in runs:
        Store(store).verify(each.stage, each.key)
    assert not list(store.rglob("*.part")) and not list(store.rglob("*.new"))


def damage(path, at=0.5):
    content = bytearray(path.read_bytes())
    content[int(len(content) * at)] ^= 0x40
    path.write_bytes(content)


# ---- SIGKILL


def test_work__five_kills_in_one_sweep_and_the_table_is_the_same(warm, finished, tmp_path):
    survives(("half", "renamed", "moment", "damage", "two"), warm, finished, tmp_path / "store")


@pytest.mark.slow
def test_work__twenty_kills_in_one_sweep_and_the_table_is_the_same(warm, tmp_path):
    kills = 2 * (*PLACES, "moment", "damage", "moment", "two")
    survives(kills, warm, undisturbed(tmp_path / "finished", warm, LONG_SWEEP), tmp_path / "store", LONG_SWEEP)


def survives(kills, warm, finished, store, sweep=SWEEP):
    """Kills at random moments and inside save and rename; after "damage" the last checkpoint is damaged as well."""
    rng = random.Random(0)
    for place in kills:
        if place in PLACES:
            kill = f"{place} {rng.randint(1, 3 if place.startswith('rename') else 12)}"
            assert warm.run(*sweep, "--workers", "0", "--store", store, kill=kill)[0] == -signal.SIGKILL
        elif place == "damage":
            assert warm.run(*sweep, "--workers", "0", "--store", store, kill="step 9")[0] == -signal.SIGKILL
            checkpoints = list(store.glob("train/*.part/.work/checkpoint.safetensors"))
            for each in checkpoints:
                damage(each)
        else:
            commands = [warm.start(*sweep, "--workers", "0", "--store", store) for _ in range(1 + (place == "two"))]
            before = count(store)
            until(lambda before=before: count(store) != before, pause=0.002)
            time.sleep(rng.uniform(0, 0.3))
            assert [each.kill() for each in commands] == [-signal.SIGKILL] * len(commands)
        assert all(each.state in ("finished", "stopped") for each in Store(store).runs())
    assert not (store / "report").exists()  # every kill came before the end
    code, command = warm.run(*sweep, "--workers", "0", "--store", store)
    assert code == 0, command.err
    all_is_well(store)
    assert report(store) == report(finished)


def count(store):
    return sorted(store.rglob("*"))


@pytest.mark.slow
def test_work__ten_kills_of_a_command_with_its_workers(finished, tmp_path):
    """The same from outside: `python -m nescio`, two workers, the whole process group killed."""
    (tmp_path / "sitecustomize.py").write_text("from tests.support import killing")
    path = os.pathsep.join(map(str, (tmp_path, ROOT, ROOT / "src")))
    env = os.environ | {"PYTHONPATH": path, "NESCIO_THREADS": "1"}
    store, rng = tmp_path / "store", random.Random(1)
    command = [sys.executable, "-m", "nescio", *SWEEP, "--workers", "2", "--store", str(store)]

    def start(**more):
        return subprocess.Popen(
            command, env=env | more, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )

    for place in ("moment", *PLACES, "moment", "moment", "moment"):
        if place == "moment":
            before, process = count(store), start()
            until(lambda before=before: count(store) != before, pause=0.002)
            time.sleep(rng.uniform(0, 0.5))
            os.killpg(process.pid, signal.SIGKILL)
        else:
            # every process counts for itself: small numbers come before a worker runs out of work
            process = start(NESCIO_TEST_KILL=f"{place} {rng.randint(1, 3 if place.startswith('rename') else 12)}")
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    assert not (store / "report").exists()
    process = start()
    assert process.communicate() and process.returncode == 0
    all_is_well(store)
    assert report(store) == report(finished)


# ---- sharing


def test_work__two_sweeps_at_once_share_the_work_and_do_nothing_twice(warm, finished, tmp_path):
    store, log = tmp_path / "store", tmp_path / "log"
    both = [warm.start(*SWEEP, "--workers", "0", "--store", store, log=log) for _ in range(2)]
    assert [each.wait() for each in both] == [0, 0]
    begun = [line.split(" ", 2) for line in log.read_text().splitlines()]
    trained = [about for what, _, about in begun if what == "fit"]
    assert len(trained) == len(set(trained)) == 4  # 2 methods × 2 trials, each trained once
    asked = [what for what, _, _ in begun]
    assert (
        asked.count("predict_images") == 4 * 3 and asked.count("probe_images") == 2 * 2 * 2 * 3
    )  # each network, each line × 3 splits
    assert {int(pid) for _, pid, _ in begun} == {each.pid for each in both}
    all_is_well(store)
    assert report(store) == report(finished)


def test_work__a_finished_study_run_again_trains_nothing(warm, finished, tmp_path):
    log, before = tmp_path / "log", {each: each.stat().st_mtime_ns for each in finished.rglob("*")}
    code, command = warm.run(*SWEEP, "--workers", "2", "--store", finished, log=log)
    assert code == 0 and "The page is" in command.out
    assert not log.exists()
    assert {each: each.stat().st_mtime_ns for each in finished.rglob("*")} == before


# ---- deaths, in a command with real workers

PLUG_IN = '''
import os, signal
from nescio.methods import Method, method

@method("greedy")
class Greedy(Method):
    """Dies of hunger in its second trial, as if the machine had no memory left."""
    def loss(self, x, y):
        if self.hparams.lr != 1.0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(x, y)

@method("diverging")
class Diverging(Method):
    """Its loss is not a number after a while."""
    def loss(self, x, y):
        self.seen = getattr(self, "seen", 0) + 1
        return super().loss(x, y) * (float("nan") if self.seen > 5 else 1)

@method("hungry")
class Hungry(Method):
    """Asks for more memory than there is."""
    def loss(self, x, y):
        return super().loss(x, y) + x.new_zeros(2**60).sum()
'''


def plug_in(folder, code, name="faulty"):
    """An outside package: its module, and the entry point that an install would write."""
    folder.mkdir()
    (folder / f"{name}.py").write_text(code)
    (folder / f"{name}-1.dist-info").mkdir()
    (folder / f"{name}-1.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (folder / f"{name}-1.dist-info" / "entry_points.txt").write_text(f"[nescio.methods]\n{name} = {name}\n")
    return folder


def test_work__a_worker_without_memory_and_a_loss_that_is_no_number_cost_their_trials_alone(warm, tmp_path):
    store, path = tmp_path / "store", [plug_in(tmp_path / "site", PLUG_IN)]
    words = [*SWEEP, "--workers", "1", "--store", store, "--methods", "erm,greedy,diverging,hungry"]
    words[words.index("--epochs") + 1] = "1"
    code, command = warm.run(*words, path=path)
    assert code == 1
    failed = [line for line in command.err.splitlines() if line.startswith("failed")]
    assert len(failed) == 5 and "Traceback" not in command.err
    wanted = {
        "greedy, mlp, trial 1": "The worker was killed; most often the machine had no memory left.",
        "diverging, mlp, trial 0": "The loss became nan in epoch 1; a smaller learning rate may help.",
        "diverging, mlp, trial 1": "The loss became nan in epoch 1; a smaller learning rate may help.",
    }
    for name, reason in wanted.items():
        assert f"failed: {name}, data seed 0: {reason}" in failed
    assert any("hungry, mlp, trial 0" in line and "allocate" in line for line in failed)
    runs = {
        (each.config["method"], each.config["trial"]): each for each in Store(store).runs() if each.stage == "train"
    }
    assert len(runs) == 8 and {each.state for each in runs.values()} == {"finished", "failed"}
    fine = {key for key, each in runs.items() if each.state == "finished"}
    assert fine == {("erm", 0), ("erm", 1), ("greedy", 0)}
    assert runs["greedy", 1].reason == wanted["greedy, mlp, trial 1"]
    assert runs["diverging", 0].reason == wanted["diverging, mlp, trial 0"]
    code, command = warm.run("runs", "--failed", "--format", "json", "--store", store, path=path)
    told = {(each["method"], each["trial"]): each["reason"] for each in json.loads(command.out)}
    assert code == 0
    assert told == {key: each.reason for key, each in runs.items() if each.state == "failed"}
    methods = {line.split("|")[1].split(" · ")[0].strip() for line in table_lines(store)}
    assert {"erm", "greedy"} <= methods and not {"diverging", "hungry"} & methods


def table_lines(store):
    return [line for line in (page_of(store, "uimnet") / "tables.md").read_text().splitlines() if line.startswith("|")]


# ---- damage


def test_work__damaged_finished_work_is_one_sentence_and_the_others_go_on(warm, finished, tmp_path):
    store = tmp_path / "store"
    shutil.copytree(finished, store)
    trial = next(each for each in Store(store).runs() if each.stage == "train" and each.config["method"] == "erm")
    damage(trial.folder / "weights.safetensors")
    for folder in ("evaluate", "predict", "report"):
        shutil.rmtree(store / folder)
    sentence = f"{trial.folder}: weights.safetensors changed, are missing or were added later: remove the folder"
    code, command = warm.run(*SWEEP, "--workers", "0", "--store", store)
    (failed,) = [line for line in command.err.splitlines() if line.startswith("failed")]
    assert code == 1 and sentence in failed and "Traceback" not in command.err
    assert [each.reason for each in Store(store).runs() if each.state == "failed"] == [failed.split(": ", 2)[2]]
    assert any("mc-dropout" in line for line in table_lines(store))
    # of two trials one is left: it stands alone, once, and is not averaged with itself
    assert any(line.startswith("| erm | 1 |") for line in table_lines(store))
    by_seeds = [line for line in table_lines(store) if "all trials" not in line]
    assert not [line for line in by_seeds if line.startswith("| erm | 2 |") or "±" in line]
    shutil.rmtree(trial.folder)  # as the sentence says
    assert warm.run(*SWEEP, "--workers", "0", "--store", store)[0] == 0
    all_is_well(store)
    assert report(store) == report(finished)


@pytest.mark.parametrize("stage, file", [("predict", "logits.npy"), ("evaluate", "rows.parquet")])
def test_work__one_wrong_bit_is_never_read(warm, finished, tmp_path, stage, file):
    store = tmp_path / "store"
    shutil.copytree(finished, store)
    if stage == "predict":
        shutil.rmtree(store / "evaluate")
    path = min(store.glob(f"{stage}/*/**/{file}"))
    damage(path, 0.99 if stage == "predict" else 0.5)
    shutil.rmtree(store / "report")
    key = path.relative_to(store).parts[1]
    code, command = warm.run(*SWEEP, "--workers", "0", "--store", store)
    failed = [line for line in command.err.splitlines() if line.startswith("failed")]
    assert code == 1 and failed and "Traceback" not in command.err
    assert any("changed" in line and key in line for line in failed)
    shutil.rmtree(store / stage / key)
    assert warm.run(*SWEEP, "--workers", "0", "--store", store)[0] == 0
    all_is_well(store)
    assert report(store) == report(finished)


# ---- disks


@pytest.fixture
def disk(tmp_path, request):
    with disk_of(tmp_path / "disk", request.param) as folder:
        yield folder


@pytest.mark.parametrize("disk", ["900k"], indirect=True)
def test_work__a_full_disk_costs_what_did_not_fit_and_nothing_else(warm, finished, disk):
    store = disk / "store"
    code, command = warm.run(*SWEEP, "--workers", "0", "--store", store)
    failed = [line for line in command.err.splitlines() if line.startswith("failed")]
    assert code == 1 and failed and "Traceback" not in command.err
    assert all("disk is full: make room" in line or "No space left" in line for line in failed), failed
    whole = [each for each in Store(store).runs() if each.state == "finished"]
    for each in whole:
        Store(store).verify(each.stage, each.key)
    assert whole and any(each.state == "failed" and "disk is full" in each.reason for each in Store(store).runs())
    assert remount(disk, "size=60m")
    code, command = warm.run(*SWEEP, "--workers", "0", "--store", store)
    assert code == 0, command.err
    left = [each for each in Store(store).runs() if each.state != "finished"]
    assert all(each.stage != "train" for each in left)  # at most lines and the study of the fewer trials that fitted
    assert report(store) == report(finished)


@pytest.mark.parametrize("disk", ["60m"], indirect=True)
def test_work__a_read_only_store_shows_what_is_finished_and_refuses_the_rest(warm, finished, disk):
    shutil.copytree(finished, disk / "store")
    assert warm.run(*SWEEP, "--workers", "0", "--store", disk / "store")[0] == 0
    assert remount(disk, "ro")
    code, command = warm.run(*SWEEP, "--workers", "0", "--store", disk / "store")
    assert code == 0 and "AUC" in command.out
    code, command = warm.run(*SWEEP, "--workers", "2", "--store", disk / "store", "--trials", "3")
    assert code == 1 and command.out == ""
    sentence = "the file system is read-only: choose another folder."
    assert command.err == f"nescio run: {disk / 'store'}: {sentence}\n"


@pytest.mark.parametrize("disk", ["60m"], indirect=True)
@pytest.mark.parametrize("stage", [pytest.param("train", marks=pytest.mark.slow), "evaluate"])
def test_store__a_store_made_read_only_in_the_middle_is_one_line_and_the_next_run_goes_on(warm, finished, disk, stage):
    command = warm.start(*SWEEP, "--workers", "0", "--store", disk / "store")
    until(lambda: any(run.state == "finished" for run in Store(disk / "store").runs(stage)))
    until(lambda: remount(disk, "ro"))
    assert command.wait() == 1 and command.out == ""
    sentence = "the file system is read-only: choose another folder."
    (line,) = [line for line in command.err.splitlines() if " of " not in line]  # all but progress
    assert line == f"nescio run: {disk / 'store'}: {sentence}"
    assert remount(disk, "rw")
    for run in Store(disk / "store").runs():
        assert run.state in ("finished", "stopped")
    assert warm.run(*SWEEP, "--workers", "0", "--store", disk / "store")[0] == 0
    assert report(disk / "store") == report(finished)


def test_work__a_file_in_place_of_the_store(warm, tmp_path):
    (tmp_path / "store").write_text("a file")
    code, command = warm.run(*SWEEP, "--workers", "2", "--store", tmp_path / "store")
    assert code == 1 and len(command.err.splitlines()) == 1
    assert "has the name" in command.err
