"""Files of a classifier that abstains, ONNX or torch.export, checked against the network."""

from __future__ import annotations

import json
import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from nescio import __version__
from nescio.arrays.types import Array
from nescio.errors import BadInput, install
from nescio.files import atomic_write, parse_json
from nescio.networks.abstaining import LOSS_ORDER, AbstainingClassifier, AbstentionRule, ExportableNetwork

OUTPUTS = ("class", "probability", "uncertainty", "abstain")
META = "nescio"  # key of the metadata in both formats
MAX_BYTES = 2**31 - 2**20  # of the weights in one ONNX file
ROUNDING = 1e-6  # tolerance of the largest value of a measure
TOLERANCE = 1e-4  # maximum difference between outputs of file and network
Predictor: TypeAlias = Callable[[Array | Tensor], dict[str, Array]]  # images to arrays by output name


class NotExportable(RuntimeError):
    """The network cannot be written as a file, or the file's outputs differ from the network's."""


@dataclass(frozen=True)
class ExportedFile:
    """A written file, its metadata, and whether its outputs were compared with the network's."""

    path: Path
    metadata: Mapping[str, Any]
    checked: bool


def export(classifier: ExportableNetwork, rule: AbstentionRule, path: str | Path) -> ExportedFile:
    """Write .onnx or .pt2, by the suffix, and compare the outputs of the file with the network's.

    The network stays on the CPU, in float32 and in evaluation mode. Without onnxruntime, ONNX files are not compared.
    """
    goal = Path(path)
    if goal.suffix not in WRITERS:
        raise BadInput(f"{goal} ends in {goal.suffix or 'nothing'}; an exported file ends in {' or '.join(WRITERS)}.")
    _check_threshold(rule, classifier.classes)
    module = AbstainingClassifier(classifier, rule).float().cpu().eval()
    facts = metadata(classifier, rule)
    images = _noise(2, classifier)
    _check_answers(module, images, classifier.classes)
    # With gradients enabled, methods omit the scores that are for predictions files only.
    with torch.enable_grad(), _silence(), atomic_write(goal) as draft:
        file = draft.with_suffix(goal.suffix)  # the suffix determines the format
        try:
            WRITERS[goal.suffix](module, images, file, json.dumps(facts, ensure_ascii=False))
            checked = _check_file(file, module, _noise(3, classifier))
            file.replace(draft)
        finally:
            file.unlink(missing_ok=True)
    return ExportedFile(goal, facts, checked)


def _check_threshold(rule: AbstentionRule, classes: int) -> None:
    most = {"msp": 1 - 1 / classes, "entropy": math.log(classes)}.get(rule.measure, math.inf)
    least = 0 if rule.measure in ("msp", "entropy", LOSS_ORDER) else -math.inf
    if not least <= rule.threshold <= most + ROUNDING:
        always = "always" if rule.threshold < 0 else "never"
        raise BadInput(
            f"The threshold is {rule.threshold:g}, and {rule.measure} of {classes} classes is between 0 and "
            f"{most:.4g}: the file would {always} abstain."
        )


def metadata(classifier: ExportableNetwork, rule: AbstentionRule) -> dict[str, object]:
    """Everything that is needed to use the file."""
    shape = ", ".join(map(str, (classifier.channels, *classifier.shape)))
    return {
        "nescio": __version__,
        **classifier.facts,
        **({"digest": classifier.digest} if classifier.digest else {}),
        "classes": classifier.classes,
        "input": f"images: uint8, shape (n, {shape}), values 0 to 255; normalised inside the file",
        "mean": list(classifier.mean),
        "std": list(classifier.std),
        **asdict(rule),
        "outputs": {
            "class": "int64 (n,), the most probable class",
            "probability": "float32 (n,), its calibrated probability",
            "uncertainty": f"float32 (n,), {rule.measure}, higher is less certain",
            "abstain": f"bool (n,), true where uncertainty is above {rule.threshold!r}",
        },
    }


def _noise(rows: int, classifier: ExportableNetwork) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    shape = (rows, classifier.channels, *classifier.shape)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


@torch.no_grad()
def _check_answers(module: AbstainingClassifier, images: Tensor, classes: int) -> None:
    """Raise BadInput unless the network outputs one logit per class, and the same at every call."""
    outputs = []
    for seed in (0, 1):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            output = module.network(images.float() / 255)
            outputs.append(output if module.score is None else output[0])
    if not isinstance(outputs[0], Tensor) or outputs[0].dim() not in (2, 3) or outputs[0].shape[-1] != classes:
        raise BadInput(f"This network does not output a logit for each of {classes} classes: export a classifier.")
    if module.score is not None and output[1].shape[1:] != (module.score.width or output[1].shape[1],):
        d, network = output[1].shape[1], module.score.width
        raise BadInput(
            f"The score {module.rule.measure} is of embeddings of {network} features, and this network has {d}."
        )
    if not torch.equal(*outputs):
        raise BadInput(
            "The outputs of this network are random (MC-dropout or other draws); an exported file has one prediction "
            "per image. Export a network without draws."
        )


def check_packages(file: Path) -> None:
    """Raise BadInput if the packages that write such a file are not installed."""
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if file.suffix == ".onnx" and missing:
        raise BadInput(f"An ONNX file needs {' and '.join(missing)}: {install(missing[0])}; or write .pt2.")


def _write_onnx(module: AbstainingClassifier, images: Tensor, file: Path, facts: str) -> None:
    check_packages(file)
    if sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values()) > MAX_BYTES:
        raise BadInput("The weights exceed two gigabytes, the limit of one ONNX file: write .pt2.")
    for layer in module.modules():
        if getattr(
            layer, "fused_attn", False
        ):  # timm's switch: written out, because ONNX's has four dimensions at most
            layer.fused_attn = False  # type: ignore[assignment]
    names: dict[str, Any] = {"input_names": ["images"], "output_names": list(OUTPUTS), "dynamic_shapes": _any_number()}
    try:
        program = torch.onnx.export(module, (images,), dynamo=True, verbose=False, **names)
    except Exception as error:  # exporters raise any error of the network's code
        raise NotExportable(f"This network cannot be written as ONNX: {_reason(error)}") from error
    assert program is not None
    program.model.metadata_props[META] = facts
    program.save(file, external_data=False)


def _write_pt2(module: AbstainingClassifier, images: Tensor, file: Path, facts: str) -> None:
    try:
        program = torch.export.export(module, (images,), dynamic_shapes=_any_number())
        program = program.run_decompositions({})  # a switched-off autocast is a node that cannot be saved
    except Exception as error:
        raise NotExportable(f"torch.export cannot take this network: {_reason(error)}") from error
    torch.export.save(program, file, extra_files={META: facts})


def _any_number() -> dict[str, dict[int, object]]:
    return {"images": {0: torch.export.Dim("n")}}


WRITERS: dict[str, Callable[[AbstainingClassifier, Tensor, Path, str], None]] = {
    ".onnx": _write_onnx,
    ".pt2": _write_pt2,
}


def load(path: str | Path) -> tuple[Predictor, dict[str, Any]]:
    """The predictor and the metadata of an exported file; .onnx needs onnxruntime."""
    file = Path(path)
    if not file.is_file():
        raise BadInput(f"There is no file {file}.")
    if file.suffix != ".pt2" and find_spec("onnxruntime") is None:
        raise BadInput(f"Reading an ONNX file needs onnxruntime: {install('onnxruntime')}.")
    try:
        run, facts = (_load_pt2 if file.suffix == ".pt2" else _load_onnx)(file)
        return run, parse_json(facts, META)
    except MemoryError:
        raise
    except Exception:  # a foreign or damaged file can fail in any way inside the libraries
        raise BadInput(f"{file} is not a whole file of `nescio export`: export it again.") from None


def _load_pt2(file: Path) -> tuple[Predictor, str]:
    extra = {META: ""}
    module = torch.export.load(file, extra_files=extra).module()

    def run(images: Array | Tensor) -> dict[str, Array]:
        with torch.no_grad():
            outputs = module(torch.as_tensor(images))
        return {name: output.numpy() for name, output in zip(OUTPUTS, outputs, strict=True)}

    return run, extra[META]


def _load_onnx(file: Path) -> tuple[Predictor, str]:
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # else its import writes an identifier below HOME to send
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])

    def run(images: Array | Tensor) -> dict[str, Array]:
        return dict(zip(OUTPUTS, session.run(list(OUTPUTS), {"images": np.asarray(images)}), strict=True))

    return run, session.get_modelmeta().custom_metadata_map[META]


def _check_file(file: Path, module: AbstainingClassifier, images: Tensor) -> bool:
    """Compare file and network on a batch of another size than the traced one; False without a reader of the file."""
    if file.suffix == ".onnx" and find_spec("onnxruntime") is None:
        return False
    with torch.no_grad():
        file_outputs, network_outputs = load(file)[0](images), module(images)
    for position, name in ((1, "probability"), (2, "uncertainty")):
        difference = (torch.from_numpy(file_outputs[name]) - network_outputs[position]).abs() / network_outputs[
            position
        ].abs().clamp_min(1)
        if not (largest := float(difference.max())) <= TOLERANCE:
            raise NotExportable(
                f"The file's {name} differs from the network's by up to {largest:.2g}: the file is not kept."
            )
    return True


@contextmanager
def _silence() -> Iterator[None]:
    """Suppress logs, warnings and output of the exporters."""
    was = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(was)


def _reason(error: BaseException) -> str:
    """The first line of the root cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return f"{line[:200].rstrip('.')}."
