"""The base class of methods: a loss for training (`loss`) and predictions (`forward`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, get_args

import torch
from torch import Tensor, nn
from typing_extensions import TypeVar

from nescio import backbones
from nescio.backbones import Locations
from nescio.errors import BadInput
from nescio.identity import has_tag, tag
from nescio.layers.spectral import share_above_bound, spectral_normalize
from nescio.registry import Registry, source_file
from nescio.search import HParams, LogUniform, hparam, log_uniform, searched

DIRECTION = Literal["larger", "smaller"]
SPECTRAL = log_uniform(0.5, 12.0)  # targets of the spectral norm that a search may try


@tag("recipe:learning")
@dataclass(frozen=True)
class BaseHParams(HParams):
    """Hyper-parameters of every method: factors on the learning rate and weight decay of the budget.

    UIMNET does not state its search ranges (appendix C), so nescio defines them.
    """

    lr: float = hparam(1.0, log_uniform(0.3, 3.0), "factor on the budget's learning rate", in_keys="rate", above=0)
    weight_decay: float = hparam(
        1.0, log_uniform(0.1, 10.0), "factor on the budget's weight decay", in_keys="decay", at_least=0
    )


H = TypeVar("H", bound=HParams, covariant=True, default=HParams)  # the hyper-parameters of a method
Batches = Iterable[tuple[Tensor, Tensor, Tensor]]  # images (b, ch, h, w), labels (b,), index (b,)


@dataclass
class Output:
    """Predictions for b images, or for b locations of images. Dense networks return maps: logits (b, s, c, h, w) and
    scores (b, h, w)."""

    logits: Tensor | None = None  # (b, s, c): s draws
    embeddings: Tensor | None = None  # (b, d)
    scores: dict[str, Tensor] = field(default_factory=dict)  # (b,) each, rising with uncertainty; the native one first
    variants: dict[str, Tensor] = field(default_factory=dict)  # (b, c) other predictive log-probabilities


@dataclass(frozen=True)
class NetworkSpec:
    """The specification of a network: backbone, image shape, number of classes and spectral norm."""

    backbone: str
    channels: int
    shape: tuple[int, int]  # (height, width) of the images; one number if they are square
    classes: int
    spectral: float | None = None
    rows: int = 0  # number of training images; variational methods weight their prior by it
    dense: bool = False  # segmentation: every location of the feature map is a row
    void: int | None = None  # label of locations that are no rows

    def __post_init__(self) -> None:
        if isinstance(self.shape, int):
            object.__setattr__(self, "shape", (self.shape, self.shape))

    def features(self) -> Any:
        """A new backbone, images (b, ch, h, w) to features (b, num_features), normalised if a target is set."""
        network = backbones.build(self.backbone, self.channels, self.shape, dense=self.dense)
        return spectral_normalize(network, self.spectral) if self.spectral else network


class Method(nn.Module, Generic[H]):
    """A method: network, loss and scores. The base class has a backbone and a linear head; methods override
    single parts."""

    classifies: ClassVar[bool] = True  # False: it returns embeddings and no logits
    scores: ClassVar[tuple[str, ...]] = ()  # names of the uncertainty scores; the first is the native score
    views: ClassVar[int] = 1  # images per row in `loss`; 2 for contrastive methods
    augment: ClassVar[str | None] = None  # default augmentation of training images
    normalized: ClassVar[bool] = False  # True if logits are log-probabilities
    ema: ClassVar[float | None] = None  # decay of the moving average of the weights, if predictions use it
    paper: ClassVar[str] = ""
    name: ClassVar[str] = ""
    hparams_class: ClassVar[type[HParams]] = BaseHParams
    spectral_default: ClassVar[float | None] = None  # default target of the spectral norm
    rises_far_from_data: ClassVar[bool] = False  # the native score should rise far from the training data
    strength_hparam: ClassVar[str | None] = None  # the hyper-parameter that regularises the features, or "spectral"
    strength_direction: ClassVar[DIRECTION] = "larger"  # values of strength_hparam that regularise more
    no_dense_reason: ClassVar[str] = ""  # reason why segmentation is not supported; "" if it is
    no_compile_reason: ClassVar[str] = ""  # reason why torch.compile cannot be used; "" if it can
    # True if `update` calls the same kernels in every step, draws nothing on the host and never waits for the device. A
    # GPU then replays one CUDA graph. Subclasses do not inherit it.
    cuda_graph_safe: ClassVar[bool] = False
    # Augmented epochs for which the features of a frozen backbone are computed once; `loss` then takes features.
    frozen_epochs: int = 0

    def __init__(self, hparams: H, spec: NetworkSpec) -> None:
        super().__init__()
        if spec.dense and self.no_dense_reason:
            raise BadInput(f"The method {self.name} cannot segment images: {self.no_dense_reason}.")
        self.hparams, self.spec = hparams, spec
        self.temperature = 1.0  # calibration of `probs`; set after training
        self.features = spec.features()
        if self.classifies:
            if spec.classes < 2:
                raise BadInput(f"A classifier needs at least two classes, got {spec.classes}.")
            self.head = nn.Linear(self.features.num_features, spec.classes)

    @property
    def rows(self) -> int:
        """Rows of an epoch: the training images, or all locations of their maps."""
        spec = self.spec
        return spec.rows * math.prod(self.features.grid(spec.shape)) if spec.dense else spec.rows

    def as_rows(self, batches: Batches) -> Batches:
        """Batches in the format of `loss`, `prepare` and `finalize`. In segmentation, each labelled location of the
        feature map becomes a row, and a mask marks these locations. Otherwise batches are unchanged."""
        return _Located(batches, self.features, self.spec) if self.spec.dense else batches

    @classmethod
    def strength_grid(cls, count: int) -> tuple[float, ...]:
        """`count` regularisation strengths over the search range, the weakest first."""
        search = SPECTRAL if cls.strength_hparam == "spectral" else searched(cls.hparams_class)[cls.varied_hparam()]
        assert isinstance(search, LogUniform)
        return search.grid(count)[:: -1 if cls.strength_direction == "smaller" else 1]

    @classmethod
    def varied_hparam(cls) -> str:
        """The hyper-parameter that sensitivity studies vary; weight decay if the method names none."""
        return cls.strength_hparam or "weight_decay"

    def on_start(self, new: list[str]) -> None:
        """Called after initial weights are loaded; `new` lists the tensors that are not among them."""

    def prepare(self, batches: Batches) -> None:
        """Called before training: inducing points, class counts, stored examples."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss that a step minimises."""
        return nn.functional.cross_entropy(self.head(self.features(x)), y)

    def facts(self) -> dict[str, float]:
        """Facts about the trained network, stored beside its weights. at_bound: the share of layers whose spectral norm
        would exceed the bound without it; at 0 the bound has no effect."""
        share = share_above_bound(self.features)
        return {} if share is None else {"at_bound": share}

    def forward(self, x: Tensor) -> Output:
        """Predictions for images: logits (b, s, c), embeddings (b, d), scores (b,)."""
        embeddings = self.features(x)
        return Output(self.head(embeddings)[:, None], embeddings)

    def update(self, x: Tensor, y: Tensor, step: Callable[[Tensor], None]) -> Tensor:
        """One step: `step(loss)` runs backward and, when a batch is complete, updates the weights."""
        loss = self.loss(x, y)
        step(loss)
        return loss

    def after_step(self, done: float) -> None:
        """Called after every optimizer step; `done` is the completed share of all steps."""

    def finalize(self, batches: Batches) -> None:
        """Called after training: covariances, densities."""

    def separate_factors(self) -> list[tuple[Iterable[Tensor], dict[str, float]]]:
        """Parameters with factors that replace `lr` and `weight_decay` of the hyper-parameters; later entries win.

        rate      multiplies the learning rate of the budget
        decay     multiplies its weight decay
        adaptive  multiplies the learning rate of AdamW alone
        """
        return []

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Trainable parameters, grouped by their factors."""
        hparams, entries = self.hparams, self.separate_factors()
        assert isinstance(hparams, BaseHParams)
        groups: list[dict[str, Any]] = [
            {"params": [], "rate": hparams.lr, "decay": hparams.weight_decay, **factors}
            for factors in ({}, *(factors for _, factors in entries))
        ]
        group_numbers = {id(weight): number for number, (weights, _) in enumerate(entries, 1) for weight in weights}
        for weight in self.parameters():
            if weight.requires_grad:
                groups[group_numbers.get(id(weight), 0)]["params"].append(weight)
        return groups

    def probs(self, logits: Tensor) -> Tensor:
        """(b, s, c) to (b, c): the mean over draws of the calibrated softmax."""
        return torch.softmax(logits.float() / self.temperature, -1).mean(1)

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        """Checks that the distinctive part of the method has an effect; `start` is the method before training."""
        return {}


@dataclass
class _Located:
    """Batches of images and label maps, converted to images and rows; see `Method.as_rows`."""

    batches: Batches
    features: Locations
    spec: NetworkSpec

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for x, maps, index in self.batches:
            x, y = self.features.with_known(x, maps, self.spec.void)
            if not len(y):
                raise BadInput(f"No pixel of a batch of {len(x)} images has a label: make the batch larger.")
            if (largest_label := int(y.max())) >= self.spec.classes:
                raise BadInput(
                    f"A label map has the label {largest_label}, but there are {self.spec.classes} classes: if it "
                    "marks ignored pixels, declare it as `void` in the file."
                )
            yield x, y, index


class SelfSupervised(Method[H]):
    """A method that trains features on two augmented views of every image, without labels.

    Embeddings are the backbone's features φ(x); projections are used in the loss only. No logits.
    """

    classifies = False
    views = 2
    augment = "full"
    no_dense_reason = "it compares views of whole images"

    def forward(self, x: Tensor) -> Output:
        return Output(embeddings=self.features(x))


@dataclass(frozen=True)
class Evidence:
    """An observation on trained weights, and whether the check passed."""

    observed: str
    passed: bool


ENSEMBLES = (
    "A deep ensemble consists of networks of another method: `nescio train --ensemble-size K` trains them, and in "
    "`nescio run` it is a line of --methods deep-ensemble."
)
registry: Registry[type[Method]] = Registry(
    "method",
    aliases={
        "erm": ("baseline", "cross_entropy", "softmax", "deterministic", "vanilla"),
        "mc-dropout": ("dropout", "mcd"),
        "deep-ensemble": ("deep-ensembles", "ensemble", "ensembles"),  # a method in benchmarks only
        "losspred": ("loss_prediction", "learning_loss"),
        "sngp": ("spectral_normalized_gaussian_process",),
    },
    others={
        "deep-ensemble": ENSEMBLES,
        **dict.fromkeys(("swag", "laplace", "edl", "bnn", "batchensemble", "packed-ensembles", "cutmix", "ddpm"), ""),
    },
)
M = TypeVar("M", bound=type[Method])


def method(name: str, hparams: type[HParams] = BaseHParams) -> Callable[[M], M]:
    """Register a class as a method under the name in its paper, with its class of hyper-parameters."""

    def register(cls: M) -> M:
        _check_strength(name, cls, hparams)
        if not has_tag(hparams):
            tag(f"recipe:{name}")(hparams)
        cls.name, cls.hparams_class = name, hparams
        registry.add(name, cls)
        return cls

    return register


def _check_strength(name: str, cls: type[Method], hparams: type[HParams]) -> None:
    """Raise an error for a strength_hparam without a logarithmic search range."""
    if cls.strength_hparam not in (None, "spectral") and not isinstance(
        searched(hparams).get(cls.strength_hparam), LogUniform
    ):
        raise BadInput(
            f"strength_hparam of the method {name} is {cls.strength_hparam!r}: name a field of {hparams.__name__} "
            "whose range is log_uniform(low, high), or 'spectral'."
        )
    if cls.strength_direction not in get_args(DIRECTION):
        raise BadInput(
            f"strength_direction of the method {name} is {cls.strength_direction!r}: it is 'larger' or 'smaller'."
        )


def classifiers() -> list[str]:
    """Names of the methods that return logits."""
    return [name for name, cls in registry.items() if cls.classifies]


# ---- checks


def first_batch(batches: Batches, rows: int | None = None) -> tuple[Tensor, Tensor]:
    """The first images and labels, at least `rows` of them, from one or more batches."""
    xs, ys, count = [], [], 0
    for x, y, _ in batches:
        xs.append(x)
        ys.append(y)
        count += len(x)
        if rows is None or count >= rows:
            break
    return torch.cat(xs)[:rows], torch.cat(ys)[:rows]


def check_output(method: Method, output: object, rows: int | None = None, finished: bool = True) -> None:
    """Raise an error that names the method and its file if an output differs from the declared shapes and names.

    rows      number of images, if each image is one row
    finished  whether the method is trained; untrained ones may lack scores
    """
    if fault := _fault(method, output, rows, finished):
        raise BadInput(f"The method {method.name} ({source_file(type(method))}): forward returns {fault}.")


def check_loss(method: Method, loss: object) -> None:
    """Raise an error that names the method and its file if a loss is not one number, or depends on no weight."""
    if not isinstance(loss, Tensor):
        fault = f"the type {type(loss).__name__}, but a tensor of one number is needed"
    elif loss.numel() != 1:
        fault = f"shape {tuple(loss.shape)}, but one number is needed: end it with .mean()"
    elif not loss.requires_grad:
        fault = "no dependence on the weights: keep the gradient (no detach, item or no_grad)"
    else:
        return
    raise BadInput(f"The method {method.name} ({source_file(type(method))}): the loss has {fault}.")


def _fault(method: Method, output: object, rows: int | None, finished: bool) -> str:
    """The fault of an output and its remedy; "" if the output is valid."""
    if not isinstance(output, Output):
        return f"{type(output).__name__}, not an Output: write Output(logits=…, embeddings=…)"
    logits, embeddings = output.logits, output.embeddings
    if logits is None and method.classifies:
        return "no logits: return them, or set classifies = False for features alone"
    if logits is not None and logits.ndim != 3:
        remedy = ": add the axis of draws, logits[:, None]" if logits.ndim == 2 else ""
        return f"logits of shape {tuple(logits.shape)}, but (rows, draws, classes) is needed{remedy}"
    tensor = logits if logits is not None else embeddings
    if tensor is None:
        return "neither logits nor embeddings: return one of them"
    if rows is not None and len(tensor) != rows:
        return f"{len(tensor)} rows for {rows} images: return one row per image"
    if embeddings is not None and len(embeddings) != len(tensor):
        return f"embeddings of {len(embeddings)} rows and logits of {len(tensor)}: return one row of each per image"
    if finished and method.scores and tuple(output.scores) != method.scores:
        names = ", ".join(output.scores) or "none"
        return f"the scores {names}, but the class declares {', '.join(method.scores)} in `scores`: use the same names"
    for name, score in output.scores.items():
        if score.shape != (len(tensor),):
            remedy = f", such as {name}.squeeze(1)" if score.shape == (len(tensor), 1) else ""
            return (
                f"the score {name} of shape {tuple(score.shape)}, and ({len(tensor)},) is needed, one per row{remedy}"
            )
    return ""
