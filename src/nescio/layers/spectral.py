"""Spectral normalisation with a target: a bound on the largest singular value of every layer.

Every weight W of a convolution or linear layer, its kernel reshaped to (out, in·h·w), is used as
W / max(1, σ(W)/target), and every batch-norm's γ as γ / max(1, max|γ|/√(var + ε) / target)
(Miyato et al. 2018; Gouk et al. 2021; DUE §3).
It is a reparameterisation: gradients are those of the normalised weights, and weights within the bound stay unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.grad import conv2d_input
from torch.nn.utils import parametrize

from nescio.errors import BadInput

Stretching = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
ROUNDING = 1.001  # tolerance factor on the bound of a trained network


class Bounded(nn.Module):
    """W ↦ W / max(1, σ(W)/target); σ by one warm-started power iteration per step."""

    left: Tensor
    right: Tensor
    ready: Tensor | None = None  # the bounded weight while the whole network runs

    def __init__(self, weight: Tensor, target: float) -> None:
        super().__init__()
        self.target = target
        matrix = weight.detach().flatten(1)
        generator = torch.Generator().manual_seed(
            0
        )  # the global generator must draw equal weights with and without a bound
        for name, size in zip(("left", "right"), matrix.shape, strict=True):
            self.register_buffer(name, nn.functional.normalize(torch.randn(size, generator=generator), dim=0))
        iterate([self], [matrix], 15)

    def forward(self, weight: Tensor) -> Tensor:
        return bounded([self], [weight])[0] if self.ready is None else self.ready


class BoundedScale(nn.Module):
    """γ ↦ γ / max(1, max|γ|/√(var + ε) / target) of one batch-norm."""

    ready: Tensor | None = None  # the bounded scale while the whole network runs

    def __init__(self, norm: nn.Module, target: float) -> None:
        super().__init__()
        self.target = target
        self.norm: list[Any] = [norm]  # in a list, to avoid registration as a submodule

    def forward(self, scale: Tensor) -> Tensor:
        return bounded_scales([self], [scale])[0] if self.ready is None else self.ready


# ---- all layers at once: layer by layer, a GPU would run a thousand small kernels in every step


@torch.no_grad()
def iterate(bounds: Sequence[Bounded], matrices: Sequence[Tensor], steps: int) -> tuple[list[Tensor], list[Tensor]]:
    """Power iterations of many matrices. The vectors are new tensors, because an earlier forward pass may still
    need the old ones for its backward pass."""
    lefts, rights = [bound.left for bound in bounds], [bound.right for bound in bounds]
    matrices = [matrix.to(left.dtype) for matrix, left in zip(matrices, lefts, strict=True)]
    for _ in range(steps):
        rights = _units([matrix.mT @ left for matrix, left in zip(matrices, lefts, strict=True)])
        lefts = _units([matrix @ right for matrix, right in zip(matrices, rights, strict=True)])
    torch._foreach_copy_([bound.left for bound in bounds], lefts)
    torch._foreach_copy_([bound.right for bound in bounds], rights)
    return lefts, rights


def _units(vectors: list[Tensor]) -> list[Tensor]:
    """The vectors normalized to unit length."""
    return _scaled(vectors, 1 / torch.stack(torch._foreach_norm(vectors)).clamp_min(1e-12))


def _scaled(vectors: Sequence[Tensor], factors: Tensor) -> list[Tensor]:
    """Each vector times its own factor, in one product."""
    sizes = [len(vector) for vector in vectors]
    repeated = torch.cat([factor.expand(size) for factor, size in zip(factors, sizes, strict=True)])
    return list((torch.cat(list(vectors)) * repeated).split(sizes))


def bounded(bounds: Sequence[Bounded], weights: Sequence[Tensor]) -> Sequence[Tensor]:
    """The weights within their bounds; in training after a power iteration."""
    with torch.autocast(weights[0].device.type, enabled=False):
        if bounds[0].training:
            lefts, rights = iterate(bounds, [weight.detach().flatten(1) for weight in weights], 1)
        else:
            lefts, rights = [bound.left for bound in bounds], [bound.right for bound in bounds]
        return _Shrink.apply(bounds[0].target, len(weights), *weights, *lefts, *rights)  # type: ignore[no-any-return]


class _Shrink(torch.autograd.Function):
    """W / max(1, σ/target) of many weights, σ = leftᵀ·W·right, whose gradient is left·rightᵀ."""

    @staticmethod
    def forward(ctx: Any, target: float, n: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        weights, lefts, rights = tensors[:n], tensors[n : 2 * n], tensors[2 * n :]
        sigmas = [
            torch.dot(left, torch.mv(weight.flatten(1).to(left.dtype), right))
            for weight, left, right in zip(weights, lefts, rights, strict=True)
        ]
        factors = (torch.stack(sigmas) / target).clamp_min(1.0)
        ctx.target, ctx.n = target, n
        ctx.save_for_backward(factors, *tensors)
        return tuple(weight / factor.to(weight.dtype) for weight, factor in zip(weights, factors, strict=True))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        factors, *tensors = ctx.saved_tensors
        n = ctx.n
        weights, lefts, rights = tensors[:n], tensors[n : 2 * n], tensors[2 * n :]
        scaled = [g / factor.to(g.dtype) for g, factor in zip(gradients, factors, strict=True)]
        products = torch.stack([(g * weight).sum() for g, weight in zip(scaled, weights, strict=True)]).to(factors)
        corrections = _scaled(lefts, torch.where(factors > 1, -products / (factors * ctx.target), 0.0))
        weight_gradients = [
            g.flatten(1).addr(correction.to(g.dtype), right.to(g.dtype)).view_as(g)
            for g, correction, right in zip(scaled, corrections, rights, strict=True)
        ]
        return (None, None, *weight_gradients, *[None] * (2 * n))


def bounded_scales(bounds: Sequence[BoundedScale], scales: Sequence[Tensor]) -> list[Tensor]:
    """The scales of batch-norms within their bounds."""
    norms = [bound.norm[0] for bound in bounds]
    sizes = [len(scale) for scale in scales]
    deviations = (torch.cat([norm.running_var for norm in norms]) + norms[0].eps).sqrt()
    layer_norms = torch.cat(list(scales)).abs() / deviations
    largest = nn.utils.rnn.pad_sequence(list(layer_norms.split(sizes)), batch_first=True).amax(1)
    return _scaled(scales, 1 / torch.clamp(largest / bounds[0].target, min=1.0))


class _Bounds:
    """All bounds of a network: computes all bounded weights before a forward pass, and releases them after it."""

    def __init__(self, module: nn.Module) -> None:
        lists = [group.parametrizations["weight"] for group in module.modules() if parametrize.is_parametrized(group)]  # type: ignore[index]
        self.weights = [layer for layer in lists if isinstance(layer[0], Bounded)]  # type: ignore[index]
        self.scales = [layer for layer in lists if isinstance(layer[0], BoundedScale)]  # type: ignore[index]

    def make(self, *_: object) -> None:
        for lists, function in ((self.weights, bounded), (self.scales, bounded_scales)):
            if lists:
                bounds = [layer[0] for layer in lists]
                for bound, weight in zip(bounds, function(bounds, [layer.original for layer in lists]), strict=True):
                    bound.ready = weight

    def clear_weights(self, *_: object) -> None:
        for bound in (*self.weights, *self.scales):
            bound[0].ready = None


def spectral_normalize(module: nn.Module, target: float) -> nn.Module:
    """Bound every convolution, linear layer and batch-norm of a module, in place."""
    if not target > 0:
        raise BadInput(f"The spectral norm target must be above 0, not {target}.")
    for layer in list(module.modules()):
        if isinstance(layer, Stretching):
            parametrize.register_parametrization(layer, "weight", Bounded(layer.weight, target))
        elif isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.affine and layer.track_running_stats:
            parametrize.register_parametrization(layer, "weight", BoundedScale(layer, target))
    bounds = _Bounds(module)
    module.register_forward_pre_hook(bounds.make)
    module.register_forward_hook(bounds.clear_weights, always_call=True)
    return module


@torch.no_grad()
def set_exact_vectors(module: nn.Module) -> None:
    """Replaces the vectors of the power iterations by exact singular vectors, so that the bound is valid for the saved
    weights. Power iterations converge slowly if two singular values are close."""
    for layer in module.modules():
        if parametrize.is_parametrized(layer, "weight"):
            bounds: Any = layer.parametrizations["weight"]  # type: ignore[index]
            for bound in bounds:
                if isinstance(bound, Bounded):
                    _set_leading_vectors(bound, bounds.original.flatten(1))


def _set_leading_vectors(bound: Bounded, matrix: Tensor) -> None:
    """Set a bound's vectors to the leading singular vectors of a matrix, from its smaller Gram matrix."""
    matrix = matrix.double()
    if not matrix.isfinite().all():
        return  # a network whose weights will raise an error
    is_wide = matrix.shape[0] <= matrix.shape[1]
    gram = matrix @ matrix.mT if is_wide else matrix.mT @ matrix
    shorter = torch.linalg.eigh(gram).eigenvectors[:, -1]  # in ascending order of eigenvalues
    (longer,) = _units([(matrix.mT if is_wide else matrix) @ shorter])
    left, right = (shorter, longer) if is_wide else (longer, shorter)
    bound.left.copy_(left)
    bound.right.copy_(right)


@torch.no_grad()
def share_above_bound(module: nn.Module) -> float | None:
    """The share of bounded layers of a trained module that would exceed their bound without it; None if no layer is
    bounded."""
    bounds = _Bounds(module)
    layers = [*bounds.weights, *bounds.scales]
    exceeds = [not torch.equal(layer[0](layer.original), layer.original) for layer in layers]
    return sum(exceeds) / len(exceeds) if exceeds else None


@torch.no_grad()
def layer_norms(module: nn.Module) -> dict[str, float]:
    """The largest singular value of every layer, by a full SVD of the weights in use."""
    norms = {}
    for name, layer in module.named_modules():
        if isinstance(layer, Stretching):
            norms[name] = float(torch.linalg.matrix_norm(layer.weight.flatten(1).float(), 2))
        elif isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.running_var is not None and layer.affine:
            norms[name] = float((layer.weight.abs() / (layer.running_var + layer.eps).sqrt()).max())
    return norms


def bound_holds(module: nn.Module, target: float | None) -> tuple[str, bool]:
    """A description of the largest singular value of the weights in use, and whether all satisfy the bound."""
    norms = layer_norms(module)
    count = sum(parametrize.is_parametrized(module.get_submodule(name), "weight") for name in norms)
    largest = max(norms.values(), default=0.0)
    description = f"largest singular value {largest:.3f}, target {target}, {count} of {len(norms)} layers"
    return description, target is not None and 0 < count == len(norms) and largest <= ROUNDING * target


@torch.no_grad()
def operator_norm(conv: nn.Conv2d, size: tuple[int, int], steps: int = 100) -> float:
    """The largest singular value of a convolution as a linear map of images (height, width), by power iteration.

    The reshaped kernel bounded in the papers is a different map; the values differ by up to a factor of the kernel's
    area.
    """
    x = torch.randn(1, conv.in_channels, *size, device=conv.weight.device)
    norm = 0.0
    for _ in range(steps):
        x = x / x.norm()
        y = nn.functional.conv2d(x, conv.weight, None, conv.stride, conv.padding, conv.dilation, conv.groups)
        norm = float(y.norm())
        x = conv2d_input(x.shape, conv.weight, y, conv.stride, conv.padding, conv.dilation, conv.groups)
    return norm


@torch.no_grad()
def operator_norms(module: nn.Module, images: Tensor) -> dict[str, float]:
    """The largest singular value of every convolution as a map of its inputs, given input `images`."""
    sizes: dict[str, tuple[int, int]] = {}
    hooks = [
        layer.register_forward_hook(lambda _, given, __, name=name: sizes.__setitem__(name, tuple(given[0].shape[2:])))  # type: ignore[misc]
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Conv2d)
    ]
    module(images)
    for hook in hooks:
        hook.remove()
    return {name: operator_norm(module.get_submodule(name), size) for name, size in sizes.items()}  # type: ignore[arg-type]
