"""Segmentation under shift: every pixel counts, levels are pooled, members averaged, and pictures stand on the page."""

from __future__ import annotations

import io
import json
import shutil
from base64 import b64decode
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("torch")
import torch

from nescio import metrics, predict
from nescio.benchmarks import base
from nescio.benchmarks.shift import DENSE, PRESETS, Plan, reports, steps
from nescio.cli import main
from nescio.commands import parser_for
from nescio.datasets.class_colours import class_colours
from nescio.datasets.corruptions import CORRUPTIONS, Corruption
from nescio.datasets.image_set import ImageSet
from nescio.errors import BadInput
from nescio.evaluations import Subject
from nescio.evaluations.engine import plan_steps
from nescio.evaluations.segmentation_shift import SegmentationShift
from nescio.networks.models import build, network_of_trial
from nescio.options import options_of
from nescio.predict import input_batches, load_counts
from nescio.report.blocks import Gallery, figures_of, tables_of, walk_blocks
from nescio.report.studies import read_study
from nescio.rows import from_parquet
from nescio.runtime import runtime_for
from nescio.training import train_step
from nescio.work.launchers import make_launcher
from nescio.work.steps import Context, Work
from nescio.work.store import Store
from tests.support.shapes import VOID, write_folders, write_shapes
from tests.support.shift_trials import levels_of, shift_trials

pytestmark = pytest.mark.usefixtures("use_one_thread")
HERE = runtime_for("cpu")
PLAN = replace(
    PRESETS["scenes"],
    methods=("erm", "mc-dropout", "deep-ensemble"),
    seeds=1,
    ensemble_sizes=(2,),
    corruptions=("contrast", "gaussian_noise"),
    severities=(1, 5),
    reference_accuracy=0.5,  # weights follow from the path of the data, and so would marks
    training=replace(PRESETS["scenes"].training, epochs=3, augment="none"),
)
OPTIONS = (
    *(
        "run",
        "shift",
        "--task",
        "segmentation",
        "--methods",
        "erm,mc-dropout,deep-ensemble",
        "--seeds",
        "1",
        "--ensemble-sizes",
        "2",
    ),
    *("--corruptions", "contrast,gaussian_noise", "--severities", "1,5", "--epochs", "3", "--augment", "none"),
    *("--reference-accuracy", "0.5", "--workers", "0", "--device", "cpu"),
)


@pytest.fixture(scope="module")
def plan(place):
    return replace(PLAN, data=write_shapes(place / "shapes.npz"))


@pytest.fixture(scope="module")
def study(plan, place):
    """Through the command, with its page."""
    words = ["--data", plan.data, "--store", str(place / "store"), "--output", str(place / "page")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nescio.report.pages.can_draw", lambda: False)
        assert main([*OPTIONS, *words]) == 0
    return read_study(place / "page")


def run(plan, context):
    with make_launcher("local", 0) as launcher:
        return base.run(base.registry["shift"], plan, Work(context, launcher))


def value(study, **facts):
    """The one number with these facts."""
    (found,) = [row for row in study.frame if all(row[name] == wanted for name, wanted in facts.items())]
    return found["value"]


def by_hand(plan, context, members, change=None):
    """Of the average of the first networks of erm, all pixels that are not void: labels, answers, entropy, and the
    mutual information."""
    trials = next(each for each in shift_trials(plan, {"erm": 0}) if len(each) == members)
    shown, draws = ImageSet(plan.data, change=change).load(), []
    truth = shown.images.label_maps()
    for trial in trials:
        module, network = build(network_of_trial(trial), context.store, HERE, None)
        x = torch.cat([part for part, _ in input_batches(network, shown, context.store, HERE, 8)])
        with torch.inference_mode():
            logits = module.eval()(x).logits[:, 0]
        size = truth.shape[1:]
        draws.append(torch.nn.functional.interpolate(logits, size, mode="bilinear", align_corners=False).softmax(1))
    mean, known = torch.stack(draws).mean(0), truth != VOID

    def entropy(p):
        return -(p * p.log()).sum(1).numpy()

    apart = entropy(mean) - np.mean([entropy(p) for p in draws], 0)
    return truth[known], mean.argmax(1).numpy()[known], entropy(mean)[known], apart[known]


# ---- rows


@pytest.mark.parametrize("members", [1, 2])
def test_shift_pixels__pooled_rows_are_those_of_all_pixels_of_clean_images_and_all_levels(
    study, plan, context, members
):
    facts = {"method": ("erm", "deep-ensemble")[members - 1], "members": members, "task": "segmentation"}
    for name in plan.corruptions:
        levels = [by_hand(plan, context, members, change) for change in (None, *(Corruption(name, s) for s in (1, 5)))]
        for level, (truth, called, _, _) in zip((("clean", 0), (name, 1), (name, 5)), levels, strict=True):
            where = facts | {"shift": level[0], "severity": level[1]}
            assert value(study, **where, metric="miou") == pytest.approx(metrics.miou(called, truth, 3), abs=1e-4)
            assert value(study, **where, metric="accuracy") == pytest.approx((called == truth).mean(), abs=1e-4)
        truth, called, entropy, apart = (np.concatenate(parts) for parts in zip(*levels, strict=True))
        where = facts | {"shift": name, "severity": None}
        assert value(study, **where, metric="miou") == pytest.approx(metrics.miou(called, truth, 3), abs=1e-4)
        for measure, u in {"entropy": entropy, "native": apart}.items():
            if (measure, members) == ("native", 1):
                continue
            for metric in ("auroc", "raulc"):
                expected = getattr(metrics, metric)(u, called != truth)
                found = value(study, **where, metric=metric, measure=measure)
                assert found == pytest.approx(expected, abs=5e-4)


def test_shift_pixels__an_average_of_two_differs_from_its_members_and_has_its_mutual_information(study):
    one, two = (
        value(study, method=name, shift="contrast", severity=None, metric="auroc", measure="entropy")
        for name in ("erm", "deep-ensemble")
    )
    assert one != two
    measures = {(row["method"], row["members"], row["measure"]) for row in study.frame if row["measure"]}
    assert measures == {
        *(("erm", 1, "entropy"), ("deep-ensemble", 2, "entropy"), ("deep-ensemble", 2, "native")),
        *(("mc-dropout", 1, "entropy"), ("mc-dropout", 1, "native")),
    }
    assert [(row["measure"], row["members"]) for row in study.reasons if row["method"] == "erm"] == [("native", 1)]


def test_run__no_pixel_is_dumped_and_a_second_run_does_nothing(study, plan, context, place):
    assert not (place / "store" / "predict").exists()
    before = sorted(str(path) for path in (place / "store").rglob("*"))
    again = run(plan, context)
    rows = [row for row in again.rows if row["metric"] == "raulc"]
    assert rows == [row for row in study.rows if row["metric"] == "raulc"] and again.pictures == study.pictures
    new = [path for path in map(str, (place / "store").rglob("*")) if path not in before]
    assert all("/study" in path for path in new)


def test_run__a_network_of_the_store_gives_the_rows_it_had(study, plan, context):
    (trial,) = shift_trials(plan, {"erm": 0})[0]
    again = run(replace(plan, networks=(f"store:{train_step(trial).key}",)), context)
    facts = {"method": "erm", "members": 1, "shift": "contrast", "severity": None, "metric": "raulc"}
    assert value(again, **facts) == value(study, **facts, measure="entropy")


def test_story__a_level_of_void_alone_costs_its_own_rows(tmp_path, recwarn):
    data = write_folders(tmp_path / "set", "shift/rain/1", "shift/rain/2", "shift/sun/15")
    for path in (tmp_path / "set/shift/rain/2/labels").iterdir():
        Image.fromarray(np.full((24, 32), VOID, np.uint8)).save(path)
    plan = replace(PLAN, data=data, methods=("erm",), ensemble_sizes=(), corruptions=(), severities=())
    found = run(plan, Context(Store(tmp_path / "store"), device="cpu"))
    assert not found.failures and not recwarn
    rows = {(row["shift"], row["severity"]): row["n"] for row in found.rows if row["metric"] == "miou"}
    one = 2 * 24 * 32  # pixels of a level
    assert rows == {
        ("clean", 0): one,
        ("rain", 1): one,
        ("sun", 75): one,
        ("rain", None): 2 * one,
        ("sun", None): 2 * one,
    }
    void = [entry for entry in found.reasons if "void" in entry["reason"]]
    assert {(entry["shift"], entry["severity"]) for entry in void} == {("rain", 2.0)}
    assert {entry["metric"] for entry in void} == {"miou", "accuracy", "auroc", "raulc"}
    shares = [row["value"] for row in found.pictures if row["shows"] == "prediction" and row["shift"] == "rain"]
    assert shares == [None, None] and json.dumps(found.pictures, allow_nan=False)
    assert reports.story(found)


def test_groups_of__a_score_that_is_not_finite_costs_its_own_rows(study, plan, context, monkeypatch, tmp_path):
    """Of one level: it then has no pooled row either, and every other row stays what it was."""

    def broken(step, store):
        counts, images = load_counts(step, store), step.config["images"]
        if images.change != Corruption("contrast", 5):
            return counts
        scores = {name: own for name, own in counts.scores.items() if name != "entropy"}
        return replace(counts, scores=scores, infinite={"entropy": 3})

    monkeypatch.setattr(predict, "load_counts", broken)
    (group,) = [group for group in steps.groups_of(plan, {"erm": 0}, None) if len(group.networks) == 2]
    evaluation = SegmentationShift(plan.corruptions, plan.severities, plan.measures)
    (step,) = plan_steps([Subject(group, plan.data)], [evaluation], None).steps
    files = step.make(None, context)
    (tmp_path / "rows").write_bytes(files["rows.parquet"])
    lost = [("contrast", 5.0, "entropy"), ("contrast", None, "entropy")]

    def place(row):
        return row["shift"], row.get("severity"), row["measure"]

    def numbers(rows):
        return [(*place(row), row["metric"], row["value"], row["n"]) for row in rows if row["split"] == "test"]

    before = [row for row in study.frame if row["method"] == "deep-ensemble"]
    kept = numbers(row for row in before if place(row) not in lost)
    assert numbers(from_parquet(tmp_path / "rows")) == kept and len(kept) == len(numbers(before)) - 4
    reasons = json.loads(files["reasons.json"])
    assert [place(entry) for entry in reasons] == lost
    assert all(entry["members"] == 2 and "not finite" in entry["reason"] for entry in reasons)


# ---- which levels


def test_shift_pixels__scenes_have_shifts_of_their_own_and_corruptions_by_name():
    plan = PRESETS["scenes"]
    levels = list(levels_of(plan))
    assert levels[0] == ("clean", 0.0)
    count = {name: sum(condition == name for condition, _ in levels) for name in ("darkness", "fog", "rain")}
    assert count == {"darkness": 11, "fog": 8, "rain": 4} and len(levels) == 1 + 23
    some = list(levels_of(replace(plan, corruptions=("fog", "motion_blur"), severities=(1, 3))))
    assert some == [("clean", 0.0), ("fog", 0.005), ("fog", 0.02), ("motion_blur", 1.0), ("motion_blur", 3.0)]
    with pytest.raises(BadInput, match="severities has 5"):
        levels_of(replace(plan, severities=(5,)))


def test_run__folders_of_shifted_images_are_levels(tmp_path):
    pixel = Image.fromarray(np.zeros((8, 12, 3), np.uint8)), Image.fromarray(np.zeros((8, 12), np.uint8))
    for folder in ("train", "test", "shift/sun/90", "shift/sun/-5", "shift/rain/1"):
        for kind, image in zip(("images", "labels"), pixel, strict=True):
            (tmp_path / folder / kind).mkdir(parents=True)
            image.save(tmp_path / folder / kind / "a.png")
    (tmp_path / "classes.txt").write_text("road\nsky\n")
    plan = replace(PLAN, data=f"maps:{tmp_path}", corruptions=(), severities=(), limit=1)
    levels = levels_of(plan)
    assert list(levels) == [("clean", 0.0), ("rain", 1.0), ("sun", 0.0), ("sun", 95.0)]  # the darkest last
    assert levels["sun", 95.0] == ImageSet(f"maps:{tmp_path}#sun/-5", sample_size=1)
    assert ("fog", 2.0) in levels_of(replace(plan, corruptions=("fog",), severities=(2,)))
    shutil.copytree(tmp_path / "shift" / "rain" / "1", tmp_path / "shift" / "fog" / "0.5")
    only = levels_of(replace(plan, corruptions=("fog",)))  # a folder comes before the corruption of its name
    assert list(only) == [("clean", 0.0), ("fog", 0.5)]
    (tmp_path / "shift" / "fog" / "0.5" / "labels" / "a.png").unlink()
    for number, kind in product(range(20), ("images", "labels")):  # enough to train
        shutil.copy(tmp_path / "train" / kind / "a.png", tmp_path / "train" / kind / f"{number}.png")
    with pytest.raises(BadInput, match="label map"):  # before any training
        run(plan, Context(Store(tmp_path / "store"), device="cpu"))
    assert not (tmp_path / "store").exists()
    shutil.rmtree(tmp_path / "shift")
    assert len(levels_of(plan)) == 1 + 15 * 5


def test_shift_pixels__other_sets_with_label_maps_have_the_fifteen_corruptions(plan):
    levels = levels_of(replace(plan, corruptions=(), severities=()))
    assert len(levels) == 1 + 15 * 5 and {name for name, _ in levels} == {"clean", *CORRUPTIONS}


# ---- refusals


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"methods": ("duq",)}, "The method duq cannot segment images"),
        ({"methods": ("dcu",)}, "The method dcu cannot segment images"),
        ({"data": "digits"}, "digits, which has no label maps"),
        ({"backbone": "mlp"}, "no map of features"),
        ({"measures": ("gap",)}, "Pixels are not counted by gap"),
        ({"ood": ("digits",)}, "ood"),
        ({"strengths": 2}, "strengths must be 1"),
        ({"corruption_files": "CIFAR-10-C"}, "corruption_files"),
        ({"corruptions": ("darkness",)}, "no shift named 'darkness'"),  # of scenes alone
    ],
)
def test_work__what_cannot_be_done_is_refused_before_any_work(plan, tmp_path, change, sentence):
    with pytest.raises(BadInput, match=sentence):
        run(replace(plan, **change), Context(Store(tmp_path / "store"), device="cpu"))
    assert not (tmp_path / "store").exists()


# ---- through the command


def test_shift_pixels__the_task_alone_starts_from_the_preset_of_the_scenes():
    def plan_of(*words):
        args = parser_for("run").parse_args(["run", "shift", *words])
        return options_of(args, Plan, PRESETS)

    assert plan_of("--task", "segmentation") == plan_of("--preset", "scenes") == PRESETS["scenes"]
    assert plan_of("--task", "classification") == plan_of() == PRESETS["small"]
    assert plan_of("--preset", "gpu", "--task", "segmentation") == replace(PRESETS["gpu"], task="segmentation")
    scenes, gpu = PRESETS["scenes"], PRESETS["scenes-gpu"]
    assert (scenes.data, scenes.methods, scenes.backbone) == ("scenes@64", (*DENSE, "deep-ensemble"), "conv")
    assert (gpu.data, gpu.methods, gpu.backbone, gpu.ensemble_sizes) == (
        "scenes",
        (*DENSE, "deep-ensemble"),
        "resnet18",
        (5,),
    )


# ---- reports and pictures


def test_report__the_story_holds_table_3_the_curves_and_the_pictures(study, place):
    story = reports.story(study)
    titles = [table.title for table in tables_of(story)]
    assert titles[0].startswith("Misclassification detection of pixels") and len(titles) == 1 + 2 + 1
    keys = [figure.key for figure in figures_of(story)]
    assert keys == [f"fig3-{name}-{metric}" for name in PLAN.corruptions for metric in ("miou", "auroc", "raulc")]
    assert figures_of(story)[0].chart()
    page = (place / "page" / "index.html").read_text()
    assert page.count('<ul class="gallery wide">') == 3 * 2 + 1 and len(page) < 3_000_000
    assert main(["report", str(place / "store"), "--only", "shift/table3", "--output", str(place / "r")]) == 0
    assert "clean mIoU" in (place / "r" / "table3.md").read_text()


def test_table_3_holds_clean_and_pooled_miou_and_the_mean_over_shifts(study):
    cells = reports.table_3(study.frame).cells()
    facts = {"method": "deep-ensemble", "members": 2, "severity": None}
    mean = np.mean([value(study, **facts, shift=name, metric="miou") for name in PLAN.corruptions])
    assert cells[("deep-ensemble", "2", "native"), "pooled mIoU ↑"].value == pytest.approx(mean)
    clean = value(study, method="deep-ensemble", members=2, shift="clean", metric="miou")
    assert cells[("deep-ensemble", "2", "entropy"), "clean mIoU ↑"].value == clean != mean
    ranked = [value(study, **facts, shift=n, metric="raulc", measure="native") for n in PLAN.corruptions]
    assert cells[("deep-ensemble", "2", "native"), "rAULC ↑"].value == pytest.approx(np.mean(ranked))
    assert not reports.table_2(study.frame) and not reports.figure_1(study.frame)  # those are of whole images


def test_table_3_says_how_exact_its_counts_are(study):
    bounds = [row["value"] for row in study.frame if row["metric"] == "bound"]
    assert len(bounds) == len(PLAN.corruptions) * len({(r["method"], r["members"], r["data_seed"]) for r in study.rows})
    assert max(bounds) == 0 and "error of" not in reports.table_3(study.frame).note  # few pixels: all scores differ
    rough = [row | {"value": 0.004} if row["metric"] == "bound" else row for row in study.frame]
    assert "0.004" in reports.table_3(type(study.frame)(rough)).note


def test_figure_3__continuous_shifts_are_figure_4_and_corruptions_figure_3(study):
    def renamed(rows, name, level):
        return [row | {"shift": name, "severity": row["severity"] and level, "shift_kind": None} for row in rows]

    own = study.frame
    assert reports.by_kind(own)[0].unique("shift") == list(PLAN.corruptions) and not reports.by_kind(own)[1]
    fog = renamed([row for row in own if row["shift"] == "contrast" and row["severity"] != 5], "fog", 0.15)
    both = type(own)([*own, *fog])
    assert reports.by_kind(both)[1].unique("shift") == ["fog"]
    fourth = [figure.key for figure in figures_of(reports.figure_4(both))]
    assert fourth == ["fig4-fog-miou", "fig4-fog-auroc", "fig4-fog-raulc"]
    assert not any("fog" in figure.key for figure in figures_of([reports.figure_3(both)]))
    assert list(figures_of(reports.figure_4(both))[0].points[1].values())[1] == "0.15"


def test_pictures_show_image_labels_answers_and_uncertainty(study, plan, context):
    shown = study.pictures
    sets = {(row["shift"], row["severity"]) for row in shown}
    assert sets == {("clean", 0.0), ("contrast", 5.0), ("gaussian_noise", 5.0)}  # the last level of each
    lines = 3  # erm, mc-dropout, two erm
    assert len(shown) == 3 * 2 * (2 + 2 * lines) and len(json.dumps(shown)) < 1_000_000

    def picture(**facts):
        (row,) = [row for row in shown if all(row.get(name) == wanted for name, wanted in facts.items())]
        return np.asarray(Image.open(io.BytesIO(b64decode(row["png"])))), row

    clean = ImageSet(plan.data, limit=2).load()
    table = class_colours(clean.classes)
    labels, _ = picture(shift="clean", image=1, shows="labels")
    assert np.array_equal(labels, table[clean.images.label_maps()[0]]) and (labels[0, 0] == 0).all()  # void
    image, _ = picture(shift="clean", image=2, shows="image")
    assert np.array_equal(image, clean.images.backing.read(clean.images.rows)[1])
    dull, _ = picture(shift="contrast", image=2, shows="image")
    assert dull.std() < image.std()
    facts = {"shift": "clean", "method": "deep-ensemble", "members": 2}
    answers, row = picture(**facts, image=1, shows="prediction")
    right = (answers == labels).all(-1)[clean.images.label_maps()[0] != VOID].mean()
    assert row["value"] == pytest.approx(right) and row["value"] > 0.5
    grey, row = picture(**facts, image=1, shows="uncertainty")
    assert row["measure"] == "mutual_information" and len(np.unique(grey)) > 3
    galleries = [block for block in walk_blocks([reports.pictures(study)]) if isinstance(block, Gallery)]
    assert len(galleries) == 3 * 2 and [name for _, name, _ in galleries[0].pictures[:4]] == [
        *("image", "labels", "erm: prediction", "erm: uncertainty"),
    ]  # fmt: skip


def test_every_level__tables_of_levels_mark_what_is_undertrained(study):
    """However high its mIoU is, it is not bold."""
    rows = [dict(row) for row in study.frame]
    for row in rows:
        if row["method"] == "mc-dropout" and row["metric"] == "miou":
            row["value"] = 0.99
        row["undertrained"] = row["method"] == "mc-dropout" or None
    for made in reports.every_level(type(study.frame)(rows)):
        bold = {labels[0] for labels, cells in made.rows for cell in cells if cell.best}
        assert {labels[0] for labels, _ in made.rows} == {
            "erm",
            "mc-dropout (undertrained)",
            "deep-ensemble",
        } and bold <= {"erm", "deep-ensemble"}
        assert made.index == ("method", "members") and "no spread and no test" in made.note


def test_figure_3__a_folder_named_as_a_corruption_is_a_continuous_shift(tmp_path):
    data = write_folders(tmp_path / "set", "shift/contrast/1")
    shifts = {"corruptions": ("contrast", "motion_blur"), "severities": (1,)}
    plan = replace(PLAN, data=data, methods=("erm",), ensemble_sizes=(), **shifts)
    own = run(plan, Context(Store(tmp_path / "store"), device="cpu")).frame
    third, fourth = figures_of([reports.figure_3(own)]), figures_of(reports.figure_4(own))
    assert [figure.key for figure in third] == [f"fig3-motion_blur-{name}" for name in ("miou", "auroc", "raulc")]
    assert [figure.key for figure in fourth] == [f"fig4-contrast-{name}" for name in ("miou", "auroc", "raulc")]


def test_every_level__a_level_by_the_sun_is_explained_wherever_it_stands(study):
    sentence = "The level of sun is 90 minus the sun's altitude in degrees."
    sun = {"shift": "sun", "shift_kind": None}
    rows = [row | sun if row["shift"] == "contrast" else row for row in study.frame]
    pictures = [row | {"shift": "sun"} if row["shift"] == "contrast" else row for row in study.pictures]
    own = replace(study, rows=rows, pictures=pictures)
    figures = figures_of(reports.figure_4(own.frame))
    assert len(figures) == 3
    for figure in figures:  # levels stand at their numbers, and the axis says what they are
        axes = [layer["encoding"]["x"] for layer in figure.chart().to_dict()["layer"]]
        assert {(axis["type"], axis["title"]) for axis in axes} == {("quantitative", "90° − altitude of the sun")}
    noise, sun = sorted(reports.every_level(own.frame), key=lambda table: table.title)
    assert sentence in sun.note and sentence not in noise.note
    (section,) = [section for section in reports.story(own).sections if section.link == "Pictures"]
    assert section.intro.endswith(sentence) and sentence not in reports.about_pictures(study)


def test_story__classes_stand_below_the_pictures_in_their_colours(study, plan, place):
    (section,) = [section for section in reports.story(study).sections if section.link == "Pictures"]
    bars = section.blocks[-1].pictures
    classes = ImageSet(plan.data).load().classes
    assert [name for _, name, _ in bars] == [*classes, "void"]
    shown = [np.asarray(Image.open(io.BytesIO(png))) for png, _, _ in bars]
    expected = class_colours(classes)[[*range(len(classes)), VOID]]
    assert [bar[0, 0].tolist() for bar in shown] == expected.tolist() and all((bar == bar[0, 0]).all() for bar in shown)
    assert all(name in (place / "page" / "index.html").read_text() for name in classes)
    old = [{name: value for name, value in row.items() if name != "classes"} for row in study.pictures]
    (section,) = [part for part in reports.story(replace(study, pictures=old)).sections if part.link == "Pictures"]
    assert len(section.blocks) == 1  # pictures of before: no class is named
