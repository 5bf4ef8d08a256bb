"""Transfer: retrieval by a network's embeddings on images of new classes, and the uncertainty score to use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nescio.analysis.transfer import TransferResult
from nescio.api.inputs import InputOptions, Named, Source, name_of, path_of
from nescio.api.results import ApiResult, check_row_scores, status
from nescio.api.storage import WEIGHTS, StoreOptions
from nescio.errors import BadInput
from nescio.measures.gallery import J, K, Search, search_rows
from nescio.networks.preprocessing import Preprocessing
from nescio.options import argument, nested, option
from nescio.predictions import Predictions
from nescio.provenance import follow_up_command

if TYPE_CHECKING:
    from nescio.datasets.image_set import ImageSet
    from nescio.networks.network import Network
    from nescio.report.blocks import Story
    from nescio.report.tables import Table


@dataclass(frozen=True, kw_only=True)
class TransferOptions:
    """Options of `transfer`."""

    model: Source = argument("a network, or a file of its predictions", metavar="MODEL")
    data: str | None = option(None, unset="none, for a file", kind="dataset")
    classes: tuple[int, ...] = option((), unset="all")
    crops: int = option(4, "number of random crops of every image", metavar="N")
    views: tuple[Source, ...] = option(())
    siblings: tuple[Source, ...] = option(())
    reference: Source | None = option(None, unset="for store:KEY its validation images, else none")
    k: int = option(K)
    j: int = option(J, "rank of the neighbour whose similarity is compared with the nearest one's", metavar="J")
    limit: int | None = option(None, unset="all")
    bootstrap: int = option(1000)
    seed: int = option(0)
    weights: str | None = option(None, unset=WEIGHTS, group="storage")
    preprocessing: Preprocessing = nested(Preprocessing())
    storage: StoreOptions = nested(StoreOptions(), omit=("checkpoint_seconds",))
    row_scores: str | None = option(None, group="output")


class Embedded(NamedTuple):
    """Predictions of the images, of changed images, of siblings, and of reference images."""

    predictions: Predictions
    views: Sequence[Predictions]
    siblings: Sequence[Predictions]
    reference: Predictions | None
    search: Search = search_rows


@dataclass(repr=False)
class TransferEvaluation(ApiResult, TransferResult):
    """R@1, the R-AUROC of every score, and the recommended score."""

    row_scores: str | None = None

    def __repr__(self) -> str:
        return f"Transfer of {self.name}: {' '.join(self.sentences())}"

    def sentences(self) -> list[str]:
        from nescio.report.verdicts import transfer_sentences

        return transfer_sentences(self)

    def tables(self, brief: bool = True) -> Sequence[Table]:
        from nescio.report.transfers import transfer_tables

        return transfer_tables(self)

    def story(self) -> Story:
        from nescio.report.transfers import transfer_story

        return transfer_story(self)

    def plain(self) -> dict[str, object]:
        fields = ("recommended", "recommendation_reason", "rows", "score_inputs", "reasons", "notes")
        return {"model": self.name, "n": len(self.index)} | {name: getattr(self, name) for name in fields}

    def show(self, brief: bool = True) -> None:
        super().show(brief)
        if self.row_scores is not None:
            print(f"Wrote the scores of {len(self.index):,} rows to {self.row_scores}.")


def transfer(options: TransferOptions) -> TransferEvaluation:
    """Evaluate a network's embeddings on images of new classes, and recommend an uncertainty score."""
    from nescio.analysis.transfer import transfer as evaluate_transfer
    from nescio.predictions.columns import save_columns

    check_row_scores(options.row_scores)
    is_file = isinstance(options.model, Named) or Path(path_of(options.model)).exists()
    embedded = _read(options) if is_file else _predict(options, str(options.model))
    result = evaluate_transfer(
        embedded.predictions,
        embedded.views,
        embedded.siblings,
        reference=embedded.reference,
        search=embedded.search,
        name=name_of(options.model),
        k=options.k,
        j=options.j,
        resamples=options.bootstrap,
        seed=options.seed,
    )
    if options.row_scores is not None:
        save_columns(options.row_scores, {"index": result.index, **{f"u_{name}": u for name, u in result.u.items()}})
    return TransferEvaluation(**vars(result), row_scores=options.row_scores)


def _read(options: TransferOptions) -> Embedded:
    """Model, views and siblings from files or memory."""
    name = name_of(options.model)
    if options.preprocessing.set_fields:
        field = options.preprocessing.set_fields[0]
        raise BadInput(f"{field} is of a network, and {name} is a file of predictions: omit {field}.")
    if options.data is not None:
        raise BadInput(f"data is for networks, and {name} is a file: omit one of them.")
    inputs, views = InputOptions(limit=options.limit), len(options.views)
    predictions, *others = (
        inputs.read(file, options.seed, ood=True) for file in (options.model, *options.views, *options.siblings)
    )
    reference = inputs.read(options.reference, options.seed) if options.reference else None
    return Embedded(predictions, others[:views], others[views:], reference)


def _predict(options: TransferOptions, name: str) -> Embedded:
    """Predictions of networks on images."""
    from nescio.datasets.names import dataset_name
    from nescio.networks.models import find_network, with_weights
    from nescio.networks.network import describe_preprocessing, with_preprocessing
    from nescio.networks.retrieval import device_search
    from nescio.predict import OutputSpec, embed, embed_crops, stored_predictions
    from nescio.runtime import runtime_for

    if options.data is None:
        raise BadInput(f"{name} is not a file of predictions, and a network needs images: give data.")
    if options.views:
        raise BadInput("views are for predictions files; for networks, give crops.")
    context, path = options.storage.context(), Path(options.weights) if options.weights else None
    names, datasets = (name, *map(str, options.siblings)), (dataset_name(options.data),)
    networks = [with_weights(find_network(text, context.store, context.root, datasets), path) for text in names]
    model, *siblings = with_preprocessing(networks, options.preprocessing, options.data)
    for sentence in describe_preprocessing([model, *siblings]):
        status(sentence)
    images, reference = _images(options, model, options.data), _reference(options, model)
    device = runtime_for(options.storage.device).device
    return Embedded(
        stored_predictions(model, images, context, OutputSpec(precision="float32")),  # bf16 cannot order neighbours
        embed_crops(model, images, options.crops, context),
        embed(siblings, images, context),
        embed([model], reference, context)[0] if reference else None,
        search_rows if device.type == "cpu" else device_search(device),
    )


def _images(options: TransferOptions, model: Network, data: str) -> ImageSet:
    """The images of `data`; the test images if the network was trained on this set and these classes."""
    from nescio.datasets.image_set import ImageSet
    from nescio.datasets.names import dataset_name, same_images

    data = dataset_name(data)
    images = ImageSet(data, sample_size=options.limit, sample_seed=options.seed)
    trial, chosen = model.trial, set(options.classes)
    if trial is not None and same_images(trial.data, data, options.storage.root):
        if not chosen:
            return replace(images, classes=trial.classes)
        if trial.classes is None or chosen & set(trial.classes):  # the training images of these classes are known
            return replace(images, labels=options.classes)
    elif trial is not None:
        _note_assumed_classes(options, model, trial.data, data)
    return replace(images, split="all_ood", labels=options.classes or None)


def _note_assumed_classes(options: TransferOptions, model: Network, trained: str, data: str) -> None:
    """Print that the classes of another dataset are assumed to be new, and names of trained classes among them."""
    from nescio import datasets
    from nescio.datasets.image_set import ImageSet

    names = ImageSet(data, split="all_ood").load(options.storage.root).classes
    learnt = set(model.class_names or datasets.load(trained, options.storage.root).classes)
    shared = [name for name in names if name in learnt]
    note = f"{data} is not the data of {model.name}: its classes are assumed not to be trained classes."
    if shared:
        store = [] if options.storage.store == "store" else ["--store", options.storage.store]
        note += (
            f" {len(shared)} of {len(names)} have names of trained classes ({', '.join(shared[:3])}): "
            f"if they are the same classes, use `{follow_up_command('zoo', model.name, '--data', data, *store)}`."
        )
    status(note)


def _reference(options: TransferOptions, model: Network) -> ImageSet | None:
    """Images similar to the network's training images."""
    from nescio.analysis.transfer import MAX_ROWS
    from nescio.datasets.image_set import ImageSet
    from nescio.datasets.names import dataset_name

    if options.reference is not None:
        return ImageSet(dataset_name(str(options.reference)), "test_or_all", sample_size=MAX_ROWS)
    trial = model.trial
    if trial is None:
        return None
    return ImageSet(trial.data, "val", trial.classes, seed=trial.data_seed, sample_size=MAX_ROWS)
