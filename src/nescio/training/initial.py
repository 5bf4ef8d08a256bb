"""Initial weights of a trial: built from a seed, or read from a trained network or a checkpoint."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from torch import Tensor, nn

from nescio import datasets
from nescio.checkpoints import check_frame, read_weights
from nescio.errors import BadInput
from nescio.identity import ContentName, seed_for
from nescio.layers.spectral import set_exact_vectors
from nescio.methods import registry as methods
from nescio.methods.base import Method, NetworkSpec
from nescio.runtime import seed_everything
from nescio.specs import FILE, STORE, SpecError, source
from nescio.training.optimizers import check_compiled
from nescio.trials import Trial
from nescio.work.store import Store

STAGE, WEIGHTS = "train", "weights.safetensors"


DENSE = "features.backbone."  # prefix of the names of a dense backbone's weights


UNBOUNDED, POWER = ".parametrizations.weight.original", ".parametrizations.weight.0."  # suffixes of bounded weights


def start_key(start: str) -> str:
    """The initial weights in the key of a fine-tuned trial: the first trial's key, or the checkpoint's checksum."""
    if isinstance(start, ContentName):
        return source(start.content)[1]
    kind, location = source(start)
    if kind == STORE:
        return location
    path = Path(os.path.expanduser(location))
    if kind != FILE or not path.is_file():
        raise SpecError(start, 0, "this is neither a trained network nor a checkpoint", "store:KEY, or file:PATH")
    check_frame(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _start_weights(start: str, store: Store) -> dict[str, Tensor]:
    """The weights that a trial starts from, by name."""
    from safetensors.torch import load

    kind, key = source(start)
    if kind == STORE:
        if not store.finished(STAGE, key):
            raise BadInput(f"There is no trained network {key} in {store.root} for initial weights.")
        store.verify(STAGE, key)
        return load((store.path(STAGE, key) / WEIGHTS).read_bytes())
    return read_weights(Path(os.path.expanduser(key)))


def take_weights(method: Method, start: str, store: Store) -> list[str]:
    """Load initial weights into the backbone by name; returns the names of tensors without loaded values.

    A checkpoint of a bare backbone has no prefix `features.`; heads of another shape are not loaded. A backbone with
    spectral bounds also loads weights trained without bounds.
    """
    state = _start_weights(start, store)
    state_of_method = method.state_dict()
    if not any(name.startswith("features.") for name in state):
        state = {f"features.{name}": tensor for name, tensor in state.items()}
    if method.spec.dense and not any(name.startswith(DENSE) for name in state):  # the weights of a classifier
        state = {name.replace("features.", DENSE, 1): tensor for name, tensor in state.items()}
    if unbounded := any(UNBOUNDED in name for name in state_of_method) and not any(UNBOUNDED in name for name in state):
        bare_names = {name.replace(UNBOUNDED, ".weight"): name for name in state_of_method}
        state = {bare_names.get(name, name): tensor for name, tensor in state.items()}
    fitting = {
        name: tensor
        for name, tensor in state.items()
        if name in state_of_method and state_of_method[name].shape == tensor.shape
    }
    required = [name for name in state_of_method if name.startswith("features.") and not (unbounded and POWER in name)]
    missing = [name for name in required if name not in fitting]
    if missing:
        raise BadInput(
            f"{start} does not fit this backbone: it lacks {missing[0]}, or has it in another shape "
            f"({len(missing)} of {len(required)} tensors)."
        )
    method.load_state_dict(state_of_method | fitting)
    if unbounded:
        set_exact_vectors(method)
    return [name for name in state_of_method if name not in fitting]


def build(trial: Trial, dataset: datasets.Dataset, rows: int) -> Method:
    """A trial's method with the random initial weights of its init seed."""
    dense = trial.task == "segmentation"
    if dense and (trial.classes is not None or dataset.train.maps is None):
        data = "a choice of classes" if trial.classes is not None else f"{dataset.name}, which has no label maps"
        raise BadInput(f"Segmentation needs all classes of a dataset with label maps; it cannot be trained on {data}.")
    if dataset.train.maps is not None and not dense:
        raise BadInput(f"{dataset.name} has a label for every pixel: set task=segmentation.")
    check_compiled(trial.training, trial.method)
    classes = len(trial.classes) if trial.classes is not None else len(dataset.classes)
    # without the method: networks of one seed have equal initial weights for all methods (UIMNET §1)
    seed_everything(seed_for("init", trial.backbone, trial.init_seed))
    spec = NetworkSpec(
        trial.backbone, dataset.channels, dataset.shape, classes, trial.spectral, rows, dense, dataset.void
    )
    return methods[trial.method](trial.hparams, spec)


def weights_of(method: nn.Module) -> bytes:
    from safetensors.torch import save

    return save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in method.state_dict().items()})
