"""Entropies of class probabilities."""

from __future__ import annotations

import torch
from torch import Tensor


def entropy(p: Tensor, axis: int = -1) -> Tensor:
    """−Σ p log p along an axis, in nats."""
    return torch.special.entr(p).sum(axis)


def jensen_shannon(p: Tensor) -> Tensor:
    """H(mean p) − mean H(p) of draws (b, s, c), in nats: (b,)."""
    return (entropy(p.mean(1)) - entropy(p).mean(1)).clamp_min(0)
