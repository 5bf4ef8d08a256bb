"""docs/scale.md: its table is recomputed from the plans of the presets and the figures of docs/performance.md."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest

from nescio.api.dry_run import size_text
from nescio.benchmarks.costs import H200, arithmetic, predicting_seconds, training_seconds
from nescio.benchmarks.uimnet import PRESETS as UIMNET
from nescio.benchmarks.uimnet.steps import oracle_trials, reference, trials_of
from nescio.benchmarks.url import PRESETS as URL
from nescio.benchmarks.url.steps import CRITERIA
from tests.support.paths import ROOT

TRAINING, TESTING, CLASSES = 1_281_167, 50_000, 1000  # of ImageNet-1k
LEARNT = 0.9  # of the training images; the others validate
SIDE = 266  # classes that are in- and out-of-distribution (UIMNET §2)
MODELS, MEAN = 500, 41.2e9  # operations of an image, the mean of 41 models: see test_the_mean_of_timms_models
LOADING = 40_000 / 13_541 - 40_000 / 15_710  # seconds of loading the weights and saving, by the figures
DOWNSTREAM = 11_788 + 16_185 + 120_053  # images of CUB, CARS and SOP
TRAIN_FILES, PREDICT_FILES, EVALUATE_FILES = 4, 9, 4


@dataclass
class Total:
    seconds: float = 0.0
    bytes: float = 0.0
    files: int = 0

    def add(self, seconds, size, files):
        self.seconds += seconds
        self.bytes += size
        self.files += files


def zoo():
    """500 models predict ImageNet's validation images: logits in float16, index, labels and `in_distribution`."""
    total = Total()
    for _ in range(MODELS):
        seconds = TESTING * MEAN / H200.predicting + LOADING
        total.add(seconds, TESTING * (2 * CLASSES + 17), PREDICT_FILES - 1 + EVALUATE_FILES)
    return total


def uimnet():
    """Every trial is trained on its classes and predicts three splits: logits and embeddings in float32."""
    classes = tuple(range(SIDE))
    plan = replace(UIMNET["paper"], classes=classes, ood_classes=tuple(range(SIDE, 2 * SIDE)))
    total = Total()
    jobs = [(trial, SIDE, 3) for trial in trials_of(plan)]
    jobs += [(trial, 2 * SIDE, 2) for trial in oracle_trials(plan)] + [(reference(plan), CLASSES, 0)]
    for trial, count, splits in jobs:
        network, images = arithmetic(trial.backbone, 3, (224, 224)), TRAINING * count / CLASSES
        seconds = training_seconds(H200, network, LEARNT * images * trial.training.epochs, trial.method)
        rows = (1 - LEARNT) * images + (splits - 1) * TESTING * SIDE / CLASSES if splits else 0
        seconds += predicting_seconds(H200, network, rows)
        size = 4 * network.params + rows * 4 * (SIDE + network.width)
        total.add(seconds, size, TRAIN_FILES + splits * PREDICT_FILES + EVALUATE_FILES)
    return total


def url():
    """Trials and extensions of every method and backbone, and further seeds of both choices, at most."""
    plan, total = URL["paper"], Total()
    each = plan.trials + plan.extension + len(CRITERIA) * (plan.seeds - 1)
    for backbone, pixels in zip(plan.backbones, plan.input_sizes, strict=True):
        network = arithmetic(backbone, 3, (pixels, pixels))
        for method in plan.methods:
            seconds = training_seconds(H200, network, LEARNT * TRAINING * plan.training.epochs, method)
            rows = TESTING + DOWNSTREAM
            size = 4 * network.params + 4 * (rows * network.width + TESTING * CLASSES)
            sets = 1 + 2 * len(plan.downstream)
            seconds += predicting_seconds(H200, network, rows)
            total.add(each * seconds, each * size, each * (TRAIN_FILES + sets * PREDICT_FILES + EVALUATE_FILES))
    return total


def hours(seconds):
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:,.0f} h" if seconds >= 36_000 else f"{seconds / 3600:.1f} h"


def line(name, total):
    clocks = " | ".join(hours(total.seconds / gpus) for gpus in (1, 8, 64))
    return f"| {name} | {clocks} | {size_text(total.bytes)} | {total.files:,} |"


def test_scale__the_table_is_what_the_plans_and_figures_give():
    text = (ROOT / "docs" / "scale.md").read_text()
    assert line("500 timm models × ImageNet-1k", zoo()) in text
    assert line("`nescio run uimnet --preset paper`", uimnet()) in text
    assert line("`nescio run url --preset paper`", url()) in text


def test_scale__the_numbers_in_the_prose_are_those_of_the_figures():
    text = " ".join((ROOT / "docs" / "scale.md").read_text().split())
    plan = UIMNET["paper"]
    assert f"{len(trials_of(replace(plan, classes=(0, 1), ood_classes=(2, 3)))):,} trials" in text
    network = arithmetic("resnet50", 3, (224, 224))
    assert f"ResNet-50 of UIMNET takes {hours(training_seconds(H200, network, LEARNT * TRAINING * SIDE / 10))}" in text
    network = arithmetic(URL["paper"].backbones[1], 3, (256, 256))
    assert f"ViT of URL {hours(training_seconds(H200, network, LEARNT * TRAINING * 32))}" in text
    assert f"{math.ceil(TRAINING / 1837 / 60)} minutes" in text
    assert f"{H200.training / 1e12:.0f} and {H200.predicting / 1e12:.0f} · 10¹²" in text


@pytest.mark.slow
def test_scale__the_mean_of_timms_models():
    """Every 32nd of timm's pretrained classifiers of ImageNet-1k, each at the size of its weights."""
    import timm
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    names = [name for name in timm.list_models(pretrained=True) if timm.get_pretrained_cfg(name).num_classes == CLASSES]
    found = []
    for name in names[:: len(names) // 40]:
        with torch.device("meta"), torch.no_grad():
            network = timm.create_model(name).eval()
            with FlopCounterMode(display=False) as counter:
                try:
                    network(torch.empty(1, *network.pretrained_cfg["input_size"]))
                except AssertionError:  # layers that the counter cannot follow
                    continue
        found.append(counter.get_total_flops())
    # timm grows, and with it every 32nd of its names is another: 41.2e9 became 34.7e9 from one release to the next
    assert sum(found) / len(found) == pytest.approx(MEAN, rel=0.25)
