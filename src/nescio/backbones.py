"""Backbones: images (b, ch, h, w) to features (b, num_features). Two small ones here, the rest from timm."""

from __future__ import annotations

import difflib
from typing import Any

import torch
from torch import nn

from nescio.errors import BadInput

SMALL = 64  # up to this many pixels a ResNet keeps its resolution: 3×3 stem, no pooling (the CIFAR stem)


class MLP(nn.Sequential):
    """Three hidden layers of 100 units (deterministic.txt §5, the sensitivity study)."""

    def __init__(self, channels: int, shape: tuple[int, int], width: int = 100) -> None:
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs in (channels * shape[0] * shape[1], width, width):
            layers += [nn.Linear(inputs, width), nn.ReLU()]
        super().__init__(*layers)
        self.num_features = width


class Conv(nn.Sequential):
    """Three convolutions and a mean over the image: enough for images of 8 to 32 pixels on a CPU."""

    def __init__(self, channels: int, widths: tuple[int, ...] = (32, 64, 64)) -> None:
        layers: list[nn.Module] = []
        for number, (inputs, outputs) in enumerate(zip((channels, *widths), widths, strict=False)):
            stride = 1 if number == 0 else 2
            layers += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.num_features = widths[-1]


def build(name: str, channels: int, shape: int | tuple[int, int]) -> Any:
    """A new backbone with random weights and an attribute `num_features`.

    `mlp`, `conv`, `resnet18`, `resnet50` (with a 3×3 stem and no pooling up to 64 pixels), or any timm name.
    shape  (height, width) of the images; one number where they are square
    """
    shape = (shape, shape) if isinstance(shape, int) else shape
    if name == "mlp":
        return MLP(channels, shape)
    if name == "conv":
        return Conv(channels)
    import timm

    if not timm.is_model(name):
        close = difflib.get_close_matches(name, ["mlp", "conv", *timm.list_models()], n=3)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        raise BadInput(f"There is no backbone named {name!r}.{hint} There are mlp, conv, and every timm model.")
    options = {"num_classes": 0, "in_chans": channels, "pretrained": False}
    try:
        network = timm.create_model(name, img_size=shape, **options)  # transformers are built for one size
    except TypeError:
        network = timm.create_model(name, **options)
    except (AssertionError, RuntimeError, ValueError, ZeroDivisionError) as error:
        raise BadInput(_unfit(name, shape, error)) from None
    if max(shape) <= SMALL and name.startswith("resnet") and isinstance(getattr(network, "conv1", None), nn.Conv2d):
        network.conv1 = nn.Conv2d(channels, network.conv1.out_channels, 3, 1, 1, bias=False)
        nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
        network.maxpool = nn.Identity()
    network.num_features = _width(network, name, channels, shape)  # type: ignore[assignment]
    return network


def _width(network: nn.Module, name: str, channels: int, shape: tuple[int, int]) -> int:
    """How many features come out; timm's own `num_features` leaves out layers that some families have after them."""
    was = network.training
    try:
        with torch.no_grad():
            out = network.eval()(torch.zeros(1, channels, *shape))
    except (AssertionError, RuntimeError, ValueError) as error:
        raise BadInput(_unfit(name, shape, error)) from None
    network.train(was)
    if out.dim() != 2:
        raise BadInput(f"The backbone {name} gives features of shape {tuple(out.shape)}; one row per image is needed.")
    return int(out.shape[1])


def _unfit(name: str, shape: tuple[int, int], error: Exception) -> str:
    why = " ".join(str(error).split()) or type(error).__name__
    return f"The backbone {name} cannot take images of {shape[0]} × {shape[1]} pixels: {why.rstrip('.')}."


def parameters(network: nn.Module) -> int:
    """How many numbers learn."""
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
