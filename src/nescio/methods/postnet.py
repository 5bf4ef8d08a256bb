"""PostNet: evidence for every class from normalising flows that are trained with the network."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributions import Dirichlet
from torch.nn.functional import softplus

from nescio.layers.radial_flows import RadialFlows, masses
from nescio.methods.base import BaseHParams, Batches, Evidence, Method, NetworkSpec, Output, first_batch, method
from nescio.methods.evidence import noise_images
from nescio.search import choice, hparam, log_uniform


@dataclass(frozen=True)
class PostNetHParams(BaseHParams):
    entropy: float = hparam(
        1e-5, log_uniform(1e-6, 1e-2), "λ of the Dirichlet's entropy; larger values regularise", above=0
    )
    latent: int = hparam(6, choice(4, 6, 10), "number of dimensions of the latent space", at_least=1)
    flows: int = hparam(6, choice(4, 6, 10), "number of radial flows per class", at_least=1)
    density: float = hparam(3.0, None, "multiplies the learning rate of the flows", above=0)


def uncertain_cross_entropy(alpha: Tensor, y: Tensor) -> Tensor:
    """(b,) E[−log p_y] for p ~ Dirichlet(α): ψ(α₀) − ψ(α_y) (Charpentier et al. 2020, eq. 8)."""
    return torch.digamma(alpha.sum(1)) - torch.digamma(alpha.gather(1, y[:, None]).squeeze(1))


def shortened(gradient: Tensor) -> Tensor:
    """The gradient of a mean over rows, clipped to length one per row: at sharp densities it explodes."""
    return gradient / (len(gradient) * gradient.norm(dim=1, keepdim=True)).clamp_min(1)


@method("postnet", PostNetHParams)
class PostNet(Method[PostNetHParams]):
    """Posterior network (Charpentier et al. 2020): the features go to a latent z of few dimensions with batch-norm,
    where every class has a density q(z | c) of radial flows. Class counts N_c scale densities to evidence: the
    prediction is Dirichlet(α) with α_c = 1 + N_c·q(z | c) (eq. 4). Loss: E[−log p_y] − λ·H(Dirichlet(α)) (eq. 8).

    Logits: log α_c, whose softmax is the Dirichlet's mean. With little evidence they are close to 0, so that
    even float16 distinguishes classes. Score "evidence": −log q(z | c) of the predicted class.
    """

    paper = "Charpentier et al., Posterior network: uncertainty estimation without OOD samples, NeurIPS 2020"
    cuda_graph_safe = True
    scores = ("evidence",)
    strength_hparam = "entropy"
    rises_far_from_data = True
    counts: Tensor

    def __init__(self, hparams: PostNetHParams, spec: NetworkSpec) -> None:
        super().__init__(hparams, spec)
        self.head = nn.Linear(self.features.num_features, hparams.latent)
        self.norm = nn.BatchNorm1d(hparams.latent)
        self.flows = RadialFlows(spec.classes, hparams.latent, hparams.flows)
        self.register_buffer("counts", torch.ones(spec.classes))

    def prepare(self, batches: Batches) -> None:
        self.counts.zero_()
        for _, y, _ in batches:
            self.counts += torch.bincount(y, minlength=self.spec.classes)

    def separate_factors(self) -> list[tuple[Iterable[Tensor], dict[str, float]]]:
        """The flows take larger steps than the network, and no weight decay, which would make all densities
        similar."""
        return [(self.flows.parameters(), {"rate": self.hparams.lr * self.hparams.density, "decay": 0.0})]

    def log_densities(self, embeddings: Tensor) -> Tensor:
        """(b, c) log q(z | c), float64."""
        with torch.autocast(embeddings.device.type, enabled=False):
            z = self.norm(self.head(embeddings.float()))
            if self.training:
                z.register_hook(shortened)
            return self.flows(z)

    def alpha(self, log_densities: Tensor) -> Tensor:
        """(b, c) parameters of the Dirichlet, 1 + N_c·q(z | c)."""
        return 1 + self.counts * log_densities.exp()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        alpha = self.alpha(self.log_densities(self.features(x)))
        entropy = Dirichlet(alpha, validate_args=False).entropy()
        return (uncertain_cross_entropy(alpha, y) - self.hparams.entropy * entropy).mean().float()

    def forward(self, x: Tensor) -> Output:
        embeddings = self.features(x)
        log_densities = self.log_densities(embeddings)
        logits = softplus(self.counts.log() + log_densities)  # log(1 + N_c·q), also where 1 + N_c·q rounds to 1
        predicted = log_densities.gather(1, logits.argmax(1, keepdim=True)).squeeze(1)
        return Output(logits.float()[:, None], embeddings, {"evidence": -predicted.float()})

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        x, y = first_batch(batches)
        alpha = self.alpha(self.log_densities(self.features(x)))
        cross_entropy = uncertain_cross_entropy(alpha, y).mean().float()  # rounded like the loss
        difference = float(self.loss(x, y)) - float(cross_entropy)
        spread = float(Dirichlet(alpha, validate_args=False).entropy().mean())
        effect = "less" if difference * spread < 0 else "more" if difference * spread > 0 else "the same"
        mass = masses(self.flows.plane())
        on_images, on_noise = (
            float(self.alpha(self.log_densities(self.features(images))).sum(1).log().median())
            for images in (x, noise_images(x))
        )
        change = max(
            float((trained - untrained).abs().max())
            for trained, untrained in zip(self.flows.parameters(), start.flows.parameters(), strict=True)
        )
        rewarded = f"an entropy of {spread:.3g} changes the loss by {difference:+.2g}: more entropy, {effect} loss"
        integrals = f"{float(mass.min()):.3f} to {float(mass.max()):.3f} in two dimensions"
        medians = f"median log α₀ {on_images:.3g} on training images, {on_noise:.3g} on noise"
        return {
            "entropy is rewarded": Evidence(rewarded, difference * spread < 0),
            "flows learnt": Evidence(f"their parameters changed by up to {change:.3g}", change > 1e-2),
            "densities integrate to 1": Evidence(integrals, bool(((mass - 1).abs() < 0.02).all())),
            "evidence falls away from the data": Evidence(medians, on_images > on_noise + 1),
        }
