"""The plan of UIMNET, a comparison of classifiers and measures in OOD detection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nescio.benchmarks.base import benchmark
from nescio.benchmarks.names import ALL, measure_names, method_names
from nescio.benchmarks.plans import DEEP_ENSEMBLE, NetworkPlan
from nescio.errors import BadInput
from nescio.identity import tag
from nescio.options import nested, option
from nescio.trials import Training
from nescio.work.steps import Work

NAME, VERSION = "uimnet", 4
SEARCH, SCORECARD = "search", "scorecard"  # evaluations of every trial, and of the selected ones
MEASURES = ("msp", "gap", "entropy", "jacobian", "gmm", "tta", "native")  # those of the paper


def _method_names(text: str) -> tuple[str, ...]:
    return () if text == ALL else method_names(text)


def _measure_names(text: str) -> tuple[str, ...]:
    from nescio.measures import registry

    if text != ALL:
        return measure_names(text)
    return tuple(part.name for part in registry.parts() if part.kind in ("plain", "fitted") and not part.equivalent_to)


@tag("plan:uimnet")
@dataclass(frozen=True)
class Plan(NetworkPlan):
    """Methods, data and training budget."""

    data: str = option("digits", kind="dataset")
    methods: tuple[str, ...] = option((), parse=_method_names, unset="all classifiers")
    backbones: tuple[str, ...] = option(("conv",))
    spectral_bounds: tuple[float | None, ...] = option(
        (None, 5.0), "bounds of each layer's spectral norm to compare", metavar="BOUND,…"
    )
    measures: tuple[str, ...] = option(MEASURES, parse=_measure_names)
    exact_jacobian: bool = option(
        False, "compute the whole Jacobian instead of estimating it above 16 classes", introduced=False
    )
    ensemble_sizes: tuple[int, ...] = option((1, 5))
    trials: int = option(3)
    seeds: int = option(2)
    search: Literal["random", "optuna"] = option("random", "search strategy of further trials")
    search_seed: int = option(0)
    classes: tuple[int, ...] | None = option(None, unset="by the Ward tree; digits: 0-5")
    ood_classes: tuple[int, ...] | None = option(
        None, "classes that are out-of-distribution", metavar="LIST", unset="all others"
    )
    partition: str | None = option(
        None, "file of in- and out-of-distribution classes, from `nescio imagenot`", metavar="FILE", introduced=None
    )
    partition_features: Literal["reference", "pixels"] | None = option(
        None, "features used for the class split", unset="those of a reference network"
    )
    oracle: bool = option(True, "train an oracle on the OOD classes as well")
    training: Training = nested(Training())

    def check(self) -> None:
        super().check()
        if min(self.ensemble_sizes, default=0) < 1:
            raise BadInput("An ensemble has at least one member.")
        if DEEP_ENSEMBLE in self.methods and max(self.ensemble_sizes) < 2:
            raise BadInput("Plan.ensemble_sizes must have a size of at least 2 for deep-ensemble, such as 1,5.")
        for target in self.spectral_bounds:
            if target is not None and target <= 0:
                raise BadInput(f"A target of the spectral norm must be above 0, not {target:g}.")
        if self.partition is not None and (self.classes or self.ood_classes or self.partition_features):
            raise BadInput(
                "Plan.partition has the classes of both sides: omit classes, ood_classes and partition_features."
            )
        if self.ood_classes and not self.classes:
            raise BadInput("Plan.ood_classes needs classes: name the in-distribution classes as well.")
        if self.classes is not None and len(self.classes) < 2:
            raise BadInput("At least two classes must be in-distribution: with one there is nothing to classify.")


# the methods of the paper (UIMNET §3)
PAPER = ("erm", "mixup", "soft-labels", "rbf", "rnd", "oc", "deep-ae", "mc-dropout", "mimo", "due")
DEMO = Training(epochs=15, batch_size=64, step_epochs=6, augment="shift")
PRESETS = {
    "small": Plan(training=Training(epochs=20, batch_size=64, step_epochs=8, augment="shift")),
    "demo": Plan(methods=PAPER, trials=2, spectral_bounds=(None,), training=DEMO),
    # as in the paper: ImageNet, two sizes, ten trials, three data seeds, SGD, 100 epochs, batch 256, rate ÷ 10 every 30
    "paper": Plan(data="imagenet", methods=PAPER, backbones=("resnet18", "resnet50"), trials=10, seeds=3),
}


@benchmark(NAME, version=VERSION, plan=Plan, presets=PRESETS, reports="nescio.benchmarks.uimnet.reports")
def run(plan: Plan, work: Work) -> Plan:
    """OOD detection by classifiers: every method with every uncertainty measure (UIMNET).

    Trains and calibrates data seeds × trials × backbones × spectral bounds, averages the best trials of each method,
    and evaluates all of them on trained and on other classes: Tables 2 and 3 of the paper.

    examples:
      nescio run uimnet --data digits --methods all --trials 3 --seeds 2 --workers 2
      nescio run uimnet --data cifar10 --backbones resnet18 --methods erm,mimo,due --spectral-bounds none,5 --epochs 60
      nescio run uimnet --preset paper                 ImageNet as in the paper: ten trials, three seeds, two sizes
      nescio run uimnet --measures entropy,mine        a new measure over a finished study: no network predicts again
    """
    from nescio.benchmarks.uimnet.steps import compare  # torch stays out of --help

    return compare(plan, work)
