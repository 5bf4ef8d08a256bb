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

import argparse
from pathlib import Path

from nescio.commands._output import add_format, json_of, say
from nescio.errors import BadInput
from nescio.predictions import Predictions


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="predictions on in-domain test rows")
    parser.add_argument("--train", metavar="FILE", help="training rows: fits the density and neighbour measures")
    parser.add_argument(
        "--val", metavar="FILE", help="validation rows: fit the calibration and the rejection threshold"
    )
    parser.add_argument(
        "--ood", action="append", default=[], metavar="NAME=FILE", help="out-domain rows under a name; may be repeated"
    )
    parser.add_argument(
        "--by", action="append", default=[], metavar="GROUP", help="rows of their own for every value of a group"
    )
    parser.add_argument(
        "--calibration",
        choices=("temperature", "vector"),
        default="temperature",
        help="fitted on --val (default: temperature)",
    )
    parser.add_argument("--classwise", action="store_true", default=None, help="class-wise ECE on dumps of any size")
    parser.add_argument(
        "--bootstrap",
        type=int,
        default=0,
        metavar="B",
        help="95 %% intervals from B resamples of the rows (default: none)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap (default: 0)")
    parser.add_argument("--report", metavar="DIR", help="write index.html, rows.csv, tables.md and tables.tex there")
    add_format(parser)


def run(args: argparse.Namespace) -> int:
    from nescio import report
    from nescio.scorecard import scorecard

    if args.bootstrap < 0:
        raise BadInput(f"--bootstrap is a number of resamples, not {args.bootstrap}.")
    train = Predictions.load(args.train) if args.train else None
    val = Predictions.load(args.val) if args.val else None
    outside = {}
    for word in args.ood:
        name, equals, path = word.partition("=")
        if not (equals and name and path):
            raise BadInput(f"--ood takes NAME=FILE, not {word!r}.")
        if name in outside:
            raise BadInput(f"--ood names {name!r} twice.")
        outside[name] = Predictions.load(path, outside=True)
    cards = []
    for file in args.files:
        predictions = Predictions.load(file)
        card = scorecard(
            predictions,
            train,
            val,
            outside,
            name=file,
            by=args.by,
            calibration=args.calibration,
            classwise=args.classwise,
        )
        if args.bootstrap:
            from nescio.compare import add_intervals

            add_intervals(card, resamples=args.bootstrap, seed=args.seed)
        cards.append(card)
    if args.report:
        written = report.write(Path(args.report), cards)
    if args.format == "json":
        say(json_of({"files": [{"file": card.name, "rows": card.rows, "reasons": card.reasons} for card in cards]}))
    elif args.format == "table":
        report.terminal(cards)
        if args.report:
            say(f"\nThe page is {written}.")
    else:
        say({"csv": report.csv_text, "markdown": report.markdown, "latex": report.latex}[args.format](cards))
    return 0
