"""The plan of sensitivity: regularisation strength against uncertainty on rotated images (Postels et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from nescio.benchmarks.base import benchmark
from nescio.benchmarks.names import DEFAULT_MEASURES, measure_names, method_names
from nescio.benchmarks.plans import NetworkPlan, hparams_option
from nescio.errors import BadInput
from nescio.identity import tag
from nescio.options import nested, option
from nescio.trials import Training
from nescio.work.steps import Work

NAME, VERSION = "sensitivity", 1


MOST_NETWORKS = 10_000  # strengths, or seeds, of a method


@tag("plan:sensitivity")
@dataclass(frozen=True)
class Plan(NetworkPlan):
    """Methods, numbers of strengths and seeds, and rotation angles."""

    data: str = option("digits", kind="dataset")
    methods: tuple[str, ...] = option(("duq", "sngp", "mir", "ddu"), parse=method_names)
    hparams: tuple[str, ...] = hparams_option()
    backbone: str = option("mlp")
    strengths: int = option(8)
    seeds: int = option(5)
    ensemble_size: int = option(5, introduced=5)
    degrees: tuple[float, ...] = option(
        tuple(range(20, 181, 20)), "rotation angles of test images", metavar="DEGREES,…"
    )
    measures: tuple[str, ...] = option(DEFAULT_MEASURES, parse=measure_names)
    training: Training = nested(Training())

    def check(self) -> None:
        super().check()
        self.require_min(2, "strengths", "ensemble_size")
        if max(self.strengths, self.seeds) > MOST_NETWORKS:
            raise BadInput(f"Plan.strengths and seeds must be at most {MOST_NETWORKS:,}: fewer show the same.")
        if not self.degrees or any(degrees % 360 == 0 for degrees in self.degrees):
            raise BadInput("Plan.degrees must have at least one angle other than 0 and 360.")


DIGITS = Training(lr=0.05, epochs=20, batch_size=64, schedule="cosine", warmup=2.0, augment="none")
MNIST = Training(lr=0.05, epochs=10, batch_size=128, schedule="cosine", warmup=1.0, augment="none")
HPARAMS = ("duq.lr=0.3",)  # multi-layer perceptrons need a higher learning rate than its default
PRESETS = {
    "small": Plan(hparams=HPARAMS, training=DIGITS),
    # the budget of the paper is in a supplement that we do not have
    "paper": Plan(data="mnist", hparams=HPARAMS, training=MNIST),
}


@benchmark(NAME, version=VERSION, plan=Plan, presets=PRESETS, reports="nescio.benchmarks.sensitivity.reports")
def run(plan: Plan, work: Work) -> Plan:
    """Does a higher regularisation strength give a better uncertainty? (Postels et al. 2022, §4.1.2.)

    Networks are trained with every strength and seed of each method. They predict test images as they are, and rotated
    by 20 to 180 degrees. Results over all angles: rAULC and AUROC of misclassification detection, and Spearman's
    correlation of strength and rAULC with its p-value.

    examples:
      nescio run sensitivity                           handwritten digits, 8 strengths × 5 seeds of four methods
      nescio run sensitivity --preset paper            MNIST; --data fashion-mnist for the supplement's
      nescio run sensitivity --methods dcs,postnet --strengths 12
      nescio run sensitivity --methods erm             no strength of its own: factors on the weight decay
    """
    from nescio.benchmarks.sensitivity.steps import compare  # torch stays out of --help

    return compare(plan, work)
