"""Dense prediction: counts of correct and wrong pixels by score, instead of a prediction per pixel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial, reduce
from operator import add, itemgetter
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nescio.analysis.pixels import PixelCounts
from nescio.datasets.image_set import ImageSet, LoadedImages
from nescio.errors import BadInput
from nescio.identity import seed_for
from nescio.layers.entropies import entropy
from nescio.methods.base import Output
from nescio.networks.models import build
from nescio.networks.network import Network
from nescio.predict.inputs import default_batch_size, free_memory, input_batches
from nescio.predict.outputs import Predictor
from nescio.predict.steps import torch_threads
from nescio.progress import track
from nescio.runtime import Runtime, evaluating, runtime_for, seed_everything
from nescio.work.step_folder import StepFolder
from nescio.work.steps import Context, Files, Step
from nescio.work.store import Store
from nescio.work.versions import COUNT as VERSION

STAGE, COUNTS = "count", "counts.npz"
Modules = Sequence[Predictor]
PixelMaps = tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]  # label maps, predicted classes, scores by name


def count_step(network: Network | Sequence[Network], images: ImageSet, *, root: str | Path | None = None) -> Step:
    """The step that counts the predicted pixels of a dense network, or of the average of several networks."""
    members = (network,) if isinstance(network, Network) else tuple(network)
    if not members:
        raise BadInput("An average needs at least one network.")
    for member in members:
        if member.trial is not None and member.trial.task != "segmentation":
            raise BadInput(f"{member.name} predicts images, not pixels: use predict_step.")
    if images.view is not None:
        raise BadInput("Label maps are of whole images: count pixels without a view.")
    if images.change is not None and images.change.moves:
        raise BadInput(
            f"The change {images.change.condition} moves pixels, but not their labels: choose a change that keeps "
            "every pixel in its position, such as a corruption."
        )
    images = images.with_content_name(root)
    make = partial(_count, members=members, images=images)
    title = f"{members[0].name}{f' and {len(members) - 1} more' if members[1:] else ''} on {images.data}"
    identity = members[0].identity if len(members) == 1 else {"members": [member.identity for member in members]}
    parents = (*(member.parent(root) for member in members), images.load_revision(root))
    return Step(title, STAGE, {"images": images, **identity}, make, parents, VERSION)


def load_counts(step: Step, store: Store) -> PixelCounts:
    """The counts of a finished step."""
    return PixelCounts.load(step.verified(store) / COUNTS)


def _count(step_folder: StepFolder, context: Context, members: Sequence[Network], images: ImageSet) -> Files:
    first = members[0]
    runtime = runtime_for(context.device).with_precision(first.trial.training.precision if first.trial else "auto")
    built = [build(member, context.store, runtime, context.root) for member in members]
    loaded = images.load(context.root, context.store)
    modules, seed = [module for module, _ in built], seed_for("count", first.arch, images)
    with runtime.threads(torch_threads(first)):
        return {COUNTS: count_pixels(modules, built[0][1], loaded, context.store, runtime, seed).save()}


def count_pixels(
    modules: Modules, network: Network, loaded: LoadedImages, store: Store | None, runtime: Runtime, seed: int = 0
) -> PixelCounts:
    """Counts of correct and wrong pixels by score, and the confusion matrix, image by image in bounded memory.

    A module outputs logits (b, s, c, h′, w′) and scores (b, h′, w′) of any resolution. Several modules are averaged;
    the preprocessing is that of `network`. For the scores, see `pixel_predictions`.
    """
    maps = pixel_maps(modules, network, loaded, store, runtime, seed)
    counts = reduce(add, (PixelCounts.from_maps(*batch, network.classes, loaded.dataset.void) for batch in maps))
    if infinite := counts.infinite.get("entropy"):  # the probabilities are not finite either
        raise BadInput(f"The logits of {network.name} are not finite for {infinite} of {counts.n} pixels.")
    return counts


def pixel_maps(
    modules: Modules, network: Network, loaded: LoadedImages, store: Store | None, runtime: Runtime, seed: int = 0
) -> Iterator[PixelMaps]:
    """Label maps, predicted classes and scores, batch by batch; a batch that exceeds the memory is halved."""
    seed_everything(seed)
    done = 0
    batch = default_batch_size(network, runtime, loaded.dataset.shape)  # trained networks accept images of any size
    batch = max(1, batch // 4)  # pixel-wise logits take as much memory as the features
    while True:
        remaining = loaded.take(np.arange(done, len(loaded)))
        try:
            for maps in _pixel_maps(modules, network, remaining, store, runtime, batch):
                yield maps
                done += len(maps[0])
            return
        except torch.OutOfMemoryError:
            if batch == 1:
                raise
            batch //= 2
        free_memory()


def _pixel_maps(
    modules: Modules, network: Network, loaded: LoadedImages, store: Store | None, runtime: Runtime, batch: int
) -> Iterator[PixelMaps]:
    done = 0
    with ExitStack() as modes, torch.inference_mode(), runtime.autocast():
        for module in modules:
            modes.enter_context(evaluating(module))
        batches = input_batches(network, loaded, store, runtime, batch)
        for x, count in track(batches, network.name, len(loaded), images=itemgetter(1)):
            labels = loaded.images.label_maps(slice(done, done + count))
            predicted, scores = pixel_predictions([module(x) for module in modules], labels.shape[1:])
            arrays = {name: score[:count].float().cpu().numpy() for name, score in scores.items()}
            yield labels, predicted[:count].cpu().numpy(), arrays
            done += count


def pixel_predictions(outputs: Sequence[Output], shape: tuple[int, int]) -> tuple[Tensor, dict[str, Tensor]]:
    """Classes (b, h, w) of the mean softmax of all members' draws, and scores (b, h, w), at the labels' resolution.

    Logits are interpolated bilinearly, scores bicubically (Postels et al. 2022, §4.2). Scores are the "entropy" of the
    mean softmax p̄; with several members or draws, their "mutual_information" H(p̄) − mean H(p); and the scores of the
    method, for a single network.
    """
    means = [_mean_softmax(output, shape) for output in outputs]
    probs = torch.stack([mean for mean, _ in means]).mean(0)
    native = outputs[0].scores if len(outputs) == 1 else {}
    scores = {name: _resized(score[:, None], shape, "bicubic")[:, 0] for name, score in native.items()}
    scores["entropy"] = entropy(probs, 1)  # replaces a method's score of this name
    entropies = [entropy(mean, 1) for mean, _ in means] if len(means) > 1 else [means[0][1]]
    if len(means) > 1 or _draws(outputs[0]) > 1:
        scores["mutual_information"] = (scores["entropy"] - torch.stack(entropies).mean(0)).clamp_min(0)
    return probs.argmax(1), scores


def _draws(output: Output) -> int:
    if output.logits is None or output.logits.dim() != 5:
        raise BadInput("A dense network must output logits (b, s, c, h, w).")
    return output.logits.shape[1]


def _mean_softmax(output: Output, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The mean softmax (b, c, h, w) of the draws and the mean of their entropies (b, h, w), one draw at a time."""
    draws = _draws(output)
    assert output.logits is not None
    probs = mean_entropy = torch.zeros(())
    for logits in output.logits.unbind(1):
        p = _resized(logits, shape, "bilinear").softmax(1)
        probs, mean_entropy = probs.to(p) + p / draws, mean_entropy.to(p) + entropy(p, 1) / draws
    return probs, mean_entropy


def _resized(maps: Tensor, shape: tuple[int, int], mode: str) -> Tensor:
    """Maps (b, c, h′, w′) at another resolution, in float32."""
    if maps.shape[2:] == shape:
        return maps.float()
    return torch.nn.functional.interpolate(maps.float(), shape, mode=mode, align_corners=False)
