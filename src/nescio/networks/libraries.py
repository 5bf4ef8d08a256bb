"""Pretrained classifiers of timm and torchvision by name."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nescio.checkpoints import read_weights
from nescio.datasets.view import View
from nescio.errors import BadInput
from nescio.networks import weights
from nescio.networks.forward import heads
from nescio.networks.network import LITE, Network
from nescio.specs import TORCHVISION, NetworkName


@cache
def timm_pretrained() -> tuple[str, ...]:
    import timm

    return tuple(name for name in timm.list_models(pretrained=True) if timm_network(name) is not None)


@cache
def timm_architectures() -> tuple[str, ...]:
    import timm

    return tuple(timm.list_models())


@cache
def timm_network(name: str) -> Network | None:
    """timm's network of a name; None if timm has none, or if it is no classifier."""
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
    config = resolve_data_config(pretrained_cfg=cfg.to_dict(), use_test_size=not cfg.fixed_input_size)
    channels, height, width = config["input_size"]
    if channels != 3 or height != width:
        return None
    mean, std = (tuple(float(value) for value in config[key]) for key in ("mean", "std"))
    mode = config["crop_mode"]
    red, green, blue = (round(255 * value) if mode == "border" else 0 for value in mean)
    view = View(height, math.floor(height / config["crop_pct"]), mode, config["interpolation"], (red, green, blue))
    url = str(cfg.url) if cfg.url else None
    arch = str(cfg.architecture)
    stems = [f"{arch}.{cfg.tag}"] if cfg.tag else []
    stems += [_stem(url)] if url else []
    stems += [arch.removeprefix("tf_").replace("_", "-")] if arch.startswith(LITE) else []  # as first published
    remote = weights.Remote(cfg.hf_hub_id or None, cfg.hf_hub_filename or None, url)
    return Network(name, view, mean, std, int(cfg.num_classes), None, remote, (*stems, arch))


def _stem(url: str) -> str:
    name = Path(url).name
    return next((name.removesuffix(ending) for ending in weights.ENDINGS if name.endswith(ending)), name)


def build_timm(network: Network, file: Path, dropout: float | None) -> tuple[nn.Module, Network]:
    import timm

    options: dict[str, Any] = {"num_classes": network.classes} | ({} if dropout is None else {"drop_rate": dropout})
    published = timm_network(network.arch)
    if (
        published is not None
        and published.view.size != network.view.size
        and timm.get_pretrained_cfg(network.arch).fixed_input_size
    ):
        options["img_size"] = network.view.size  # transformers have positions for one size
    module = timm.create_model(network.arch, **options)
    state = read_weights(file)
    if network.arch.startswith(LITE) and weights.is_lite_port(state):
        state = weights.rename_lite(state, module.state_dict())
        if odd := weights.differences(module.state_dict(), state):
            size = "it is an EfficientNet-Lite of another size, or with other classes"
            raise BadInput(f"{file} does not fit {network.name}: {size} ({odd}).")
    odd = weights.differences(module.state_dict(), state)
    if not odd:
        weights.load_state(module, state, file, network.name)
        return module, network
    try:  # timm can convert the names of the original authors
        with weights.strict_loading():
            overlay = {"state_dict": state, "custom_load": False}
            return timm.create_model(network.arch, pretrained=True, pretrained_cfg_overlay=overlay, **options), network
    except Exception:  # any error of a conversion of names: the mismatch explains it
        raise BadInput(f"{file} does not fit {network.name}: {odd}.") from None


def timm_head(network: Network) -> str:
    import timm

    name: Any = timm.get_pretrained_cfg(network.arch).classifier
    return f"{name if isinstance(name, str) else name[0]}.weight"


@cache
def torchvision_names() -> tuple[str, ...]:
    import torchvision

    return tuple(f"{TORCHVISION}:{name}" for name in torchvision.models.list_models(module=torchvision.models))


OPTIONS: dict[str, dict[str, Any]] = {
    # as torchvision builds them when it loads weights: the input is scaled again, and the file has more heads
    "googlenet": {"transform_input": True, "aux_logits": True, "init_weights": False},
    "inception_v3": {"transform_input": True, "aux_logits": True, "init_weights": False},
}


@cache
def torchvision_network(name: str) -> Network | None:
    """torchvision:NAME, or torchvision:NAME.WEIGHTS for other weights than the default."""
    import torchvision

    arch, _, tag = NetworkName.parse(name).name.partition(".")
    if f"{TORCHVISION}:{arch}" not in torchvision_names():
        return None
    entries = torchvision.models.get_model_weights(arch)
    published = (
        entries.DEFAULT if not tag else next((entry for entry in entries if entry.name.lower() == tag.lower()), None)
    )
    if published is None:
        raise BadInput(f"torchvision's {arch} has no weights {tag!r}. There are: {', '.join(w.name for w in entries)}.")
    transforms = published.transforms()
    (size,), (resize,) = transforms.crop_size, transforms.resize_size
    view = View(size, resize, "center", transforms.interpolation.value)
    stems = (f"torchvision-{arch}.{published.name}", f"torchvision-{arch}", _stem(published.url), arch)
    remote = weights.Remote(url=published.url)
    classes = len(published.meta["categories"])
    return Network(name, view, tuple(transforms.mean), tuple(transforms.std), classes, None, remote, stems)


def build_torchvision(network: Network, file: Path) -> nn.Module:
    import torchvision

    arch = network.arch.partition(".")[0]
    options = OPTIONS.get(arch, {}) | ({"image_size": network.view.size} if arch.startswith("vit_") else {})
    module = torchvision.models.get_model(arch, weights=None, num_classes=network.classes, **options)
    weights.load_state(module, weights.rename_densenet(read_weights(file)), file, network.name)
    for head in ("aux1", "aux2", "AuxLogits"):  # used in training only
        if hasattr(module, head):
            setattr(module, head, None)
            module.aux_logits = False  # type: ignore[assignment]
    return module


def torchvision_head(network: Network) -> str:
    import torchvision

    arch = network.arch.partition(".")[0]
    with torch.device("meta"):
        module = torchvision.models.get_model(arch, weights=None, **OPTIONS.get(arch, {}))
    (head,) = heads(module, network.classes)
    return next(f"{name}.weight" for name, layer in module.named_modules() if layer is head)
