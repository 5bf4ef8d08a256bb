"""Several models on the same rows: paired bootstrap intervals, ranks, and who cannot be told from the best.

Rows are joined on `index`; the rows that all files hold are compared. Every resample draws the same rows for all
models, so that a difference between two models is judged without the noise they share.

examples:
  nescio compare a.npz b.npz c.npz
  nescio compare a.npz b.npz --measure entropy --metrics auroc aurc --resamples 5000
"""

from __future__ import annotations

import argparse
from pathlib import Path

from nescio.commands._output import add_format, json_of, say
from nescio.errors import BadInput
from nescio.predictions import Predictions


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="predictions of each model on the same split")
    parser.add_argument("--measure", default="largest", help="which uncertainty ranks the answers (default: largest)")
    parser.add_argument("--metrics", nargs="+", metavar="METRIC", help="which metrics (default: all that apply)")
    parser.add_argument("--resamples", type=int, default=1000, help="of the bootstrap (default: 1000)")
    parser.add_argument("--level", type=float, default=0.95, help="of the intervals (default: 0.95)")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap (default: 0)")
    parser.add_argument("--report", metavar="DIR", help="write index.html and rows.csv there")
    add_format(parser)


def run(args: argparse.Namespace) -> int:
    from nescio import report
    from nescio.compare import compare

    names = _names(args.files)
    models = {name: Predictions.load(file) for name, file in zip(names, args.files, strict=True)}
    found = compare(
        models,
        measure=args.measure,
        metrics=args.metrics,
        resamples=args.resamples,
        level=args.level,
        seed=args.seed,
    )
    if args.report:
        written = report.write(Path(args.report), [], comparison=found)
    if args.format == "json":
        say(json_of({"rows": found.rows, "differences": found.differences, "reasons": found.reasons}))
    elif args.format == "table":
        report.terminal([], comparison=found)
        if args.report:
            say(f"\nThe page is {written}.")
    else:
        write = {"csv": report.csv_text, "markdown": report.markdown, "latex": report.latex}[args.format]
        say(write([], comparison=found))
    return 0


def _names(files: list[str]) -> list[str]:
    """File names without their ending where that tells them apart, else as they were given."""
    stems = [Path(file).stem for file in files]
    names = stems if len(set(stems)) == len(files) else files
    if len(set(names)) < len(names):
        raise BadInput("A file is given twice; compare different models.")
    return names
