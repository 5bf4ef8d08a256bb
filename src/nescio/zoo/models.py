"""Classifiers by name: timm's, torchvision's, and those that `nescio train` left in a store; how each sees an image."""

from __future__ import annotations

import difflib
import fnmatch
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from nescio.errors import BadInput
from nescio.runtime import Runtime
from nescio.store import Store
from nescio.zoo import weights
from nescio.zoo.pixels import View

TORCHVISION, STORE = "torchvision:", "store:"
NOWHERE = weights.Remote()


@dataclass(frozen=True)
class Model:
    """One classifier: its name, how it looks at an image, where its weights are published."""

    name: str
    view: View
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: int
    taught: tuple[str, ...] | None = None  # names of its classes, where they are known
    remote: weights.Remote = NOWHERE
    called: tuple[str, ...] = ()  # what a file with its weights may be called; last the architecture's name

    @property
    def arch(self) -> str:
        return self.name.removeprefix(TORCHVISION).removeprefix(STORE)

    @property
    def from_store(self) -> bool:
        return self.name.startswith(STORE)


# ---- names


def pick(
    patterns: Sequence[str],
    store: Store,
    *,
    root: str | Path | None = None,
    family: str | None = None,
    everything: bool = False,
    folder: Path | None = None,
) -> list[Model]:
    """The models that names, globs, a family or `everything` ask for, each once, in order.

    Globs, families and `everything` mean pretrained classifiers; where a `folder` of weights is given, those whose
    weights lie in it.
    """
    names = [name for pattern in patterns for name in _matching(pattern, folder)]
    if everything:
        names += (found := _all(folder))
        if not found:
            raise BadInput(
                f"No pretrained model has its weights in {folder}: a file there is called MODEL.pth or alike."
            )
    if family is not None:
        names += _of_family(family, folder)
    if not names:
        raise BadInput("There is no model to ask: name some, such as resnet50 or 'vit_*', or say --family or --all.")
    return [model(name, store, root) for name in dict.fromkeys(names)]


def _of_family(family: str, folder: Path | None) -> list[str]:
    from nescio.zoo.families import belongs
    from nescio.zoo.families import family as family_of

    found = [name for name in _all(folder) if belongs(name, family)]
    if found:
        return found
    if folder and any(belongs(name, family) for name in _all(None)):
        raise BadInput(f"No model of the family {family!r} has its weights in {folder}.")
    known = sorted({family_of(name) for name in _all(None)})
    raise BadInput(f"No model is of the family {family!r}. The families are: {', '.join(known)}.")


def _matching(pattern: str, folder: Path | None) -> list[str]:
    if not any(letter in pattern for letter in "*?["):
        return [pattern]
    found = fnmatch.filter(_all(folder), pattern)
    if not found:
        where = f" with weights in {folder}" if folder else ""
        raise BadInput(f"No pretrained model{where} has a name like {pattern!r}.{_meant(pattern.strip('*?'))}")
    return found


def _all(folder: Path | None) -> list[str]:
    """Every pretrained classifier; with a folder of weights, those whose weights are there by a name of their own."""
    if folder is None:
        return [*_timm_pretrained(), *_torchvision()]
    files = weights.index(folder)
    found = [name for name in _timm_architectures() if name in files and _timm(name) is not None]
    for name in (*_timm_pretrained(), *_torchvision()):
        each = _torchvision_model(name) if name.startswith(TORCHVISION) else _timm(name)
        if each is not None and any(called in files for called in each.called[:-1]):
            found.append(name)
    return found


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

    return tuple(f"{TORCHVISION}{name}" for name in torchvision.models.list_models(module=torchvision.models))


def _meant(name: str) -> str:
    known = [*_timm_architectures(), *_timm_pretrained(), *_torchvision()]
    close = difflib.get_close_matches(name, known, n=3) or difflib.get_close_matches(f"{TORCHVISION}{name}", known, n=1)
    return f" Did you mean {' or '.join(close)}?" if close else ""


def model(name: str, store: Store, root: str | Path | None = None) -> Model:
    """The model of a name: a timm name, torchvision:NAME, or store:KEY."""
    if name.startswith(STORE):
        return _trained(name, store, root)
    found = _torchvision_model(name) if name.startswith(TORCHVISION) else _timm(name)
    if found is None:
        raise BadInput(
            f"There is no classifier named {name!r}.{_meant(name)} There are timm's names, torchvision:NAME, and "
            "store:KEY for a network of `nescio train`."
        )
    return found


# ---- timm


@cache
def _timm(name: str) -> Model | None:
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
    mean, std = (tuple(float(value) for value in seen[each]) for each in ("mean", "std"))
    mode = seen["crop_mode"]
    red, green, blue = (round(255 * value) if mode == "border" else 0 for value in mean)
    view = View(height, math.floor(height / seen["crop_pct"]), mode, seen["interpolation"], (red, green, blue))
    url = str(cfg.url) if cfg.url else None
    arch = str(cfg.architecture)
    called = [f"{arch}.{cfg.tag}"] if cfg.tag else []
    called += [_stem(url)] if url else []
    called += [arch.removeprefix("tf_").replace("_", "-")] if arch.startswith(LITE) else []  # as first published
    remote = weights.Remote(cfg.hf_hub_id or None, cfg.hf_hub_filename or None, url)
    return Model(name, view, mean, std, int(cfg.num_classes), None, remote, (*called, arch))


LITE = "tf_efficientnet_lite"


def _stem(url: str) -> str:
    name = Path(url).name
    return next((name.removesuffix(ending) for ending in weights.ENDINGS if name.endswith(ending)), name)


def _build_timm(asked: Model, file: Path, drop: float | None) -> tuple[nn.Module, Model]:
    import timm

    options: dict[str, Any] = {} if drop is None else {"drop_rate": drop}
    network = timm.create_model(asked.arch, **options)
    state = weights.read(file)
    if asked.arch.startswith(LITE) and weights.is_lite_port(state):
        state = weights.lite_names(state, network.state_dict())
        if odd := weights.differences(network.state_dict(), state):
            size = "it is an EfficientNet-Lite of another size, or with other classes"
            raise BadInput(f"{file} does not fit {asked.name}: {size} ({odd}).")
        weights.pad_as_the_port(network, asked.view.size)
        asked = replace(asked, mean=weights.LITE_MEAN, std=weights.LITE_STD)
    odd = weights.differences(network.state_dict(), state)
    if not odd:
        weights.load(network, state, file, asked.name)
        return network, asked
    try:  # timm knows the names that its models' authors used
        with weights.strictly():
            overlay = {"state_dict": state, "custom_load": False}
            return timm.create_model(asked.arch, pretrained=True, pretrained_cfg_overlay=overlay, **options), asked
    except Exception:  # whatever a conversion of foreign names stumbles over: the names tell why
        raise BadInput(f"{file} does not fit {asked.name}: {odd}.") from None


# ---- torchvision

OPTIONS: dict[str, dict[str, Any]] = {
    # torchvision builds these two so when it loads weights: their input is scaled again, and the file has more heads
    "googlenet": {"transform_input": True, "aux_logits": True, "init_weights": False},
    "inception_v3": {"transform_input": True, "aux_logits": True, "init_weights": False},
}


@cache
def _torchvision_model(name: str) -> Model | None:
    """torchvision:NAME, or torchvision:NAME.WEIGHTS for other weights than its best."""
    import torchvision

    arch, _, tag = name.removeprefix(TORCHVISION).partition(".")
    if f"{TORCHVISION}{arch}" not in _torchvision():
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
    return Model(name, view, tuple(seen.mean), tuple(seen.std), classes, None, remote, called)


def _build_torchvision(asked: Model, file: Path) -> tuple[nn.Module, Model]:
    import torchvision

    arch = asked.arch.partition(".")[0]
    network = torchvision.models.get_model(arch, weights=None, **OPTIONS.get(arch, {}))
    weights.load(network, weights.dense_names(weights.read(file)), file, asked.name)
    for head in ("aux1", "aux2", "AuxLogits"):  # they only help to train
        if hasattr(network, head):
            setattr(network, head, None)
            network.aux_logits = False  # type: ignore[assignment]
    return network, asked


# ---- what `nescio train` made


def _trained(name: str, store: Store, root: str | Path | None) -> Model:
    from nescio import datasets
    from nescio.commands.predict import whole

    key = whole(name.removeprefix(STORE), store)
    trial = _trial(key, store)
    data = datasets.load(trial.data, root)
    view = View(data.size, data.size, "trained", "bilinear", crop=_crop(data), channels=data.channels)
    inside = trial.classes if trial.classes is not None else range(len(data.classes))
    taught = tuple(data.classes[label] for label in inside)
    return Model(f"{STORE}{key}", view, data.mean, data.std, len(taught), taught)


def _crop(data: Any) -> float:
    """Of a large image, the part that training looked at."""
    from nescio.datasets.base import Pixels

    held = data.train.held
    encoded = held._encoded if isinstance(held, Pixels) else held
    return 1.0 if encoded is None else float(encoded.crop)


def _trial(key: str, store: Store) -> Any:
    from nescio.config import from_plain
    from nescio.methods import registry

    return from_plain(store.recipe("train", key)["recipe"], lambda name: registry[name].recipe_class)


class _Answers(nn.Module):
    """A trained method as a plain network: images to logits (b, s, c)."""

    def __init__(self, method: Any) -> None:
        super().__init__()
        self.method = method

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.method(x).logits
        return logits


# ---- weights and networks


def find_weights(asked: Model, place: Path | None, store: Store) -> Path:
    """The file of a model's weights: the named file, or one of its name in the named folder, else what is published."""
    if asked.from_store:
        from nescio.training import WEIGHTS

        return store.path("train", asked.arch) / WEIGHTS
    if place is not None and place.is_file():
        return place
    looked = []
    if place is not None:
        files = weights.index(place)
        found = next((files[name] for name in asked.called if name in files), None)
        if found is not None:
            return found
        looked = [f"{' or '.join(asked.called)} ({', '.join(weights.ENDINGS)}) in {place}"]
    return weights.published(asked.name, asked.remote, asked.called[0], looked)


def build(
    asked: Model, file: Path, store: Store, here: Runtime, root: str | Path | None = None, drop: float | None = None
) -> tuple[nn.Module, Model]:
    """The network with its weights, ready to predict, and the model as those weights want it (mean, deviation)."""
    if asked.from_store:
        from nescio.training import load_method

        trial = _trial(asked.arch, store)
        return _Answers(load_method(asked.arch, trial, store, here, root)).eval(), asked
    tv = asked.name.startswith(TORCHVISION)
    network, asked = _build_torchvision(asked, file) if tv else _build_timm(asked, file, drop)
    return here.place(network).eval(), asked


def heads(network: nn.Module, classes: int) -> list[nn.Module]:
    """The last layers, which give as many numbers as there are classes: what timm calls the classifier (two of them in
    distilled models), else the last layer that does."""

    def gives(module: Any) -> bool:
        out = getattr(module, "out_features", None) or getattr(module, "out_channels", None)
        return isinstance(module, (nn.Linear, nn.Conv2d)) and out == classes

    known: Any = network.get_classifier() if hasattr(network, "get_classifier") else ()
    known = [each for each in (known if isinstance(known, tuple) else (known,)) if gives(each)]
    return known or [module for module in network.modules() if gives(module)][-1:]


def parameters(network: nn.Module) -> int:
    return sum(each.numel() for each in network.parameters())
