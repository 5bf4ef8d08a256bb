"""Everything that can be said about a model's uncertainty, from its saved predictions.

FILE is a .npz, .safetensors, .parquet or .csv file, or a folder. It holds `labels` (n,) and `logits` (n, classes) or
(n, draws, classes), or `probs` instead of logits; `embeddings` (n, d), `annotations`, `scores/NAME`, `groups/NAME`
when there are any. A CSV has the columns label, logit_0 … or prob_0 …, and u_NAME.

examples:
  nescio evaluate preds.npz
  nescio evaluate test.npz --val val.npz --ood svhn=svhn.npz --ood noise=noise.npz
  nescio evaluate a.npz b.npz --report out        one page for both: open out/index.html
  nescio evaluate preds.npz --json | jq '.files[0].rows[] | select(.metric == "auroc")'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nescio.commands._output import formats, json_of, say
from nescio.errors import BadInput
from nescio.options import argument, option
from nescio.predictions import Predictions


@dataclass(frozen=True, kw_only=True)
class Options:
    files: tuple[str, ...] = argument("predictions on in-distribution test rows", metavar="FILE")
    train: str | None = option(None, "training rows: fit the density and neighbour measures", metavar="FILE")
    val: str | None = option(None, "validation rows: fit the calibration and the rejection threshold", metavar="FILE")
    ood: tuple[str, ...] = option(
        (), "out-of-distribution rows under a name; may be repeated", style="repeats", metavar="NAME=FILE"
    )
    by: tuple[str, ...] = option((), "rows of their own for every value of a group", style="repeats", metavar="GROUP")
    calibration: Literal["temperature", "vector"] = option("temperature", "fitted on --val")
    classwise: bool = option(False, "class-wise ECE on dumps of any size")
    bootstrap: int = option(0, "95 % intervals from B resamples of the rows; 0: none", metavar="B")
    seed: int = option(0, "of the bootstrap")
    report: str | None = option(None, "write index.html, rows.csv, tables.md and tables.tex there", metavar="DIR")
    format: str = formats()


def run(options: Options) -> int:
    from nescio import report
    from nescio.analysis.cards import scorecard

    if options.bootstrap < 0:
        raise BadInput(f"--bootstrap is a number of resamples, not {options.bootstrap}.")
    train = Predictions.load(options.train) if options.train else None
    val = Predictions.load(options.val) if options.val else None
    outside = {}
    for word in options.ood:
        name, equals, path = word.partition("=")
        if not (equals and name and path):
            raise BadInput(f"--ood takes NAME=FILE, not {word!r}.")
        if name in outside:
            raise BadInput(f"--ood names {name!r} twice.")
        outside[name] = Predictions.load(path, outside=True)
    cards = []
    for file in options.files:
        predictions = Predictions.load(file)
        card = scorecard(
            predictions,
            train,
            val,
            outside,
            name=file,
            by=options.by,
            calibration=options.calibration,
            classwise=options.classwise or None,
        )
        if options.bootstrap:
            from nescio.analysis.comparison import add_intervals

            add_intervals(card, resamples=options.bootstrap, seed=options.seed)
        cards.append(card)
    story = report.card_story(cards)
    if options.report:
        written = report.write(story, options.report, rows=report.rows_of(cards))
    if options.format == "json":
        say(json_of({"files": [{"file": card.name, "rows": card.rows, "reasons": card.reasons} for card in cards]}))
    elif options.format == "table":
        report.terminal(story)
        if options.report:
            say(f"\nThe page is {written}.")
    elif options.format == "csv":
        say(report.rows_csv(report.rows_of(cards)))
    else:
        say((report.markdown if options.format == "markdown" else report.latex)(story))
    return 0
