"""What `shift` refuses before any work, what it leaves out with a word, and what a rehearsal of it counts."""

from __future__ import annotations

import argparse
import shutil
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("torch")

from nescio.benchmarks import base, lineup
from nescio.benchmarks.shift import PRESETS, pixels
from nescio.commands.parsing import add_options
from nescio.errors import BadInput
from nescio.options import options_of
from nescio.specs import SpecError
from nescio.training import train_step
from nescio.trials import Training
from nescio.work.dry_run import DryRun
from nescio.work.launchers import make_launcher
from nescio.work.steps import Context, Work
from nescio.work.store import Store
from tests.support.shapes import write_folders
from tests.support.shift_trials import levels_of, shift_trials

pytestmark = pytest.mark.usefixtures("use_one_thread")
PLAN = replace(
    PRESETS["small"],
    methods=("erm",),
    backbone="mlp",
    seeds=1,
    ensemble_sizes=(),
    corruptions=("contrast",),
    severities=(1,),
    training=replace(PRESETS["small"].training, epochs=1),
)
DENSE = replace(
    PRESETS["scenes"],
    methods=("erm",),
    seeds=1,
    ensemble_sizes=(),
    reference_accuracy=None,
    training=Training(epochs=1, batch_size=4, augment="none"),
)


def run(plan, context):
    with make_launcher("local", 0) as launcher:
        return base.run(base.registry["shift"], plan, Work(context, launcher))


def plan_of(*words):
    parser = argparse.ArgumentParser()
    add_options(parser, type(PLAN), PRESETS)
    return options_of(parser.parse_args(words), type(PLAN), PRESETS)


def rehearse(plan, context):
    rehearsal = DryRun(context, make_launcher("local", 0))
    base.registry["shift"].run(plan, rehearsal)
    return [step.stage for step in rehearsal.steps.values()], rehearsal


def one_class(place):
    x = np.zeros((40, 8, 8, 1), np.uint8)
    np.savez(place / "one.npz", x_train=x, y_train=np.zeros(40, int), x_test=x, y_test=np.zeros(40, int))
    return f"npz:{place / 'one.npz'}"


@pytest.fixture
def folders(tmp_path):
    """A set of images and label maps in files, with two levels of rain."""
    write_folders(tmp_path / "set", "shift/rain/1", "shift/rain/2")
    return tmp_path / "set"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"ood": ("nope",)}, "no dataset named 'nope'"),
        ({"ood": ("npz:nofile.npz",)}, "nofile.npz"),
        ({"ood": ("digits",)}, "ood has digits"),
        ({"measures": ("entropy", "gmm")}, "The measure gmm needs more than logits"),
        ({"measures": ("tta",)}, "The measure tta needs more than logits"),
        ({"methods": ("erm", "duq"), "training": replace(PLAN.training, compile=True)}, "duq cannot be compiled"),
    ],
)
def test_shift_refusals__what_cannot_be_done_is_refused_before_any_work(tmp_path, change, sentence):
    with pytest.raises(BadInput, match=sentence):
        run(replace(PLAN, **change), Context(Store(tmp_path / "store"), device="cpu"))
    assert not (tmp_path / "store").exists()


def test_shift_refusals__one_class_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"one class"):
        run(replace(PLAN, data=one_class(tmp_path)), Context(Store(tmp_path / "store"), device="cpu"))
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda place: Image.fromarray(np.full((24, 32), 77, np.uint8)).save(place / "labels/1.png"), "without a"),
        (lambda place: Image.fromarray(np.zeros((20, 32), np.uint8)).save(place / "labels/1.png"), "20 × 32 pixels"),
        (lambda place: (place / "labels/1.png").write_bytes(b"no image"), r"labels.1\.png cannot be read"),
        (lambda place: (place / "images/1.png").write_bytes(b"no image"), r"images.1\.png cannot be read"),
        (lambda place: Image.new("RGB", (9, 9)).save(place / "images/1.png"), "9 × 9 pixels"),
    ],
)
@pytest.mark.parametrize("folder", ["shift/rain/2", "test", "train"])
def test_shift_refusals__damaged_files_are_named_before_any_training(folders, tmp_path, damage, sentence, folder):
    damage(folders / folder)
    store = Store(tmp_path / "store")
    with pytest.raises(BadInput, match=sentence):
        run(replace(DENSE, data=f"maps:{folders}"), Context(store, device="cpu"))
    assert not [each for each in store.runs() if each.state == "finished"]


def test_refuse_unreadable__images_that_are_turned_by_their_tag_are_taken(folders):
    for number in range(2):  # as cameras do: stored on its side
        image = Image.open(folders / "test/images" / f"{number}.png").rotate(90, expand=True)
        tag = Image.Exif()
        tag[0x0112] = 6
        image.save(folders / "test/images" / f"{number}.jpg", exif=tag)
        (folders / "test/images" / f"{number}.png").unlink()
    pixels.refuse_unreadable(levels_of(replace(DENSE, data=f"maps:{folders}")).values(), None)


def test_shift_refusals__files_are_looked_at_once_and_not_when_all_is_done(folders, tmp_path, monkeypatch):
    context = Context(Store(tmp_path / "store"), device="cpu")
    plan = replace(DENSE, data=f"maps:{folders}")
    seen = []
    look = pixels.refuse_unreadable
    monkeypatch.setattr(pixels, "refuse_unreadable", lambda *given: seen.append(1) or look(*given))
    assert run(plan, context).failures == [] and seen == [1]
    assert run(plan, context).failures == [] and seen == [1]


def test_with_registered_names__a_network_of_ones_own_has_pictures_whatever_its_seed_and_is_asked_for_its_own_score(
    folders, tmp_path
):
    context = Context(Store(tmp_path / "store"), device="cpu")
    plan = replace(DENSE, data=f"maps:{folders}", methods=("ddu",), seeds=2)
    assert run(plan, context).pictures
    trials = shift_trials(lineup.with_registered_names(plan, None), {"ddu": 0})
    key = f"store:{train_step(next(each[0] for each in trials if each[0].data_seed == 1)).key}"
    asked = replace(plan, methods=("erm",), networks=(key,), measures=("density", "entropy"))
    study = run(asked, context)
    assert {row["measure"] for row in study.rows} >= {"density", "entropy"}
    assert {row["shows"] for row in study.pictures} == {"image", "labels", "prediction", "uncertainty"}


def test_with_registered_names__a_network_of_ones_own_segments_a_set_of_test_images_alone(folders, tmp_path):
    context = Context(Store(tmp_path / "store"), device="cpu")
    plan = replace(DENSE, data=f"maps:{folders}")
    before = run(plan, context)
    ((trial,),) = shift_trials(lineup.with_registered_names(plan, None), {"erm": 0})
    shutil.copytree(folders, tmp_path / "alone", ignore=shutil.ignore_patterns("train"))
    alone = run(replace(plan, data=f"maps:{tmp_path / 'alone'}", networks=(f"store:{train_step(trial).key}",)), context)

    def numbers(study):
        return [(row["shift"], row["severity"], row["value"]) for row in study.rows if row["metric"] == "miou"]

    assert len(numbers(alone)) == 4 and numbers(alone) == numbers(before)


def test_shift_refusals__a_classifier_of_ones_own_is_asked_for_its_own_score(tmp_path):
    context = Context(Store(tmp_path / "store"), device="cpu")
    run(replace(PLAN, methods=("ddu",)), context)
    ((trial,),) = shift_trials(replace(PLAN, methods=("ddu",)), {"ddu": 0})
    asked = replace(PLAN, networks=(f"store:{train_step(trial).key}",), measures=("density",))
    assert "density" in {row["measure"] for row in run(asked, context).rows}
    with pytest.raises(BadInput, match="kernel"):  # of duq
        run(replace(asked, measures=("kernel",)), context)


def test_shift_refusals__a_rehearsal_counts_what_follows_training(tmp_path):
    stages, rehearsal = rehearse(PLAN, Context(Store(tmp_path / "store"), device="cpu"))
    assert sorted(stages) == ["evaluate", "predict", "predict", "train"]  # clean images, and one corruption
    assert not (tmp_path / "store").exists() and rehearsal.rows == []


def test_shift_refusals__a_rehearsal_counts_pixels_too(tmp_path, folders):
    stages, _ = rehearse(replace(DENSE, data=f"maps:{folders}"), Context(Store(tmp_path / "store"), device="cpu"))
    assert sorted(stages) == ["count", "count", "count", "evaluate", "evaluate", "train"]  # rows, and pictures


def test_shift_refusals__sizes_of_ensembles_are_numbers_or_none():
    assert plan_of("--ensemble-sizes", "none").ensemble_sizes == () and plan_of(
        "--ensemble-sizes", "2,5"
    ).ensemble_sizes == (2, 5)
    with pytest.raises(SpecError) as caught:
        plan_of("--ensemble-sizes", "few")
    assert caught.value.option == "--ensemble-sizes"


def test_shift_refusals__all_methods_are_those_that_can_segment(tmp_path, folders):
    from nescio.methods import classifiers

    plan = replace(DENSE, data=f"maps:{folders}", methods=tuple(classifiers()))
    stages, rehearsal = rehearse(plan, Context(Store(tmp_path / "store"), device="cpu"))
    assert 10 < stages.count("train") < len(classifiers())
    assert any(note.startswith("Not among all methods") and "dcu" in note for note in rehearsal.notes)


def test_shift_refusals__an_unknown_shift_names_those_of_the_data(folders):
    shutil.copytree(folders / "shift/rain", folders / "shift/sun")
    for data, own in ((f"maps:{folders}", "rain, sun"), ("scenes@32", "darkness, fog, rain")):
        with pytest.raises(BadInput, match=f"no shift named 'snoww'. There are: {own}, gaussian_noise"):
            levels_of(replace(DENSE, data=data, corruptions=("snoww",)))


@pytest.mark.parametrize("augment", ["full", "shift"])
def test_shift_refusals__augmentations_that_label_maps_do_not_have_are_refused(folders, tmp_path, augment):
    plan = replace(DENSE, data=f"maps:{folders}", training=replace(DENSE.training, augment=augment))
    with pytest.raises(BadInput, match="none or crop-flip"):
        run(plan, Context(Store(tmp_path / "store"), device="cpu"))
    assert not (tmp_path / "store").exists()
