"""Progress: lines where nobody watches, bars on a terminal, and both tell pace and time left."""

import io
import sys

import pytest

from nescio import progress
from nescio.progress import EpochProgress, Stages, track


class Clock:
    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr("nescio.progress.time.monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def watched(monkeypatch):
    """A terminal in place of stderr; in the test itself, because pytest puts its own there before it."""
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    return sys.stderr


def test_stages__lines_tell_pace_and_time_left(clock, capsys):
    heard = []
    stages = Stages(2, heard.append)
    stages("train", 0, 0, 4, None)
    clock.now += 40
    stages("train", 1, 1, 4, None)  # it failed: no images
    clock.now += 60
    stages("train", 2, 1, 4, {"trial": "erm", "nll": 0.5, "images": 3000, "seconds": 2.0, "images/s": 1500.0})
    clock.now += 30
    assert str(stages) == "2 of 4, 1 failed, 3,000 images/s, 0:00:30 left"  # two workers; 60 s at its word, 30 s ago
    stages("train", 4, 1, 4, {"images": 1000, "seconds": 2.0, "images/s": 500.0})
    stages("train", 0, 0, 1, None)  # the next round of a search
    assert capsys.readouterr().err.splitlines() == [
        "train: 0 of 4",
        "train: 1 of 4, 1 failed, 0:01:07 left",
        "train: 2 of 4, 1 failed, 3,000 images/s, 0:01:00 left",
        "train: 4 of 4, 1 failed, 2,000 images/s",
    ]
    assert [(trial["step"], trial["trial"], trial["nll"]) for trial in heard] == [(1, "erm", 0.5)]


def test_stages__the_time_left_knows_that_others_are_on_their_way(clock):
    stages = Stages(11)
    stages("train", 0, 0, 11)
    clock.now += 120
    stages("train", 1, 0, 11)
    assert str(stages) == "1 of 11, 0:01:40 left"  # not twenty minutes


def test_stages__a_bar_on_a_terminal_tells_the_same(clock, monkeypatch):
    terminal = watched(monkeypatch)
    with Stages(1) as stages:
        stages("train", 0, 0, 3)
        clock.now += 60
        stages("train", 1, 0, 3, {"images": 500, "seconds": 2.0, "images/s": 250.0})
    drawn = terminal.getvalue()
    assert "0 of 3" in drawn and "1 of 3, 250 images/s, 0:02:00 left" in drawn


def test_epoch_progress__a_training_shows_epoch_loss_pace_and_time_left(monkeypatch):
    terminal = watched(monkeypatch)
    seen = {"epoch": 1.5, "epochs": 3, "loss": 0.25, "images/s": 1200.0, "left": 61.0}
    with EpochProgress("erm on digits") as bar:
        bar(seen)
    drawn = terminal.getvalue()
    assert "erm on digits" in drawn and "epoch 1.5 of 3, loss 0.250, 1,200 images/s, 0:01:01 left" in drawn
    before = terminal.getvalue()
    with EpochProgress("finished before", silent=True) as bar:
        bar(seen)
    assert terminal.getvalue() == before


def test_track__a_loop_is_silent_while_it_is_short_and_then_counts(clock, monkeypatch):
    terminal = watched(monkeypatch)
    assert list(track(range(3), "reading")) == [0, 1, 2]
    assert terminal.getvalue() == ""
    for _ in track(range(4), "reading"):
        clock.now += 3 * progress.BAR_DELAY
    drawn = terminal.getvalue()
    assert "reading" in drawn and "3 of 4, 0:00:06 left" in drawn


def test_begin__a_loop_without_a_terminal_writes_a_line_every_ten_seconds(clock, capsys):
    progress.begin()
    for _ in track([10] * 100, "vgg16", 1000, images=int):
        clock.now += 0.5
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 4 and said[0] == "vgg16: 200 of 1,000 images, 20 images/s, 0:00:40 left"
    progress.begin()
    for _ in track(range(4), "short"):
        clock.now += 1
    assert capsys.readouterr() == ("", "")


def test_begin__many_short_loops_are_seen_too(clock, capsys):
    """A step that predicts 75 sets in five seconds each."""
    progress.begin()
    for _ in range(8):
        for _ in track([64] * 5, "erm", 320, images=int):
            clock.now += 1
    assert 3 <= len(capsys.readouterr().err.splitlines()) <= 4


def test_stages__what_an_earlier_run_finished_took_no_time(clock, capsys):
    stages = Stages(1)
    stages("train", 2, 0, 4, None, 2)
    clock.now += 60
    stages("train", 3, 0, 4, {"images": 600, "seconds": 60.0}, 2)
    assert str(stages) == "3 of 4, 2 finished before, 10 images/s, 0:01:00 left"
    for known in range(3):  # a prediction whose key is known late
        stages("predicting", known, 0, 3, None, known)
    clock.now += 30
    stages("predicting", 3, 0, 3, None, 2)
    assert capsys.readouterr().err.splitlines()[-1] == "predicting: 3 of 3, 2 finished before"


def test_begin__lines_name_the_stage_and_what_is_worked_on(clock, capsys):
    progress.begin()
    with Stages(2) as stages:
        stages("evaluating", 0, 0, 5)
        clock.now += 6
        stages("evaluating", 1, 0, 5)
        capsys.readouterr()
        for _ in track(["entropy", "gmm"], "measures of erm", name=str):
            clock.now += 11
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("evaluating: 1 of 5") and line.endswith("; measures of erm: gmm, 1 of 2, 0:00:11 left")
