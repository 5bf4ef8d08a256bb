"""Predictions and comparison of many pretrained models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any, Literal

from nescio.api.dry_run import CostEstimate
from nescio.api.results import ApiResult, status
from nescio.api.storage import SHARDS, WEIGHTS, StoreOptions, WorkerOptions
from nescio.api.studies import BenchmarkResult
from nescio.benchmarks.base import registry, study_of
from nescio.benchmarks.cood import Plan as GradingPlan
from nescio.benchmarks.selective import Plan as SelectivePlan
from nescio.errors import BadInput
from nescio.networks.preprocessing import Preprocessing
from nescio.options import REQUIRED, argument, leaves, nested, option, with_flags
from nescio.predictions.pairs import pairs_of
from nescio.progress import Stages
from nescio.rows import Row
from nescio.specs import NetworkName, mapping
from nescio.work.launchers import Failure
from nescio.work.steps import Context, Step, Work

if TYPE_CHECKING:
    from nescio.benchmarks.cood.models import ClassNames
    from nescio.datasets.image_set import ImageSet
    from nescio.networks.network import Network
    from nescio.predict import ManyPredictions, OutputSpec
    from nescio.predictions.model_predictions import ModelPredictions
    from nescio.report.studies import Study
    from nescio.report.tables import Table

UNUSED = (
    "pair",
    "data",
    "ood_data",
    "extra_ood",
    "severity_levels",
    "group_classes",
    "measures",
    "limit",
    "seed",
)  # of the grading


@dataclass(frozen=True, kw_only=True)
class ZooOptions:
    """Options of `zoo`."""

    models: tuple[str, ...] = argument("names and globs of models", default=(), metavar="MODEL")
    families: tuple[str, ...] = option((), group="models")
    all_models: bool = option(False, "take every pretrained classifier of timm and torchvision", group="models")
    weights: str | None = option(None, unset=WEIGHTS, group="models")
    data: str = option(REQUIRED, group="images", kind="dataset")
    ood_data: str | None = option(None, group="images", kind="dataset")
    extra_ood: tuple[str, ...] = option((), style="repeats", group="images")
    classes: tuple[int, ...] | None = option(None, unset="all", group="images")
    class_names: str | None = option(None, unset="those of ImageNet-1k, or of the network", group="images")
    limit: int | None = option(None, unset="all", group="images")
    seed: int = option(0, group="images")
    skip_damaged: bool = option(False, group="images")
    mc_samples: int = option(
        30, "number of MC-dropout samples, for models with dropout", metavar="N", group="predicting"
    )
    dropout: float | None = option(
        None, "dropout rate before the head of timm models", metavar="RATE", unset="the model's", group="predicting"
    )
    embeddings: bool = option(False, "save embeddings, the input of the last layer", group="predicting")
    batch_size: int | None = option(None, unset="512 of 224² on a GPU, 32 on a CPU", group="predicting")
    shards: int | None = option(None, unset=SHARDS, group="predicting")
    precision: Literal["auto", "float32", "bf16"] = option("auto", group="predicting")
    preprocessing: Preprocessing = nested(Preprocessing())
    published: str | None = option(
        None,
        "table of published accuracies with columns model and top1, to compare with",
        metavar="CSV",
        group="predicting",
    )
    pixel_cache: bool = option(True, "keep decoded images after the last model has used them", group="predicting")
    grading: GradingPlan = nested(GradingPlan(), omit=UNUSED)
    storage: StoreOptions = nested(StoreOptions())
    worker_options: WorkerOptions = nested(WorkerOptions(workers=0), omit=("processes", "nodes"))
    dry_run: bool = option(False, group="output")

    @property
    def plan(self) -> GradingPlan:
        """Options for grading --ood-data."""
        return replace(self.grading, data=self.data, ood_data=self.ood_data, extra_ood=self.extra_ood)


@dataclass(repr=False)
class ZooResult(ApiResult):
    """The studies of selective prediction and, with images of other classes, of their detection.

    failed  models without predictions, and why, if no model has any
    stamp   columns that JSON rows of a random subset have
    """

    results: list[BenchmarkResult]
    failed: list[str] = field(default_factory=list)
    stamp: Row = field(default_factory=dict)

    @property
    def rows(self) -> list[Row]:  # type: ignore[override]
        return [{**row, **self.stamp} for result in self.results for row in result.rows]

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        return max([min(1, result.exit_code) for result in self.results], default=1 if self.failed else 0)

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.results)) or "\n".join(self.failed)

    def sentences(self) -> list[str]:
        return [sentence for result in self.results for sentence in result.sentences()]

    def tables(self, brief: bool = True) -> list[Table]:
        return [table for result in self.results for table in result.tables(brief)]

    def report(self, folder: str | Path) -> Path:
        """Write the page of known classes, and that of other classes to the folder `cood` in it."""
        pages = [result.report(path) for result, path in self.pages(Path(folder), Path(folder) / "cood")]
        return pages[0]

    def pages(self, selective: Path, cood: Path) -> list[tuple[BenchmarkResult, Path]]:
        """The studies with links to each other, and the folders of their pages."""
        links = [{f"{cood.name}/index.html": "New classes →"}, {"../index.html": "← Known classes"}]
        if len(self.results) < 2 or not all(result.study.rows for result in self.results):
            links = [{}, {}]
        pairs = zip(self.results, links, (selective, cood), strict=False)
        return [(replace(result, links=link), folder) for result, link, folder in pairs]


def zoo(options: ZooOptions) -> ZooResult | CostEstimate:
    """Predict with many pretrained models, compare them, and grade their detection of other classes."""
    if options.extra_ood and not options.ood_data:
        raise BadInput("extra_ood needs ood_data: give ood_data first.")
    _check_names(options)
    if options.dry_run:
        return _cost_estimate(options)
    workers = options.worker_options
    with workers.launch(workers.count(options.storage.device)) as launcher, Stages(launcher.workers) as stages:
        works = [Work(options.storage.context(), launcher, stages) for _ in range(2)]
        return _run(options, *works)


def _check_names(options: ZooOptions) -> None:
    """Refuses files of class names that cannot be read, or that name no classes because there is no --ood-data."""
    from nescio.datasets import hierarchy

    plan = options.plan
    for name, file in (
        ("hierarchy", plan.hierarchy),
        ("data_names", plan.data_names),
        ("ood_names", plan.ood_names),
    ):
        if file and not options.ood_data:
            raise BadInput(f"{name} has no effect without ood_data: give ood_data, or omit {name}.")
        if file:
            (hierarchy.read if name == "hierarchy" else hierarchy.names)(file)


def _cost_estimate(options: ZooOptions) -> CostEstimate:
    """The steps and the estimated cost of a run, without reading weights or images."""
    from nescio.api import zoo_cost
    from nescio.benchmarks.costs import STORY, clock_of, estimated
    from nescio.benchmarks.selective import winners
    from nescio.predictions.model_predictions import predictions_from_store
    from nescio.work.dry_run import DryRun, costs
    from nescio.work.launchers import make_launcher

    started = process_time()
    context, worker_options = options.storage.context(), options.worker_options
    workers = max(1, worker_options.launch(worker_options.count(options.storage.device)).workers)
    networks = _networks(options, context, None)
    predictions = zoo_cost.expected_predictions(_pairs(options, networks), _output_spec(options), context)
    for prediction in {
        prediction.images.data: prediction for prediction in predictions if not prediction.available
    }.values():
        status(f"{prediction.images.data} is not there: counted as {prediction.count:,} images, the number of --limit.")
    if all(prediction.step.done for prediction in predictions):
        rehearsal = DryRun(context, make_launcher("local", 0))
        names = _class_names(options, rehearsal) if options.ood_data else None
        models_done = [predictions_from_store(context.store, str(prediction.key)) for prediction in predictions]
        _evaluate_models(options, _evaluated_on_trained_classes(models_done), models_done, names, rehearsal, rehearsal)
        evaluations_: Sequence[Step] = list(rehearsal.steps.values())
    else:
        graded = options.ood_data is not None
        evaluations_ = zoo_cost.evaluations(predictions, len(winners(SelectivePlan())), graded)
    steps = [*zoo_cost.decodings(predictions), *(prediction.step for prediction in predictions), *evaluations_]
    stages = costs(steps, context.store, partial(estimated, context=context), clock=clock_of(context.device))
    extra_seconds = process_time() - started + STORY
    return CostEstimate(stages, context, workers, extra_seconds, zoo_cost.model_lines(predictions))


def _run(options: ZooOptions, work: Work, grading: Work) -> ZooResult:
    from nescio.networks.network import group_by_preprocessing
    from nescio.networks.published import read_published, with_published_accuracies
    from nescio.predictions.model_predictions import predictions_from_store

    if options.published:
        read_published(options.published, "top1")  # fail before hours of work
    names = _class_names(options, grading) if options.ood_data else None
    many = predictions(options, work)
    models_done = []
    for step in many.steps:
        try:
            models_done.append(predictions_from_store(work.store, step.key))
        except BadInput as error:  # damaged since it was finished
            work.failures.append(Failure(step.title, str(error)))
    inside = _evaluated_on_trained_classes(models_done)
    # other models were reported before
    published = [model for model in inside if NetworkName.parse(model.model).file is None]
    for sentence in group_by_preprocessing([_preprocessing_key(model.model, model.facts) for model in published]):
        status(sentence)
    if options.published:
        inside, notes = with_published_accuracies(inside, options.published)
        work.add_notes(*notes)
    for note in work.notes:
        status(f"note: {note}")
    grading.add_notes(*work.notes)
    every = list(leaves(ZooOptions))
    failures = _merge_failures(many.failures, options.models)
    work.failures += [replace(failure, reason=with_flags(failure.reason, every)) for failure in failures]
    studies = _studies(options, inside, models_done, names, work, grading) if inside else []
    failed = [] if studies else [f"failed: {failure.name}: {failure.reason}" for failure in work.failures]
    stamp = {} if options.limit is None else {"limit": options.limit, "seed": options.seed}
    return ZooResult([BenchmarkResult(study) for study in studies], failed, stamp)


def _preprocessing_key(model: str, facts: Mapping[str, Any]) -> tuple[str, str, Sequence[float], Sequence[float], str]:
    """The preprocessing of a model, from the facts of its predictions."""
    return model, str(facts.get("view", "?")), facts.get("mean", ()), facts.get("std", ()), ""


# ---- predicting


def predictions(options: ZooOptions, work: Work) -> ManyPredictions:
    """Predictions of the models for all sets; omitted sets and models are added to the notes."""
    from nescio.networks.models import weights_folder
    from nescio.networks.network import describe_preprocessing
    from nescio.predict import predict_all

    path = weights_folder(Path(options.weights) if options.weights else None)
    if path is not None and not path.exists():
        raise BadInput(f"There is no folder and no file of weights at {path}.")
    networks = _networks(options, work.context, path)
    inside = _image_sets(options)[0]
    networks = _fitting(networks, inside, options, work)
    for sentence in describe_preprocessing([network for network in networks if network.custom_weights]):
        status(sentence)
    if options.class_names:
        _note_unnamed(inside, networks[0], Path(options.class_names), work)
    pairs = _pairs(options, networks)
    for images in dict.fromkeys(images for _, images in pairs):
        _note_omitted_images(images, work)

    def watch(done: int, failed: int, total: int, finished: int) -> None:
        if work.watch:
            work.watch("predicting", done, failed, total, None, finished)

    return predict_all(
        pairs,
        work.context,
        _output_spec(options),
        launcher=work.launcher,
        weights=path,
        batch=options.batch_size,
        shards=options.shards,
        forget=not options.pixel_cache,
        say=status,
        watch=watch,
    )


def _output_spec(options: ZooOptions) -> OutputSpec:
    from nescio.predict import OutputSpec
    from nescio.runtime import runtime_for

    # "auto" is bf16 on one device and float32 on another; the key contains the result
    precision: Any = runtime_for(options.storage.device).with_precision(options.precision).precision
    output_spec = OutputSpec(("logits", "embeddings") if options.embeddings else ("logits",), "float16", compared=True)
    return replace(output_spec, mc_samples=options.mc_samples, dropout=options.dropout, precision=precision)


def _image_sets(options: ZooOptions) -> list[ImageSet]:
    """--data, then the sets of other classes."""
    from nescio.datasets.image_set import ImageSet
    from nescio.datasets.names import absolute_name

    if options.limit is not None and options.limit < 1:
        raise BadInput(f"limit must be at least 1, got {options.limit}.")
    common = {"sample_size": options.limit, "sample_seed": options.seed, "readable": options.skip_damaged}
    inside = ImageSet(absolute_name(options.data), split="test_or_all", labels=options.classes, **common)  # type: ignore[arg-type]
    others = (
        [options.ood_data, *mapping(options.extra_ood, "NAME=SET", "extra_ood").values()] if options.ood_data else []
    )
    outside = [ImageSet(absolute_name(data), split="all_ood", **common) for data in others if data]  # type: ignore[arg-type]
    return [inside, *outside]


def _pairs(options: ZooOptions, networks: Sequence[Network]) -> list[tuple[Network, ImageSet]]:
    """Every network with every set that it predicts."""
    inside, *outside = _image_sets(options)
    pairs: list[tuple[Network, ImageSet]] = []
    for network in networks:
        # a set without test images is divided when a network of the store is trained: most of it was seen
        images_of_one = inside if network.trial is None else replace(inside, split="test")
        pairs += [(network, images) for images in (images_of_one, *outside)]
    return pairs


def _networks(options: ZooOptions, context: Context, path: Path | None) -> list[Network]:
    from nescio.datasets.names import absolute_name
    from nescio.networks.models import select_networks, with_weights
    from nescio.networks.network import with_class_names, with_preprocessing

    networks = select_networks(
        options.models,
        context.store,
        root=context.root,
        data=tuple(absolute_name(data) for data in (options.data,) if data),
        families=options.families,
        everything=options.all_models,
        folder=path if path is not None and path.is_dir() else None,
    )
    if path is not None and path.is_file() and len(networks) > 1:
        count = len(networks)
        raise BadInput(f"{path} is one checkpoint, but {count} models are named: name one, or a folder.")
    if path is not None and path.is_file():
        networks = [with_weights(network, path) for network in networks]  # with the classes of its own head
    if options.class_names:
        networks = [with_class_names(network, Path(options.class_names)) for network in networks]
    return with_preprocessing(networks, options.preprocessing, options.data)


def _note_unnamed(images: ImageSet, network: Network, file: Path, work: Work) -> None:
    """Classes of the set that a file of classes does not name."""
    loaded, named = images.load(work.context.root, work.store), {name for name, _ in network.class_map}
    unnamed = [name for name in loaded.classes if name not in named]
    if 0 < len(unnamed) < len(loaded.classes):
        some = ", ".join(unnamed[:5]) + (" …" if len(unnamed) > 5 else "")
        count = f"{len(unnamed):,} of {len(loaded.classes):,} classes of {loaded.name}"
        work.add_notes(f"{file} does not name {count} ({some}): their images are left out.")


def _note_omitted_images(images: ImageSet, work: Work) -> None:
    """Note files that are not images, unreadable images, and the subset that --limit selects."""
    from nescio.datasets.pixel_cache import readable_images
    from nescio.predictions.subset import subset_note

    whole = replace(images, readable=False, sample_size=None).load(work.context.root)
    work.add_notes(*(f"{whole.name}: {note}" for note in whole.dataset.notes))
    if images.sample_size is not None and images.sample_size < len(whole):
        work.add_notes(subset_note(images.sample_size, len(whole), f"images of {whole.name}", images.sample_seed))
    if images.readable:
        _, note = readable_images(replace(images, readable=False).load(work.context.root), work.store)
        work.add_notes(*([note] if note else []))


def _fitting(networks: Sequence[Network], images: ImageSet, options: ZooOptions, work: Work) -> list[Network]:
    """Models of globs, families or --all-models that have the set's classes; the others are left out."""
    from nescio.datasets.class_labels import align_labels

    loaded = images.load(work.context.root, work.store)
    fitting: list[Network] = []
    for network in networks:
        if network.name not in options.models:
            try:
                align_labels(loaded, network.classes, network.class_names, network.class_map)
            except BadInput:
                continue
        fitting.append(network)
    if not fitting:
        first = networks[0]
        align_labels(loaded, first.classes, first.class_names, first.class_map)  # says why
    if left := len(networks) - len(fitting):
        work.add_notes(f"{left} models predict other classes than {loaded.name} has; they are omitted.")
    return fitting


def _merge_failures(failures: Sequence[Failure], named: Sequence[str]) -> list[Failure]:
    """Merge the missing weights of models that were not named into one line, as there may be a thousand."""
    from nescio.networks.weights import WeightsNotFound

    lacking = [
        failure
        for failure in failures
        if failure.kind == WeightsNotFound.__name__ and failure.name.split(" on ")[0] not in named
    ]
    if len(lacking) < 3:
        return list(failures)
    one = replace(lacking[0], name=f"{len(lacking)} predictions that need weights")
    return [*(failure for failure in failures if failure not in lacking), one]


# ---- comparing


def _class_names(options: ZooOptions, work: Work) -> ClassNames | None:
    """Names of the classes of both sets, and that they can be graded, checked before any model predicts."""
    from nescio.benchmarks.cood.models import class_names, overlapping_classes
    from nescio.datasets.image_set import ImageSet
    from nescio.datasets.names import absolute_name

    plan = options.plan
    names = class_names(plan, work)
    overlapping_classes(plan, names)
    sides = ((plan.data_names, options.data, "test_or_all"), (plan.ood_names, options.ood_data, "all_ood"))
    for (file, data, split), listed in zip(sides, names or (), strict=False):
        classes = ImageSet(absolute_name(data or ""), split=split).load(work.context.root).classes  # type: ignore[arg-type]
        if file and len(listed) < len(classes):
            raise BadInput(
                f"{file} has {len(listed)} names, {data} has {len(classes)} classes: name every class, class 0 first."
            )
    return names


def _evaluated_on_trained_classes(models_done: Sequence[ModelPredictions]) -> list[ModelPredictions]:
    return [model for model in models_done if not model.facts["outside"]]


def _evaluate_models(
    options: ZooOptions,
    inside: Sequence[ModelPredictions],
    models_done: Sequence[ModelPredictions],
    names: ClassNames | None,
    work: Work,
    grading: Work,
) -> list[str]:
    """Evaluate selective prediction on --data, then OOD detection on --ood-data; return the names of the benchmarks."""
    from nescio.benchmarks import cood, selective
    from nescio.benchmarks.cood.models import check_names
    from nescio.datasets.image_set import ImageSet
    from nescio.datasets.names import absolute_name
    from nescio.identity import canonical

    def outside(data: str) -> dict[str, ModelPredictions]:
        opened = ImageSet(absolute_name(data), split="all_ood").with_content_name(work.context.root).data
        return {d.model: d for d in models_done if d.facts["outside"] and canonical(d.data) == canonical(opened)}

    pairs = []
    if options.ood_data:
        fixed = {name: outside(data) for name, data in mapping(options.extra_ood, "NAME=SET", "extra_ood").items()}
        pairs = pairs_of(inside, outside(options.ood_data), fixed)
        if names is not None and (options.plan.data_names or options.plan.ood_names):
            check_names(names, pairs)
    selective.evaluate_models(SelectivePlan(data=options.data), inside, work)
    if not pairs:
        return ["selective"]
    cood.grade_models(options.plan, pairs, names, grading)
    return ["selective", "cood"]


def _studies(
    options: ZooOptions,
    inside: Sequence[ModelPredictions],
    models_done: Sequence[ModelPredictions],
    names: ClassNames | None,
    work: Work,
    grading: Work,
) -> list[Study]:
    studies_by_name: dict[str, tuple[Any, Work]]
    studies_by_name = {"selective": (SelectivePlan(data=options.data), work), "cood": (options.plan, grading)}
    return [
        study_of(registry[name], *studies_by_name[name])
        for name in _evaluate_models(options, inside, models_done, names, work, grading)
    ]
