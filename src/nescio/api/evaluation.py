"""Evaluation of saved predictions: scorecards of models, their comparison, and folders of label maps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nescio.analysis.results import Comparison, Scorecard
from nescio.api.inputs import (
    InputOptions,
    Source,
    check_apart,
    load_ood_sets,
    name_of,
    parse_ood_files,
)
from nescio.api.results import ApiResult
from nescio.errors import BadInput
from nescio.options import argument, nested, option
from nescio.predictions import Predictions
from nescio.rows import Row
from nescio.specs import assignment

if TYPE_CHECKING:
    from nescio.analysis.pixels import PixelCounts
    from nescio.report.blocks import Story
    from nescio.report.tables import Table

MAPS, CHOICE = "segmentation", "choice of a score"  # groups of options
NOT_OF_SHARDS = ("train", "val", "choose", "views", "siblings", "group_by", "classwise", "bootstrap", "limit")
OF_ONE_MODEL = ("train", "val", "ood", "val_ood", "views", "siblings")  # further rows of the model that is evaluated
OF_MAPS = ("predictions", "score_maps", "ignore_label", "inputs", "all")  # options that folders of maps take
COMPARED = 1000  # resamples of a comparison of several models, unless `bootstrap` is set


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Options of `evaluate`."""

    files: tuple[Source, ...] = argument(
        "predictions on in-distribution test rows", default=(), metavar="[NAME=]FILE", unset="--logits and --labels"
    )
    train: Source | None = option(None)
    val: Source | None = option(None)
    ood: tuple[Source, ...] = option((), style="repeats", metavar="[GROUP:]NAME=FILE,…")
    ood_share: float = option(0.5)
    choose: Literal["mistakes", "unknown", "both"] | None = option(
        None, "task for which to choose the best score, on --val and --val-ood or by nested folds", group=CHOICE
    )
    val_ood: tuple[Source, ...] = option(
        (), "OOD validation sets, used only to choose", style="repeats", metavar="NAME=FILE,…", group=CHOICE
    )
    ood_tuned: tuple[str, ...] = option(
        (), "scores that were tuned on OOD rows; they are compared separately", metavar="NAME,…", group=CHOICE
    )
    views: tuple[Source, ...] = option(())
    siblings: tuple[Source, ...] = option(())
    group_by: tuple[str, ...] = option((), "groups of rows to evaluate separately", metavar="GROUP,…")
    calibration: Literal["temperature", "vector"] = option("temperature")
    classwise: bool = option(False, "compute class-wise ECE for large files as well")
    bootstrap: int = option(0, unset="no intervals")
    seed: int = option(0)
    predictions: str | None = option(
        None, "folder of predicted label maps (.png); --labels is the folder of true ones", metavar="DIR", group=MAPS
    )
    score_maps: tuple[str, ...] = option(
        (), "folders of uncertainty maps (.npy, .npz, 16-bit .png)", style="repeats", metavar="[NAME=]DIR", group=MAPS
    )
    ignore_label: int | None = option(255, "label of pixels to ignore; none: use all", metavar="LABEL", group=MAPS)
    inputs: InputOptions = nested(InputOptions())
    all: bool = option(False, group="output")


@dataclass(repr=False)
class ModelEvaluation(ApiResult):
    """Scorecards of models, and their comparison if there are several.

    incomparable  the reason that there is no comparison
    """

    cards: list[Scorecard]
    comparison: Comparison | None = None
    incomparable: str = ""
    with_choices: bool = False

    @property
    def rows(self) -> list[Row]:  # type: ignore[override]
        from nescio.report.scorecards.stories import all_rows

        return all_rows(self.cards, self.comparison)

    @property
    def contents(self) -> Sequence[Scorecard | Comparison]:
        return [*self.cards, *([self.comparison] if self.comparison else [])]

    def __getitem__(self, model: int | str) -> Scorecard:
        """The scorecard of a model, by its number or name."""
        return self.cards[[card.name for card in self.cards].index(model) if isinstance(model, str) else model]

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.contents))

    def story(self) -> Story:
        from nescio.report.scorecards.stories import scorecard_story

        return scorecard_story(self.cards, self.comparison, incomparable=self.incomparable)

    document = story

    def summary(self) -> Story:
        """The verdicts and main metrics, on one screen."""
        from nescio.report.scorecards.stories import short_story

        return short_story(self.cards, self.comparison, self.incomparable)

    def plain(self) -> dict[str, object]:
        files = [
            {"file": card.name} | {name: getattr(card, name) for name in ("rows", "reasons", "notes")}
            for card in self.cards
        ]
        for file, card in zip(files, self.cards, strict=True):
            if self.with_choices:
                choices = [asdict(choice) | {"beats_baseline": choice.beats_baseline} for choice in card.score_choices]
                file["choices"] = choices
        return {"files": files}

    def show(self, brief: bool = True) -> None:
        from nescio.report.text import print_terminal

        print_terminal(self.summary() if brief else self.story())

    def tables(self, brief: bool = True) -> Sequence[Table]:
        from nescio.report.blocks import tables_of

        return tables_of(self.summary() if brief else self.story())

    def sentences(self) -> list[str]:
        return [*self.summary().lead]


@dataclass(repr=False)
class PixelEvaluation(ApiResult):
    """Accuracy, IoU and misclassification detection of label maps."""

    counts: PixelCounts
    name: str
    rows: list[Row] = field(init=False)
    reasons: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.rows, self.reasons = self.counts.rows()

    def story(self) -> Story:
        from nescio.report.pixels import pixel_story

        return pixel_story(self.counts, self.rows, self.reasons, self.name)

    document = story

    def plain(self) -> dict[str, object]:
        return {"rows": self.rows, "reasons": self.reasons}

    def show(self, brief: bool = True) -> None:
        from nescio.report.text import print_terminal

        print_terminal(self.story())


def evaluate(options: EvaluateOptions) -> ModelEvaluation | PixelEvaluation:
    """Evaluate saved predictions: accuracy, calibration, misclassification detection and OOD detection."""
    from nescio.analysis.bootstrap import check_resampling

    if options.predictions is not None or options.score_maps:
        return _evaluate_maps(options)
    check_resampling(options.bootstrap, 0.95, options.seed, minimum=0)
    files = options.inputs.files(options.files)
    if len(set(files)) < len(files):
        raise BadInput("A file is given twice; evaluate different models.")
    if not 0 < options.ood_share < 1:
        raise BadInput(f"ood_share is a share above 0 and below 1, not {options.ood_share:g}.")
    if options.choose is None and (options.val_ood or options.ood_tuned):
        raise BadInput("val_ood and ood_tuned are about a choice among scores: give choose.")
    if large := [file for file in files if options.inputs.shards(file)]:
        cards = _cards_of_shards(options, files, name_of(large[0]))
        comparison, incomparable = None, "Models are compared on all rows at once, and these are read in shards."
    else:
        models = {file: options.inputs.read(file, options.seed) for file in files}
        cards = _cards(options, models)
        comparison, incomparable = _comparison(options, {name_of(file): rows for file, rows in models.items()})
    if empty := next((card for card in cards if not card.rows), None):
        raise BadInput(
            f"{empty.name} contains nothing to evaluate: {'; '.join([*empty.notes][:3]) or 'it has no predictions.'} "
            "Name its outputs with the map logits=NAME or probs=NAME, and the true classes with the map labels=NAME."
        )
    return ModelEvaluation(cards, comparison, incomparable, options.choose is not None)


def _evaluate_maps(options: EvaluateOptions) -> PixelEvaluation:
    """Segmentation, from folders of maps."""
    from nescio.analysis.pixels import count_folders
    from nescio.datasets.decode import opened_map

    labels = options.inputs.labels
    if options.predictions is None or not isinstance(labels, str) or options.files:
        raise BadInput("Give labels and predictions, which are folders, for segmentation, and no FILE.")
    if changed := [*_changed(options, OF_MAPS), *_changed(options.inputs, ("labels", "store"))]:
        raise BadInput(f"{changed[0]} applies to rows of files only, not to folders of maps: omit it.")
    folders = {name or Path(path).name: path for name, path in map(assignment, options.score_maps)}
    if len(folders) < len(options.score_maps):
        raise BadInput("score_maps has two folders of one name: write NAME=DIR.")
    counts = count_folders(labels, options.predictions, folders, options.ignore_label, open_image=opened_map)
    return PixelEvaluation(counts, options.predictions)


def _changed(options: EvaluateOptions | InputOptions, but: Sequence[str]) -> list[str]:
    """The fields that differ from their defaults."""
    default = type(options)()
    base = EvaluateOptions if isinstance(options, EvaluateOptions) else InputOptions
    names = [entry.name for entry in fields(base) if entry.name not in but]
    return [name for name in names if getattr(options, name) != getattr(default, name)]


def _cards(options: EvaluateOptions, models: dict[Source, Predictions]) -> list[Scorecard]:
    """A scorecard of each model, with intervals if `bootstrap` is above 0."""
    from nescio.analysis.bootstrap import add_intervals
    from nescio.analysis.score_choice import choose_scores
    from nescio.analysis.scorecard import scorecard

    of_one = [name for name in OF_ONE_MODEL if getattr(options, name)]
    if of_one and len(models) > 1:
        raise BadInput(
            f"{of_one[0]} contains rows of one model: evaluate models one at a time (`nescio compare` takes --ood)."
        )
    options.inputs.check_one_model(next(iter(models)), {"train": options.train, "val": options.val})
    read, seed = options.inputs.read, options.seed
    train = read(options.train, seed) if options.train else None
    val = read(options.val, seed) if options.val else None
    ood = load_ood_sets(options.ood, options.inputs, seed)
    val_ood = load_ood_sets(options.val_ood, options.inputs, seed, "val_ood")
    others = {"train": train, "val": val, **{f"ood {name}": rows for name, rows in ood.items()}}
    others |= {f"val_ood {name}": rows for name, rows in val_ood.items()}
    shared = check_apart({name_of(file): rows for file, rows in models.items()}, others)
    cards = []
    for file, predictions in models.items():
        card = scorecard(
            predictions,
            train,
            val,
            ood,
            name=name_of(file),
            by=options.group_by,
            calibration=options.calibration,
            classwise=options.classwise or None,
            slow=options.all,
            views=[read(view, seed) for view in options.views],
            siblings=[read(sibling, seed) for sibling in options.siblings],
            val_ood=val_ood,
            ood_share=options.ood_share,
        )
        if options.choose:
            card.score_choices = choose_scores(
                card, options.choose, share=options.ood_share, ood_tuned=options.ood_tuned, seed=seed
            )
        card.notes += shared
        if options.bootstrap:
            add_intervals(card, resamples=options.bootstrap, seed=seed)
        cards.append(card)
    return cards


def _cards_of_shards(options: EvaluateOptions, files: Sequence[Source], large: str) -> list[Scorecard]:
    """Scorecards in the memory of one shard."""
    from nescio.analysis.shard_scores import scorecard_of_shards

    values = {**vars(options), "limit": options.inputs.limit}
    if changed := next((name for name in NOT_OF_SHARDS if values[name]), None):
        raise BadInput(f"{changed} needs all rows at once, and {large} is so large that it is read in shards: omit it.")

    def shards(source: Source, ood: bool = False) -> Iterable[Predictions]:
        return options.inputs.shards(source, ood=ood) or [options.inputs.read(source, ood=ood)]

    def card(file: Source) -> Scorecard:
        ood = {name: shards(source, ood=True) for name, source in parse_ood_files(options.ood).items()}
        return scorecard_of_shards(shards(file), ood, name=name_of(file))

    return [card(file) for file in files]


def _comparison(options: EvaluateOptions, models: dict[str, Predictions]) -> tuple[Comparison | None, str]:
    """(the comparison of the models by the metrics of the summary, the reason if there is none)"""
    from nescio.analysis.comparison import compare
    from nescio.report.scorecards.questions import HEADLINE_METRICS

    if len(models) < 2:
        return None, ""
    try:
        compared = compare(models, metrics=HEADLINE_METRICS, resamples=options.bootstrap or COMPARED, seed=options.seed)
    except BadInput as reason:
        return None, str(reason)
    return compared, ""
