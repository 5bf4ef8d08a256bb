"""Evaluate saved predictions: accuracy, calibration, misclassification detection and OOD detection.

FILE is a .npz, .safetensors, .parquet, .csv or .pt file, or a folder, of a single-label classifier. It contains
`labels` (n,) and one of these: `logits` (n, classes) or (n, draws, classes), `probs`, or `correct` with `confidence`.
Optional fields are `embeddings` (n, d), `annotations`, `scores/NAME`, `groups/NAME` and `variants/view_0`. A CSV file
has the columns label, logit_0 … or prob_0 …, and u_NAME, or one column per class name. --map renames fields.

logits:a.npy,labels:b.npy combines single arrays into one FILE. A folder of files with some rows each and their `index`
is one FILE as well. Above 256 MB it is read file by file, and metrics that need all rows at once are left out.

Segmentation: --labels, --predictions and --score-maps are folders of maps, matched by file name.

examples:
  nescio evaluate preds.npz
  nescio evaluate test.npz --val val.npz --ood svhn=svhn.npz,noise=noise.npz
  nescio evaluate test.npz --ood near:cifar100=a.npz,far:mnist=b.npz,far:cub=c.npz --ood-share 0.2
  nescio evaluate test.npz --train train.npz --val val.npz --choose mistakes      choose the best score
  nescio evaluate test.npz --views crop0.npz,crop1.npz        retrieval with gallery scores
  nescio evaluate small=a.npz large=b.npz --output out        one page for both: out/index.html
  nescio evaluate hf.npz --map logits=predictions,labels=label_ids
  nescio evaluate --logits logits.npy --labels labels.npy --all
  nescio evaluate --labels truth --predictions predicted --score-maps entropy=maps --ignore-label 255
  nescio evaluate preds.npz --format json | jq '.files[0].rows[] | select(.metric == "auroc")'
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal

from nescio.commands._inputs import InputOptions, check_apart, load_ood_sets, parse_ood_files
from nescio.commands._output import Format, emit, name_options, say
from nescio.errors import BadInput
from nescio.options import argument, nested, option
from nescio.predictions import Predictions
from nescio.specs import assignment

MAPS, CHOICE = "segmentation", "choice of a score"  # groups of options
NOT_OF_SHARDS = ("train", "val", "choose", "views", "siblings", "group_by", "classwise", "bootstrap", "limit")
OF_ONE_MODEL = ("train", "val", "ood", "val_ood", "views", "siblings")  # further rows of the model that is evaluated
OF_MAPS = (
    "predictions",
    "score_maps",
    "ignore_label",
    "inputs",
    "all",
    "output",
    "format",
)  # options that folders of maps take
_EVERY = "evaluate shows every measure, the commonest first (--all: all of them)"
ELSEWHERE = dict.fromkeys(  # options of other commands → what to use
    ("--measure", "--measures"), f"{_EVERY}; `nescio compare FILE --measure NAME` shows one."
)
COMPARED = 1000  # resamples of a comparison of several models, unless --bootstrap names another number


@dataclass(frozen=True, kw_only=True)
class Options:
    files: tuple[str, ...] = argument(
        "predictions on in-distribution test rows", default=(), metavar="[NAME=]FILE", unset="--logits and --labels"
    )
    train: str | None = option(None)
    val: str | None = option(None)
    ood: tuple[str, ...] = option((), style="repeats", metavar="[GROUP:]NAME=FILE,…")
    ood_share: float = option(0.5)
    choose: Literal["mistakes", "unknown", "both"] | None = option(
        None, "task for which to choose the best score, on --val and --val-ood or by nested folds", group=CHOICE
    )
    val_ood: tuple[str, ...] = option(
        (), "OOD validation sets, used only to choose", style="repeats", metavar="NAME=FILE,…", group=CHOICE
    )
    ood_tuned: tuple[str, ...] = option(
        (), "scores that were tuned on OOD rows; they are compared separately", metavar="NAME,…", group=CHOICE
    )
    views: tuple[str, ...] = option(())
    siblings: tuple[str, ...] = option(())
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
    output: str | None = option(None, unset="no page", group="output")
    format: Format = option("table", group="output")


def run(options: Options) -> int:
    from nescio.analysis.bootstrap import check_resampling
    from nescio.report.scorecards.stories import all_rows, scorecard_story, short_story

    if options.predictions is not None or options.score_maps:
        return _pixels(options)
    check_resampling(options.bootstrap, 0.95, options.seed, minimum=0)
    files = options.inputs.files(options.files)
    if len(set(files)) < len(files):
        raise BadInput("A file is given twice; evaluate different models.")
    if not 0 < options.ood_share < 1:
        raise BadInput(f"--ood-share is a share above 0 and below 1, not {options.ood_share:g}.")
    if options.choose is None and (options.val_ood or options.ood_tuned):
        raise BadInput("--val-ood and --ood-tuned are about a choice among scores: give --choose.")
    if large := [file for file in files if options.inputs.shards(file)]:
        cards = _cards_of_shards(options, files, large[0])
        compared, incomparable = None, "Models are compared on all rows at once, and these are read in shards."
    else:
        models = {file: options.inputs.read(file, options.seed) for file in files}
        cards = _cards(options, models)
        compared, incomparable = _comparison(options, models)
    name_options(options, *cards, *([compared] if compared else []))
    if empty := next((card for card in cards if not card.rows), None):
        raise BadInput(
            f"{empty.name} contains nothing to evaluate: {'; '.join([*empty.notes][:3]) or 'it has no predictions.'} "
            "Name its outputs with --map logits=NAME or --map probs=NAME, and the true classes with --map labels=NAME."
        )
    story = partial(scorecard_story, cards, compared, incomparable=incomparable)
    short = story if options.all else partial(short_story, cards, compared, incomparable)
    parts = ("rows", "reasons", "notes")
    plain = {"files": [{"file": card.name, **{field: getattr(card, field) for field in parts}} for card in cards]}
    for file, card in zip(plain["files"], cards, strict=True):
        if options.choose:
            file["choices"] = [
                {**asdict(choice), "beats_baseline": choice.beats_baseline} for choice in card.score_choices
            ]
    return _print_evaluation(options, story, short, all_rows(cards), plain)


def _print_evaluation(
    options: Options, story: Callable[[], Any], short: Callable[[], Any], rows: Any, plain: Any
) -> int:
    """Write the page if --output is given, and print the result of `short`, or `plain` as JSON."""
    from nescio.report.pages import write_page
    from nescio.report.text import print_terminal

    if options.output:
        written = write_page(story(), options.output, rows=rows)

    def show() -> None:
        print_terminal(short())
        if options.output:
            say(f"Wrote the page to {written}.")

    emit(options.format, table=show, plain=lambda: plain, rows=lambda: rows, story=story)
    return 0


def _pixels(options: Options) -> int:
    """Segmentation, from folders of maps."""
    from nescio.analysis.pixels import count_folders
    from nescio.datasets.decode import opened_map
    from nescio.report.pixels import pixel_story

    if options.predictions is None or options.inputs.labels is None or options.files:
        raise BadInput("For segmentation name the folders --labels and --predictions, and no FILE.")
    if strange := [*_changed(options, OF_MAPS), *_changed(options.inputs, ("labels", "store"))]:
        raise BadInput(f"--{strange[0]} applies to rows of files only, not to folders of maps: omit it.")
    folders = {name or Path(path).name: path for name, path in map(assignment, options.score_maps)}
    if len(folders) < len(options.score_maps):
        raise BadInput("Two folders of --score-maps have one name: write NAME=DIR.")
    counts = count_folders(options.inputs.labels, options.predictions, folders, options.ignore_label, opened=opened_map)
    rows, reasons = counts.rows()
    story = partial(pixel_story, counts, rows, reasons, options.predictions)
    return _print_evaluation(options, story, story, rows, {"rows": rows, "reasons": reasons})


def _changed(options: Any, but: Sequence[str]) -> list[str]:
    """The options that differ from their defaults, as typed on the command line."""
    default = type(options)()
    names = [each.name for each in fields(options) if each.name not in but]
    return [name.replace("_", "-") for name in names if getattr(options, name) != getattr(default, name)]


def _cards(options: Options, models: Mapping[str, Predictions]) -> list[Any]:
    """A scorecard of each model, with intervals if --bootstrap is given."""
    from nescio.analysis.intervals import add_intervals
    from nescio.analysis.score_choice import choose_scores
    from nescio.analysis.scorecard import scorecard

    of_one = [name for name in OF_ONE_MODEL if getattr(options, name)]
    if of_one and len(models) > 1:
        flag = f"--{of_one[0].replace('_', '-')}"
        raise BadInput(
            f"{flag} contains rows of one model: evaluate models one at a time (`nescio compare` takes --ood)."
        )
    options.inputs.check_one_model(next(iter(models)), {"--train": options.train, "--val": options.val})
    read, seed = options.inputs.read, options.seed
    train = read(options.train, seed) if options.train else None
    val = read(options.val, seed) if options.val else None
    outside = load_ood_sets(options.ood, options.inputs, seed)
    val_outside = load_ood_sets(options.val_ood, options.inputs, seed, "--val-ood")
    others = {"--train": train, "--val": val, **{f"--ood {name}": rows for name, rows in outside.items()}}
    others |= {f"--val-ood {name}": rows for name, rows in val_outside.items()}
    shared = check_apart(models, others)
    cards = []
    for file, predictions in models.items():
        name, path = assignment(file)
        card = scorecard(
            predictions,
            train,
            val,
            outside,
            name=name or path,
            by=options.group_by,
            calibration=options.calibration,
            classwise=options.classwise or None,
            slow=options.all,
            views=[read(file, seed) for file in options.views],
            siblings=[read(file, seed) for file in options.siblings],
            val_ood=val_outside,
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


def _cards_of_shards(options: Options, files: Sequence[str], large: str) -> list[Any]:
    """Scorecards in the memory of one shard."""
    from nescio.analysis.shard_scores import scorecard_of_shards

    values = {**vars(options), "limit": options.inputs.limit}
    for name in NOT_OF_SHARDS:
        if values[name]:
            flag = f"--{name.replace('_', '-')}"
            raise BadInput(
                f"{flag} needs all rows at once, and {large} is so large that it is read in shards: omit it."
            )

    def parts(word: str, ood: bool = False) -> Iterable[Predictions]:
        return options.inputs.shards(word, ood=ood) or [options.inputs.read(word, ood=ood)]

    def card(file: str) -> Any:
        outside = {name: parts(path, ood=True) for name, path in parse_ood_files(options.ood).items()}
        return scorecard_of_shards(parts(file), outside, name=assignment(file)[0] or file)

    return [card(file) for file in files]


def _comparison(options: Options, models: Mapping[str, Predictions]) -> tuple[Any, str]:
    """(the comparison of the models by the metrics of the summary, the reason if there is none)"""
    from nescio.analysis.comparison import compare
    from nescio.report.scorecards.questions import HEADLINE_METRICS

    if len(models) < 2:
        return None, ""
    names = {assignment(file)[0] or file: rows for file, rows in models.items()}
    try:
        return compare(names, metrics=HEADLINE_METRICS, resamples=options.bootstrap or COMPARED, seed=options.seed), ""
    except BadInput as reason:
        return None, str(reason)
