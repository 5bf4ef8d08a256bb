"""The plan of URL (Kirchhof et al. 2023): does the uncertainty of a pretrained network transfer to other datasets?

`steps` trains and evaluates, `reports` shows the results.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nescio.benchmarks.base import benchmark
from nescio.benchmarks.names import measure_names
from nescio.benchmarks.plans import CIFAR, NetworkPlan, hparams_option, networks_option
from nescio.errors import BadInput
from nescio.identity import tag
from nescio.networks.preprocessing import Preprocessing
from nescio.options import nested, option
from nescio.specs import mapping, product
from nescio.trials import Training
from nescio.work.steps import Work

NAME, VERSION = "url", 4  # 3: equal entropies of human votes tie; 4: rows without measured times
# The methods of the paper (§4.1); its deep ensemble is `heads`.
PAPER = ("erm", "infonce", "mc-infonce", "elk", "nivmf", "hib", "het-xl", "losspred", "heads", "mc-dropout", "sngp")
EVERY = (*PAPER, "losspred-order")
MEASURES = ("entropy", "msp", "norm")


@tag("plan:url")
@dataclass(frozen=True)
class Plan(NetworkPlan):
    """The trained methods, the datasets of evaluation, and the search of hyper-parameters."""

    data: str = option("digits", kind="dataset")
    classes: tuple[int, ...] | None = option((0, 1, 2, 3, 4), unset="all")
    downstream: tuple[str, ...] = option(("digits",), metavar="SET[#CLASSES],…")
    annotated: tuple[str, ...] = option((), "datasets with several annotations per image", metavar="SET,…")
    methods: tuple[str, ...] = option(("erm", "mc-dropout", "sngp", "simclr"), kind="method")
    ensemble_size: int = option(5, introduced=5)
    backbones: tuple[str, ...] = option(("conv",))
    input_sizes: tuple[int, ...] = option(
        (),
        "image sizes for each backbone, in their order",
        metavar="PIXELS,…",
        unset="those of the data",
        introduced=(),
    )
    batches: tuple[str, ...] = option(
        (),
        "batches of single methods, as METHOD=21x96 or METHOD@BACKBONE=21x96: 21 steps of 96 images",
        metavar="METHOD=NxN,…",
        unset="--batch-size",
        introduced=(),
    )
    hparams: tuple[str, ...] = hparams_option()
    starts: tuple[str, ...] = option(
        (), "initial weights of each backbone, as file:PATH, in their order", metavar="WEIGHTS,…", unset="random"
    )
    networks: tuple[str, ...] = networks_option(
        "methods ensemble_size backbones input_sizes batches hparams starts trials extension checkpoints seeds shots "
        "upper_bound training"
    )
    measures: tuple[str, ...] = option(MEASURES, parse=measure_names)
    trials: int = option(3)
    extension: int = option(2, "number of further trials beyond a range whose bound is best", metavar="N")
    checkpoints: int = option(
        3,
        "epochs, evenly spaced, of which a training ends with that of the best R-AUROC on validation classes",
        introduced=1,
    )
    seeds: int = option(3)
    min_recall: float = option(0.1, "networks with a lower R@1 of validation classes are not chosen")
    validation_share: float = option(
        0.5, "share of downstream classes for validation, for sets without a split", metavar="SHARE"
    )
    shots: tuple[int, ...] = option((1, 2, 5, 10), "numbers of training images per downstream class", metavar="K,…")
    upper_bound: bool = option(True, "train an upper bound on held-out images of the test classes")
    bootstrap: int = option(200)
    limit: int | None = option(None, unset="all")
    seed: int = option(0, introduced=0)
    search_seed: int = option(0)
    training: Training = nested(Training())
    preprocessing: Preprocessing = nested(Preprocessing(), introduced=Preprocessing())

    def check(self) -> None:
        super().check()
        self.require_min(1, "checkpoints")
        self.require_min(2, "ensemble_size")
        self.require_min(0, "extension", "bootstrap")
        for name in ("min_recall", "validation_share"):
            if not 0 <= getattr(self, name) < 1:
                raise BadInput(f"Plan.{name} is {getattr(self, name):g}: it must be at least 0 and below 1.")
        if not self.downstream:
            raise BadInput("Name at least one downstream set.")
        for name in ("starts", "input_sizes"):
            entries = getattr(self, name)
            if entries and len(entries) != len(self.backbones):
                raise BadInput(f"{name} has {len(entries)} entries for {len(self.backbones)} backbones: give each one.")
        for size in mapping(self.batches, "METHOD=PARTSxIMAGES, such as hib=21x96", "--batches").values():
            product(size)
        if min(self.shots, default=1) < 1:
            raise BadInput("Plan.shots must be at least 1; networks without labelled images are always evaluated.")


DIGITS = Training(lr=0.05, epochs=15, batch_size=64, schedule="cosine", warmup=1.0, augment="shift")
# Appendix B: 32 epochs of LAMB, batches of 2048 in 16 blocks, one epoch at a constant rate, five of warm-up. Learning
# rates are from 1e-4 to 1e-2: trials multiply this one by 0.3 to 3, and further if the best is at a bound. The initial
# learning rate is not in the paper: a hundredth is our choice.
LAMB = Training(
    optimizer="lamb",
    lr=1e-3,
    epochs=32,
    batch_size=2048,
    accumulate=16,
    schedule="cosine",
    warmup_flat=1.0,
    warmup_from=0.01,
    warmup=5.0,
    augment="full",
)
VIT = "vit_medium_patch16_gap_256"
# Reduced budgets, with the defaults of all methods. AdamW, because LAMB moves a layer by a share of its length:
# in few steps a new head stays near its initial weights, at learning rates that do not destroy the pretrained weights.
SHORT = Training(
    optimizer="adamw",
    lr=5e-4,
    epochs=3,
    batch_size=128,
    schedule="cosine",
    warmup=0.5,
    weight_decay=0.01,
    augment="full",
)
SCRATCH = replace(SHORT, lr=2e-3, epochs=32, batch_size=256, warmup=2.0, weight_decay=0.05)
# elk's t of 64 works with 100 classes
REDUCED = Plan(classes=None, methods=EVERY, trials=1, seeds=2, shots=(), upper_bound=False, hparams=("elk.t=64",))
PRESETS = {
    "small": Plan(training=DIGITS),
    "gpu": Plan(
        data="cifar10", classes=None, downstream=("cifar100",), backbones=("resnet18",), trials=5, training=CIFAR
    ),
    "short": replace(  # from weights of ImageNet, see --starts
        REDUCED,
        data="tiny-imagenet",
        downstream=("cub200", "cifar100"),
        backbones=("tf_efficientnet_lite0",),
        input_sizes=(128,),
        hparams=("elk.t=64", "sngp.bound=100"),  # pretrained layers stretch by up to 75: the default of 6 destroys them
        training=SHORT,
    ),
    "scratch": replace(
        REDUCED,
        data="cifar10",
        downstream=("cifar100",),
        annotated=("cifar10h",),
        backbones=("resnet18",),
        checkpoints=1,
        training=SCRATCH,
    ),
    "paper": Plan(
        data="imagenet",
        classes=None,
        downstream=("cub200", "cars196", "sop"),
        annotated=("cifar10h", "benthic", "pig", "turkey", "treeversity1"),
        methods=PAPER,
        backbones=("resnet50:max", VIT),  # embeddings are maxima over the map
        input_sizes=(224, 256),
        batches=("infonce=21x96", "mc-infonce=21x96", "hib=21x96", f"hib/{VIT}=43x48"),
        hparams=("mc-infonce.average=losses",),  # equation 2
        trials=10,
        checkpoints=8,
        training=LAMB,
    ),
}


@benchmark(NAME, version=VERSION, plan=Plan, presets=PRESETS, reports="nescio.benchmarks.url.reports")
def run(plan: Plan, work: Work) -> Plan:
    """Does the uncertainty of a pretrained network transfer to images of other datasets? (URL, Kirchhof et al. 2023.)

    Networks are trained on one dataset and embed others, without labels of these. R@1 is the share of images whose
    nearest other image has the same label. R-AUROC measures whether images without such a neighbour are uncertain.
    Hyper-parameters are chosen on validation classes of the downstream sets, once by R-AUROC and once by R@1. The
    chosen networks are trained with several seeds, and evaluated on other classes. Further evaluations are human votes,
    crops, upstream results, out-of-distribution detection, mixtures, a few labelled images, and costs.

    A downstream set is divided by classes. Sets that are published so (cub200, cars196, sop) keep their test classes,
    and the second half of their training classes is for validation. Of other sets, the test images of classes that were
    not trained are used, and the first half of these classes is for validation. DATA#50-99#100-199 names validation and
    test classes (5,7-9 are four of them), DATA#100-199 test classes alone, for --trials 1.

    examples:
      nescio run url                                       digits: 0 to 4 are trained, 5 to 9 are downstream
      nescio run url --preset gpu --methods erm,mc-infonce,losspred     CIFAR-10 to CIFAR-100, ResNet-18
      nescio run url --preset short --starts file:LITE0     Tiny-ImageNet to CUB and CIFAR-100, from weights of ImageNet
      nescio run url --preset scratch                      CIFAR-10 to CIFAR-100 and human votes, ResNet-18
      nescio run url --preset paper --starts file:RESNET50,file:VIT      ImageNet to CUB, CARS and SOP, two backbones
      nescio run url --networks resnet50,NAME@FILE --data imagenet --downstream cub200     networks that exist already
    """
    from nescio.benchmarks.url.steps import compare  # torch stays out of --help

    return compare(plan, work)
