"""HET-XL: a classifier of noisy embeddings, with a predicted noise covariance for every image."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import nll_loss, softplus

from nescio.layers.entropies import entropy
from nescio.methods.base import BaseHParams, Batches, Evidence, Method, NetworkSpec, Output, first_batch, method
from nescio.search import hparam

FLOOR = 1e-6  # minimum variance
VARIANCE = 0.01  # initial noise variance per dimension, small compared with the features
IMAGES, NOISE_SAMPLES = 64, 1024  # numbers of images, and of noise samples per image, in the evidence


@dataclass(frozen=True)
class HetXLHParams(BaseHParams):
    rank: int = hparam(1, None, "R, number of columns of V", at_least=1)
    samples: int = hparam(16, None, "number of noise samples in the training loss", at_least=1)
    test_samples: int = hparam(64, None, "number of noise samples in a prediction", at_least=1)


@method("het-xl", HetXLHParams)
class HetXL(Method[HetXLHParams]):
    """Heteroscedastic classifier (Collier et al. 2023; URL, eq. 6): a linear layer on the embedding φ gives every image
    a covariance Σ = VVᵀ + diag(v) of low rank R plus a diagonal, and the prediction is the mean over noise samples,

        E[softmax(w(φ + ε)/τ)],   ε = V·ε_R + √v ⊙ ε_d ~ N(0, Σ),   τ trained,

    The logits are its logarithm: one draw of log-probabilities. In predictions all images share standard normals, so
    that a prediction does not depend on other rows of the batch.

    Scores: "log_det", log det Σ = Σ_i log v_i + log det(I_R + Vᵀ diag(v)⁻¹ V), and "entropy" of the prediction.
    """

    paper = "Collier et al., Massively scaling heteroscedastic classifiers, ICLR 2023"
    normalized = True
    scores = ("log_det", "entropy")
    noise: Tensor

    def __init__(self, hparams: HetXLHParams, spec: NetworkSpec) -> None:
        super().__init__(hparams, spec)
        d = self.features.num_features
        self.covariance = nn.Linear(d, d * (hparams.rank + 1))
        nn.init.constant_(self.covariance.bias.view(d, -1)[:, 0], math.log(math.expm1(VARIANCE)))
        self.log_tau = nn.Parameter(torch.zeros(()))
        self.register_buffer("noise", torch.randn(1, hparams.test_samples, hparams.rank + d))

    def factors(self, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        """V (b, d, R) and v (b, d) of every image's Σ, in float32."""
        outputs = self.covariance(embeddings).float().unflatten(1, (-1, self.hparams.rank + 1))
        return outputs[..., 1:], softplus(outputs[..., 0]) + FLOOR

    def noises(self, embeddings: Tensor, normals: Tensor) -> Tensor:
        """ε (b, s, d) from standard normals (b, s, R + d): one per column of V and one per dimension."""
        factor, diagonal = self.factors(embeddings)
        shared_normals, own_normals = normals.split([self.hparams.rank, normals.shape[2] - self.hparams.rank], 2)
        return shared_normals @ factor.mT + own_normals * diagonal.sqrt()[:, None]

    def log_probs(self, embeddings: Tensor, normals: Tensor) -> Tensor:
        """log E[softmax], (b, c)."""
        noisy = embeddings[:, None] + self.noises(embeddings, normals.expand(len(embeddings), -1, -1))
        log_p = (self.head(noisy).float() / self.log_tau.exp()).log_softmax(-1)
        return log_p.logsumexp(1) - math.log(normals.shape[1])

    def log_det(self, embeddings: Tensor) -> Tensor:
        """log det Σ (b,) by the matrix determinant lemma."""
        factor, diagonal = self.factors(embeddings)
        with torch.autocast(embeddings.device.type, enabled=False):
            inner = torch.eye(self.hparams.rank, device=factor.device) + factor.mT @ (factor / diagonal[..., None])
            return diagonal.log().sum(1) + torch.logdet(inner)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        embeddings = self.features(x)
        normals = torch.randn(len(embeddings), self.hparams.samples, self.noise.shape[2], device=embeddings.device)
        return nll_loss(self.log_probs(embeddings, normals), y)

    def forward(self, x: Tensor) -> Output:
        embeddings = self.features(x)
        logits = self.log_probs(embeddings, self.noise)[:, None]
        scores = {"log_det": self.log_det(embeddings), "entropy": entropy(self.probs(logits))}
        return Output(logits, embeddings, scores)

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        x, _ = first_batch(batches)
        embeddings = self.features(x)
        noisy, noiseless = (self.log_probs(embeddings, noise).exp() for noise in (self.noise, 0 * self.noise))
        change, spread = float((noisy - noiseless).abs().sum(1).mean() / 2), float(self.log_det(embeddings).std())
        tau = float(self.log_tau.exp())
        return {
            "covariance acts": Evidence(f"noise changes a predicted probability by {change:.2%}", change > 1e-3),
            "covariance differs": Evidence(f"log det Σ has a standard deviation of {spread:.3g}", spread > 1e-2),
            "noise follows Σ": self.noise_evidence(embeddings[:IMAGES]),
            "temperature learnt": Evidence(f"τ went from 1 to {tau:.3f}", abs(tau - 1) > 1e-3),
        }

    def noise_evidence(self, embeddings: Tensor) -> Evidence:
        """Compare the variances of each image's logits in noise samples with those by wΣwᵀ."""
        factor, diagonal = self.factors(embeddings)
        w = self.head.weight.float()
        expected = (w @ factor).square().sum(2) + diagonal @ w.square().T
        generator = torch.Generator().manual_seed(0)
        normals = torch.randn(1, NOISE_SAMPLES, self.noise.shape[2], generator=generator).to(embeddings)
        measured = (self.noises(embeddings, normals.expand(len(embeddings), -1, -1)) @ w.T).var(1)
        deviation = float((measured / expected - 1).abs().mean())
        return Evidence(f"variances of logits differ by {deviation:.1%} from those by wΣwᵀ", deviation < 0.15)
