"""DUQ: distance to the nearest class centroid."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from nescio.layers.contrastive import of_all_processes
from nescio.methods.base import BaseHParams, Batches, Evidence, Method, NetworkSpec, Output, first_batch, method
from nescio.search import choice, hparam, log_uniform

FIRST_COUNT = 13.0  # initial count of images per centroid, as in the authors' code
FAR = 27.6  # −log K beyond which the gradient is constant; K = 1e-12 at this value
FIRST_SPREAD = 0.05  # standard deviation of the first centroids
LEAST = 2  # minimum number of images in the penalty, since batch-norm needs two


@dataclass(frozen=True)
class DUQHParams(BaseHParams):
    # The loss is a sum over classes: networks without batch-norm need smaller steps than for a single cross-entropy.
    lr: float = hparam(0.1, log_uniform(0.03, 1.0), "factor on the budget's learning rate", above=0)
    penalty: float = hparam(
        0.1, log_uniform(0.001, 10.0), "λ of the gradient penalty; larger values regularise", above=0
    )
    lengthscale: float = hparam(0.1, log_uniform(0.05, 1.0), "σ, lengthscale of the kernels", above=0)
    momentum: float = hparam(0.99, choice(0.99, 0.999), "γ, momentum of the centroids", at_least=0, below=1)
    width: int = hparam(128, choice(64, 128, 256), "number of dimensions of the centroids", at_least=1)
    penalized: float = hparam(
        1.0, None, "share of a batch's images in the penalty; lower is faster", introduced=1.0, above=0, at_most=1
    )


def one_against_rest(log_kernels: Tensor, y: Tensor) -> Tensor:
    """The binary cross-entropy of kernels (b, c), summed over classes (eq. 3), mean over images, from log-kernels,
    because kernels of distant images underflow in float32. Above FAR it grows linearly with the distance
    instead of quadratically, so that outliers cannot make training diverge."""
    true_class = one_hot(y, log_kernels.shape[1]).bool()
    distances = log_kernels.neg().clamp_max(FAR)
    attraction = distances + 2 * (FAR * (-log_kernels).clamp_min(FAR)).sqrt() - 2 * FAR
    repulsion = -torch.log(-torch.expm1(log_kernels.clamp_max(-1e-6)))  # −log(1 − K)
    return torch.where(true_class, attraction, repulsion).sum(1).mean()


@contextmanager
def fixed_averages(network: nn.Module) -> Iterator[None]:
    """In this context batch-norm uses batch statistics and does not update its running averages."""
    norms = [layer for layer in network.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    momenta = [layer.momentum for layer in norms]
    for layer in norms:
        layer.momentum = 0.0
    try:
        yield
    finally:
        for layer, momentum in zip(norms, momenta, strict=True):
            layer.momentum = momentum


@method("duq", DUQHParams)
class DUQ(Method[DUQHParams]):
    """Deterministic uncertainty quantification (van Amersfoort et al. 2020): an RBF network. Class c has a matrix W_c
    and a centroid e_c = m_c/N_c, and its kernel in d dimensions is K_c(x) = exp(−‖W_c φ(x) − e_c‖²/(2dσ²)) (eq. 1). The
    kernels learn by binary cross-entropy, one class against the rest (eq. 3); the centroids follow the images by
    moving averages of counts N_c and sums m_c (eqs. 4–6). The two-sided penalty λ·(‖∇_x Σ_c K_c‖₂ − 1)² ties distances
    between features to distances between images (eq. 7).

    Logits: log K_c. Score "kernel": −log max_c K_c, proportional to the squared distance to the nearest centroid.
    """

    paper = "van Amersfoort et al., Uncertainty estimation using a single deep deterministic neural network, ICML 2020"
    cuda_graph_safe = True
    scores = ("kernel",)
    strength_hparam = "penalty"
    rises_far_from_data = True
    no_dense_reason = "its penalty needs the gradient of one prediction per image (Postels et al. 2022)"
    no_compile_reason = "its penalty needs a second derivative, which torch.compile does not support"
    counts: Tensor
    sums: Tensor
    new_counts: Tensor
    new_sums: Tensor

    def __init__(self, hparams: DUQHParams, spec: NetworkSpec) -> None:
        super().__init__(hparams, spec)
        del self.head
        weight = torch.empty(hparams.width, spec.classes, self.features.num_features)
        # small, because training is slow and unstable if kernels start near 0
        self.weight = nn.Parameter(nn.init.normal_(weight, std=math.sqrt(2 / weight[0].numel())))
        self.register_buffer("counts", torch.full((spec.classes,), FIRST_COUNT))
        self.register_buffer("sums", FIRST_COUNT * FIRST_SPREAD * torch.randn(hparams.width, spec.classes))
        # sums over micro-batches, until the batch is complete
        self.register_buffer("new_counts", torch.zeros_like(self.counts), persistent=False)
        self.register_buffer("new_sums", torch.zeros_like(self.sums), persistent=False)

    def class_embeddings(self, embeddings: Tensor) -> Tensor:
        """W_c φ for every class, (b, d) to (b, width, c)."""
        with torch.autocast(embeddings.device.type, enabled=False):
            return torch.einsum("bj,mcj->bmc", embeddings.float(), self.weight.float())

    def log_kernels(self, embeddings: Tensor) -> Tensor:
        """(b, c) log K_c."""
        with torch.autocast(embeddings.device.type, enabled=False):
            return -(embeddings - self.sums / self.counts).square().mean(1) / (2 * self.hparams.lengthscale**2)

    @torch.no_grad()
    def follow(self, embeddings: Tensor, y: Tensor) -> None:
        """Add the counts and sums of the images of a batch or micro-batch."""
        class_rows = of_all_processes(embeddings[torch.arange(len(y), device=y.device), :, y])  # (b, width)
        classes = one_hot(of_all_processes(y), self.spec.classes).to(class_rows)
        with torch.autocast(class_rows.device.type, enabled=False):
            self.new_counts += classes.sum(0)
            self.new_sums += class_rows.T @ classes

    @torch.no_grad()
    def after_step(self, done: float) -> None:
        """Move every centroid towards the images of its class, after a complete batch."""
        for average, batch_sum in ((self.counts, self.new_counts), (self.sums, self.new_sums)):
            average.lerp_(batch_sum, 1 - self.hparams.momentum)
            batch_sum.zero_()

    def penalty(self, x: Tensor, log_kernels: Tensor) -> Tensor:
        """(‖∇_x Σ_c K_c‖₂ − 1)², the mean over images."""
        with torch.autocast(x.device.type, enabled=False):
            (gradient,) = torch.autograd.grad(log_kernels.exp().sum(), x, create_graph=True)
            return (gradient.float().flatten(1).norm(dim=1) - 1).square().mean()

    def losses(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, its gradient penalty, and the embeddings of the images."""
        x = x.detach().requires_grad_()
        embeddings = self.class_embeddings(self.features(x))
        log_kernels = self.log_kernels(embeddings)
        with torch.autocast(x.device.type, enabled=False):
            cross_entropy = one_against_rest(log_kernels, y)
        if self.hparams.penalized < 1:  # a second gradient costs a dozen times as much as the first
            x = x[: max(LEAST, math.ceil(self.hparams.penalized * len(x)))].detach().requires_grad_()
            with fixed_averages(self.features):
                log_kernels = self.log_kernels(self.class_embeddings(self.features(x)))
        penalty = self.penalty(x, log_kernels)
        return cross_entropy + self.hparams.penalty * penalty, penalty, embeddings

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return self.losses(x, y)[0]

    def update(self, x: Tensor, y: Tensor, step: Callable[[Tensor], None]) -> Tensor:
        loss, _, embeddings = self.losses(x, y)
        self.follow(embeddings, y)  # before the step, which adds them to the averages
        step(loss)
        return loss

    def forward(self, x: Tensor) -> Output:
        embeddings = self.features(x)
        log_kernels = self.log_kernels(self.class_embeddings(embeddings))
        return Output(log_kernels[:, None], embeddings, {"kernel": -log_kernels.max(1).values})

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        x, y = first_batch(batches)
        movement = float((self.sums / self.counts - start.sums / start.counts).norm(dim=0).mean())
        kernels = self.log_kernels(self.class_embeddings(self.features(x))).exp()
        true_class = one_hot(y, self.spec.classes).bool()
        own_class, other_classes = float(kernels[true_class].mean()), float(kernels[~true_class].mean())
        with torch.enable_grad():
            penalty = float(self.losses(x, y)[1].detach())
        observed = f"mean kernel {own_class:.2f} of an image's own class, {other_classes:.2f} of others"
        return {
            "centroids moved": Evidence(f"by {movement:.3g} on average", movement > 1e-3),
            "centroids separate": Evidence(observed, own_class > 2 * other_classes),
            "gradient penalty": Evidence(f"{penalty:.3g} on average", penalty > 0),
        }
