"""What the tests of Ray and of SLURM share: tasks that misbehave, toy studies, and how to wait."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from functools import partial
from pathlib import Path

from nescio.errors import BadInput
from nescio.work.launchers import make_launcher
from nescio.work.steps import Context, Work, evaluation_files, make_evaluation
from nescio.work.store import Store
from nescio.work.store_errors import Busy
from tests.support.disks import remount
from tests.support.waiting import until


def without_torch(folder, monkeypatch):
    """Workers that start at once: to them torch is not installed."""
    (folder / "no-torch").mkdir()
    (folder / "no-torch" / "torch.py").write_text("raise ImportError('not here')")
    monkeypatch.syspath_prepend(folder / "no-torch")


def said(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def log(folder, name):
    """A line of process, SLURM job and how often that was started before."""
    array, one = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_JOB_ID")
    job = f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else one
    with (Path(folder) / name).open("a") as file:
        file.write(f"{os.getpid()} {job} {os.environ.get('SLURM_RESTART_COUNT', 0)}\n")


def lines(folder, name):
    path = Path(folder) / name
    return path.read_text().splitlines() if path.exists() else []


# ---- tasks


def fall(text):
    raise RuntimeError(text)


def refuse(text):
    raise BadInput(text)


def die(folder):
    log(folder, "deaths")
    os.kill(os.getpid(), signal.SIGKILL)


def died(reason, folder):
    (Path(folder) / "died").write_text(reason)


def occupied(folder):
    log(folder, "busy")
    if len(lines(folder, "busy")) < 3:
        raise Busy("another process does it")


class Unknown:
    """Something that no worker can unpickle."""

    def __reduce__(self):
        return __import__, ("a_plug_in_that_is_not_there",)


def settings():
    return {name: os.environ.get(name, "") for name in ("NESCIO_X", "NESCIO_THREADS", "OMP_NUM_THREADS")}, os.getcwd()


# ---- studies


def rows_of(step_folder, context, value, seconds):
    log(context.store.root, "begun")
    time.sleep(seconds)
    return evaluation_files([{"metric": "accuracy", "value": value}])


def cards(count, seconds=0.2):
    return [
        make_evaluation("toy", 1, f"card {i}", {"value": i}, (), partial(rows_of, value=i / 7, seconds=seconds))
        for i in range(count)
    ]


def evaluated(context, launcher, steps, watch=None):
    work = Work(context, launcher, watch)
    work.evaluate("toys", steps)
    return work


def undisturbed(folder, count):
    return evaluated(Context(Store(folder)), make_launcher("local", 0), cards(count, 0)).rows


def begun_by(folder):
    """Numbers of the processes that began a card, in order."""
    return [int(line.split()[0]) for line in lines(folder, "begun")]


def protecting(disk, context):
    """A thread that makes the disk of a store read-only after some cards."""

    def protect():
        until(lambda: len(lines(context.store.root, "begun")) > 4)
        until(lambda: remount(disk, "ro"))

    thread = threading.Thread(target=protect)
    thread.start()
    return thread


# ---- predictions in ranges of rows


def predicted(store, launcher, shards):
    """The files of a dump of a network with dropout, which is trained first: name → bytes."""
    from nescio.datasets.image_set import ImageSet
    from nescio.networks.models import network_of_trial
    from nescio.predict import predict_step, row_ranges
    from tests.support.trainings import trial_of

    context = Context(store, device="cpu")
    network, images = network_of_trial(trial_of("mc-dropout")), ImageSet("digits")
    ranges = row_ranges(network, images, context, shards=shards, workers=launcher.workers, batch=64)
    step = predict_step(network, images, batch=64, ranges=ranges)
    work = Work(context, launcher)
    assert work.run_stage("predicting", [step]) == [step], work.failures
    assert len(step.shards) == (shards if shards > 1 else 0) and not store.runs("shard")
    dump = step.folder(store) / "predictions"
    return {path.relative_to(dump).as_posix(): path.read_bytes() for path in dump.rglob("*") if path.is_file()}
