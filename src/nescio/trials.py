"""One network to train: method, hyper-parameters, data, backbone, budget and seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from nescio.errors import BadInput
from nescio.files import parse_json
from nescio.identity import ContentName, Validated, added_field, tag, values_of
from nescio.options import option
from nescio.rows import Row
from nescio.search import HParams

BUDGET, SPEED = "budget", "speed and memory"  # groups of options


@tag("training")
@dataclass(frozen=True)
class Training(Validated):
    """The budget; the defaults are those of UIMNET, "Optimization": SGD, 100 epochs, batch 256, rate ÷ 10 every 30."""

    optimizer: Literal["sgd", "adamw", "lamb"] = option("sgd", "optimizer", group=BUDGET)
    lr: float = option(0.1, "learning rate", group=BUDGET, in_keys="rate")
    momentum: float = option(0.9, "momentum of SGD", group=BUDGET)
    nesterov: bool = option(False, "use Nesterov momentum", group=BUDGET)
    weight_decay: float = option(1e-4, "weight decay", group=BUDGET, in_keys="decay")
    epochs: int = option(100, group=BUDGET)
    batch_size: int = option(256, group=BUDGET, in_keys="batch")
    schedule: Literal["step", "cosine", "constant"] = option("step", "learning-rate schedule", group=BUDGET)
    step_epochs: int = option(
        30, "epochs between reductions of the learning rate (schedule step)", metavar="E", group=BUDGET, in_keys="every"
    )
    step_factor: float = option(
        0.1, "factor of each reduction of the learning rate (schedule step)", group=BUDGET, in_keys="factor"
    )
    warmup_flat: float = option(
        0.0,
        "epochs at the initial learning rate before the warm-up",
        metavar="E",
        group=BUDGET,
        introduced=0.0,
        in_keys="flat",
    )
    warmup_from: float = option(
        0.0,
        "initial learning rate as a fraction of --lr",
        metavar="FRACTION",
        group=BUDGET,
        introduced=0.0,
        in_keys="initial",
    )
    warmup: float = option(0.0, "epochs over which the learning rate rises to --lr", metavar="E", group=BUDGET)
    accumulate: int = option(1, "equal parts of a batch, processed in turn to save memory", metavar="A", group=SPEED)
    clip: float | None = option(None, "maximum norm of the gradient", metavar="NORM", group=BUDGET)
    augment: Literal["none", "shift", "crop-flip", "full"] = option("crop-flip", group=BUDGET)
    border: Literal["black", "reflect"] = option(
        "black", "fill beyond the edges of shifted images", group=BUDGET, introduced="black"
    )
    precision: Literal["auto", "float32", "bf16"] = option("auto", group=SPEED)
    compile: bool = option(False, group=SPEED)
    threads: int = option(
        1, "CPU threads of torch; their number changes the last bits of results", group=SPEED, introduced=1
    )

    def check(self) -> None:
        self.require_min(0, "lr", "step_factor", "clip", exclusive=True)
        self.require_min(1, "epochs", "batch_size", "step_epochs", "accumulate", "threads")
        self.require_min(0, "momentum", "weight_decay", "warmup", "warmup_flat", "warmup_from")
        if self.nesterov and (self.optimizer != "sgd" or not self.momentum):
            raise BadInput(
                "Training.nesterov is a kind of momentum: it needs the optimizer sgd and a momentum above 0."
            )
        if self.warmup_flat and not self.warmup_from:
            raise BadInput(
                f"Training.warmup_flat is {self.warmup_flat:g}: the initial learning rate is 0: set warmup_from."
            )
        if self.warmup_from > 1:
            raise BadInput(f"Training.warmup_from is {self.warmup_from:g}: it must be at most 1.")


@tag("trial")
@dataclass(frozen=True, kw_only=True)
class Trial(Validated):
    """One network to train: method, data, backbone, budget and seeds."""

    method: str
    hparams: HParams = field(metadata={"in_keys": "recipe"})
    data: str
    backbone: str
    training: Training = Training()
    classes: tuple[int, ...] | None = None  # in-distribution classes in their new order; None: all
    spectral: float | None = None  # target norm of spectral normalisation; None: off
    trial: int = 0
    data_seed: int = 0
    init_seed: int = 0
    start: str | None = added_field(None)  # initial weights: store:KEY of a trial, or file:PATH of a checkpoint
    task: Literal["classification", "segmentation"] = added_field("classification")
    kept: tuple[int, ...] = added_field(())  # epochs after which weights are stored, in addition to the last
    stop: int | None = added_field(None)  # the one of these epochs to load; None: the last epoch

    def check(self) -> None:
        if not set(self.kept) <= set(range(1, self.training.epochs)) or self.stop not in (None, *self.kept):
            raise BadInput("Trial.kept must name epochs between 1 and the last epoch, and Trial.stop one of them.")
        self.require_min(0, "spectral", exclusive=True)
        self.require_min(0, "trial", "data_seed", "init_seed")
        if self.classes is not None and len(set(self.classes)) != max(1, len(self.classes)):
            raise BadInput("Trial.classes must name at least one class, and none twice.")

    def describe(self) -> Row:
        """The columns of a row that identify the network."""
        return {
            "dataset": self.data,
            "backbone": self.backbone,
            "spectral": self.spectral,
            "method": self.method,
            "trial": self.trial,
            "data_seed": self.data_seed,
            "init_seed": self.init_seed,
        }


def from_json(text: str, hparams_of: Callable[[str], type[HParams]]) -> Trial:
    """The trial from the JSON of `to_json`; hparams_of(method name) returns the class of hyper-parameters."""
    return from_plain(parse_json(text, "The trial"), hparams_of)


def from_plain(
    plain: object, hparams_of: Callable[[str], type[HParams]], names: Mapping[str, str] = MappingProxyType({})
) -> Trial:
    """The trial of a `canonical` form; `names` are the dataset names by content."""
    values = values_of(Trial, plain)
    for name in ("data", "start"):
        if (content := values[name]) in names:
            values[name] = ContentName(names[content], content)
    cls = hparams_of(values["method"])
    values["hparams"] = cls(**values_of(cls, values["hparams"]))
    values["training"] = Training(**values_of(Training, values["training"]))
    return Trial(**values)


def spectral_target(word: str, name: str) -> float | None:
    """`none` → None, `5` → 5.0: the bound of every layer's spectral norm; `name` is the option or field for errors."""
    try:
        return None if word in ("none", "off") else float(word)
    except ValueError:
        raise BadInput(f"{name} is a number above 0, or none, not {word!r}.") from None
