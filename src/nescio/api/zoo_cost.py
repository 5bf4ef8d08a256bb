"""The steps that `nescio zoo` would do: decoding, predictions, evaluations; it reads no weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nescio.benchmarks.costs import comparing, decoding, evaluating, pretrained_prediction
from nescio.benchmarks.selective import AMONG
from nescio.datasets.image_set import ImageSet
from nescio.errors import BadInput
from nescio.identity import canonical
from nescio.networks.network import Network
from nescio.predict import OutputSpec, with_view_of
from nescio.work.dry_run import Cost, Expected
from nescio.work.steps import Context
from nescio.work.store import Run

UNSEEN = 1000  # images of a set that is not there, without --limit


@dataclass(frozen=True)
class ExpectedPrediction:
    """A model on a set of images: how many they are, what that costs, and the finished prediction, if there is one."""

    network: Network
    images: ImageSet
    available: bool  # whether the images are there
    count: int
    step: Expected
    key: str | None


def expected_prediction(
    network: Network, images: ImageSet, output_spec: OutputSpec, context: Context, finished: Sequence[Run]
) -> ExpectedPrediction:
    """A prediction is taken as finished if the store has one of the same model, images and settings."""
    parents, available = list[str](), True
    try:
        viewed = with_view_of(images.with_content_name(context.root), network, context.root)
        count = len(images.load(context.root))
        parents.append(images.load_revision(context.root))
    except BadInput:
        available, finished = False, ()
        viewed, count = replace(images, view=network.view), images.sample_size or UNSEEN
    if network.trial is not None or network.checksum:
        parent = network.parent(context.root)
        parents.append(parent if isinstance(parent, str) else parent.key)
    config = {"images": viewed, "keeping": output_spec, **network.identity}
    plain = canonical(config)
    key = next((run.key for run in finished if run.config == plain and set(parents) <= set(run.parents)), None)
    cost = pretrained_prediction(network, count, output_spec, context.device)
    step = Expected(network.name, "predict", config, _nothing, cost=cost, done=key is not None)
    return ExpectedPrediction(network, viewed, available, count, step, key)


def expected_predictions(
    pairs: Sequence[tuple[Network, ImageSet]], output_spec: OutputSpec, context: Context
) -> list[ExpectedPrediction]:
    finished = [run for run in context.store.runs("predict") if run.state == "finished"]
    return [expected_prediction(network, images, output_spec, context, finished) for network, images in pairs]


def decodings(predictions: Sequence[ExpectedPrediction]) -> list[Expected]:
    """One for each set and view, of which some prediction is missing."""
    missing = {
        prediction.images: prediction
        for prediction in predictions
        if prediction.images.view is not None and not prediction.step.done
    }
    return [
        Expected(str(images.view), "decode", {"images": images}, _nothing, cost=decoding(prediction.count, images.view))
        for images, prediction in missing.items()
        if images.view is not None
    ]


def evaluations(predictions: Sequence[ExpectedPrediction], metrics: int, graded: bool) -> list[Expected]:
    """Of each model; then, by each metric, of the best with each other.

    graded  each model is graded on images of other classes as well
    """
    inside = [prediction for prediction in predictions if prediction.images.split != "all_ood"]
    costs = [evaluating(prediction.count, prediction.network.classes) for prediction in inside]
    if graded:
        costs += [evaluating(prediction.count, prediction.network.classes) for prediction in predictions]
    best = min(AMONG, len(inside))
    if best > 1:
        costs += [comparing(max(prediction.count for prediction in inside), best)] * metrics
    return [Expected("evaluation", "evaluate", {"number": number}, _nothing, cost=c) for number, c in enumerate(costs)]


def model_lines(predictions: Sequence[ExpectedPrediction]) -> list[dict[str, str]]:
    """A line for each prediction."""
    from nescio.api.dry_run import duration

    def time_text(prediction: ExpectedPrediction) -> str:
        cost: Cost | None = prediction.step.cost
        return "finished" if prediction.step.done else "unknown" if cost is None else duration(cost.seconds)

    return [
        {
            "model": prediction.network.name,
            "pixels": " × ".join(map(str, prediction.network.view.shape)),
            "images": f"{prediction.count:,}",
            "time": time_text(prediction),
        }
        for prediction in predictions
    ]


def _nothing(*_: object) -> None:
    return None
