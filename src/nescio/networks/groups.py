"""A group of networks: one network that is evaluated, or several whose predictions are averaged."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nescio.networks.network import Network
from nescio.rows import Row
from nescio.training import title_of
from nescio.trials import Trial


@dataclass(frozen=True)
class NetworkGroup:
    """One network, or several whose predictions are averaged."""

    networks: tuple[Network, ...]
    columns: Row  # which network it is, in every result
    own_augmentation: bool = False  # trained with other augmentations than the plan's

    @property
    def trial(self) -> Trial | None:
        """The trial of its first network; None for a network from elsewhere."""
        return self.networks[0].trial

    @property
    def trials(self) -> list[Trial]:
        return [network.trial for network in self.networks if network.trial]

    @property
    def title(self) -> str:
        first = self.networks[0]
        title = title_of(first.trial) if first.trial else first.name
        return title if len(self.networks) == 1 else f"{len(self.networks)} × {title}"

    @property
    def members(self) -> list[NetworkGroup]:
        """Every network as a group of its own."""
        return [replace(self, networks=(network,)) for network in self.networks]
