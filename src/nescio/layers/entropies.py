"""Entropies of class probabilities."""

from __future__ import annotations

import torch
from torch import Tensor


def entropy(p: Tensor, axis: int = -1) -> Tensor:
    """−Σ p log p along an axis, in nats."""
    return torch.special.entr(p).sum(axis)


def of_draws(logits: Tensor) -> dict[str, Tensor]:
    """ "jsd" and "entropy" of the softmax of draws (b, s, c), (b,) each. Computed in float64, because the draws of a
    confident prediction differ after the seventh digit."""
    p = logits.double().softmax(-1)
    return {"jsd": jensen_shannon(p).float(), "entropy": entropy(p.mean(1)).float()}


def jensen_shannon(p: Tensor) -> Tensor:
    """H(mean p) − mean H(p) of draws (b, s, c), in nats: (b,)."""
    return (entropy(p.mean(1)) - entropy(p).mean(1)).clamp_min(0)
