"""The plan of reliability: scores of representations, computed without labels.

Source: Park, Wang, Ardeshir and Azizan, Quantifying representation reliability, 2024.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nescio.analysis.representations.agreement import SweepOptions, require_some
from nescio.analysis.representations.ranking import OPTIONS
from nescio.benchmarks.base import benchmark
from nescio.errors import BadInput
from nescio.identity import map_content
from nescio.options import nested, option
from nescio.registry import canonical_name
from nescio.specs import assignment, counts
from nescio.trials import Training
from nescio.work.steps import Work

NAME, VERSION = "reliability", 5


@dataclass(frozen=True)
class Plan(SweepOptions):
    """Candidates, downstream data, scores and training budget."""

    pretraining_data: tuple[str, ...] = option(
        ("digits",), "datasets to pre-train networks on", kind="dataset", metavar="SET,…"
    )
    downstream: tuple[str, ...] = option((), metavar="[SET=]SET,…", unset="the pre-training data")
    methods: tuple[str, ...] = option(("simclr", "byol", "moco"), kind="method")
    backbones: tuple[str, ...] = option(("conv",))
    seeds: int = option(10)
    method_seeds: tuple[tuple[str, int], ...] = option(
        (),
        "number of repeated trainings of single methods, such as moco=3,byol=2",
        metavar="METHOD=N,…",
        parse=lambda text: tuple(counts(text).items()),
        write=lambda pairs: ",".join(f"{name}={count}" for name, count in pairs),
        unset="--seeds",
    )
    reference_size: int = option(5000, group=OPTIONS)
    reference_samples: int = option(5, "number of samples of references", metavar="N", group=OPTIONS)
    k_accuracy: int = option(20, "number of neighbours of the k-NN accuracy", metavar="K", group=OPTIONS, introduced=20)
    tasks: Literal["one-vs-one", "multiclass"] = option("one-vs-one", group=OPTIONS)
    training: Training = nested(Training())

    def check(self) -> None:
        super().check()
        self.require_min(1, "seeds", "reference_size", "reference_samples", "k_accuracy")
        for method, count in self.method_seeds:
            if method not in self.methods or count < 1:
                raise BadInput(
                    f"Plan.method_seeds has {method}={count}: name one of methods, and at least one network."
                )
        for target in self.downstream:
            source, _ = assignment(target)
            if source and not self.divided(target)[0]:
                raise BadInput(f"Plan.downstream has {target}, but {source} is not in pretraining_data.")
        require_some(self, "pretraining_data", "methods", "backbones")

    def divided(self, target: str) -> tuple[str, str]:
        """(SOURCE, TARGET) of SOURCE=TARGET, where SOURCE is in `pretraining_data`; without SOURCE, it is empty."""
        typed = (
            next((data for data in self.pretraining_data if target.startswith(f"{data}=")), "") or assignment(target)[0]
        )
        names = {canonical_name("dataset", data): data for data in self.pretraining_data}
        source = names.get(canonical_name("dataset", typed), "") if typed else ""
        start = len(typed) + 1 if source else 0
        return source, map_content(target, lambda name: name[start:])

    @property
    def sources(self) -> dict[str, list[str]]:
        """Pre-training data → its downstream data."""
        pairs = list(map(self.divided, dict.fromkeys(self.downstream)))
        shared = [target for source, target in pairs if not source]
        paired = {data: [target for source, target in pairs if source == data] for data in self.pretraining_data}
        return {data: paired[data] or shared or [data] for data in self.pretraining_data}


PRESETS: dict[str, Plan] = {
    "small": Plan(
        seeds=3,
        reference_size=500,
        k=20,
        training=Training(epochs=30, batch_size=64, augment="full", schedule="cosine"),
    ),
    # the paper does not state the budget of the pre-training
    "paper": Plan(
        pretraining_data=("cifar10", "cifar100", "tiny-imagenet"),
        downstream=("tiny-imagenet=cifar10", "tiny-imagenet=cifar100", "tiny-imagenet=stl10"),
        backbones=("resnet18", "resnet50"),
        training=Training(epochs=200, batch_size=512, augment="full", schedule="cosine", warmup=10, weight_decay=5e-4),
    ),
}


# ---- the benchmark


@benchmark(NAME, version=VERSION, plan=Plan, presets=PRESETS, reports=f"{__name__}.reports")
def reliability(plan: Plan, work: Work) -> None:
    """Reliability of representations without labels: which embeddings can be trusted?

    Networks are trained without labels (SimCLR, BYOL, MoCo), with several seeds of each. Every test image gets scores
    from embeddings alone: neighbourhood consistency (NC), distance to the references (Dist), length (Norm), density
    (LL) and variance between the networks (FV). Heads on the frozen features, one for every pair of classes, give the
    loss of every image. Kendall's τ compares scores with losses (Park et al. 2024).

    Downstream data is the pre-training data, or another dataset with as many channels (--downstream). Its images are
    resized to the input size of the networks. Finished work is in the store: the same command does what is missing.

    examples:
      nescio run reliability
      nescio run reliability --pretraining-data digits --methods simclr,moco --seeds 3 --epochs 5 --workers 2
      nescio run reliability --pretraining-data cifar10 --backbones resnet18 --seeds 5 --k 100 --batch-size 512
      nescio run reliability --pretraining-data npz:tiny.npz@32 --downstream npz:cifar100.npz --backbones resnet18
      nescio run reliability --preset paper          CIFAR-10, CIFAR-100, Tiny-ImageNet → three sets, two sizes, M = 10
    """
    from nescio.benchmarks.reliability.steps import compare  # torch stays out of --help

    compare(plan, work)
