"""Networks by name, ready to be exported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nescio.datasets.names import dataset_name
from nescio.datasets.view import View
from nescio.errors import BadInput
from nescio.measures import FittedScore, LossOrder
from nescio.networks.abstaining import ExportableNetwork
from nescio.networks.forward import heads
from nescio.networks.models import build, build_classifier, check_training_data, find_network, with_weights
from nescio.networks.network import Network, output_class_names, with_class_names, with_preprocessing
from nescio.networks.preprocessing import Preprocessing
from nescio.predictions.model_predictions import STAGE, ModelPredictions, predictions_from_text
from nescio.runtime import Runtime
from nescio.specs import ZOO, location_of
from nescio.training import WEIGHTS
from nescio.work.store import Store


class MethodOutputs(nn.Module):
    """A trained method as a plain network: images to logits (b, s, c), or to (logits, embeddings)."""

    def __init__(self, method: nn.Module, embeddings: bool) -> None:
        super().__init__()
        self.method, self.embeddings = method, embeddings

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        output = self.method(x)
        return (output.logits, output.embeddings) if self.embeddings else output.logits


class SplitClassifier(nn.Module):
    """A pretrained network: images to (logits, inputs of its last layer)."""

    def __init__(self, network: nn.Module, classes: int) -> None:
        super().__init__()
        last = heads(network, classes)
        if len(last) != 1 or not isinstance(last[0], nn.Linear):
            raise BadInput("A score of embeddings needs a network with one linear last layer.")
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
    classes: Path | None = None,
    score: LossOrder | FittedScore | None = None,
    preprocessing: Preprocessing | None = None,
    data: str | None = None,
) -> ExportableNetwork:
    """A timm name, torchvision:NAME, store:KEY or zoo:NAME, with its weights, on the CPU.

    zoo:NAME has the weights, the preprocessing and the class names of the predictions in the store.

    classes        file of class names
    score          a score of its embeddings
    preprocessing  settings for a user's checkpoint
    data           new path of the training data of a network of the store
    """
    stored = predictions_from_text(name, store) if location_of(ZOO, name) else None
    stored_preprocessing = stored.preprocessing if stored else {}
    data_names = () if data is None else (dataset_name(data),)
    named = find_network(stored.model if stored else name, store, root, data_names)
    for data_name in data_names:
        check_training_data(named, data_name, root)
    network = with_weights(named, weights or _known_file(stored))
    (network,) = with_preprocessing([network], preprocessing or Preprocessing())
    if stored and network.trial is None:
        network = replace(network, **preprocessing_fields(stored_preprocessing))
    if stored and network.trial is None and network.checksum != stored.weights:
        raise BadInput(
            f"The weights of {stored.model} in {network.file} are not those of the predictions in "
            f"{store.root}: name the original weights, or predict again with `nescio zoo`."
        )
    if stored:
        class_map = store.record(STAGE, stored.key)["config"].get("class_map", ())
        network = replace(network, class_map=tuple((name, number) for name, number in class_map))
    if classes is not None:
        network = with_class_names(replace(network, class_map=()), classes)
    names = _mapped_names(network)
    if classes is not None and names is None:
        raise BadInput(f"{classes} does not name all {network.classes} classes of {network.name}, each once.")
    names = names or output_class_names(network) or (stored.facts.get("class_names") if stored else None)
    if network.trial is not None and network.trial.task == "segmentation":
        raise BadInput(f"{network.name} segments images: only classifiers are exported.")
    if network.trial is not None:
        method, network = build(network, store, Runtime(torch.device("cpu"), "float32"), root)
        module: nn.Module = MethodOutputs(method, score is not None)
    else:
        module, network = build_classifier(network)
        module = module if score is None else SplitClassifier(module, network.classes)
    facts = {
        "model": network.name,
        "weights": network.file.name if network.file else WEIGHTS,
        **_preprocessing_values(network),
    }
    if names is not None:
        facts["names"] = list(names)
    digest = network.checksum or network.arch
    preprocessing_values = network.mean, network.std, network.view.shape, network.classes
    return ExportableNetwork(module.eval(), *preprocessing_values, digest, facts, score)


def _preprocessing_values(network: Network) -> dict[str, object]:
    """Its preprocessing as plain values, which a threshold file names."""
    view = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(network.view).items()}
    colours = {} if network.trial is not None else {"mean": list(network.mean), "std": list(network.std)}
    return {"view": view, **colours}


def preprocessing_fields(stored_preprocessing: Mapping[str, Any]) -> dict[str, Any]:
    """The preprocessing fields of a network in the facts of predictions."""
    fields: dict[str, Any] = {
        key: tuple(stored_preprocessing[key]) for key in ("mean", "std") if key in stored_preprocessing
    }
    if "view" in stored_preprocessing:
        plain = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in stored_preprocessing["view"].items()
        }
        fields["view"] = View(**plain)
    return fields


def _known_file(stored: ModelPredictions | None) -> Path | None:
    """The weights file of stored predictions, if it still exists; its digest is checked later."""
    file = Path(str(stored.facts.get("weights_path", ""))) if stored and "@" not in stored.model else None
    return file if file is not None and file.is_file() else None


def _mapped_names(network: Network) -> Sequence[str] | None:
    """The class names, class 0 first, in a class map that names each class once; else None."""
    mapped = {number: name for name, number in network.class_map}
    whole = len(mapped) == len(network.class_map) == network.classes
    return [mapped[number] for number in range(network.classes)] if whole else None
