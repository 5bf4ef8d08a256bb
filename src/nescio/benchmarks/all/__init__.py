"""The plan of `nescio run all`: every method under every evaluation."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nescio.benchmarks.base import benchmark
from nescio.benchmarks.names import corruption_names, method_names
from nescio.benchmarks.plans import CIFAR, SMALL, NetworkPlan, hparams_option, networks_option
from nescio.identity import tag
from nescio.networks.preprocessing import Preprocessing
from nescio.options import nested, option
from nescio.trials import Training
from nescio.work.steps import Work

NAME, VERSION = "all", 1


@tag("plan:all")
@dataclass(frozen=True)
class Plan(NetworkPlan):
    """Networks, evaluations and the training budget."""

    data: str = option("digits", kind="dataset")
    held_out_classes: int = option(0, "number of last classes to use as a near OOD set", metavar="N")
    methods: tuple[str, ...] = option((), parse=method_names, unset="all, and deep-ensemble")
    hparams: tuple[str, ...] = hparams_option()
    backbone: str = option("conv")
    seeds: int = option(3)
    trials: int = option(1)
    search_seed: int = option(0)
    ensemble_sizes: tuple[int, ...] = option((5,), unset="none")
    ensemble_methods: tuple[str, ...] = option(
        (), "further methods whose networks are averaged as ensembles", kind="method"
    )
    networks: tuple[str, ...] = networks_option(
        "methods hparams backbone seeds trials ensemble_sizes ensemble_methods held_out_classes training"
    )
    evaluations: tuple[str, ...] = option((), "evaluations to run", metavar="NAME,…", kind="evaluation", unset="all")
    near_ood: tuple[str, ...] = option((), "OOD sets that are similar to the data", metavar="SET,…")
    far_ood: tuple[str, ...] = option((), "OOD sets that are not similar to the data", metavar="SET,…")
    downstream: tuple[str, ...] = option((), kind="dataset")
    annotated: tuple[str, ...] = option((), "datasets with several annotations per image", metavar="SET,…")
    corruptions: tuple[str, ...] = option(
        (), "corruptions of the test images", metavar="NAME,…", parse=corruption_names, unset="all fifteen"
    )
    severities: tuple[int, ...] = option((), "severities of corruptions, from 1 (weakest)", metavar="LIST", unset="all")
    limit: int | None = option(None, unset="all")
    seed: int = option(0)
    reference_accuracy: float | None = option(None, unset="the median of erm")
    against: str | None = option(None, "finished study to compare with: its folder or rows.parquet", metavar="STUDY")
    training: Training = nested(Training())
    preprocessing: Preprocessing = nested(Preprocessing())

    def check(self) -> None:
        super().check()
        self.require_min(0, "held_out_classes", "search_seed")
        self.require_ensemble_sizes()


DIGITS = Plan(held_out_classes=4, training=SMALL)
PRESETS = {
    "small": DIGITS,
    "quick": replace(DIGITS, seeds=2, ensemble_sizes=(), severities=(1, 3, 5), training=replace(SMALL, epochs=10)),
    "gpu": Plan(data="cifar10", backbone="resnet18", training=CIFAR),
}


@benchmark(NAME, version=VERSION, plan=Plan, presets=PRESETS, reports="nescio.benchmarks.all.reports")
def run(plan: Plan, work: Work) -> Plan:
    """Every method under every question, with one dataset, backbone and training budget.

    Trains each method under several seeds, predicts every image set once, and runs all evaluations that apply. The
    report has a leaderboard with significance groups, a profile of each method, trade-offs, and rank correlations.

    examples:
      nescio run all                                                digits, all methods, two cores
      nescio run all --methods erm,mine --plugin mine.py            a method of your own beside plain training
      nescio run all --methods mine --plugin mine.py --against results/cifar10 --preset gpu
      nescio run all --preset gpu --near-ood cifar100 --far-ood mnist,fashion-mnist
      nescio run all --data imagenet:PATH --networks resnet50,vit_small_patch16_224 --far-ood folder:PATH
    """
    from nescio.benchmarks.all.steps import compare  # torch stays out of --help

    return compare(plan, work)
