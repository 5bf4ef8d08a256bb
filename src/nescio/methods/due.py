"""DUE: a sparse Gaussian process on smooth features."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

with warnings.catch_warnings():  # gpytorch uses torch.jit, which warns
    warnings.simplefilter("ignore")
    import gpytorch
    from gpytorch.utils.memoize import clear_cache_hook

from nescio.errors import BadInput
from nescio.methods.base import BaseHParams, Batches, Evidence, Method, NetworkSpec, Output, first_batch, method
from nescio.methods.evidence import noise_images
from nescio.search import choice, hparam


@dataclass(frozen=True)
class DUEHParams(BaseHParams):
    inducing: int | None = hparam(None, choice(None, 20, 50), "inducing points; None: number of classes", at_least=1)
    samples: int = hparam(8, None, "number of samples of the latent functions in the training loss", at_least=1)
    test_samples: int = hparam(32, None, "number of samples of the latent functions in a prediction", at_least=1)
    # The posterior starts at the prior and has small gradients. At the network's learning rate it would hardly change
    # within the budget.
    posterior: float = hparam(10.0, None, "factor on the learning rate of the variational posterior", above=0)


class ClassProcesses(gpytorch.models.ApproximateGP):
    """One variational GP per class over shared inducing points (Titsias 2009; Hensman et al. 2015)."""

    def __init__(self, points: Tensor, classes: int) -> None:
        batch_shape = torch.Size([classes])
        posterior = gpytorch.variational.CholeskyVariationalDistribution(len(points), batch_shape=batch_shape)
        single = gpytorch.variational.VariationalStrategy(self, points, posterior, learn_inducing_locations=True)
        super().__init__(gpytorch.variational.IndependentMultitaskVariationalStrategy(single, num_tasks=classes))
        self.parts = single, posterior  # in a tuple, so that they are not registered as submodules twice
        self.mean_module = gpytorch.means.ConstantMean(batch_shape=batch_shape)
        rbf = gpytorch.kernels.RBFKernel(batch_shape=batch_shape)
        self.covar_module = gpytorch.kernels.ScaleKernel(rbf, batch_shape=batch_shape)

    @property
    def points(self) -> Tensor:
        return self.parts[0].inducing_points

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


@method("due", DUEHParams)
class DUE(Method[DUEHParams]):
    """A sparse variational GP classifier on the features, trained by the evidence lower bound (van Amersfoort et al.
    2021; UIMNET §3). Inducing points start at the k-means centres of the initial network's features, the lengthscale at
    the mean distance between features. Each class has its own kernel. The features are spectrally normalised if a
    target is set (default 3).

    The logits are log E[softmax(f)], the mean of probabilities over samples of the latent functions at each image; the
    samples use the same standard normals for every image, so that a prediction does not depend on other rows of the
    batch. Scores: "variance" (UIMNET §4: the predictive variance), of the latent functions, averaged over classes. It
    rises far from the data. Between classes it is lower than inside them. "probability_variance", of the probabilities
    over the samples, rises between classes.
    """

    paper = (
        "van Amersfoort et al., On feature collapse and deep kernel learning for single forward pass uncertainty, 2021"
    )
    scores = ("variance", "probability_variance")
    normalized = True
    rises_far_from_data = True
    spectral_default = 3.0
    strength_hparam, strength_direction = "spectral", "smaller"
    no_dense_reason = "its process would need a covariance of all locations of a batch (use sngp)"
    noise: Tensor

    def __init__(self, hparams: DUEHParams, spec: NetworkSpec) -> None:
        super().__init__(hparams, spec)
        del self.head
        inducing = hparams.inducing or spec.classes  # by default the number of classes, as in the paper
        self.gp = ClassProcesses(torch.randn(inducing, self.features.num_features), spec.classes)
        self.likelihood = gpytorch.likelihoods.SoftmaxLikelihood(num_classes=spec.classes, mixing_weights=False)
        self.register_buffer("noise", torch.randn(hparams.test_samples, 1, spec.classes))

    def prepare(self, batches: Batches) -> None:
        from sklearn.cluster import KMeans
        from threadpoolctl import threadpool_limits

        self.features.train()  # batch-norm must scale as in the first step, or all kernels are 0
        features = torch.cat([self.features(x).float() for x, _, _ in _up_to(batches, 2000)])
        self.features.eval()
        count = len(self.gp.points)
        if len(features) < count:
            raise BadInput(f"{len(features)} training rows are too few for {count} inducing points.")
        with threadpool_limits(1):  # several threads change the order of sums and so the last bits
            means = KMeans(count, n_init=1, random_state=0).fit(features.double().cpu().numpy())
        self.gp.points.data.copy_(torch.from_numpy(means.cluster_centers_))
        self.gp.covar_module.base_kernel.lengthscale = torch.pdist(features[:1000]).mean()
        self.gp.train()
        # gpytorch draws its initial posterior at the first call: called here, so that processes share it
        self.process(features[:2])

    def separate_factors(self) -> list[tuple[Iterable[Tensor], dict[str, float]]]:
        """The divergence from the prior already regularises the GP's parameters, so weight decay applies to the network
        alone."""
        posterior = {"rate": self.hparams.lr * self.hparams.posterior, "decay": 0.0}
        return [(self.gp.parameters(), {"decay": 0.0}), (self.gp.parts[1].parameters(), posterior)]

    def process(self, embeddings: Tensor) -> gpytorch.distributions.MultivariateNormal:
        if not self.training:  # gpytorch caches a factor of the last prediction, which may have no gradients
            clear_cache_hook(self.gp.parts[0])
        with torch.autocast(embeddings.device.type, enabled=False):
            return self.gp(embeddings.float())

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        latent = self.process(self.features(x))
        with (
            torch.autocast(x.device.type, enabled=False),
            gpytorch.settings.num_likelihood_samples(self.hparams.samples),
        ):
            likelihood = self.likelihood.expected_log_prob(y, latent).mean()
            divergence = self.gp.variational_strategy.kl_divergence().div(max(1, self.spec.rows))
        clear_cache_hook(self.gp.parts[0])  # with cached results of this step the method cannot be copied
        return divergence - likelihood

    def forward(self, x: Tensor) -> Output:
        embeddings = self.features(x)
        latent = self.process(embeddings)
        mean, variance = latent.mean, latent.variance.clamp_min(0)
        samples = torch.log_softmax(mean + variance.sqrt() * self.noise, -1)
        logits = samples.logsumexp(0) - math.log(len(self.noise))
        scores = {"variance": variance.mean(1), "probability_variance": samples.exp().var(0, correction=0).mean(1)}
        return Output(logits[:, None], embeddings, scores)

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        x, _ = first_batch(batches)
        movement = float((self.gp.points - start.gp.points).norm(dim=1).mean())  # type: ignore[union-attr, operator]
        near, far = (float(self(images).scores["variance"].mean()) for images in (x, noise_images(x)))
        kl = float(self.gp.variational_strategy.kl_divergence())
        return {
            "inducing points moved": Evidence(f"by {movement:.3g} on average", movement > 1e-3),
            "posterior left the prior": Evidence(f"KL divergence {kl:.3g}", kl > 1e-2),
            "variance away from the data": Evidence(f"{near:.3g} on training images, {far:.3g} on noise", far > near),
        }


def _up_to(batches: Batches, rows: int) -> Batches:
    count = 0
    for batch in batches:
        yield batch
        count += len(batch[0])
        if count >= rows:
            return
