"""DeepAE: the reconstruction error of features by a narrow autoencoder."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from nescio.methods.base import Batches, Evidence, Method, method
from nescio.methods.rnd import RND, RNDHParams, mlp
from nescio.search import hparam, uniform


@dataclass(frozen=True)
class DeepAEHParams(RNDHParams):
    bottleneck: float = hparam(
        0.25, uniform(0.1, 0.5), "narrowest width, as a share of adjacent layers' width", above=0, below=1
    )


@method("deep-ae", DeepAEHParams)
class DeepAE(RND):
    """RND whose teacher is the identity: the student restores φ(x) through a bottleneck
    (Vincent et al. 2010; UIMNET §3).

    Native score (UIMNET §4): ‖w_s(φ(x)) − φ(x)‖², the reconstruction error.
    """

    hparams: DeepAEHParams

    paper = "Vincent et al., Stacked denoising autoencoders, JMLR 2010"

    def pair(self, inputs: int) -> tuple[nn.Module, nn.Module]:
        width = self.hparams.width
        # the bottleneck must be narrower than the features, even if these are narrower than the hidden layers
        bottleneck = max(1, round(min(inputs, width) * self.hparams.bottleneck))
        return mlp(inputs, width, bottleneck, width, inputs), nn.Identity()

    def evidence(self, batches: Batches, start: Method) -> dict[str, Evidence]:
        encoder, decoder, *_ = (layer for layer in self.student.modules() if isinstance(layer, nn.Linear))
        bottleneck, neighbours = decoder.out_features, min(encoder.in_features, encoder.out_features)
        observed = f"{bottleneck} dimensions pass between layers of {neighbours} or more"
        return {**super().evidence(batches, start), "bottleneck": Evidence(observed, bottleneck < neighbours)}
