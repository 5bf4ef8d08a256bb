"""Groups of networks: ensembles whose predictions are averaged, and siblings that differ only in their init seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nescio.networks.network import Network
from nescio.rows import Row
from nescio.specs import SIBLINGS, STORE, location_of
from nescio.training import title_of
from nescio.trials import Trial
from nescio.work.store import Run, Store


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


def expand_siblings(names: Sequence[str], store: Store) -> list[str]:
    """Names of networks, each once, with siblings:KEY replaced by the names of KEY and its siblings."""
    members: list[str] = []
    for name in names:
        key = location_of(SIBLINGS, name)
        members += [name] if key is None else siblings(key, store)
    return list(dict.fromkeys(members))


def siblings(key: str, store: Store) -> list[str]:
    """store:KEY of a trained network and of its siblings, ordered by init seed.

    key  the key of the network, or its first letters
    """
    whole = store.find("train", key)
    store.verify("train", whole)
    runs = [run for run in store.runs() if run.stage == "train" and run.state == "finished"]
    config = next(_config_without_seed(run) for run in runs if run.key == whole)
    members = sorted(
        (run for run in runs if _config_without_seed(run) == config and "init_seed" in run.config),
        key=lambda run: int(run.config["init_seed"]),
    )
    return [f"{STORE}:{run.key}" for run in members]


def _config_without_seed(run: Run) -> tuple[int | None, dict[str, object]]:
    return run.version, {name: value for name, value in run.config.items() if name != "init_seed"}
