"""Evaluate a network's embeddings on images of new classes (recall@1), and recommend an uncertainty score.

MODEL is a timm name or torchvision:NAME (with @FILE for other weights), store:KEY for a network of `nescio train`, or a
predictions file. The file has `embeddings` (n, d), and optionally `labels`, `logits` and `scores/NAME`. A network
predicts on --data, and on --crops random crops of every image.

R@1 is the share of images whose nearest neighbour has the same class. R-AUROC is the AUROC of a score for the other
images (Kirchhof et al. 2023). Scores of single images and scores of the gallery (all other images) are listed
separately. The recommendation needs no labels: the entropy if the images do not differ from --reference, else
gallery_uncertainty. It can be wrong for shifted images of the network's own classes and for mixtures of classes.

examples:
  nescio transfer resnet50 --data folder:photos
  nescio transfer vit_base_patch16_224@mine.safetensors --data folder:cars --classes 98-195 --output out
  nescio transfer store:3f2a --data cifar100 --siblings store:77b0,store:91c2 --row-scores scores.csv
  nescio transfer test.npz --views crop0.npz,crop1.npz --reference val.npz --format json
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nescio.commands._inputs import InputOptions
from nescio.commands._output import Format, check_row_scores, emit, print_findings, print_written_files
from nescio.commands._work import WEIGHTS, StoreOptions
from nescio.errors import BadInput
from nescio.measures.gallery import J, K
from nescio.networks.preprocessing import Preprocessing
from nescio.options import argument, nested, option
from nescio.predictions import Predictions
from nescio.provenance import follow_up_command
from nescio.specs import assignment

if TYPE_CHECKING:
    from nescio.analysis.transfer import TransferResult


@dataclass(frozen=True, kw_only=True)
class Options:
    model: str = argument("a network, or a file of its predictions", metavar="MODEL")
    data: str | None = option(None, unset="none, for a file", kind="dataset")
    classes: tuple[int, ...] = option((), unset="all")
    crops: int = option(4, "number of random crops of every image", metavar="N")
    views: tuple[str, ...] = option(())
    siblings: tuple[str, ...] = option(())
    reference: str | None = option(None, unset="for store:KEY its validation images, else none")
    k: int = option(K)
    j: int = option(J, "rank of the neighbour whose similarity is compared with the nearest one's", metavar="J")
    limit: int | None = option(None, unset="all")
    bootstrap: int = option(1000)
    seed: int = option(0)
    weights: str | None = option(None, unset=WEIGHTS, group="storage")
    preprocessing: Preprocessing = nested(Preprocessing())
    storage: StoreOptions = nested(StoreOptions(), omit=("checkpoint_seconds",))
    output: str | None = option(None, unset="no page", group="output")
    row_scores: str | None = option(None, group="output")
    format: Format = option("table", group="output")


def run(options: Options) -> int:
    from nescio.analysis.transfer import transfer

    check_row_scores(options.row_scores)
    read = _files if Path(assignment(options.model)[1]).exists() else _networks
    predictions, views, siblings, others = read(options)
    result = transfer(
        predictions,
        views,
        siblings,
        name=assignment(options.model)[0] or options.model,
        k=options.k,
        j=options.j,
        resamples=options.bootstrap,
        seed=options.seed,
        **others,
    )
    _show(result, options)
    return 0


Dumps = tuple[Predictions, Sequence[Predictions], Sequence[Predictions], dict[str, Any]]


def _files(options: Options) -> Dumps:
    """MODEL, views and siblings from files."""
    if options.preprocessing.set_fields:
        flag = options.preprocessing.set_fields[0].replace("_", "-")
        raise BadInput(f"{options.model} is a file of predictions, and --{flag} is of a network: omit it.")
    if options.data is not None:
        raise BadInput(f"{options.model} is a file, and --data is for networks: omit one of them.")
    inputs = InputOptions(limit=options.limit)
    predictions, *others = (
        inputs.read(file, options.seed, ood=True) for file in (options.model, *options.views, *options.siblings)
    )
    reference = inputs.read(options.reference, options.seed) if options.reference else None
    return predictions, others[: len(options.views)], others[len(options.views) :], {"reference": reference}


def _networks(options: Options) -> Dumps:
    """Search by networks, from their predictions of the images."""
    from nescio.datasets.names import dataset_name
    from nescio.networks.models import find_network, with_weights
    from nescio.networks.preprocessed import describe_preprocessing, with_preprocessing
    from nescio.networks.retrieval import device_search
    from nescio.predict import OutputSpec, embed, embed_crops, stored_predictions
    from nescio.runtime import runtime_for

    if options.data is None:
        raise BadInput(
            f"{options.model} is not a file of predictions, and a network needs images: name them with --data."
        )
    if options.views:
        raise BadInput("--views are for predictions files; for networks, give --crops.")
    context, path = options.storage.context(), Path(options.weights) if options.weights else None
    names, datasets = (options.model, *options.siblings), (dataset_name(options.data),)
    networks = [with_weights(find_network(name, context.store, context.root, datasets), path) for name in names]
    model, *siblings = with_preprocessing(networks, options.preprocessing, options.data)
    for sentence in describe_preprocessing([model, *siblings]):
        print(sentence, file=sys.stderr, flush=True)
    images = _images(options, model)
    device = runtime_for(options.storage.device).device
    others: dict[str, Any] = {} if device.type == "cpu" else {"search": device_search(device)}
    if reference := _reference(options, model):
        others["reference"] = embed([model], reference, context)[0]
    predictions = stored_predictions(
        model, images, context, OutputSpec(precision="float32")
    )  # bf16 cannot order neighbours
    return predictions, embed_crops(model, images, options.crops, context), embed(siblings, images, context), others


def _images(options: Options, model: Any) -> Any:
    """The images of --data; the test images if the network was trained on this set and these classes."""
    from nescio.datasets.image_set import ImageSet
    from nescio.datasets.names import dataset_name, same_images

    data = dataset_name(str(options.data))
    images = ImageSet(data, sample_size=options.limit, sample_seed=options.seed)
    trial, chosen = model.trial, set(options.classes)
    if trial is not None and same_images(trial.data, data, options.storage.root):
        if not chosen:
            return replace(images, classes=trial.classes)
        if trial.classes is None or chosen & set(trial.classes):  # the training images of these classes are known
            return replace(images, labels=options.classes)
    elif trial is not None:
        _say_assumed(options, model, data)
    return replace(images, split="all_ood", labels=options.classes or None)


def _say_assumed(options: Options, model: Any, data: str) -> None:
    """Note that the classes of another dataset are assumed to be new, and list names of trained classes among them."""
    from nescio import datasets
    from nescio.datasets.image_set import ImageSet

    names = ImageSet(data, split="all_ood").load(options.storage.root).classes
    learnt = set(model.class_names or datasets.load(model.trial.data, options.storage.root).classes)
    shared = [name for name in names if name in learnt]
    said = f"{data} is not the data of {model.name}: its classes are assumed not to be trained classes."
    if shared:
        path = [] if options.storage.store == "store" else ["--store", options.storage.store]
        said += (
            f" {len(shared)} of {len(names)} have names of trained classes ({', '.join(shared[:3])}): "
            f"if they are the same classes, use `{follow_up_command('zoo', model.name, '--data', data, *path)}`."
        )
    print(said, file=sys.stderr, flush=True)


def _reference(options: Options, model: Any) -> Any:
    """Images similar to the network's training images, or None."""
    from nescio.analysis.transfer import MAX_ROWS
    from nescio.datasets.image_set import ImageSet
    from nescio.datasets.names import dataset_name

    if options.reference is not None:
        return ImageSet(dataset_name(options.reference), "test_or_all", sample_size=MAX_ROWS)
    trial = model.trial
    return (
        None
        if trial is None
        else ImageSet(trial.data, "val", trial.classes, seed=trial.data_seed, sample_size=MAX_ROWS)
    )


def _show(result: TransferResult, options: Options) -> None:
    from nescio.report.transfers import transfer_sentences, transfer_tables

    if options.row_scores is not None:
        from nescio.predictions.columns import save_columns

        save_columns(options.row_scores, {"index": result.index, **{f"u_{name}": u for name, u in result.u.items()}})
    if options.output is not None:
        from nescio.report.pages import write_page
        from nescio.report.transfers import transfer_story

        write_page(transfer_story(result), options.output, rows=result.rows)

    def show() -> None:
        print_findings(transfer_sentences(result), transfer_tables(result), result.notes)
        print_written_files(options.output, options.row_scores, len(result.index))

    fields = ("recommended", "recommendation_reason", "rows", "score_inputs", "reasons", "notes")
    emit(
        options.format,
        table=show,
        plain=lambda: {
            "model": result.name,
            "n": len(result.index),
            **{name: getattr(result, name) for name in fields},
        },
        rows=lambda: result.rows,
        story=lambda: transfer_tables(result),
    )
