"""Networks by name: timm's, torchvision's, trials of a store, and checkpoints; how each sees an image."""

from __future__ import annotations

import difflib
import fnmatch
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nescio import datasets
from nescio.checkpoints import check_frame, read_entries, read_weights
from nescio.datasets import imagenet
from nescio.datasets.names import name_for_keys
from nescio.datasets.pixels import Pixels
from nescio.datasets.view import View
from nescio.errors import BadInput, did_you_mean
from nescio.files import read_text
from nescio.identity import ContentName, canonical
from nescio.methods import registry as methods
from nescio.networks import weights
from nescio.networks.forward import Classifier, Segmenter, heads, keep_heads_float32
from nescio.networks.preprocessing import Preprocessing, per_channel, read_class_names, read_preprocessing
from nescio.runtime import Runtime
from nescio.specs import STORE, TORCHVISION, DatasetName, NetworkName
from nescio.training import load_method, named_trial, train_step
from nescio.trials import Trial, from_plain
from nescio.work.steps import Step
from nescio.work.store import Store
from nescio.work.versions import TRAIN

LITE = "tf_efficientnet_lite"
NOWHERE = weights.Remote()


@dataclass(frozen=True)
class Network:
    """One network that can predict: its name, how it sees an image, where its weights are."""

    name: str  # a timm name, torchvision:NAME, or store:KEY
    view: View
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: int
    class_names: tuple[str, ...] | None = None  # where they are known
    remote: weights.Remote = NOWHERE  # where its weights are published
    called: tuple[str, ...] = ()  # what a file with its weights may be called; last the architecture's name
    trial: Trial | None = None  # what it was trained by, or is to be
    file: Path | None = None  # its weights, once they are found …
    checksum: str = ""  # … and their checksum
    class_map: tuple[tuple[str, int], ...] = ()  # what a set calls a class, and the network's label of it
    image_padding: bool = False  # of EfficientNet-Lite: see weights.pad_by_image_size
    own: bool = False  # its weights are a checkpoint that a person named, and no published ones
    said: tuple[str, ...] = ()  # who said how it sees images, of settings that are not those of published weights

    @property
    def parsed_name(self) -> NetworkName:
        return NetworkName.of(self.name)

    @property
    def arch(self) -> str:
        return self.parsed_name.name

    def parent(self, root: str | Path | None = None) -> Step | str:
        """What the key of its predictions follows from: the step that trains it, or the checksum of its weights."""
        if self.trial is not None:
            return train_step(self.trial, root)
        if not self.checksum:
            raise BadInput(f"The weights of {self.name} have not been looked for: use with_weights first.")
        return self.checksum

    @property
    def identity(self) -> dict[str, Any]:
        """What else its predictions depend on, as plain values."""
        own: dict[str, Any] = {"class_map": self.class_map} if self.class_map else {}
        if self.trial is not None:
            return own
        if self.arch.startswith(LITE):
            own |= {"padding": "image" if self.image_padding else "map"}
        return {"model": self.parsed_name.published, "mean": self.mean, "std": self.std, **own}


# ---- names


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
    """The models that names, globs, a family or `everything` name, each once, in order.

    Globs, families and `everything` mean pretrained classifiers; where a `folder` of weights is given, those whose
    weights lie in it. `data`: see `network`.
    """
    names = [name for pattern in patterns for name in _matching(pattern, folder)]
    if everything:
        names += (every := _all(folder))
        if not every:
            raise BadInput(
                f"No pretrained model has its weights in {folder}: a file there is called MODEL.pth or alike."
            )
    for family in families:
        names += _of_family(family, folder)
    if not names:
        raise BadInput("There is no model to predict with: name some, such as resnet50 or 'vit_*', or give families.")
    return [find_network(name, store, root, data) for name in dict.fromkeys(names)]


def _of_family(family: str, folder: Path | None) -> list[str]:
    from nescio.networks.families import family as family_of
    from nescio.networks.families import is_in_family

    own = [name for name in _all(folder) if is_in_family(name, family)]
    if own:
        return own
    if folder and any(is_in_family(name, family) for name in _all(None)):
        raise BadInput(f"No model of the family {family!r} has its weights in {folder}.")
    known = sorted({family_of(name) for name in _all(None)})
    hint = did_you_mean(family, known)
    raise BadInput(f"No model is of the family {family!r}.{hint} The families are: {', '.join(known)}.")


def _matching(pattern: str, folder: Path | None) -> list[str]:
    if not any(letter in pattern for letter in "*?["):
        return [pattern]
    names = fnmatch.filter(_all(folder), pattern)
    if not names:
        where = f" with weights in {folder}" if folder else ""
        raise BadInput(f"No pretrained model{where} has a name like {pattern!r}.{_meant(pattern.strip('*?'))}")
    return names


def _all(folder: Path | None) -> list[str]:
    """Every pretrained classifier; with a folder of weights, those whose weights are there by a name of their own."""
    if folder is None:
        return [*_timm_pretrained(), *_torchvision()]
    files = weights.index_folder(folder)
    names = [name for name in _timm_architectures() if name in files and _timm(name) is not None]
    for name in (*_timm_pretrained(), *_torchvision()):
        known = _published(name)
        if known is not None and any(called in files for called in known.called[:-1]):
            names.append(name)
    return names


@cache
def _timm_pretrained() -> tuple[str, ...]:
    import timm

    return tuple(name for name in timm.list_models(pretrained=True) if _timm(name) is not None)


@cache
def _timm_architectures() -> tuple[str, ...]:
    import timm

    return tuple(timm.list_models())


@cache
def _torchvision() -> tuple[str, ...]:
    import torchvision

    return tuple(f"{TORCHVISION}:{name}" for name in torchvision.models.list_models(module=torchvision.models))


def _meant(name: str) -> str:
    known = [*_timm_architectures(), *_timm_pretrained(), *_torchvision()]
    close = difflib.get_close_matches(name, known, n=3) or difflib.get_close_matches(
        f"{TORCHVISION}:{name}", known, n=1
    )
    return f" Did you mean {' or '.join(close)}?" if close else ""


def find_network(name: str, store: Store, root: str | Path | None = None, data: Sequence[str] = ()) -> Network:
    """The network of a name: timm's or torchvision:NAME, with @FILE for weights of one's own, or store:KEY.

    data  names of sets that may be those of a network of the store, should they have moved
    """
    parsed = NetworkName.of(name)
    if parsed.file is not None:
        file = Path(os.path.expanduser(parsed.file))
        return replace(with_weights(find_network(parsed.published, store, root), file), name=name)
    if parsed.kind == STORE:
        return stored_network(store.find("train", parsed.name), store, root, data)
    found = _published(name)
    if found is None:
        raise BadInput(
            f"There is no classifier named {name!r}.{_meant(name)} There are timm's names, torchvision:NAME, "
            "either with @FILE for weights of your own, and store:KEY for a network of `nescio train`."
        )
    return found


def _published(name: str) -> Network | None:
    return _torchvision_model(name) if NetworkName.of(name).kind == TORCHVISION else _timm(name)


# ---- timm


@cache
def _timm(name: str) -> Network | None:
    """None where timm has no such model, or where it does not classify."""
    import timm
    from timm.data.config import resolve_data_config

    if not timm.is_model(name):
        return None
    try:
        cfg = timm.get_pretrained_cfg(name)
    except (RuntimeError, ValueError):  # no such tag
        return None
    if cfg is None or not cfg.num_classes:
        return None
    seen = resolve_data_config(pretrained_cfg=cfg.to_dict(), use_test_size=not cfg.fixed_input_size)
    channels, height, width = seen["input_size"]
    if channels != 3 or height != width:
        return None
    mean, std = (tuple(float(value) for value in seen[key]) for key in ("mean", "std"))
    mode = seen["crop_mode"]
    red, green, blue = (round(255 * value) if mode == "border" else 0 for value in mean)
    view = View(height, math.floor(height / seen["crop_pct"]), mode, seen["interpolation"], (red, green, blue))
    url = str(cfg.url) if cfg.url else None
    arch = str(cfg.architecture)
    called = [f"{arch}.{cfg.tag}"] if cfg.tag else []
    called += [_stem(url)] if url else []
    called += [arch.removeprefix("tf_").replace("_", "-")] if arch.startswith(LITE) else []  # as first published
    remote = weights.Remote(cfg.hf_hub_id or None, cfg.hf_hub_filename or None, url)
    return Network(name, view, mean, std, int(cfg.num_classes), None, remote, (*called, arch))


def _stem(url: str) -> str:
    name = Path(url).name
    return next((name.removesuffix(ending) for ending in weights.ENDINGS if name.endswith(ending)), name)


def _build_timm(wanted: Network, file: Path, drop: float | None) -> tuple[nn.Module, Network]:
    import timm

    options: dict[str, Any] = {"num_classes": wanted.classes} | ({} if drop is None else {"drop_rate": drop})
    published = _timm(wanted.arch)
    if (
        published is not None
        and published.view.size != wanted.view.size
        and timm.get_pretrained_cfg(wanted.arch).fixed_input_size
    ):
        options["img_size"] = wanted.view.size  # transformers have positions for one size
    module = timm.create_model(wanted.arch, **options)
    state = read_weights(file)
    if wanted.arch.startswith(LITE) and weights.is_lite_port(state):
        state = weights.rename_lite(state, module.state_dict())
        if odd := weights.differences(module.state_dict(), state):
            size = "it is an EfficientNet-Lite of another size, or with other classes"
            raise BadInput(f"{file} does not fit {wanted.name}: {size} ({odd}).")
    if wanted.arch.startswith(LITE) and wanted.image_padding:
        weights.pad_by_image_size(module, wanted.view.size)
    odd = weights.differences(module.state_dict(), state)
    if not odd:
        weights.load_state(module, state, file, wanted.name)
        return module, wanted
    try:  # timm knows the names that its models' authors used
        with weights.strict_loading():
            overlay = {"state_dict": state, "custom_load": False}
            return timm.create_model(wanted.arch, pretrained=True, pretrained_cfg_overlay=overlay, **options), wanted
    except Exception:  # whatever a conversion of foreign names stumbles over: the names tell why
        raise BadInput(f"{file} does not fit {wanted.name}: {odd}.") from None


# ---- torchvision

OPTIONS: dict[str, dict[str, Any]] = {
    # torchvision builds these two so when it loads weights: their input is scaled again, and the file has more heads
    "googlenet": {"transform_input": True, "aux_logits": True, "init_weights": False},
    "inception_v3": {"transform_input": True, "aux_logits": True, "init_weights": False},
}


@cache
def _torchvision_model(name: str) -> Network | None:
    """torchvision:NAME, or torchvision:NAME.WEIGHTS for other weights than its best."""
    import torchvision

    arch, _, tag = NetworkName.of(name).name.partition(".")
    if f"{TORCHVISION}:{arch}" not in _torchvision():
        return None
    kinds = torchvision.models.get_model_weights(arch)
    found = kinds.DEFAULT if not tag else next((each for each in kinds if each.name.lower() == tag.lower()), None)
    if found is None:
        raise BadInput(f"torchvision's {arch} has no weights {tag!r}. There are: {', '.join(w.name for w in kinds)}.")
    seen = found.transforms()
    (size,), (resize,) = seen.crop_size, seen.resize_size
    view = View(size, resize, "center", seen.interpolation.value)
    called = (f"torchvision-{arch}.{found.name}", f"torchvision-{arch}", _stem(found.url), arch)
    remote = weights.Remote(url=found.url)
    classes = len(found.meta["categories"])
    return Network(name, view, tuple(seen.mean), tuple(seen.std), classes, None, remote, called)


def _build_torchvision(wanted: Network, file: Path) -> nn.Module:
    import torchvision

    arch = wanted.arch.partition(".")[0]
    options = OPTIONS.get(arch, {}) | ({"image_size": wanted.view.size} if arch.startswith("vit_") else {})
    module = torchvision.models.get_model(arch, weights=None, num_classes=wanted.classes, **options)
    weights.load_state(module, weights.rename_densenet(read_weights(file)), file, wanted.name)
    for head in ("aux1", "aux2", "AuxLogits"):  # they only help to train
        if hasattr(module, head):
            setattr(module, head, None)
            module.aux_logits = False  # type: ignore[assignment]
    return module


# ---- trials


def network_of_trial(trial: Trial, root: str | Path | None = None) -> Network:
    """The network that a trial trains, whether it is trained already or not."""
    trial = named_trial(trial, root)
    data = datasets.load(trial.data, root)
    height, width = data.shape
    odd = height if height != width else None
    view = View(width, width, "trained", "bilinear", crop=_crop(data), channels=data.channels, height=odd)
    inside = trial.classes if trial.classes is not None else range(len(data.classes))
    if odd_classes := [label for label in inside if not 0 <= label < len(data.classes)]:
        raise BadInput(f"{trial.data} has no class {odd_classes[0]}: its classes are 0 to {len(data.classes) - 1}.")
    names = tuple(data.classes[label] for label in inside)
    name = f"{STORE}:{train_step(trial, root).key}"
    return Network(name, view, data.mean, data.std, len(names), names, trial=trial)


def _crop(data: datasets.Dataset) -> float:
    """Of a large image, the part that training looked at."""
    backing = data.train.backing
    encoded = backing.encoded if isinstance(backing, Pixels) else backing
    return 1.0 if encoded is None else float(encoded.crop)


def stored_network(key: str, store: Store, root: str | Path | None = None, data: Sequence[str] = ()) -> Network:
    """A trained network of the store; what is another network today would be trained anew under its name.

    data  names of sets that may be the network's own, should it have moved
    """
    trial = trial_of(key, store)
    network = network_of_trial(replace(trial, data=_found(trial.data, data, key, store, root)), root)
    if network.name != f"{STORE}:{key}":
        same = store.record("train", key)["version"] == TRAIN
        why = f"{trial.data} has changed since {key} was trained" if same else f"{key} is of another version of nescio"
        raise BadInput(f"{why}: {'bring the data back, or ' if same else ''}train it again.")
    return network


def _found(data: str, others: Sequence[str], key: str, store: Store, root: str | Path | None) -> str:
    """The name under which a network's data is found today: its own, one of `others`, or one that the store has."""
    if not isinstance(data, ContentName):
        return data
    today = None
    elsewhere = (run.names[data.content] for run in store.runs() if data.content in run.names)
    for name in chain([str(data)], others, elsewhere):
        with suppress(BadInput):
            found = name_for_keys(name, root)
            if canonical(found) == data.content:
                return found
            today = today or (found if name == data else None)
    if today is not None:
        return today  # it is there and has changed
    raise BadInput(
        f"The data of {key} is not at {data} any more, nor at another path that is known: put it back there, or "
        f"name its new path once, as in `nescio predict {key} --training-data SET --output FILE`."
    )


def check_training_data(network: Network, data: str, root: str | Path | None = None) -> None:
    """Refuses data that are not those from which a network of the store learnt."""
    from nescio.datasets.names import same_images

    if network.trial is None:
        raise BadInput(f"data is for networks of the store, and {network.name} is none: omit it.")
    if not same_images(network.trial.data, data, root):
        raise BadInput(f"data is {data}, and {network.name} was trained on {network.trial.data}: omit data.")


def trial_of(key: str, store: Store) -> Trial:
    """The trial of a trained network."""
    store.verify("train", key)
    config = store.record("train", key)["config"]
    return from_plain(config, lambda name: methods[name].hparams_class, store.names("train", key))


# ---- weights


def weights_folder(weights_path: Path | None = None) -> Path | None:
    """Where weights are looked for before the hubs: the path that is given, else $NESCIO_WEIGHTS."""
    folder = os.environ.get("NESCIO_WEIGHTS")
    return weights_path or (Path(os.path.expanduser(folder)) if folder else None)


def with_weights(wanted: Network, place: Path | None = None) -> Network:
    """The network with its weights found: a named file, one of its name in a named folder, or published ones.

    A named file may be of a network that was fine-tuned: it then has as many classes as the file's last layer, and the
    names of classes and the preprocessing that the file states.
    """
    if wanted.trial is not None or wanted.file is not None:
        return wanted
    file = _weights_of(wanted, weights_folder(place))
    if wanted.arch.startswith(LITE) and weights.is_lite_port(read_weights(file)):
        wanted = replace(wanted, mean=weights.LITE_MEAN, std=weights.LITE_STD)
    if place is not None and place.is_file():
        wanted = _of_checkpoint(wanted, file)
    check_frame(file)
    return replace(wanted, file=file, checksum=weights.checksum(file))


def _of_checkpoint(wanted: Network, file: Path) -> Network:
    """The network with what a checkpoint of one's own says of itself."""
    state, entries = read_weights(file), read_entries(file)
    classes, names, look = (
        _head_rows(wanted, state) or wanted.classes,
        read_class_names(entries),
        read_preprocessing(entries, file),
    )
    names = names if names is not None and len(names) == classes else None
    return _seen(replace(wanted, classes=classes, class_names=names, own=True), look, "the checkpoint")


def _seen(wanted: Network, look: Preprocessing, who: str) -> Network:
    """The network with these settings of its preprocessing, and who gave them."""
    if not look.given:
        return wanted
    mean, std = per_channel(look.mean or wanted.mean), per_channel(look.std or wanted.std)
    said = (*wanted.said, f"{', '.join(look.given)} from {who}")
    return replace(wanted, view=look.view(wanted.view, mean), mean=mean, std=std, said=said)


def with_preprocessing(networks: Sequence[Network], look: Preprocessing, data: str | None = None) -> list[Network]:
    """The networks, those with checkpoints of one's own under the settings of `look`.

    data  a set whose @SIZE they see, where `look` names no size
    """
    if look.given and not any(network.own for network in networks):
        raise BadInput(
            f"{look.given[0]} is of a checkpoint of your own, and none is named: write NAME@FILE. Published networks "
            "and networks of a store see images as they were tested and trained."
        )
    size = DatasetName.of(data).size if data else None
    if size and look.input_size is None:
        networks = [_seen(one, Preprocessing(input_size=int(size)), str(data)) if one.own else one for one in networks]
    return [_seen(network, look, "options") if network.own else network for network in networks]


def describe_preprocessing(networks: Sequence[Network]) -> list[str]:
    """How the networks see images, a line for all that see them alike."""
    rest = {
        one.name: f" ({'; '.join([*one.said, 'else as' if one.said else 'as'])} published for {one.arch})"
        for one in networks
    }
    facts = [(one.name, str(one.view), one.mean, one.std, rest[one.name] if one.own else "") for one in networks]
    return group_by_preprocessing(facts)


def group_by_preprocessing(seen: Iterable[tuple[str, str, Sequence[float], Sequence[float], str]]) -> list[str]:
    """A line for all networks that see images alike: (name, view, mean, std, remark) of each."""
    alike: dict[str, list[str]] = {}
    for name, view, mean, std, remark in seen:
        numbers = (" ".join(f"{value:.4g}" for value in values) for values in (mean, std))
        names = alike.setdefault("{}, mean {}, std {}{}".format(view, *numbers, remark), [])
        names += [name] if name not in names else []
    return [f"{_few_names(names)}: images at {how}." for how, names in alike.items()]


def _few_names(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _head_rows(wanted: Network, state: Mapping[str, Any]) -> int | None:
    """How many classes the last layer of a checkpoint has; None where it has none of that name."""
    if weights.is_lite_port(state):
        return len(state["_fc.weight"])
    name = _torchvision_head(wanted) if wanted.parsed_name.kind == TORCHVISION else _timm_head(wanted)
    return len(state[name]) if name in state else None


def _timm_head(wanted: Network) -> str:
    import timm

    name: Any = timm.get_pretrained_cfg(wanted.arch).classifier
    return f"{name if isinstance(name, str) else name[0]}.weight"


def _torchvision_head(wanted: Network) -> str:
    import torchvision

    arch = wanted.arch.partition(".")[0]
    with torch.device("meta"):
        module = torchvision.models.get_model(arch, weights=None, **OPTIONS.get(arch, {}))
    (head,) = heads(module, wanted.classes)
    return next(f"{name}.weight" for name, layer in module.named_modules() if layer is head)


def _weights_of(wanted: Network, place: Path | None) -> Path:
    if place is not None and not place.exists():
        raise BadInput(f"There is no folder and no file of weights at {place}.")
    if place is not None and place.is_file():
        return place
    looked = []
    if place is not None:
        files = weights.index_folder(place)
        found = next((files[name] for name in wanted.called if name in files), None)
        if found is not None:
            return found
        looked = [f"{' or '.join(wanted.called)} ({', '.join(weights.ENDINGS)}) in {place}"]
    return weights.fetch_weights(wanted.name, wanted.remote, wanted.called[0], looked)


def build(
    wanted: Network, store: Store, here: Runtime, root: str | Path | None = None, drop: float | None = None
) -> tuple[Any, Network]:
    """The module with its weights, ready to predict (images to Output), and the network as those weights want it."""
    if wanted.trial is not None:
        method = load_method(train_step(wanted.trial, root).key, wanted.trial, store, here, root)
        keep_heads_float32(heads(method, wanted.classes), here)
        return (Segmenter(method) if method.spec.dense else method), wanted
    module, wanted = build_classifier(wanted, drop)
    return Classifier(here.to_device(module).eval(), wanted.classes, here), wanted


def build_classifier(wanted: Network, drop: float | None = None) -> tuple[nn.Module, Network]:
    """A pretrained network as its library has it, images to logits."""
    assert wanted.file is not None
    if wanted.parsed_name.kind == TORCHVISION:
        return _build_torchvision(wanted, wanted.file), wanted
    return _build_timm(wanted, wanted.file, drop)


# ---- names of classes


def output_class_names(wanted: Network) -> tuple[str, ...] | None:
    """What the network's answers are called, class 0 first; None where that is not known."""
    if wanted.class_names is not None:
        return wanted.class_names
    return imagenet.descriptions() if wanted.trial is None and wanted.classes == imagenet.CLASSES else None


def with_class_names(wanted: Network, file: Path) -> Network:
    """The network with the names of its classes from a file: one name a line, class 0 first; or NAME=CLASS a line
    (NAME,CLASS in a .csv file), what a set calls a class and the network's number or name of it."""
    try:
        lines = [line.strip() for line in read_text(file, "utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}.") from None
    parts = [re.split("," if file.suffix == ".csv" else r"\t|=", line, maxsplit=1) for line in lines]
    if lines and all(len(words) == 2 for words in parts):
        pairs = tuple((name.strip(), _class_number(wanted, number.strip(), file)) for name, number in parts)
        if len(dict(pairs)) < len(set(pairs)):
            twice = next(name for name, number in pairs if dict(pairs)[name] != number)
            raise BadInput(f"{file} gives {twice} two classes of {wanted.name}: write each name once.")
        return replace(wanted, class_map=pairs)
    if len(lines) != wanted.classes:
        raise BadInput(
            f"{file} has {len(lines)} names and {wanted.name} {wanted.classes} classes: write one name a line, class 0 "
            "first, or NAME=CLASS on every line."
        )
    if len(set(lines)) < len(lines):
        twice = next(name for name in lines if lines.count(name) > 1)
        raise BadInput(f"{file} holds {twice} twice: every class needs a name of its own.")
    pairs = tuple((name, number) for number, name in enumerate(lines))
    return replace(wanted, class_names=tuple(lines), class_map=pairs)


def _class_number(wanted: Network, word: str, file: Path) -> int:
    """The network's number of a class, by its number or its name."""
    if word.isdecimal() and len(word) < 10 and int(word) < wanted.classes:
        return int(word)
    names = wanted.class_names
    if names is not None and word in names:
        return names.index(word)
    known = imagenet.by_name().get(imagenet.plain(word), ()) if wanted.classes == imagenet.CLASSES else ()
    if len(known) == 1:
        return known[0]
    why = f"is the name of {len(known)} classes ({', '.join(map(str, known))})" if known else "is no class"
    raise BadInput(f"{file}: {word!r} {why} of {wanted.name}: write a number from 0 to {wanted.classes - 1}.")


def count_parameters(module: nn.Module) -> int:
    return sum(tensor.numel() for tensor in module.parameters())
