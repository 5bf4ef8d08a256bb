"""Spectral normalisation with a target: a bound on how much a layer can stretch its input.

Every weight W of a convolution or linear layer, its kernel reshaped to (out, in·h·w), is used as
W / max(1, σ(W)/target), and every batch-norm's γ as γ / max(1, max|γ|/√(var + ε) / target)
(Miyato et al. 2018; Gouk et al. 2021; DUE §3).
It is a reparameterisation: backward sees the normalised weights, and weights inside the bound are left as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.grad import conv2d_input
from torch.nn.utils import parametrize

from nescio.errors import BadInput

Stretching = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
SETTLE = 200  # power iterations after training: enough for the bound to hold to 2 %


class Bounded(nn.Module):
    """W ↦ W / max(1, σ(W)/target); σ by one power iteration a step, warm-started."""

    left: Tensor
    right: Tensor

    def __init__(self, weight: Tensor, target: float) -> None:
        super().__init__()
        self.target = target
        matrix = weight.detach().flatten(1)
        own = torch.Generator().manual_seed(0)  # the global one must give the same weights with and without a bound
        for name, size in zip(("left", "right"), matrix.shape, strict=True):
            self.register_buffer(name, nn.functional.normalize(torch.randn(size, generator=own), dim=0))
        self.iterate(matrix, 15)

    @torch.no_grad()
    def iterate(self, matrix: Tensor, times: int) -> None:
        matrix, left, right = matrix.to(self.left.dtype), self.left, self.right
        for _ in range(times):
            right = nn.functional.normalize(matrix.mT @ left, dim=0)
            left = nn.functional.normalize(matrix @ right, dim=0)
        # new tensors, not in-place changes: an earlier forward pass may still need the old ones for its backward
        self.left, self.right = left, right

    def forward(self, weight: Tensor) -> Tensor:
        with torch.autocast(weight.device.type, enabled=False):
            matrix = weight.flatten(1)
            if self.training:
                self.iterate(matrix, 1)
            sigma = torch.dot(self.left, torch.mv(matrix.to(self.left.dtype), self.right))
            return weight / torch.clamp(sigma / self.target, min=1.0).to(weight.dtype)


class BoundedScale(nn.Module):
    """γ ↦ γ / max(1, max|γ|/√(var + ε) / target) of one batch-norm."""

    def __init__(self, norm: nn.Module, target: float) -> None:
        super().__init__()
        self.target = target
        self.norm: list[Any] = [norm]  # in a list, so that the norm does not become its own submodule

    def forward(self, scale: Tensor) -> Tensor:
        norm = self.norm[0]
        stretch = (scale.abs() / (norm.running_var + norm.eps).sqrt()).max()
        return scale / torch.clamp(stretch / self.target, min=1.0)


def spectral_normalize(module: nn.Module, target: float) -> nn.Module:
    """Bounds every convolution, linear layer and batch-norm inside a module, in place."""
    if not target > 0:
        raise BadInput(f"The spectral norm target must be above 0, not {target}.")
    for part in list(module.modules()):
        if isinstance(part, Stretching):
            parametrize.register_parametrization(part, "weight", Bounded(part.weight, target))
        elif isinstance(part, nn.modules.batchnorm._BatchNorm) and part.affine and part.track_running_stats:
            parametrize.register_parametrization(part, "weight", BoundedScale(part, target))
    return module


@torch.no_grad()
def settle(module: nn.Module) -> None:
    """Converges the power iterations on the final weights, so that the bound holds for what is saved."""
    for part in module.modules():
        if parametrize.is_parametrized(part, "weight"):
            bounds: Any = part.parametrizations["weight"]  # type: ignore[index]
            for bound in bounds:
                if isinstance(bound, Bounded):
                    bound.iterate(bounds.original.flatten(1), SETTLE)


@torch.no_grad()
def stretches(module: nn.Module) -> dict[str, float]:
    """The largest stretch of every layer, by a full SVD of what the layer really uses."""
    found = {}
    for name, part in module.named_modules():
        if isinstance(part, Stretching):
            found[name] = float(torch.linalg.matrix_norm(part.weight.flatten(1).float(), 2))
        elif isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_var is not None and part.affine:
            found[name] = float((part.weight.abs() / (part.running_var + part.eps).sqrt()).max())
    return found


@torch.no_grad()
def operator_norm(conv: nn.Conv2d, size: int, times: int = 100) -> float:
    """The stretch of a convolution as a linear map of size × size images, by power iteration with its transpose.

    The reshaped kernel that the papers bound is not this map; the two differ by up to a factor of the kernel's area.
    """
    x = torch.randn(1, conv.in_channels, size, size, device=conv.weight.device)
    norm = 0.0
    for _ in range(times):
        x = x / x.norm()
        y = nn.functional.conv2d(x, conv.weight, None, conv.stride, conv.padding, conv.dilation, conv.groups)
        norm = float(y.norm())
        x = conv2d_input(x.shape, conv.weight, y, conv.stride, conv.padding, conv.dilation, conv.groups)
    return norm


@torch.no_grad()
def operator_norms(module: nn.Module, images: Tensor) -> dict[str, float]:
    """The stretch of every convolution as a map of the images that reach it when `images` go in."""
    sizes: dict[str, int] = {}
    hooks = [
        part.register_forward_hook(lambda _, given, __, name=name: sizes.__setitem__(name, given[0].shape[-1]))  # type: ignore[misc]
        for name, part in module.named_modules()
        if isinstance(part, nn.Conv2d)
    ]
    module(images)
    for hook in hooks:
        hook.remove()
    return {name: operator_norm(module.get_submodule(name), size) for name, size in sizes.items()}  # type: ignore[arg-type]
