"""Quantities used by the checks of methods."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nescio.methods.base import Batches, Method, check_output


def gradient_of(loss: Tensor, network: nn.Module) -> Tensor:
    """The gradient of a loss for the trainable parameters of a network, as one vector, with 0 for unused parameters."""
    trainable = [parameter for parameter in network.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(loss, trainable, allow_unused=True)
    pairs = zip(gradients, trainable, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).double().flatten() for g, p in pairs])


def noise_images(x: Tensor) -> Tensor:
    """Images of pure noise, three times as strong as real ones."""
    return 3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x)


@torch.no_grad()
def accuracy_of(method: Method, batches: Batches) -> float:
    correct = total = 0
    for x, y, _ in batches:
        output = method(x)
        check_output(method, output, len(y))
        logits = output.logits
        correct += int((method.probs(logits).argmax(1) == y).sum())
        total += len(y)
    return correct / total
