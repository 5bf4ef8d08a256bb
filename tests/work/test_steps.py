"""Steps: what is missing is made, its parents first; failures, deaths and damage are noted where they happened."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from nescio.errors import BadInput
from nescio.work.launchers import Failure, Outcome, failure_of, launcher, make_launcher, registry, run_task
from nescio.work.steps import SHARD_OF, Context, Step, Work, evaluation_files, make_evaluation
from nescio.work.store import Store
from nescio.work.store_errors import Busy, Corrupted, StoreError


@pytest.fixture
def context(tmp_path):
    return Context(Store(tmp_path / "store"))


def log(context, name):
    with (context.store.root.parent / "log").open("a") as file:
        file.write(f"{name}\n")


def made(context):
    path = context.store.root.parent / "log"
    return path.read_text().split() if path.exists() else []


def write(step_folder, context, name, parents=()):
    """The text of a step: its name behind the texts of its parents."""
    log(context, name)
    before = "".join((parent.verified(context.store) / "text").read_text() for parent in parents)
    return {"text": (before + name).encode()}


def fall(step_folder, context, reason):
    raise RuntimeError(reason)


def refuse(step_folder, context):
    raise BadInput("The labels are wrong.")


def die(step_folder, context):
    os.kill(os.getpid(), signal.SIGKILL)


def step(name, *parents, make=None, **more):
    make = make or partial(write, name=name, parents=parents)
    return Step(name, "toy", {"name": name}, make, parents, **more)


def text(made_step, context):
    return (made_step.folder(context.store) / "text").read_text()


def working(context, workers=0, watch=None):
    return Work(context, make_launcher("local", workers), watch)


# ---- one step


def test_step__a_step_makes_its_parents_first_and_everything_once(context):
    a, b = step("a"), step("b")
    both = step("c", a, step("d", a, b))
    both.run(context)
    assert text(both, context) == "aabdc"
    assert sorted(made(context)) == ["a", "b", "c", "d"] and made(context)[-1] == "c"
    both.run(context)
    step("e", both).run(context)
    assert sorted(made(context)) == ["a", "b", "c", "d", "e"]


def test_step__the_key_follows_from_stage_recipe_parents_and_version():
    base = Step("t", "toy", {"n": 1}, fall, (step("a"), "0123"), 1)
    others = [
        Step("t", "other", {"n": 1}, fall, (step("a"), "0123"), 1),
        Step("t", "toy", {"n": 2}, fall, (step("a"), "0123"), 1),
        Step("t", "toy", {"n": 1}, fall, (step("b"), "0123"), 1),
        Step("t", "toy", {"n": 1}, fall, (step("a"), "4567"), 1),
        Step("t", "toy", {"n": 1}, fall, (step("a"), "0123"), 2),
    ]
    assert len({base.key, *(other.key for other in others)}) == 6
    assert Step("another title", "toy", {"n": 1}, die, (step("a"), "0123"), 1).key == base.key
    assert pickle.loads(pickle.dumps(step("c", step("a")))).key == step("c", step("a")).key  # as a worker gets it


def sharded(count, broken=()):
    """A step in shards; one of another number of shards is the same step."""
    whole = step("whole")
    parts = tuple(
        Step(f"{place} of {count}", "shard", {SHARD_OF: whole.key, "rows": [place, count]}, refuse)
        if place in broken
        else Step(f"s{place}", "shard", {SHARD_OF: whole.key, "rows": [place, count]}, partial(write, name=f"s{place}"))
        for place in range(count)
    )
    return replace(whole, make=partial(write, name="", parents=parts), shards=parts)


def test_work__shards_are_put_together_under_the_key_of_the_whole_and_removed(context, light):
    whole = sharded(3)
    assert whole.key == step("whole").key and len({shard.key for shard in whole.shards}) == 3
    seen = []
    work = working(context, 2, lambda *counts: seen.append(counts[:4]))
    with work.launcher:
        assert work.run_stage("toys", [whole]) == [whole]
    assert text(whole, context) == "s0s1s2" and context.store.runs("shard") == []
    assert seen == [("toys", done, 0, 4) for done in range(5)]
    known = len(made(context))
    sharded(2).run(context)
    assert len(made(context)) == known and {run.stage for run in context.store.runs()} == {"toy"}


def test_work__a_shard_that_fails_keeps_the_others_and_the_whole_waits_for_it(context):
    work = working(context)
    broken = sharded(3, broken=(1,))
    assert work.run_stage("toys", [broken]) == [] and [failure.name for failure in work.failures] == ["1 of 3"]
    assert made(context) == ["s0", "s2"] and broken.failure_reason(context.store) == "The labels are wrong."
    assert work.run_stage("toys", [sharded(3)]) and made(context)[2:] == ["s1"]


def test_step__a_failure_is_noted_at_the_step_that_failed(context):
    broken = step("broken", step("a"), make=partial(fall, reason="it broke"))
    above = step("above", broken)
    with pytest.raises(RuntimeError, match="it broke"):
        above.run(context)
    assert above.failure_reason(context.store) == broken.failure_reason(context.store) == "RuntimeError: it broke"
    assert [(run.stage, run.key, run.state) for run in context.store.runs() if run.state != "finished"] == [
        ("toy", broken.key, "failed")
    ]
    healed = step("broken", step("a"))  # the same recipe, tried again
    assert healed.key == broken.key
    step("above", healed).run(context)
    assert made(context) == ["a", "broken", "above"] and above.failure_reason(context.store) is None


def test_step__a_death_is_noted_at_the_first_step_of_the_chain_that_is_not_finished(context):
    a, b = step("a"), step("b")
    top = step("top", step("middle", a, b))
    a.run(context)
    top.record_death(context.store, "The worker was killed.")
    assert [run.key for run in context.store.runs() if run.state == "failed"] == [b.key]
    b.run(context)
    top.record_death(context.store, "killed again")
    assert [run.reason for run in context.store.runs() if run.state == "failed"] == ["killed again"]
    assert top.failure_reason(context.store) == "killed again"


def test_step__a_death_is_not_noted_at_what_another_process_makes(context):
    """A worker goes past such a parent to the others, and may die there; the other's work has not failed."""
    a, b = step("a"), step("b")
    above = step("above", a)
    whole = step("whole", above, b)
    with context.store.work(a.stage, a.config, (), a.version) as step_folder:
        assert context.store.in_progress(a.stage, a.key) and not context.store.in_progress(b.stage, b.key)
        whole.record_death(context.store, "The worker was killed.")
        assert [run.key for run in context.store.runs() if run.state == "failed"] == [b.key]
        step_folder.write("text", b"a")
    assert (
        not context.store.in_progress(a.stage, a.key)
        and whole.failure_reason(context.store) == "The worker was killed."
    )


def test_step__damage_of_finished_work_is_noted_where_it_was_found(context):
    a = step("a")
    a.run(context)
    (a.folder(context.store) / "text").write_text("b")
    above = step("above", a)
    with pytest.raises(Corrupted):
        step("top", above).run(context)
    (failed,) = [run for run in context.store.runs() if run.state == "failed"]
    assert failed.key == above.key and "text changed" in failed.reason and a.finished(context.store)
    assert step("top", above).failure_reason(context.store) == failed.reason


def test_step__work_that_another_process_does_is_waited_for_or_said(context):
    a = step("a")
    with context.store.work(a.stage, a.config, (), a.version), pytest.raises(Busy):
        a.run(context)


def test_step__while_another_process_makes_one_parent_the_others_are_made(context):
    """A process that came back at once would leave them until that one is done."""
    a, b, c = (step(name) for name in "abc")
    whole = step("whole", a, b, c)
    with context.store.work(b.stage, b.config, (), b.version) as step_folder:
        with pytest.raises(Busy):
            whole.run(context)
        assert made(context) == ["a", "c"]
        step_folder.write("text", b"b")
    whole.run(context)
    assert text(whole, context) == "abcwhole"


# ---- many steps


def test_step__what_needs_the_most_steps_is_begun_first_and_rows_keep_their_order(context):
    work = working(context)
    few, many = card(0.25, step("a")), card(0.5, step("b"), step("c"))
    work.evaluate("evaluate", [few, many])
    assert made(context) == ["b", "c", "a"] and [row["value"] for row in work.rows] == [0.25, 0.5]


def test_step__a_failing_step_costs_only_its_own(context):
    broken = step("broken", make=partial(fall, reason="it broke"))
    fine = [step(name) for name in "abc"]
    odd = step("odd", make=refuse)
    heard = []
    work = working(context, watch=lambda *event: heard.append(event))
    done = work.run_stage("toys", [fine[0], broken, step("above", broken), odd, *fine[1:], step("a")])
    assert [one.title for one in done] == ["a", "b", "c"] and sorted(made(context)) == ["a", "b", "c"]
    reason = "RuntimeError: it broke"
    assert work.failures == [
        Failure("broken", reason, kind="RuntimeError"),
        Failure("above", reason, kind="RuntimeError"),
        Failure("odd", "The labels are wrong.", True, "BadInput"),
    ]
    assert heard[0] == ("toys", 0, 0, 6, None, 0) and heard[-1][:4] == ("toys", 6, 3, 6)


def test_work__failures_of_one_title_stay_together(context):
    names = ("one", "other", "two")
    broken = [replace(step(name, make=partial(fall, reason=name)), title=name.replace("two", "one")) for name in names]
    work = working(context)
    work.run_stage("toys", broken)
    assert [(failure.name, failure.reason) for failure in work.failures] == [
        ("one", "RuntimeError: one"),
        ("one", "RuntimeError: two"),
        ("other", "RuntimeError: other"),
    ]


def test_work__what_is_missing_is_refused_before_any_work_and_what_is_finished_is_not(context):
    calls = []
    work = working(context)
    work.run_stage("toys", [step("a")], lambda: calls.append("before"))
    work.run_stage("toys", [step("a")], lambda: calls.append("never"))
    assert calls == ["before"]

    def impossible():
        raise BadInput("No trial could do that.")

    with pytest.raises(BadInput):
        work.run_stage("toys", [step("b")], impossible)
    assert made(context) == ["a"]


def rows_of(step_folder, context, value):
    return evaluation_files([{"metric": "accuracy", "value": value}], [{"metric": "nll", "reason": "no labels"}])


def card(value, *parents):
    return make_evaluation("toy", 1, f"card {value}", {"value": value}, parents, partial(rows_of, value=value), summary)


def summary(done, context):
    return {"title": done.title}


def test_make_evaluation__rows_and_reasons_of_evaluations_are_taken_and_damaged_ones_are_failures(context):
    heard = []
    work = working(context, watch=lambda *event: heard.append(event[4]))
    cards = [card(0.25, step("a")), card(0.5), card(0.75)]
    assert work.evaluate("evaluate", cards) == cards
    assert [row["value"] for row in work.rows] == [0.25, 0.5, 0.75]
    assert work.reasons == [{"metric": "nll", "reason": "no labels"}]  # once
    assert heard == [None, {"title": "card 0.25"}, {"title": "card 0.5"}, {"title": "card 0.75"}]
    (cards[1].folder(context.store) / "rows.parquet").write_bytes(b"damaged")
    again = working(context)
    assert again.evaluate("evaluate", cards) == [cards[0], cards[2]]
    (failure,) = again.failures
    assert failure.name == "card 0.5" and "changed" in failure.reason and made(context) == ["a"]


def test_work__a_store_that_cannot_be_written_is_said_before_any_work(tmp_path):
    (tmp_path / "store").write_text("a file")
    with pytest.raises(StoreError, match="has the name"):
        working(Context(Store(tmp_path / "store"))).run_stage("toys", [step("a")])


def test_step__a_worker_that_dies_over_a_step_costs_that_step(context, light):
    deadly = step("deadly", step("a"), make=die)
    work = working(context, 1)
    with work.launcher:
        assert [one.title for one in work.run_stage("toys", [step("top", deadly), step("b")])] == ["b"]
    (failure,) = work.failures
    assert failure.name == "top" and "no memory left" in failure.reason
    (failed,) = [run for run in context.store.runs() if run.state == "failed"]
    assert failed.key == deadly.key and failed.reason == failure.reason


class Elsewhere:
    """A launcher whose machines have another store of the same name."""

    workers = 1

    def run(self, tasks, watch=None):
        return [Failure("b", "it broke")]


def test_work_that_was_kept_in_another_store_is_a_failure(context):
    work = Work(context, Elsewhere())
    assert work.run_stage("toys", [step("a"), step("b")]) == []
    broken, lost = work.failures
    assert broken.reason == "it broke" and lost.name == "a" and "one file system" in lost.reason


def test_work__notes_are_kept_once(context):
    work = working(context)
    work.add_notes("one", "two", "one")
    work.add_notes("two", "three")
    assert work.notes == ["one", "two", "three"]


# ---- another launcher is a file, not a change of benchmarks

# Programs of their own that start at once: forked from one that has imported torch, never from this one.
PROGRAMS = multiprocessing.get_context("forkserver")
PROGRAMS.set_forkserver_preload(["torch", "nescio.training", "nescio.predict"])


def answer(pipe, task):
    """What such a program does: it reads its task, tries it and writes how it went."""
    pipe.send_bytes(pickle.dumps(run_task(pickle.loads(task))))


@dataclass
class OneProcessPerTask:
    """A launcher as a cluster has them: every task is a program of its own, which gets it as bytes."""

    workers: int
    started: list[int] = field(default_factory=list)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, tasks, watch=None):
        failures = []
        for number, task in enumerate(tasks, start=1):
            outcome = self._outcome(task)
            if outcome.status != "done":
                failures.append(failure_of(task, outcome))
            if watch:
                watch(number, len(failures), len(tasks), outcome.result if outcome.status == "done" else None)
        return failures

    def _outcome(self, task):
        from tests.work import test_steps  # as the processes import it

        ours, theirs = PROGRAMS.Pipe()
        process = PROGRAMS.Process(target=test_steps.answer, args=(theirs, pickle.dumps(task)))
        process.start()
        theirs.close()
        self.started.append(process.pid)
        try:
            return pickle.loads(ours.recv_bytes())
        except EOFError:
            process.join()
            return Outcome("died", f"Exit code {process.exitcode}.")


@pytest.fixture
def subprocesses(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    launcher("subprocesses")(OneProcessPerTask)
    yield
    registry._parts.pop("subprocesses")


def test_work__a_launcher_of_another_package_runs_the_same_steps(context, subprocesses, tmp_path):
    from tests.work import test_steps  # as the processes import it: their functions are those of this module

    deadly = test_steps.step("deadly", make=test_steps.die)
    steps = [test_steps.card(0.25, test_steps.step("a")), test_steps.card(0.5, deadly), test_steps.card(0.75)]
    with make_launcher("subprocesses", 3) as crew:
        work = Work(context, crew)
        work.evaluate("evaluate", steps)
        assert len(crew.started) == 3
    assert [row["value"] for row in work.rows] == [0.25, 0.75] and made(context) == ["a"]
    assert [(each.name, each.reason) for each in work.failures] == [("card 0.5", "Exit code -9.")]
    assert [run.reason for run in context.store.runs() if run.state == "failed"] == ["Exit code -9."]
    with make_launcher("local", 0) as crew:
        again = Work(context, crew)
        again.evaluate("evaluate", [steps[0], steps[2]])
    assert again.rows == work.rows and again.failures == [] and made(context) == ["a"]


def test_context__a_benchmark_runs_unchanged_under_another_launcher(subprocesses, tmp_path):
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)  # as the processes have
    from nescio.benchmarks import base
    from nescio.benchmarks.uimnet import Plan
    from nescio.trials import Training

    budget = Training(epochs=1, batch_size=64, augment="none")
    plan = Plan(
        methods=("erm",), backbones=("mlp",), spectral_bounds=(None,), trials=1, seeds=1, oracle=False, training=budget
    )
    rows = {}
    for name, workers in (("local", 0), ("subprocesses", 1)):
        with make_launcher(name, workers) as crew:
            study = base.run(base.registry["uimnet"], plan, Work(Context(Store(tmp_path / name), device="cpu"), crew))
        assert study.failures == []
        rows[name] = json.dumps(study.rows)
    assert rows["local"] == rows["subprocesses"]


def test_make_launcher__an_unknown_launcher_is_one_sentence():
    with pytest.raises(BadInput, match="no launcher named 'slurms'"):
        make_launcher("slurms", 1)
