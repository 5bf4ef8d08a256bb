"""A classifier that can abstain, as one file: images in; class, calibrated probability, uncertainty and abstain out.

The file takes uint8 images (n, channels, height, width), values 0 to 255, any n. Everything after that is inside it:
the normalisation, the network, the temperature, the measure and the threshold. How an image is resized and cropped to
that size stands in its metadata (key `nescio`, JSON).
"""

from __future__ import annotations

import json
import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nescio import __version__
from nescio.datasets.names import dataset_name
from nescio.datasets.view import View
from nescio.errors import BadInput, install
from nescio.files import atomic_write, parse_json, read_json
from nescio.measures import LOGIT_MEASURES, PORTABLE, FittedScore, LossOrder
from nescio.measures.loss_ranking import FLOOR, SLOPE
from nescio.networks.fitted_scores import LOGIT_SCORES, MeanSoftmax, ScoreNetwork, logit_score
from nescio.networks.forward import heads
from nescio.networks.models import (
    Network,
    build,
    build_classifier,
    check_training_data,
    find_network,
    output_class_names,
    with_class_names,
    with_preprocessing,
    with_weights,
)
from nescio.networks.preprocessing import Preprocessing
from nescio.predictions.model_predictions import STAGE, ModelPredictions, predictions_from_text
from nescio.runtime import Runtime
from nescio.specs import STORE, ZOO, place_of, source
from nescio.training import WEIGHTS
from nescio.work.store import Store

LOSS_ORDER = "loss_order"  # a score that was learnt on embeddings, which the file then holds
MEASURES = (*LOGIT_MEASURES, LOSS_ORDER, *PORTABLE)
OUTPUTS = ("class", "probability", "uncertainty", "abstain")
META = "nescio"  # the key of the metadata, in both kinds of file
MOST_BYTES = 2**31 - 2**20  # of the weights: one ONNX file holds two gigabytes
ROUNDING = 1e-6  # by which a measure may be above its largest value
AGREES = 1e-4  # how far the file's probabilities may be from the network's


class NotExportable(RuntimeError):
    """The network cannot be written as a file, or the file does not answer as the network does."""


@dataclass(frozen=True)
class AbstentionRule:
    """When to abstain: where the measure of the calibrated answer is above the threshold."""

    threshold: float
    temperature: float = 1.0
    measure: str = "msp"

    def __post_init__(self) -> None:
        if self.measure not in MEASURES:
            raise BadInput(
                f"An exported file measures {', '.join(MEASURES)}, not {self.measure}: it has one answer per image, "
                "no draws and no scores of a method."
            )
        if not (0 < self.temperature < math.inf):
            raise BadInput(f"The temperature is {self.temperature}; it must be a number above 0.")
        if not math.isfinite(self.threshold):
            raise BadInput(f"The threshold is {self.threshold}; it must be a finite number.")


@dataclass(frozen=True)
class ExportableNetwork:
    """A network with what it wants of its images: normalised (b, ch, h, w) in, logits (b, c) or (b, s, c) out.

    With `score`, which was learnt on or fitted to embeddings, the network gives (logits, embeddings (b, d)).
    """

    network: nn.Module
    mean: tuple[float, ...]
    std: tuple[float, ...]
    shape: tuple[int, int]  # (height, width) of its images
    classes: int
    digest: str = ""  # the checksum of its weights, or the key of its training
    about: Mapping[str, Any] = field(default_factory=dict)  # joins the metadata
    score: LossOrder | FittedScore | None = None

    @property
    def channels(self) -> int:
        return len(self.mean)


# ---- the network that abstains


class AbstainingClassifier(nn.Module):
    """uint8 images (n, ch, h, w) to (class (n,), probability (n,), uncertainty (n,), abstain (n,))."""

    def __init__(self, classifier: ExportableNetwork, rule: AbstentionRule) -> None:
        super().__init__()
        if _measured(classifier.score) != (rule.measure if rule.measure not in LOGIT_SCORES else None):
            raise BadInput(
                f"The measure is {rule.measure}, and the score is {_measured(classifier.score) or 'missing'}: give the "
                "file that was fitted or learnt for this measure, and none for measures of the logits alone."
            )
        self.network, self.rule = classifier.network, rule
        self.score: nn.Module | None = None
        if isinstance(classifier.score, LossOrder):
            self.score = OrderNetwork(classifier.score)
        elif classifier.score is not None:
            self.score = ScoreNetwork(classifier.score)
        mean, std = torch.tensor([classifier.mean, classifier.std])[:, None, :, None, None]
        self.register_buffer("shift", -mean / std)
        self.register_buffer("scale", 1 / (255 * std))
        # The threshold is one of the u that it was set on, in float64: rounded down, that row would be abstained from.
        self.threshold = _not_below(rule.threshold)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        # An ONNX file declares what it takes; torch.export's would take floats as well.
        torch.ops.aten._assert_tensor_metadata.default(images, dtype=torch.uint8)
        # Images are often held as (n, h, w, ch) and turned; a traced network knows one order in memory only.
        images = images.clone(memory_format=torch.contiguous_format)
        output = self.network(torch.addcmul(self.shift, images, self.scale))  # type: ignore[arg-type]
        logits = output if self.score is None else output[0]
        temperature = self.rule.temperature
        softmax = MeanSoftmax(logits, temperature)
        if self.score is None:
            u = logit_score(self.rule.measure, softmax, logits, temperature)
        else:  # a fitted score reads the logits that it was fitted to
            u = self.score(output[1], logits)
        top, probability, u = (_one_dimension(output) for output in (softmax.top, softmax.probability, u))
        return top, probability, u, ~(u <= self.threshold)  # what is not a number abstains


class Standardize(nn.Module):
    """(x − shift)·scale."""

    def __init__(self, shift: Any, scale: Any) -> None:
        super().__init__()
        self.register_buffer("shift", torch.tensor(shift))
        self.register_buffer("scale", torch.tensor(scale))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.shift) * self.scale  # type: ignore[no-any-return, operator]


def order_network(order: LossOrder) -> nn.Sequential:
    """The same function of embeddings (b, d) as a network: its u (b, 1), up to rounding."""
    layers: list[nn.Module] = [Standardize(order.shift, order.scale)]
    for weight, bias in zip(order.layers[::2], order.layers[1::2], strict=True):
        layer = nn.Linear(*weight.shape)
        layer.load_state_dict({"weight": torch.tensor(weight.T), "bias": torch.tensor(bias)})
        layers += [layer, nn.LeakyReLU(SLOPE)]
    return nn.Sequential(*layers[:-1], nn.Softplus(), Standardize(-FLOOR, 1.0))


class OrderNetwork(nn.Module):
    """u (b,) of a loss order; it reads no logits."""

    def __init__(self, order: LossOrder) -> None:
        super().__init__()
        self.width, self.layers = len(order.shift), order_network(order)

    def forward(self, embeddings: Tensor, logits: Tensor) -> Tensor:
        return self.layers(embeddings)[:, 0]


def _measured(score: LossOrder | FittedScore | None) -> str | None:
    """The measure that a score belongs to."""
    return LOSS_ORDER if isinstance(score, LossOrder) else None if score is None else score.measure


def calibrated_predictions(logits: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(class, probability, one minus it, entropy), each (n,), of the mean over draws of softmax(z/T)."""
    s = MeanSoftmax(logits, temperature)
    return s.top, s.probability, s.doubt, logit_score("entropy", s, logits, temperature)


def _one_dimension(x: Tensor) -> Tensor:
    """x (n,), said once more: ONNX Runtime gives (0, c) for the sum of an empty batch over its classes."""
    return x[:, None].flatten()


def _not_below(value: float) -> float:
    """The nearest float32 that is not below a number."""
    near = np.float32(value)
    return float(near if near >= value else np.nextafter(near, np.float32(np.inf)))


# ---- writing


@dataclass(frozen=True)
class ExportedFile:
    """A written file, its metadata, and whether its answers were compared with the network's."""

    path: Path
    metadata: Mapping[str, Any]
    checked: bool


def export(classifier: ExportableNetwork, rule: AbstentionRule, path: str | Path) -> ExportedFile:
    """Writes .onnx or .pt2, by the ending; then reads it again and compares its answers with the network's.

    The network is left on the CPU, in float32 and in evaluation mode. Without onnxruntime an ONNX file is not checked.
    """
    goal = Path(path)
    if goal.suffix not in WRITERS:
        raise BadInput(f"{goal} ends in {goal.suffix or 'nothing'}; an exported file ends in {' or '.join(WRITERS)}.")
    _check_threshold(rule, classifier.classes)
    module = AbstainingClassifier(classifier, rule).float().cpu().eval()
    about = metadata(classifier, rule)
    images = _noise(2, classifier)
    _check_answers(module, images, classifier.classes)
    # Gradients stay on, though nothing needs them: methods then leave out the scores that only a dump has room for.
    with torch.enable_grad(), _quietly(), atomic_write(goal) as part:
        file = part.with_suffix(goal.suffix)  # the ending decides how it is written and read
        try:
            WRITERS[goal.suffix](module, images, file, json.dumps(about, ensure_ascii=False))
            checked = _check_file(file, module, _noise(3, classifier))
            file.replace(part)
        finally:
            file.unlink(missing_ok=True)
    return ExportedFile(goal, about, checked)


def _check_threshold(rule: AbstentionRule, classes: int) -> None:
    most = {"msp": 1 - 1 / classes, "entropy": math.log(classes)}.get(rule.measure, math.inf)
    least = 0 if rule.measure in ("msp", "entropy", LOSS_ORDER) else -math.inf
    if not least <= rule.threshold <= most + ROUNDING:
        always = "always" if rule.threshold < 0 else "never"
        raise BadInput(
            f"The threshold is {rule.threshold:g}, and {rule.measure} of {classes} classes lies between 0 and "
            f"{most:.4g}: the file would {always} abstain."
        )


def metadata(classifier: ExportableNetwork, rule: AbstentionRule) -> dict[str, Any]:
    """What a person who finds the file must know to use it."""
    shape = ", ".join(map(str, (classifier.channels, *classifier.shape)))
    return {
        "nescio": __version__,
        **classifier.about,
        **({"digest": classifier.digest} if classifier.digest else {}),
        "classes": classifier.classes,
        "input": f"images: uint8, shape (n, {shape}), values 0 to 255; normalised inside the file",
        "mean": list(classifier.mean),
        "std": list(classifier.std),
        **asdict(rule),
        "outputs": {
            "class": "int64 (n,), the most probable class",
            "probability": "float32 (n,), its calibrated probability",
            "uncertainty": f"float32 (n,), {rule.measure}, higher is less sure",
            "abstain": f"bool (n,), true where uncertainty is above {rule.threshold!r}",
        },
    }


def _noise(rows: int, classifier: ExportableNetwork) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    shape = (rows, classifier.channels, *classifier.shape)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


@torch.no_grad()
def _check_answers(module: AbstainingClassifier, images: Tensor, classes: int) -> None:
    """One logit for every class, and the same at every call: draws that are made anew cannot be in a file."""
    outputs = []
    for seed in (0, 1):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            output = module.network(images.float() / 255)
            outputs.append(output if module.score is None else output[0])
    if not isinstance(outputs[0], Tensor) or outputs[0].dim() not in (2, 3) or outputs[0].shape[-1] != classes:
        raise BadInput(f"This network does not answer with a logit for each of {classes} classes: export a classifier.")
    if module.score is not None and output[1].shape[1:] != (module.score.width or output[1].shape[1],):
        d, wanted = output[1].shape[1], module.score.width
        raise BadInput(
            f"The score {module.rule.measure} is of embeddings of {wanted} features, and this network has {d}."
        )
    if not torch.equal(*outputs):
        raise BadInput(
            "This network answers the same image differently at every call (MC-dropout and other draws): an exported "
            "file has one answer an image. Export a network without draws."
        )


def check_packages(file: Path) -> None:
    """Raises BadInput where the packages that write such a file are not installed."""
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if file.suffix == ".onnx" and missing:
        raise BadInput(f"An ONNX file needs {' and '.join(missing)}: {install(missing[0])}; or write .pt2.")


def _write_onnx(module: AbstainingClassifier, images: Tensor, file: Path, about: str) -> None:
    check_packages(file)
    if sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values()) > MOST_BYTES:
        raise BadInput("The weights are larger than the two gigabytes that one ONNX file holds: write .pt2.")
    for layer in module.modules():
        if getattr(
            layer, "fused_attn", False
        ):  # timm's switch: written out, because ONNX's has four dimensions at most
            layer.fused_attn = False  # type: ignore[assignment]
    names: dict[str, Any] = {"input_names": ["images"], "output_names": list(OUTPUTS), "dynamic_shapes": _any_number()}
    try:
        made = torch.onnx.export(module, (images,), dynamo=True, verbose=False, **names)
    except Exception as error:  # the exporters raise what the network's own code stumbles over
        raise NotExportable(f"ONNX cannot say what this network does: {_reason(error)}") from error
    assert made is not None
    made.model.metadata_props[META] = about
    made.save(file, external_data=False)


def _write_pt2(module: AbstainingClassifier, images: Tensor, file: Path, about: str) -> None:
    try:
        program = torch.export.export(module, (images,), dynamic_shapes=_any_number())
        program = program.run_decompositions({})  # a switched-off autocast is a node that cannot be saved
    except Exception as error:
        raise NotExportable(f"torch.export cannot take this network: {_reason(error)}") from error
    torch.export.save(program, file, extra_files={META: about})


def _any_number() -> dict[str, Any]:
    return {"images": {0: torch.export.Dim("n")}}


WRITERS: dict[str, Callable[[AbstainingClassifier, Tensor, Path, str], None]] = {
    ".onnx": _write_onnx,
    ".pt2": _write_pt2,
}


# ---- reading


def load(path: str | Path) -> tuple[Callable[[Any], dict[str, Any]], dict[str, Any]]:
    """(images → arrays by output name, metadata) of an exported file; .onnx needs onnxruntime."""
    file = Path(path)
    if not file.is_file():
        raise BadInput(f"There is no file {file}.")
    if file.suffix != ".pt2" and find_spec("onnxruntime") is None:
        raise BadInput(f"Reading an ONNX file needs onnxruntime: {install('onnxruntime')}.")
    try:
        run, about = (_load_pt2 if file.suffix == ".pt2" else _load_onnx)(file)
        return run, parse_json(about, META)
    except MemoryError:
        raise
    except Exception:  # a foreign or damaged file can fail in any way inside the libraries
        raise BadInput(f"{file} is not a whole file of `nescio export`: export it again.") from None


def _load_pt2(file: Path) -> tuple[Callable[[Any], dict[str, Any]], str]:
    extra = {META: ""}
    module = torch.export.load(file, extra_files=extra).module()

    def run(images: Any) -> dict[str, Any]:
        with torch.no_grad():
            outputs = module(torch.as_tensor(images))
        return {name: output.numpy() for name, output in zip(OUTPUTS, outputs, strict=True)}

    return run, extra[META]


def _load_onnx(file: Path) -> tuple[Callable[[Any], dict[str, Any]], str]:
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # else its import writes an identifier below HOME to send
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])

    def run(images: Any) -> dict[str, Any]:
        return dict(zip(OUTPUTS, session.run(list(OUTPUTS), {"images": np.asarray(images)}), strict=True))

    return run, session.get_modelmeta().custom_metadata_map[META]


def _check_file(file: Path, module: AbstainingClassifier, images: Tensor) -> bool:
    """Asks file and network about a batch of another size than the one that was traced; False where nothing can read
    the file here."""
    if file.suffix == ".onnx" and find_spec("onnxruntime") is None:
        return False
    with torch.no_grad():
        answered, wanted = load(file)[0](images), module(images)
    for place, name in ((1, "probability"), (2, "uncertainty")):
        apart = (torch.from_numpy(answered[name]) - wanted[place]).abs() / wanted[place].abs().clamp_min(1)
        if not (far := float(apart.max())) <= AGREES:
            raise NotExportable(f"The file's {name} is up to {far:.2g} away from the network's: it is not kept.")
    return True


@contextmanager
def _quietly() -> Iterator[None]:
    """The exporters print their own steps and warnings; a person wants a file."""
    was = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(was)


def _reason(error: BaseException) -> str:
    """The first line of what was at the bottom of it."""
    while error.__cause__ is not None:
        error = error.__cause__
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return f"{line[:200].rstrip('.')}."


# ---- networks by name


class MethodOutputs(nn.Module):
    """A trained method as a plain network: images to logits (b, s, c), or to (logits, embeddings)."""

    def __init__(self, method: nn.Module, embeddings: bool) -> None:
        super().__init__()
        self.method, self.embeddings = method, embeddings

    def forward(self, x: Tensor) -> Any:
        made = self.method(x)
        return (made.logits, made.embeddings) if self.embeddings else made.logits


class SplitClassifier(nn.Module):
    """A network from elsewhere: images to (logits, what its last layer is given)."""

    def __init__(self, network: nn.Module, classes: int) -> None:
        super().__init__()
        last = heads(network, classes)
        if len(last) != 1 or not isinstance(last[0], nn.Linear):
            raise BadInput("A score of embeddings is exported with one linear last layer: this network has another.")
        name = next(name for name, module in network.named_modules() if module is last[0])
        network.set_submodule(name, nn.Identity())
        self.network, self.head = network, last[0]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        embeddings = self.network(x)
        return self.head(embeddings), embeddings


def exportable_network(
    name: str,
    store: Store,
    *,
    weights: Path | None = None,
    root: str | Path | None = None,
    image_padding: bool = False,
    classes: Path | None = None,
    score: LossOrder | FittedScore | None = None,
    look: Preprocessing | None = None,
    data: str | None = None,
) -> ExportableNetwork:
    """A timm name, torchvision:NAME, store:KEY or zoo:NAME, with its weights, on the CPU.

    zoo:NAME is the model with the weights and the preprocessing that the predictions in the store were made with, and
    the names of classes that `nescio zoo` knew; `classes` is a file of other names; `score` reads its
    embeddings; `look` is of a checkpoint of one's own; `data` are those of a
    network of the store at their new path.
    """
    stored = predictions_from_text(name, store) if place_of(ZOO, name) else None
    looked = stored.preprocessing if stored else {}
    own_data = () if data is None else (dataset_name(data),)
    found = find_network(stored.model if stored else name, store, root, own_data)
    for own in own_data:
        check_training_data(found, own, root)
    wanted = with_weights(found, weights or _known_file(stored))
    (wanted,) = with_preprocessing([wanted], look or Preprocessing())
    if stored and wanted.trial is None:
        wanted = replace(wanted, **preprocessing_fields(looked))
    if image_padding and looked.get("padding") == "map":
        raise BadInput(f"The predictions of {name} were made without image_padding: omit it.")
    wanted = replace(wanted, image_padding=image_padding or looked.get("padding") == "image")
    if stored and wanted.trial is None and wanted.checksum != stored.weights:
        raise BadInput(
            f"The weights of {stored.model} in {wanted.file} are not those that the predictions in {store.root} were "
            "made with: give weights, or predict again with `nescio zoo`."
        )
    if stored:
        given = store.record(STAGE, stored.key)["config"].get("class_map", ())
        wanted = replace(wanted, class_map=tuple((name, number) for name, number in given))
    if classes is not None:
        wanted = with_class_names(replace(wanted, class_map=()), classes)
    names = _mapped_names(wanted)
    if classes is not None and names is None:
        raise BadInput(f"{classes} does not name all {wanted.classes} classes of {wanted.name}, each once.")
    names = names or output_class_names(wanted) or (stored.facts.get("class_names") if stored else None)
    if wanted.trial is not None and wanted.trial.task == "segmentation":
        raise BadInput(f"{wanted.name} segments images: only classifiers are exported.")
    if wanted.trial is not None:
        method, wanted = build(wanted, store, Runtime(torch.device("cpu"), "float32"), root)
        module: nn.Module = MethodOutputs(method, score is not None)
    else:
        module, wanted = build_classifier(wanted)
        module = module if score is None else SplitClassifier(module, wanted.classes)
    about = {"model": wanted.name, "weights": wanted.file.name if wanted.file else WEIGHTS, **_looks(wanted)}
    if names is not None:
        about["names"] = list(names)
    digest = wanted.checksum or wanted.arch
    seen = wanted.mean, wanted.std, wanted.view.shape, wanted.classes
    return ExportableNetwork(module.eval(), *seen, digest, about, score)


def _looks(wanted: Network) -> dict[str, Any]:
    """How it looks at images, as plain values: what a promise was made for."""
    view = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(wanted.view).items()}
    colours = {} if wanted.trial is not None else {"mean": list(wanted.mean), "std": list(wanted.std)}
    return {"view": view, **colours, **{key: value for key, value in wanted.identity.items() if key == "padding"}}


def preprocessing_fields(looked: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a network that predictions say how they looked at images."""
    fields: dict[str, Any] = {key: tuple(looked[key]) for key in ("mean", "std") if key in looked}
    if "view" in looked:
        plain = {key: tuple(value) if isinstance(value, list) else value for key, value in looked["view"].items()}
        fields["view"] = View(**plain)
    return fields


def _known_file(stored: ModelPredictions | None) -> Path | None:
    """The file of weights that predictions were made with, where it still is; their digest is checked later."""
    file = Path(str(stored.facts.get("weights_path", ""))) if stored and "@" not in stored.model else None
    return file if file is not None and file.is_file() else None


def _mapped_names(wanted: Network) -> Sequence[str] | None:
    """The names of the classes, class 0 first, by a class map that names each of them once."""
    mapped = {number: name for name, number in wanted.class_map}
    whole = len(mapped) == len(wanted.class_map) == wanted.classes
    return [mapped[number] for number in range(wanted.classes)] if whole else None


@dataclass(frozen=True)
class ThresholdFile:
    """What the file of `nescio threshold --format json` promises, and of which model; empty of a plain number."""

    model: str | None = None
    weights: str | None = None  # their digest
    classes: int | None = None
    terms: Mapping[str, Any] = field(default_factory=dict)  # risk, delta, bound, coverage …
    looked: Mapping[str, Any] = field(default_factory=dict)  # the view, mean, std and padding of its predictions
    names: tuple[str, ...] = ()  # of the classes, where `nescio zoo` knew them
    file: Path | None = None  # of the weights, where `nescio zoo` found them
    score: FittedScore | None = None

    def weights_of(self, model: str) -> Path | None:
        """The file of weights that the promise names, if it is of this model and still there."""
        return self.file if model == self.model and "@" not in model and self.file and self.file.is_file() else None

    def check(self, classifier: ExportableNetwork) -> None:
        """Raises BadInput for a network that the promise was not made for."""
        model = classifier.about.get("model", "")
        own = "set the threshold on its own predictions"
        if self.classes not in (None, classifier.classes):
            raise BadInput(
                f"The threshold was set on predictions of another model, of {self.classes} classes, and {model} has "
                f"{classifier.classes}: {own}."
            )
        if self.weights is not None and self.weights != classifier.digest:
            other = "other weights of it" if self.model == model else f"{self.model}, another model"
            raise BadInput(f"The promise is not for {model} with these weights: it was made for {other}; {own}.")
        if self.weights is None and self.model is not None and not _same_model(self.model, model):
            raise BadInput(f"The promise was made for the model {self.model}, and {model} is exported: {own}.")
        for key, value in self.looked.items():
            now = classifier.about.get(key)
            if isinstance(value, dict) and isinstance(now, dict):
                value = {**now, **value}  # of a view, the fields that the promise names
            if now != value:
                raise BadInput(f"The promise was made with another {key} of the images than {model} has here: {own}.")


def _same_model(promised: str, exported: str) -> bool:
    """Keys of a store may be cut short."""
    kind, key = source(promised)
    return exported.startswith(promised) if kind == STORE and key else exported == promised


def read_rule(
    threshold: str, temperature: float | None = None, measure: str | None = None
) -> tuple[AbstentionRule, ThresholdFile]:
    """The rule that a number, or a file of `nescio threshold --format json`, asks for; with what that file promises."""
    try:
        value = float(threshold)
    except ValueError:
        return _rule_of_file(Path(threshold), temperature, measure)
    return AbstentionRule(value, 1.0 if temperature is None else temperature, measure or "msp"), ThresholdFile()


def _rule_of_file(file: Path, temperature: float | None, measure: str | None) -> tuple[AbstentionRule, ThresholdFile]:
    if not file.is_file():
        raise BadInput(
            f"The threshold is {str(file)!r}: neither a number nor a file of `nescio threshold --format json`."
        )
    try:
        content = read_json(file)
        rule = {key: content[key] for key in ("threshold", "temperature", "measure")}
        numbers = [rule["temperature"], 0 if rule["threshold"] is None else rule["threshold"]]
        words = [content.get(key, "") or "" for key in ("model", "weights", "predictions")]
        if not (all(type(x) in (int, float) for x in numbers) and all(isinstance(word, str) for word in words)):
            raise TypeError("not the types that are written")
        shares = [content[key] for key in ("risk", "delta", "bound", "coverage") if content.get(key) is not None]
        if not all(type(x) in (int, float) and 0 <= x <= 1 for x in shares):
            raise ValueError("a share lies between 0 and 1")
        counts = [content[key] for key in ("errors", "accepted", "n") if content.get(key) is not None]
        if not all(type(x) is int and x >= 0 for x in counts) or counts != sorted(counts):
            raise ValueError("errors are some of the accepted rows, and these some of n")
        if content.get("method", "") not in ("", "ltt", "sgr", "coverage"):
            raise ValueError("no method of a promise")
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadInput(f"{file} is not what `nescio threshold --format json` writes.") from None
    if rule["threshold"] is None:
        raise BadInput(f"{file} says that its risk is not attainable: there is no threshold to export.")
    for key, other in (("temperature", temperature), ("measure", measure)):
        if other is not None and other != rule[key]:
            raise BadInput(f"{file} has the {key} {rule[key]}, and {other} is given: its promise holds for its own.")
    names, place = content.get("names"), content.get("weights_path")
    names = tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()
    weights = Path(place) if isinstance(place, str) else None
    kept = ("model", "weights", "predictions", "risk", "delta", "bound", "coverage", "method", "n")
    terms = {key: content[key] for key in kept if content.get(key) is not None}
    looked = {key: content[key] for key in ("view", "mean", "std", "padding") if key in content}
    return AbstentionRule(**rule), ThresholdFile(
        content.get("model"),
        content.get("weights"),
        content.get("classes"),
        terms,
        looked,
        names,
        weights,
        _score_of(content, file),
    )


def _score_of(content: Mapping[str, Any], file: Path) -> FittedScore | None:
    """The fitted score that a threshold was set on: beside the threshold's file, or where it was written."""
    written = content.get("score")
    if written is None:
        return None
    if not isinstance(written, dict) or not all(isinstance(written.get(key), str) for key in ("file", "sha256")):
        raise BadInput(f"{file} is not what `nescio threshold --format json` writes: its score has no file and sha256.")
    beside_it = file.parent / Path(written["file"]).name
    return FittedScore.load(beside_it if beside_it.is_file() else written["file"], written["sha256"])
