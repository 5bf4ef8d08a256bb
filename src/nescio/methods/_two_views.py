"""Evidence that the components of a two-view method have an effect on trained weights."""

from __future__ import annotations

from copy import copy as copy_of

import torch
from torch import Tensor, nn

from nescio.layers.contrastive import unit
from nescio.methods.base import Evidence, Method

Pair = tuple[Tensor, Tensor]  # outputs for two views of the same images, row by row


def view_evidence(trained: Pair, untrained: Pair) -> dict[str, Evidence]:
    """Check the embeddings of two views, after and before training."""
    return {"views found": views_found(trained, untrained), "not collapsed": not_collapsed(trained[0])}


def views_found(trained: Pair, untrained: Pair) -> Evidence:
    """Check that an image's other view is nearer than other images, and nearer than before training."""
    after, before = nearer_share(*trained), nearer_share(*untrained)
    observed = f"an image's other view is nearer than {after:.1%} of other images (before training {before:.1%})"
    return Evidence(observed, 1 - after < 0.85 * (1 - before))


def nearer_share(a: Tensor, b: Tensor) -> float:
    """Share of pairs (i, j ≠ i) with cos(a_i, b_i) > cos(a_i, b_j)."""
    cosines = unit(a) @ unit(b).T
    partner = cosines.diagonal()[:, None]
    return float((partner > cosines).sum() / (len(a) * (len(a) - 1)))


def not_collapsed(z: Tensor) -> Evidence:
    """Check that rows differ in more than one direction: Σλ² ≪ (Σλ)² for the eigenvalues λ of their covariance."""
    rows = unit(z)
    n = len(rows)
    mean_cosine = float((rows.sum(0).square().sum() - n) / (n * (n - 1)))
    covariance = torch.cov(rows.T)
    directions = float(covariance.trace().square() / covariance.square().sum().clamp_min(1e-30))
    observed = f"cosine of two images {mean_cosine:.2f}, spread over {directions:.1f} of {z.shape[1]} directions"
    return Evidence(observed, mean_cosine < 0.9 and directions > 2)


def momentum_copy_lags(copy: nn.Module, network: nn.Module, start: nn.Module) -> Evidence:
    """Check that the weights of a momentum copy are between the initial and the current weights of its network."""
    copied, current, initial = (_weights(module) for module in (copy, network, start))
    change = current - initial
    share = float((copied - initial) @ change / (change @ change).clamp_min(1e-30))
    observed = f"it has covered {share:.1%} of its network's distance from the initial weights"
    return Evidence(observed, 0.001 < share < 0.999)


def distance(network: nn.Module, start: nn.Module) -> float:
    """Change of the weights, relative to their initial norm."""
    initial = _weights(start)
    return float((_weights(network) - initial).norm() / initial.norm().clamp_min(1e-30)) if len(initial) else 0.0


def _weights(network: nn.Module) -> Tensor:
    return torch.cat([torch.zeros(0), *(weight.detach().flatten().float().cpu() for weight in network.parameters())])


def no_gradient(method: Method, copy: nn.Module, x: Tensor, y: Tensor) -> Evidence:
    """Check that the loss has no gradient for a momentum copy, even if its weights require one."""
    weights = list(copy.parameters())
    trainable = [weight.requires_grad for weight in weights]
    with torch.enable_grad():
        for weight in weights:
            weight.requires_grad_(True)
        gradients = torch.autograd.grad(method.loss(x, y), weights, allow_unused=True)
    for weight, requires_grad in zip(weights, trainable, strict=True):
        weight.requires_grad_(requires_grad)
    n_trainable, n_reached = sum(trainable), sum(gradient is not None for gradient in gradients)
    observed = f"{n_trainable} of its {len(weights)} tensors are trainable, the loss has a gradient for {n_reached}"
    return Evidence(observed, n_trainable == n_reached == 0)


def temperature_matters(method: Method, x: Tensor, y: Tensor, name: str = "temperature") -> Evidence:
    """Check that the loss depends on its temperature."""
    warmer = copy_of(method)
    warmer.hparams = copy_of(method.hparams)
    object.__setattr__(warmer.hparams, name, 2 * getattr(method.hparams, name))
    loss, warmer_loss = float(method.loss(x, y)), float(warmer.loss(x, y))
    observed = f"the loss is {loss:.3f}, and {warmer_loss:.3f} at twice the temperature"
    return Evidence(observed, abs(loss - warmer_loss) > 1e-3 * abs(loss))
