"""The plan of posthoc, a comparison of uncertainty scores of saved outputs."""

from __future__ import annotations

from dataclasses import dataclass

from nescio.benchmarks.base import benchmark
from nescio.benchmarks.plans import CIFAR, DEEP_ENSEMBLE, SMALL, NetworkPlan, networks_option
from nescio.identity import tag
from nescio.networks.preprocessing import Preprocessing
from nescio.options import nested, option
from nescio.specs import method_on
from nescio.trials import Training
from nescio.work.steps import Work

NAME, VERSION = "posthoc", 1
VIT = "vit_tiny_patch16_224:patch4"
TRANSFORMERS = ("vit", "deit", "swin", "swinv2", "xcit", "cait", "twins", "coat", "pit")  # families, trained by AdamW
MISTAKES, NEAR, FAR = QUESTIONS = ("misclassification", "near-ood", "far-ood")  # evaluations


@tag("plan:posthoc")
@dataclass(frozen=True)
class Plan(NetworkPlan):
    """Networks, image sets and training budgets."""

    data: str = option("digits", kind="dataset")
    train_networks: tuple[str, ...] = option(
        ("erm/conv", "mc-dropout/conv"),
        "networks to train, as METHOD/BACKBONE; deep-ensemble/BACKBONE is an ensemble",
        metavar="METHOD/BACKBONE,…",
    )
    ensemble_size: int = option(5)
    near_ood: tuple[str, ...] = option((), "OOD sets that are similar to the data", metavar="SET,…")
    far_ood: tuple[str, ...] = option((), "OOD sets that are not similar to the data", metavar="SET,…")
    held_out_classes: int = option(0, "number of last classes to use as a near OOD set", metavar="N")
    seeds: int = option(1)
    networks: tuple[str, ...] = networks_option(
        "train_networks ensemble_size seeds transformer_lr transformer_weight_decay transformer_epochs training"
    )
    fit_images: int | None = option(
        None, "maximum number of training images to fit scores to", metavar="N", unset="all"
    )
    limit: int = option(10_000)
    seed: int = option(0, introduced=0)
    transformer_lr: float = option(1e-3, "learning rate of transformers (AdamW)", metavar="LR", group="transformers")
    transformer_weight_decay: float = option(0.05, "weight decay of transformers", metavar="WD", group="transformers")
    transformer_epochs: int = option(20, "training epochs of transformers", metavar="N", group="transformers")
    training: Training = nested(Training())
    preprocessing: Preprocessing = nested(Preprocessing(), introduced=Preprocessing())

    def check(self) -> None:
        super().check()
        self.require_min(2, "ensemble_size")
        self.require_min(1, "fit_images", "transformer_epochs")
        self.require_min(0, "held_out_classes", "transformer_weight_decay")
        self.require_min(0, "transformer_lr", exclusive=True)
        for pair in self.train_networks:
            method_on(pair)


PRESETS = {
    "small": Plan(held_out_classes=2, training=SMALL),
    "gpu": Plan(
        data="cifar10",
        train_networks=(
            "erm/resnet18",
            "mc-dropout/resnet18",
            "erm/repvgg_a0",
            f"erm/{VIT}",
            f"{DEEP_ENSEMBLE}/resnet18",
        ),
        transformer_epochs=60,
        training=CIFAR,  # as in `shift`: one store has these networks once
    ),
}


@benchmark(NAME, version=VERSION, plan=Plan, presets=PRESETS, reports="nescio.benchmarks.posthoc.reports")
def run(plan: Plan, work: Work) -> Plan:
    """Compare the scores of saved outputs in misclassification and OOD detection.

    Networks of several architectures and an ensemble predict training, validation and test images and those of other
    sets. Reports of every score of these outputs: AUROC, AURC, E-AURC, NAURC and AUGRC of right against wrong
    predictions; AUROC and FPR of each OOD set against the test images, near and far; AURC of mixtures of both. The best
    score is compared with msp and with the scores that do not differ significantly from it.

    examples:
      nescio run posthoc                               digits, two classes left out, two cores
      nescio run posthoc --preset gpu --near-ood cifar100 --far-ood mnist,fashion-mnist
      nescio run posthoc --data imagenet:PATH --networks resnet50,NAME@FILE --far-ood folder:PATH --fit-images 50000
    """
    from nescio.benchmarks.posthoc.steps import compare  # torch stays out of --help

    return compare(plan, work)
