"""Weights files: found by the name of a network, read without running code, loaded with every shape checked."""

from __future__ import annotations

import hashlib
import os
import re
import textwrap
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nescio.checkpoints import State
from nescio.errors import BadInput

ENDINGS = (".safetensors", ".pth", ".pt", ".bin", ".ckpt", ".pth.tar")
HUB_FILES = ("model.safetensors", "pytorch_model.bin")
MAX_NAMES = 4  # in a message


class WeightsNotFound(BadInput):
    """The weights of a network are not on this machine and cannot be downloaded."""


class Remote(NamedTuple):
    """Location of the published weights of a network."""

    repository: str | None = None  # on the Hugging Face hub
    file: str | None = None  # in it; None: the usual names
    url: str | None = None


# ---- finding


@lru_cache(maxsize=4)
def index_folder(folder: Path) -> dict[str, Path]:
    """Name of a network → checkpoint in a folder: NAME.pth, NAME-0a1b2c3d.pth or NAME/model.safetensors."""
    if not folder.is_dir():
        raise BadInput(f"There is no folder or weights file at {folder}.")
    exact: dict[str, Path] = {}
    hashed: dict[str, Path] = {}
    for file in sorted(folder.iterdir()):
        inside = next((file / name for name in HUB_FILES if (file / name).is_file()), None)
        if inside is not None:
            exact.setdefault(file.name, inside)
    for ending in ENDINGS:  # the safest kind first
        for file in sorted(folder.glob(f"*{ending}")):
            stem = file.name.removesuffix(ending)
            exact.setdefault(stem, file)
            hashed.setdefault(re.sub(r"-[0-9a-f]{6,64}$", "", stem), file)
    return {**hashed, **exact}


_unreachable: list[str] = []  # errors of the first download: hundreds of networks need not try again


class _DownloadSkipped(ConnectionError):
    """The download was skipped, with the reason."""


def fetch_weights(name: str, remote: Remote, stem: str, searched: Sequence[str] = ()) -> Path:
    """The published weights, from the hubs' caches on this machine, else downloaded into them.

    stem      file name to suggest in the error message
    searched  descriptions of other places that were searched
    """
    for cached in _cached(remote):
        return cached
    reason = "nothing is published for it" if remote == Remote() else "there is no file of a known name"
    for fetch in (_fetch_hub, _fetch_url):
        try:
            if (file := fetch(remote)) is not None:
                return file
        except _DownloadSkipped as error:
            reason = str(error)
        except Exception as error:  # each library below the hub has its own exceptions
            reason = textwrap.shorten(f"{type(error).__name__}: {error}", 200, placeholder=" …").rstrip(". ")
            if not _missing(error):
                _unreachable.append(reason)
    raise WeightsNotFound(
        f"The weights of {name} are not on this machine and could not be fetched ({reason}). "
        f"Looked for {'; '.join([*searched, *_cache_locations(remote)])}. "
        f"Put {stem}.safetensors or .pth into a folder and set weights=FOLDER or NESCIO_WEIGHTS=FOLDER."
    )


def _cached(remote: Remote) -> Iterator[Path]:
    if remote.repository:
        from huggingface_hub import try_to_load_from_cache

        repository, _, revision = remote.repository.partition("@")
        for file in _files(remote):
            path = try_to_load_from_cache(repository, file, revision=revision or None)
            if isinstance(path, str):
                yield Path(path)
    if remote.url and (download := _torch_cache_path(remote.url)).is_file():
        yield download


def _files(remote: Remote) -> tuple[str, ...]:
    return (remote.file,) if remote.file else HUB_FILES


def _torch_cache_path(url: str) -> Path:
    return Path(torch.hub.get_dir()) / "checkpoints" / Path(url).name


def _fetch_hub(remote: Remote) -> Path | None:
    if not remote.repository:
        return None
    _online()
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

    repository, _, revision = remote.repository.partition("@")
    last: Exception | None = None
    for file in _files(remote):
        try:
            get_hf_file_metadata(
                hf_hub_url(repository, file, revision=revision or None)
            )  # without retries; the download below retries
            return Path(hf_hub_download(repository, file, revision=revision or None))
        except Exception as error:
            if not _missing(error):
                raise
            last = error
    raise last or FileNotFoundError(remote.repository)


def _fetch_url(remote: Remote) -> Path | None:
    if not remote.url:
        return None
    _online()
    goal = _torch_cache_path(remote.url)
    goal.parent.mkdir(parents=True, exist_ok=True)
    torch.hub.download_url_to_file(remote.url, str(goal), progress=False)
    return goal


def _online() -> None:
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise _DownloadSkipped("HF_HUB_OFFLINE forbids it")
    if _unreachable:
        raise _DownloadSkipped(_unreachable[0])


def _missing(error: Exception) -> bool:
    """Whether the hub responded that there is no such file."""
    return type(error).__name__ in ("EntryNotFoundError", "RemoteEntryNotFoundError", "RepositoryNotFoundError")


def _cache_locations(remote: Remote) -> Iterator[str]:
    if remote.repository:
        from huggingface_hub.constants import HF_HUB_CACHE

        yield f"{' or '.join(_files(remote))} of {remote.repository} in {HF_HUB_CACHE}"
    if remote.url:
        yield str(_torch_cache_path(remote.url))


def checksum(file: Path) -> str:
    """sha256 of a file; in the hub's cache, it is the name of the link's target."""
    real = Path(os.path.realpath(file))
    if real.parent.name == "blobs" and re.fullmatch("[0-9a-f]{64}", real.name):
        return real.name
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


# ---- loading


def load_state(network: nn.Module, state: State, file: Path, name: str) -> None:
    """Load the tensors into the network by name; every name and every shape must match."""
    expected = network.state_dict()
    if mismatch := differences(expected, state):
        raise BadInput(f"{file} does not fit {name}: {mismatch}.")
    state = OrderedDict(state)
    state._metadata = expected._metadata  # type: ignore[attr-defined]  # some networks read the version of a state
    network.load_state_dict(state, strict=False)  # old files may lack counters of batch-norm


def differences(expected: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> str:
    """A description of missing, unexpected and misshaped tensors; empty if there are none."""
    missing = [name for name in expected if name not in state and not name.endswith("num_batches_tracked")]
    unexpected = [name for name in state if name not in expected]
    wrong_shapes = [
        f"{name} has shape {tuple(state[name].shape)} where {tuple(value.shape)} is needed"
        for name, value in expected.items()
        if name in state and state[name].shape != value.shape
    ]
    problems = [f"{_shorten_list(missing)} missing"] if missing else []
    problems += [f"{_shorten_list(unexpected)} unexpected"] if unexpected else []
    return "; ".join([*problems, *([_shorten_list(wrong_shapes)] if wrong_shapes else [])])


def _shorten_list(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{', '.join(names[:MAX_NAMES])}{more}"


@contextmanager
def strict_loading() -> Iterator[None]:
    """Make every load_state_dict strict: some builders allow missing names and leave those layers random."""
    loose = nn.Module.load_state_dict

    def strict(self: nn.Module, state: Mapping[str, Tensor], strict: bool = True, assign: bool = False) -> object:
        if odd := differences(self.state_dict(), state):
            raise BadInput(odd)
        return loose(self, state, False, assign)

    nn.Module.load_state_dict = strict  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.load_state_dict = loose  # type: ignore[method-assign]


# ---- names of other programs

LITE_MEAN, LITE_STD = (127 / 255,) * 3, (128 / 255,) * 3  # their input is (x − 127) / 128, x from 0 to 255
LITE_ENDS = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
LITE_PLAIN = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
LITE_EXPANDED = {
    **{"_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2"},
    **{"_project_conv": "conv_pwl", "_bn2": "bn3"},
}


def is_lite_port(state: Mapping[str, object]) -> bool:
    """Whether the names are those of the first PyTorch port of EfficientNet-Lite."""
    return {"_conv_stem.weight", "_fc.weight", "_blocks.0._depthwise_conv.weight"} <= state.keys()


def rename_lite(state: State, expected: Iterable[str]) -> State:
    """The port's tensors under timm's names: the port numbers blocks consecutively, timm by stage."""
    blocks = {tuple(map(int, name.split(".")[1:3])) for name in expected if name.startswith("blocks.")}
    block_names = {str(number): f"blocks.{stage}.{block}" for number, (stage, block) in enumerate(sorted(blocks))}
    renamed: State = {}
    for name, value in state.items():
        layer, _, rest = name.partition(".")
        if layer == "_blocks":
            number, layer, rest = rest.split(".", 2)
            layers = LITE_EXPANDED if f"_blocks.{number}._expand_conv.weight" in state else LITE_PLAIN
            block = block_names.get(number, f"_blocks.{number}")  # an extra block keeps its name
            renamed[f"{block}.{layers.get(layer, layer)}.{rest}"] = value
        else:
            renamed[f"{LITE_ENDS.get(layer, layer)}.{rest}"] = value
    return renamed


DENSE = re.compile(r"^(.*denselayer\d+\.(?:norm|relu|conv))\.((?:[12])\.(?:weight|bias|running_mean|running_var))$")


def rename_densenet(state: State) -> State:
    """DenseNet's tensors with layer names such as norm1, which old files write as norm.1."""
    return {DENSE.sub(r"\1\2", name): value for name, value in state.items()}
