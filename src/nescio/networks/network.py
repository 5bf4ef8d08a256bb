"""A network that can predict: its name, its preprocessing, its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nescio.datasets.view import View
from nescio.errors import BadInput
from nescio.networks import weights
from nescio.specs import NetworkName
from nescio.training import train_step
from nescio.trials import Trial
from nescio.work.steps import Step

LITE = "tf_efficientnet_lite"
NOWHERE = weights.Remote()


@dataclass(frozen=True)
class Network:
    """A network that can predict: its name, its preprocessing, and the location of its weights."""

    name: str  # a timm name, torchvision:NAME, or store:KEY
    view: View
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: int
    class_names: tuple[str, ...] | None = None  # if known
    remote: weights.Remote = NOWHERE  # where its weights are published
    file_stems: tuple[str, ...] = ()  # possible names of a file with its weights; last the architecture's name
    trial: Trial | None = None  # the trial that trains it
    file: Path | None = None  # weights, after with_weights
    checksum: str = ""  # of the weights
    class_map: tuple[tuple[str, int], ...] = ()  # (a set's name of a class, the network's label)
    image_padding: bool = False  # of EfficientNet-Lite: see weights.pad_by_image_size
    custom_weights: bool = False  # weights are a checkpoint named by the user, not the published ones
    preprocessing_sources: tuple[str, ...] = ()  # where settings come from that differ from the published weights'

    @property
    def parsed_name(self) -> NetworkName:
        return NetworkName.parse(self.name)

    @property
    def arch(self) -> str:
        return self.parsed_name.name

    def parent(self, root: str | Path | None = None) -> Step | str:
        """The parent of its predictions' key: the step that trains it, or the checksum of its weights."""
        if self.trial is not None:
            return train_step(self.trial, root)
        if not self.checksum:
            raise BadInput(f"The weights of {self.name} are not located yet: call with_weights first.")
        return self.checksum

    @property
    def identity(self) -> dict[str, Any]:
        """Everything else that determines its predictions, as plain values."""
        identity: dict[str, Any] = {"class_map": self.class_map} if self.class_map else {}
        if self.trial is not None:
            return identity
        if self.arch.startswith(LITE):
            identity |= {"padding": "image" if self.image_padding else "map"}
        return {"model": self.parsed_name.published, "mean": self.mean, "std": self.std, **identity}
