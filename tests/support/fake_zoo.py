"""Made-up answers of made-up models with real names: what `nescio zoo` leaves behind, without any network."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from nescio.benchmarks.base import registry, study_of
from nescio.predictions import Predictions
from nescio.predictions.model_predictions import FACTS, PREDICTIONS, STAGE, ModelPredictions, predictions_from_file
from nescio.report.studies import Study
from nescio.work.launchers import make_launcher
from nescio.work.steps import Context, Work
from nescio.work.store import Store

DATA = "npz:images"
NAMES = (
    *("vit_base_patch16_224.augreg_in21k_ft_in1k", "vit_base_patch16_224.augreg_in1k"),
    *("vit_small_patch16_224.augreg_in21k_ft_in1k", "vit_small_patch16_224.augreg_in1k"),
    "vit_base_patch16_384.augreg_in21k_ft_in1k",
    *("deit_tiny_patch16_224.fb_in1k", "deit_small_patch16_224.fb_in1k", "deit_base_patch16_224.fb_in1k"),
    *("deit_tiny_distilled_patch16_224", "deit_small_distilled_patch16_224", "deit_base_distilled_patch16_224"),
    "regnety_160.deit_in1k",
    *("xcit_nano_12_p16_224.fb_in1k", "xcit_tiny_12_p16_224.fb_in1k", "xcit_small_12_p16_224.fb_in1k"),
    *("xcit_nano_12_p16_224_dist", "xcit_tiny_12_p16_224_dist", "xcit_small_12_p16_224.fb_dist_in1k"),
    *("tf_efficientnet_b0.aa_in1k", "tf_efficientnet_b0.ap_in1k", "tf_efficientnet_b0_ns"),
    *("resnet18.tv_in1k", "resnet50.tv_in1k", "ssl_resnet18", "swsl_resnet50"),
    *("resnext101_32x8d.tv_in1k", "ig_resnext101_32x8d"),
    *("ecaresnet50d.miil_in1k", "ecaresnet50d_pruned.miil_in1k"),
    *("vgg11.tv_in1k", "vgg13.tv_in1k", "vgg11_bn.tv_in1k"),
    *("tf_efficientnetv2_s.in1k", "tf_efficientnetv2_s_in21ft1k", "torchvision:mobilenet_v2", "my own net"),
)
WITH_DROPOUT = ("vgg11.tv_in1k", "vgg13.tv_in1k", "torchvision:mobilenet_v2")


def answers(seed: int, n: int = 400, c: int = 8, *, dropout: bool = False, scale: float | None = None) -> Predictions:
    """A model of its own skill and confidence; all models answer the same images."""
    shared, own = np.random.default_rng(0), np.random.default_rng(100 + seed)
    labels, hardness = shared.integers(c, size=n), shared.normal(size=n)
    z = own.normal(size=(n, c))
    z[np.arange(n), labels] += own.uniform(1.2, 3.5) - hardness
    z *= own.uniform(0.5, 2.2) if scale is None else scale
    variants = {}
    if dropout:
        passes = np.exp(z[:, None] + own.normal(scale=0.8, size=(n, 6, c)))
        variants["mc-dropout"] = np.log((passes / passes.sum(-1, keepdims=True)).mean(1))
    return Predictions(labels=labels, logits=z.astype(np.float16), index=3 * np.arange(n) + 7, variants=variants)


def entry(model: str, dump: Predictions, file: Path, **facts: object) -> ModelPredictions:
    """The dump as a file, and the entry of it."""
    place = dump.save(file)
    return ModelPredictions(model, DATA, facts, place, predictions_from_file(place).key)


def zoo(folder: Path, names: tuple[str, ...] = NAMES, n: int = 500) -> list[ModelPredictions]:
    """One entry a name; sizes differ, and one model of a family looks at larger images."""
    found = []
    for number, name in enumerate(names):
        facts = {"params": 1_000_000 * (3 + number * 7 % 23), "input_size": 384 if "384" in name else 224}
        if name == "my own net":
            facts = {}
        dump = answers(number, n, dropout=name in WITH_DROPOUT)
        found.append(entry(name, dump, folder / f"{number}.npz", **facts))
    return found


def keep(store: Store, model: str, data: str, dump: Predictions, outside: bool, **facts: Any) -> None:
    """Finished predictions in a store, as `nescio zoo` keeps them."""
    with store.work(STAGE, {"model": model, "data": data, "outside": outside}) as step_folder:
        assert step_folder is not None
        dump.save(step_folder.path / PREDICTIONS)
        about = {"model": model, "data": data, "outside": outside, "compared": True, "rows": len(dump), **facts}
        step_folder.write(FACTS, json.dumps(about).encode())


def study(
    benchmark: str, plan: Any, store: Store, do: Callable[[Work], None], workers: int = 0, watch: Any = None
) -> Study:
    """The study of a benchmark's own function over models that are at hand."""
    with make_launcher("local", workers) as launcher:
        work = Work(Context(store), launcher, watch)
        do(work)
        return study_of(registry[benchmark], plan, work)
