"""Backbones: images (b, ch, h, w) to features (b, num_features). Two small backbones, and all models of timm.

A dense backbone gives one row of features for every location of its map in place of one for every image.
"""

from __future__ import annotations

import difflib
from typing import Any

import torch
from torch import Tensor, nn

from nescio.errors import BadInput
from nescio.specs import variant

SMALL = 64  # up to this many pixels a ResNet keeps its resolution: 3×3 stem, no pooling (the CIFAR stem)
STRIDE = 8  # pixels from one location of a dense backbone's map to the next (Yu et al. 2017), for images above SMALL
MAX = "max"  # suffix of a backbone's name: maximum pooling instead of the backbone's own
PATCH = "patch"  # suffix of a transformer's name: patch size in pixels
TEST_SIZE = 64  # side in pixels of the test image for the stride and the width of a dense backbone


class MLP(nn.Sequential):
    """Three hidden layers of 100 units (deterministic.txt §5, the sensitivity study)."""

    def __init__(self, channels: int, shape: tuple[int, int], width: int = 100) -> None:
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs in (channels * shape[0] * shape[1], width, width):
            layers += [nn.Linear(inputs, width), nn.ReLU()]
        super().__init__(*layers)
        self.num_features = width


class Conv(nn.Sequential):
    """Three convolutions and a mean, or maximum, over the image: enough for images of 8 to 32 pixels on a CPU."""

    def __init__(self, channels: int, pool: str = "", widths: tuple[int, ...] = (32, 64, 64)) -> None:
        layers: list[nn.Module] = []
        for number, (inputs, outputs) in enumerate(zip((channels, *widths), widths, strict=False)):
            stride = 1 if number == 0 else 2
            layers += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        pooled = nn.AdaptiveMaxPool2d(1) if pool == MAX else nn.AdaptiveAvgPool2d(1)
        super().__init__(*layers, pooled, nn.Flatten())
        self.num_features = widths[-1]


class DilatedConv(nn.Sequential):
    """Three convolutions with strides, then three dilated ones, for a large receptive field at the same resolution:
    enough for maps (b, d, h′, w′) on a CPU. Every 8th pixel is a location; up to 64 pixels, every 4th."""

    def __init__(self, channels: int, shape: tuple[int, int], width: int = 64) -> None:
        layers: list[nn.Module] = []
        first = 2 if max(shape) > SMALL else 1
        steps = [(first, 1), (2, 1), (2, 1), (1, 2), (1, 4), (1, 8)]  # (stride, dilation)
        for inputs, outputs, (stride, dilation) in zip(
            (channels, width // 2, *[width] * 4), (width // 2, *[width] * 5), steps, strict=True
        ):
            layers.append(nn.Conv2d(inputs, outputs, 3, stride, dilation, dilation, bias=False))
            layers += [nn.BatchNorm2d(outputs), nn.ReLU()]
        super().__init__(*layers)


class Locations(nn.Module):
    """A backbone with maps (b, d, h′, w′), returned as one row of features per location: (b·h′·w′, d).

    In training, images have an additional channel (`with_known`): 1 where a pixel has a label, 0 where it is void. Rows
    of void locations are then omitted from all computations of a method.
    """

    def __init__(self, backbone: nn.Module, channels: int) -> None:
        super().__init__()
        self.backbone, self.channels = backbone, channels
        maps = self._trial_map(TEST_SIZE)
        if maps.dim() != 4:
            raise ValueError(f"features of shape {tuple(maps.shape)} are no map")
        self.num_features, self.stride = maps.shape[1], TEST_SIZE // maps.shape[2]
        # An incomplete stride at the border adds a location in some networks, but not in others.
        map_sizes = [self._trial_map(TEST_SIZE + remainder).shape[2] for remainder in range(1, self.stride)]
        self.more = [0, *(side - maps.shape[2] for side in map_sizes)]

    def _trial_map(self, side: int) -> Tensor:
        """The feature map of an empty image."""
        was = self.backbone.training
        with torch.no_grad():
            maps: Tensor = self.backbone.eval()(torch.zeros(1, self.channels, side, side))
        self.backbone.train(was)
        return maps

    def grid(self, shape: tuple[int, int]) -> tuple[int, int]:
        """(h′, w′) of the map of images of a shape."""
        height, width = (side // self.stride + self.more[side % self.stride] for side in shape)
        return height, width

    def maps(self, x: Tensor) -> Tensor:
        """(b, d, h′, w′) features of images, with or without the channel of known pixels."""
        return self.backbone(x[:, : self.channels])  # type: ignore[no-any-return]

    def rows(self, maps: Tensor, x: Tensor) -> Tensor:
        """The known locations of maps, one row each; all of them without a channel of known pixels."""
        rows = maps.permute(0, 2, 3, 1).flatten(0, 2)
        return rows if x.shape[1] == self.channels else rows[self.reduced(x[:, -1]).flatten() > 0]

    def forward(self, x: Tensor) -> Tensor:
        return self.rows(self.maps(x), x)

    def reduced(self, maps: Tensor) -> Tensor:
        """(b, h, w) to (b, h′, w′): the pixel at the centre of each location."""
        height, width = maps.shape[1:]
        lines, columns = (
            ((torch.arange(count, device=maps.device) + 0.5) * (size / count)).long()
            for size, count in zip((height, width), self.grid((height, width)), strict=True)
        )
        return maps[:, lines[:, None], columns]

    def with_known(self, x: Tensor, labels: Tensor, void: int | None) -> tuple[Tensor, Tensor]:
        """Images with the channel of known pixels, and the labels of the rows of `forward`.

        labels  (b, h, w) label maps
        """
        labelled = torch.ones_like(labels, dtype=torch.bool) if void is None else labels != void
        reduced = self.reduced(labels)
        return torch.cat([x, labelled[:, None].to(x)], 1), reduced[self.reduced(labelled)].long()


def build(name: str, channels: int, shape: int | tuple[int, int], *, dense: bool = False) -> Any:
    """A new backbone with random weights and an attribute `num_features`.

    `mlp`, `conv`, `resnet18`, `resnet50` (with a 3×3 stem and no pooling up to 64 pixels), or any timm name.
    Features of `resnet50:max` are the maxima over the last map (URL, appendix B), those of `resnet50` the means.
    `vit_tiny_patch16_224:patch4` is the transformer with patches of 4 pixels, for small images.
    shape  (height, width) of the images; one number where they are square
    dense  a row of features for every location: `conv`, or a timm network whose last strides can become dilations
    """
    shape = (shape, shape) if isinstance(shape, int) else shape
    full, (name, pool) = name, variant(name)
    patch = pool.removeprefix(PATCH) if pool.startswith(PATCH) else ""
    if pool and (dense or name == "mlp" or not (pool == MAX or (patch.isdecimal() and name != "conv"))):
        raise BadInput(
            f"The backbone {full!r} cannot be built: :max is for classifiers with a map of features, :patch4 for "
            "transformers."
        )
    if dense:
        return _dense(name, channels, shape)
    if name == "mlp":
        return MLP(channels, shape)
    if name == "conv":
        return Conv(channels, pool)
    import timm

    _check_name(name)
    options: dict[str, Any] = {"num_classes": 0, "in_chans": channels, "pretrained": False}
    options |= {"patch_size": int(patch)} if patch else {"global_pool": pool} if pool else {}
    try:
        network = timm.create_model(name, img_size=shape, **options)  # transformers are built for one size
    except TypeError:
        if patch:
            raise BadInput(f"The backbone {full!r} cannot be built: {name} has no patches.") from None
        network = timm.create_model(name, **options)
    except (AssertionError, RuntimeError, ValueError, ZeroDivisionError) as error:
        raise BadInput(_size_error(name, shape, error)) from None
    _keep_resolution(network, name, channels, shape)
    network.num_features = _width(network, name, channels, shape)  # type: ignore[assignment]
    return network


def _dense(name: str, channels: int, shape: tuple[int, int]) -> Locations:
    """For a ResNet, use the dilated variant (Yu et al. 2017, DRN-A): dilations replace the strides of its last two
    stages."""
    if name == "conv":
        return Locations(DilatedConv(channels, shape), channels)
    import timm

    try:
        if name == "mlp":
            raise ValueError
        _check_name(name)
        network = timm.create_model(
            name, num_classes=0, in_chans=channels, pretrained=False, output_stride=STRIDE, global_pool=""
        )
        _keep_resolution(network, name, channels, shape)
        return Locations(network, channels)
    except (AssertionError, NotImplementedError, RuntimeError, TypeError, ValueError):
        raise BadInput(
            f"The backbone {name} has no map of features with a location for every {STRIDE} pixels: choose conv, or a "
            "convolutional network of timm such as resnet18."
        ) from None


def _check_name(name: str) -> None:
    import timm

    if not timm.is_model(name):
        close = difflib.get_close_matches(name, ["mlp", "conv", *timm.list_models()], n=3)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        raise BadInput(f"There is no backbone named {name!r}.{hint} Available: mlp, conv, and every timm model.")


def _keep_resolution(network: nn.Module, name: str, channels: int, shape: tuple[int, int]) -> None:
    """Replaces the stem of a ResNet for small images by a 3×3 convolution."""
    if max(shape) <= SMALL and name.startswith("resnet") and isinstance(getattr(network, "conv1", None), nn.Conv2d):
        network.conv1 = nn.Conv2d(channels, network.conv1.out_channels, 3, 1, 1, bias=False)
        nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
        network.maxpool = nn.Identity()


def _width(network: nn.Module, name: str, channels: int, shape: tuple[int, int]) -> int:
    """Number of output features; timm's `num_features` ignores final layers of some families."""
    was = network.training
    try:
        with torch.no_grad():
            out = network.eval()(torch.zeros(1, channels, *shape))
    except (AssertionError, RuntimeError, ValueError) as error:
        raise BadInput(_size_error(name, shape, error)) from None
    network.train(was)
    if out.dim() != 2:
        raise BadInput(f"The backbone {name} gives features of shape {tuple(out.shape)}; one row per image is needed.")
    return int(out.shape[1])


def _size_error(name: str, shape: tuple[int, int], error: Exception) -> str:
    why = " ".join(str(error).split()) or type(error).__name__
    return f"The backbone {name} cannot take images of {shape[0]} × {shape[1]} pixels: {why.rstrip('.')}."


def parameters(network: nn.Module) -> int:
    """Number of trainable parameters."""
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
