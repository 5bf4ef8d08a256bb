"""Networks by name, from a store or a library, with their weights."""

from __future__ import annotations

import difflib
import fnmatch
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from torch import nn

from nescio import datasets
from nescio.checkpoints import State, check_frame, read_entries, read_weights
from nescio.datasets.names import name_for_keys
from nescio.datasets.view import View
from nescio.errors import BadInput, did_you_mean
from nescio.identity import ContentName, canonical
from nescio.methods import registry as methods
from nescio.networks import weights
from nescio.networks.forward import Classifier, Segmenter, heads, keep_heads_float32
from nescio.networks.libraries import (
    build_timm,
    build_torchvision,
    timm_architectures,
    timm_head,
    timm_network,
    timm_pretrained,
    torchvision_head,
    torchvision_names,
    torchvision_network,
)
from nescio.networks.network import LITE, Network, apply_preprocessing
from nescio.networks.preprocessing import read_class_names, read_preprocessing
from nescio.runtime import Runtime
from nescio.specs import STORE, TORCHVISION, NetworkName
from nescio.training import load_method, named_trial, train_step
from nescio.trials import Trial, from_plain
from nescio.work.store import Store
from nescio.work.versions import TRAIN


def select_networks(
    patterns: Sequence[str],
    store: Store,
    *,
    root: str | Path | None = None,
    families: Sequence[str] = (),
    everything: bool = False,
    folder: Path | None = None,
    data: Sequence[str] = (),
) -> list[Network]:
    """The networks of names, globs and families, each once, in order.

    everything  select all pretrained classifiers
    folder      select by glob, family or `everything` only classifiers whose weights are in this folder
    data        see `find_network`
    """
    names = [name for pattern in patterns for name in _matching(pattern, folder)]
    if everything:
        names += (every := _all(folder))
        if not every:
            raise BadInput(f"No pretrained model has its weights in {folder}: name files there MODEL.pth, for example.")
    for family in families:
        names += _of_family(family, folder)
    if not names:
        raise BadInput("There is no model to predict with: name some, such as resnet50 or 'vit_*', or give families.")
    return [find_network(name, store, root, data) for name in dict.fromkeys(names)]


def _of_family(family: str, folder: Path | None) -> list[str]:
    from nescio.networks.families import family as family_of
    from nescio.networks.families import is_in_family

    members = [name for name in _all(folder) if is_in_family(name, family)]
    if members:
        return members
    if folder and any(is_in_family(name, family) for name in _all(None)):
        raise BadInput(f"No model of the family {family!r} has its weights in {folder}.")
    families = sorted({family_of(name) for name in _all(None)})
    hint = did_you_mean(family, families)
    raise BadInput(f"No model is of the family {family!r}.{hint} The families are: {', '.join(families)}.")


def _matching(pattern: str, folder: Path | None) -> list[str]:
    if not any(letter in pattern for letter in "*?["):
        return [pattern]
    names = fnmatch.filter(_all(folder), pattern)
    if not names:
        where = f" with weights in {folder}" if folder else ""
        raise BadInput(f"No pretrained model{where} has a name like {pattern!r}.{_suggestion(pattern.strip('*?'))}")
    return names


def _all(folder: Path | None) -> list[str]:
    """Every pretrained classifier; with a folder, those with a weights file of an unambiguous name there."""
    if folder is None:
        return [*timm_pretrained(), *torchvision_names()]
    files = weights.index_folder(folder)
    names = [name for name in timm_architectures() if name in files and timm_network(name) is not None]
    for name in (*timm_pretrained(), *torchvision_names()):
        network = _published(name)
        if network is not None and any(stem in files for stem in network.file_stems[:-1]):
            names.append(name)
    return names


def _suggestion(name: str) -> str:
    known = [*timm_architectures(), *timm_pretrained(), *torchvision_names()]
    close = difflib.get_close_matches(name, known, n=3) or difflib.get_close_matches(
        f"{TORCHVISION}:{name}", known, n=1
    )
    return f" Did you mean {' or '.join(close)}?" if close else ""


def find_network(name: str, store: Store, root: str | Path | None = None, data: Sequence[str] = ()) -> Network:
    """The network of a name: timm's name or torchvision:NAME, either with @FILE for other weights, or store:KEY.

    data  possible new names of the training data of a network of the store
    """
    parsed = NetworkName.parse(name)
    if parsed.file is not None:
        file = Path(os.path.expanduser(parsed.file))
        return replace(with_weights(find_network(parsed.published, store, root), file), name=name)
    if parsed.kind == STORE:
        return stored_network(store.find("train", parsed.name), store, root, data)
    published = _published(name)
    if published is None:
        raise BadInput(
            f"There is no classifier named {name!r}.{_suggestion(name)} There are timm's names, torchvision:NAME, "
            "either with @FILE for weights of your own, and store:KEY for a network of `nescio train`."
        )
    return published


def _published(name: str) -> Network | None:
    return torchvision_network(name) if NetworkName.parse(name).kind == TORCHVISION else timm_network(name)


def network_of_trial(trial: Trial, root: str | Path | None = None) -> Network:
    """The network that a trial trains, trained already or not."""
    trial = named_trial(trial, root)
    data = datasets.load(trial.data, root)
    inside = trial.classes if trial.classes is not None else range(len(data.classes))
    if odd_classes := [label for label in inside if not 0 <= label < len(data.classes)]:
        raise BadInput(f"{trial.data} has no class {odd_classes[0]}: its classes are 0 to {len(data.classes) - 1}.")
    names = tuple(data.classes[label] for label in inside)
    name = f"{STORE}:{train_step(trial, root).key}"
    return Network(name, training_view(data), data.mean, data.std, len(names), names, trial=trial)


def training_view(data: datasets.Dataset) -> View:
    """The preprocessing of networks that are trained on a dataset."""
    height, width = data.shape
    files = data.train.backing.files
    crop = 1.0 if files is None else files.crop  # the share of a large image that training used
    odd = height if height != width else None
    return View(width, width, "trained", "bilinear", crop=crop, channels=data.channels, height=odd)


def stored_network(key: str, store: Store, root: str | Path | None = None, data: Sequence[str] = ()) -> Network:
    """A trained network of the store; BadInput if its data or nescio's version have changed since.

    data  possible new names of its training data
    """
    trial = trial_of(key, store)
    network = network_of_trial(replace(trial, data=_current_name(trial.data, data, key, store, root)), root)
    if network.name != f"{STORE}:{key}":
        same = store.record("train", key)["version"] == TRAIN
        why = f"{trial.data} has changed since {key} was trained" if same else f"{key} is of another version of nescio"
        raise BadInput(f"{why}: {'bring the data back, or ' if same else ''}train it again.")
    return network


def _current_name(data: str, others: Sequence[str], key: str, store: Store, root: str | Path | None) -> str:
    """The current name of a network's training data: its old one, one of `others`, or one stored for other work."""
    if not isinstance(data, ContentName):
        return data
    changed = None
    stored_names = (run.names[data.content] for run in store.runs() if data.content in run.names)
    for name in chain([str(data)], others, stored_names):
        with suppress(BadInput):
            current = name_for_keys(name, root)
            if canonical(current) == data.content:
                return current
            changed = changed or (current if name == data else None)
    if changed is not None:
        return changed  # the data exists and has changed
    raise BadInput(
        f"The data of {key} is no longer at {data}, and no other path has it: restore it, or "
        f"give its new path once, as in `nescio predict {key} --training-data SET --output FILE`."
    )


def check_training_data(network: Network, data: str, root: str | Path | None = None) -> None:
    """Raise BadInput if `data` is not the training data of a network of the store."""
    from nescio.datasets.names import same_images

    if network.trial is None:
        raise BadInput(f"data applies to networks of a store only, not to {network.name}: omit it.")
    if not same_images(network.trial.data, data, root):
        raise BadInput(f"data is {data}, and {network.name} was trained on {network.trial.data}: omit data.")


def trial_of(key: str, store: Store) -> Trial:
    """The trial of a trained network."""
    store.verify("train", key)
    config = store.record("train", key)["config"]
    return from_plain(config, lambda name: methods[name].hparams_class, store.names("train", key))


def weights_folder(path: Path | None = None) -> Path | None:
    """The folder or file to search for weights before the hubs (default: $NESCIO_WEIGHTS)."""
    folder = os.environ.get("NESCIO_WEIGHTS")
    return path or (Path(os.path.expanduser(folder)) if folder else None)


def with_weights(network: Network, path: Path | None = None) -> Network:
    """The network with the path of its weights: `path` itself, a file of its name in it, or published weights.

    If `path` is a file, the number of classes is that of its last layer; class names and preprocessing are those that
    the file contains.
    """
    if network.trial is not None or network.file is not None:
        return network
    file = _weights_of(network, weights_folder(path))
    if network.arch.startswith(LITE) and weights.is_lite_port(read_weights(file)):
        network = replace(network, mean=weights.LITE_MEAN, std=weights.LITE_STD)
    if path is not None and path.is_file():
        network = _of_checkpoint(network, file)
    check_frame(file)
    return replace(network, file=file, checksum=weights.checksum(file))


def _of_checkpoint(network: Network, file: Path) -> Network:
    """The network with the classes and the preprocessing in a user's checkpoint."""
    state, entries = read_weights(file), read_entries(file)
    classes, names, preprocessing = (
        _head_rows(network, state) or network.classes,
        read_class_names(entries),
        read_preprocessing(entries, file),
    )
    names = names if names is not None and len(names) == classes else None
    return apply_preprocessing(
        replace(network, classes=classes, class_names=names, custom_weights=True), preprocessing, "the checkpoint"
    )


def _head_rows(network: Network, state: State) -> int | None:
    """The number of classes of a checkpoint's last layer; None if the layer is missing."""
    if weights.is_lite_port(state):
        return len(state["_fc.weight"])
    name = torchvision_head(network) if network.parsed_name.kind == TORCHVISION else timm_head(network)
    return len(state[name]) if name in state else None


def _weights_of(network: Network, path: Path | None) -> Path:
    if path is not None and not path.exists():
        raise BadInput(f"There is no folder or weights file at {path}.")
    if path is not None and path.is_file():
        return path
    searched = []
    if path is not None:
        files = weights.index_folder(path)
        file = next((files[name] for name in network.file_stems if name in files), None)
        if file is not None:
            return file
        searched = [f"{' or '.join(network.file_stems)} ({', '.join(weights.ENDINGS)}) in {path}"]
    return weights.fetch_weights(network.name, network.remote, network.file_stems[0], searched)


def build(
    network: Network, store: Store, runtime: Runtime, root: str | Path | None = None, dropout: float | None = None
) -> tuple[Any, Network]:
    """The module with its weights, images to Output, and the network with the preprocessing of the weights."""
    if network.trial is not None:
        method = load_method(train_step(network.trial, root).key, network.trial, store, runtime, root)
        keep_heads_float32(heads(method, network.classes), runtime)
        return (Segmenter(method) if method.spec.dense else method), network
    module, network = build_classifier(network, dropout)
    return Classifier(runtime.to_device(module).eval(), network.classes, runtime), network


def build_classifier(network: Network, dropout: float | None = None) -> tuple[nn.Module, Network]:
    """A pretrained network of its library, images to logits, and its Network."""
    assert network.file is not None
    if network.parsed_name.kind == TORCHVISION:
        return build_torchvision(network, network.file), network
    return build_timm(network, network.file, dropout)


def count_parameters(module: nn.Module) -> int:
    return sum(tensor.numel() for tensor in module.parameters())
