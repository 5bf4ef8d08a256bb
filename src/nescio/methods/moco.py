"""MoCo: find the other view among a queue of earlier images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, repeat

import torch
from torch import Tensor, nn

from nescio.layers.contrastive import follow, mlp, momentum_copy, of_all_processes, unit
from nescio.methods._two_views import momentum_copy_lags, no_gradient, temperature_matters, view_evidence
from nescio.methods.base import BaseHParams, Batches, Evidence, Method, NetworkSpec, SelfSupervised, first_batch, method
from nescio.search import choice, hparam, log_uniform


@dataclass(frozen=True)
class MoCoHParams(BaseHParams):
    # a slow encoder keeps the keys in the queue valid: the paper's 0.03 is 0.3 of the default learning rate
    lr: float = hparam(0.3, log_uniform(0.1, 1.0), "factor on the budget's learning rate", above=0)
    temperature: float = hparam(0.2, log_uniform(0.07, 0.3), "temperature τ; lower emphasises near negatives", above=0)
    momentum: float = hparam(0.99, choice(0.99, 0.996, 0.999), "m, momentum of the key encoder", above=0, below=1)
    queue: int = hparam(4096, choice(1024, 4096, 16384), "K, negative keys, at most half the training rows", at_least=1)
    width: int = hparam(128, choice(64, 128, 256), "outputs of the projection", at_least=2)


@method("moco", MoCoHParams)
class MoCo(SelfSupervised[MoCoHParams]):
    """A query q of one view must match the key k₊ of the other view, among a queue of K keys from earlier batches:

        ℓ = −log [ exp(q·k₊/τ) / (exp(q·k₊/τ) + Σ_i exp(q·k_i/τ)) ],   all of length one

    (He et al. 2020, eq. 1). Keys come from a momentum encoder without gradients: after every step
    θ_k ← m·θ_k + (1 − m)·θ_q (eq. 2); then the batch's keys replace the oldest of the queue. Backbone and a projection
    of two layers (Chen et al. 2020b). The queue starts with the first encoder's keys of training images.

    The paper shuffles the keys' batch between GPUs, so that batch-norm does not reveal which key belongs to a query.
    Here nothing is shuffled: batch-norm uses the statistics of the whole batch, hundreds of rows instead of 32 per
    GPU, on which one image has little effect. Several processes share one queue.
    """

    paper = "He et al., Momentum contrast for unsupervised visual representation learning, CVPR 2020"
    queue: Tensor
    pushed: Tensor

    def __init__(self, hparams: MoCoHParams, spec: NetworkSpec) -> None:
        super().__init__(hparams, spec)
        d = self.features.num_features
        self.projection = mlp(d, d, hparams.width, norm=False)
        self.key = momentum_copy(self.query)
        self.register_buffer("queue", unit(torch.randn(hparams.queue, hparams.width)))
        self.register_buffer("pushed", torch.zeros((), dtype=torch.int64))  # added keys; the oldest is at pushed mod K

    @property
    def query(self) -> nn.Sequential:
        """The network whose moving average is the key encoder."""
        return nn.Sequential(self.features, self.projection)

    @property
    def negatives(self) -> Tensor:
        """The used part of the queue, which is limited because queries would otherwise meet keys of their own image."""
        return self.queue[: self.spec.rows // 2] if self.spec.rows else self.queue

    def prepare(self, batches: Batches) -> None:
        self.key.train()  # batch-norm must scale as in the first step
        for x, _, _ in chain.from_iterable(repeat(batches)):
            if self.pushed >= len(self.negatives):
                break
            if len(x) > 1:  # batch-norm needs two rows
                self.push(self.keys(x))
        self.key.eval()
        self.pushed.zero_()

    def keys(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return unit(self.key(x))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return self.contrast(x[0], self.keys(x[1]))

    def contrast(self, x: Tensor, keys: Tensor) -> Tensor:
        queries = unit(self.query(x))
        with torch.autocast(x.device.type, enabled=False):
            positive = (queries * keys).sum(1, keepdim=True)
            cosines = torch.cat([positive, queries @ self.negatives.T], 1)
            targets = torch.zeros(len(x), dtype=torch.int64, device=x.device)
            return nn.functional.cross_entropy(cosines / self.hparams.temperature, targets)

    def update(self, x: Tensor, y: Tensor, step: Callable[[Tensor], None]) -> Tensor:
        keys = self.keys(x[1])
        loss = self.contrast(x[0], keys)
        step(loss)
        self.push(of_all_processes(keys))  # after the step, whose gradient needs the previous queue
        return loss

    @torch.no_grad()
    def push(self, keys: Tensor) -> None:
        """Replace the oldest keys by these."""
        size = len(self.negatives)
        keys = keys[-size:]
        positions = (self.pushed + torch.arange(len(keys), device=keys.device)) % size
        self.negatives.index_copy_(0, positions, keys)
        self.pushed += len(keys)

    def after_step(self, done: float) -> None:
        follow(self.key, self.query, self.hparams.momentum)

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        x, y = first_batch(batches)
        trained, untrained = (network.query(x.flatten(0, 1)).chunk(2) for network in (self, start))  # type: ignore[operator, union-attr]
        size, pushed = len(self.negatives), int(self.pushed)
        changed = int(self.queue.ne(start.queue).any(1).sum())  # type: ignore[arg-type]
        observed = f"{pushed} keys were added, {changed} of {size} differ from the initial ones"
        return {
            **view_evidence(trained, untrained),
            "queue replaced": Evidence(observed, changed == min(size, pushed) > 0),
            "key encoder lags": momentum_copy_lags(self.key, self.query, start.key),  # type: ignore[arg-type]
            "key encoder learns nothing": no_gradient(self, self.key, x, y),
            "temperature acts": temperature_matters(self, x, y),
        }
