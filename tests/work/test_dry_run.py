"""A dry run knows which steps there are, what is finished, and what the others take, and does nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pytest

from nescio.errors import BadInput
from nescio.work.dry_run import Cost, DryRun, Expected, costs
from nescio.work.launchers import make_launcher
from nescio.work.steps import Context, Step, Work
from nescio.work.store import Store


def make(step_folder, context, size):
    return {"payload": b"x" * size}


def training(number, backbone="mlp", epochs=10, size=1000):
    config = {"method": "erm", "backbone": backbone, "data": "digits", "trial": number, "training": {"epochs": epochs}}
    return Step(f"trial {number}", "train", config, partial(make, size=size))


def predicting(network, split="test"):
    config = {"images": {"data": "digits", "split": split}}
    return Step(network.title, "predict", config, partial(make, size=50), (network, "revision"))


@pytest.fixture
def context(tmp_path):
    return Context(Store(tmp_path / "store"))


def rehearse(context, steps, **more):
    rehearsal = DryRun(context, make_launcher("local", 0))
    return rehearsal.run_stage("train", steps, **more), rehearsal


def took(step, context, seconds, **more):
    """Makes a step, and says in its place how long it took."""
    step.run(context)
    env = step.folder(context.store) / "env.json"
    env.write_text(json.dumps(json.loads(env.read_text()) | {"seconds": seconds, **more}))


def nothing(step):
    return None


def test_dry_run__steps_are_gathered_with_what_they_need_and_nothing_is_done(context):
    networks = [training(number) for number in range(3)]
    steps = [predicting(network, split) for network in networks for split in ("val", "test")]
    finished, rehearsal = rehearse(context, [*steps, steps[0]])
    assert finished == [] and len(rehearsal.failures) == 6
    assert {step.key for step in rehearsal.steps.values()} == {step.key for step in (*steps, *networks)}
    assert not context.store.root.exists()


def test_dry_run__what_is_finished_is_told_apart_and_needs_nothing(context):
    networks = [training(number) for number in range(2)]
    steps = [predicting(network) for network in networks]
    Work(context, make_launcher("local", 0)).run_stage("predict", steps[:1])
    finished, rehearsal = rehearse(context, steps)
    assert finished == steps[:1]
    assert [
        (stage.stage, stage.finished, stage.missing)
        for stage in costs(rehearsal.steps.values(), context.store, nothing)
    ] == [
        ("predict", 1, 1),
        ("train", 1, 1),
    ]
    networks[0].folder(context.store).rename(context.store.root / "gone")
    _, rehearsal = rehearse(context, steps[:1])
    assert list(rehearsal.steps) == [steps[0].key]


def test_dry_run__impossible_work_is_refused_and_finished_work_is_not_asked_about(context):
    def refuse():
        raise BadInput("No.")

    with pytest.raises(BadInput, match="No"):
        rehearse(context, [training(0)], before=refuse)
    training(0).run(context)
    assert rehearse(context, [training(0)], before=refuse)[0]


def test_costs__processes_count_only_where_a_training_of_as_many_was_seen(context):
    def seconds(**how):
        (stage,) = costs([replace(training(9), distributed=True)], context.store, nothing, **how)
        return stage.seconds

    took(training(0), context, 100.0)
    assert seconds() == seconds(processes=2, workers=2) == pytest.approx(100.0)
    took(training(1), context, 60.0, processes=2)
    assert seconds() == seconds(processes=4, workers=4) == pytest.approx(100.0)
    assert seconds(processes=2, workers=2) == pytest.approx(120.0)  # of workers: it takes the places of two
    (stage,) = costs([training(9)], context.store, nothing, processes=2, workers=2)
    assert stage.seconds == pytest.approx(100.0)  # it is not made together


def test_costs__time_and_disk_are_those_of_the_same_kind_of_work_in_the_store(context):
    for number, seconds in enumerate((20.0, 30.0, 400.0)):
        took(training(number), context, seconds)
    took(training(9, backbone="resnet50", size=9), context, 5000.0)
    took(predicting(training(0)), context, 3.0)
    long = [training(number, epochs=40) for number in range(2)]
    trained, predicted = costs(
        [*long, predicting(long[0], "val"), predicting(training(5), "test")], context.store, nothing
    )
    assert (trained.measured, trained.unknown) == (2, 0)
    assert trained.seconds == pytest.approx(2 * 30 / 10 * 40)  # the median, by epochs; another backbone is another kind
    assert trained.bytes == 2 * 1000
    assert (predicted.measured, predicted.seconds, predicted.bytes) == (2, 6.0, 100)


def test_costs__time_that_other_processes_took_does_not_count_where_the_processor_is_the_clock(context):
    took(training(0), context, 400.0, processor_seconds=20.0)
    took(training(1), context, 30.0, processes=2, processor_seconds=1.0)

    def seconds(clock, **more):
        (stage,) = costs([replace(training(9), distributed=True)], context.store, nothing, clock=clock, **more)
        return stage.seconds

    assert seconds("seconds") == pytest.approx(400.0)
    assert seconds("processor_seconds") == pytest.approx(20.0)
    assert seconds("processor_seconds", processes=2, workers=2) == pytest.approx(60.0)  # that of one process is no help


def test_costs__samples_take_time_and_disk_by_their_images(context):
    def sampled(count):
        config = {"model": "resnet18", "images": {"data": "digits", "sample": count}}
        return Step("resnet18", "predict", config, partial(make, size=50))

    took(sampled(10), context, 2.0)
    (stage,) = costs([sampled(500)], context.store, nothing)
    assert stage.seconds == pytest.approx(100.0)
    assert stage.bytes == pytest.approx(50 * 50)  # as many times the payload of ten images
    whole = sampled(None)  # how large a whole set is, is not in its recipe
    assert costs([whole], context.store, nothing)[0].unknown == 1


def test_dry_run__finished_work_has_its_processor_time(context):
    training(0).run(context)
    env = json.loads((training(0).folder(context.store) / "env.json").read_text())
    assert env["processor_seconds"] >= 0


def test_expected__an_expected_step_has_its_own_cost_and_state(context):
    done, coming = (
        Expected("resnet18", "predict", {"number": number}, make, cost=Cost(3.0, 30), done=number == 0)
        for number in range(2)
    )
    (stage,) = costs([done, coming], context.store, lambda step: step.cost)
    assert (stage.finished, stage.missing, stage.seconds) == (1, 1, 3.0)


def test_cost__without_such_work_figures_are_used_and_named(context):
    took(training(0), context, 20.0)
    steps = [training(1), training(2, backbone="conv"), predicting(training(0))]
    figures = {steps[1].key: Cost(7.0, 70)}
    trained, predicted = costs(steps, context.store, lambda step: figures.get(step.key))
    assert (trained.measured, trained.estimated, trained.seconds, trained.bytes) == (1, 1, 27.0, 1070)
    assert (predicted.unknown, predicted.missing, predicted.seconds) == (1, 1, 0.0)


def test_costs__damaged_work_says_nothing(context):
    took(training(0), context, 20.0)
    (training(0).folder(context.store) / "config.json").write_text("{")
    assert costs([training(1)], context.store, nothing)[0].unknown == 1


def test_dry_run__finished_pictures_of_several_sets_do_not_disturb_it(context):
    """Their recipe has a list of images."""
    several = replace(predicting(training(0), "test"), config={"images": [{"data": "a"}, {"data": "b"}], "facts": [{}]})
    took(several, context, 3.0)
    _, rehearsal = rehearse(context, [predicting(training(1), "val")])
    assert costs(rehearsal.steps.values(), context.store, nothing)
