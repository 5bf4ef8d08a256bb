"""Several models on the same rows: paired bootstrap intervals, ranks, and which cannot be distinguished from the best.

Rows are joined on `index`; the rows that all files hold are compared. Every resample draws the same rows for all
models, so that a difference between two models is judged without the noise they share.

examples:
  nescio compare a.npz b.npz c.npz
  nescio compare a.npz b.npz --measure entropy --metrics auroc aurc --resamples 5000
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nescio.commands._output import formats, json_of, say
from nescio.errors import BadInput
from nescio.options import argument, option
from nescio.predictions import Predictions


@dataclass(frozen=True, kw_only=True)
class Options:
    files: tuple[str, ...] = argument("predictions of each model on the same split", metavar="FILE")
    measure: str = option("largest", "which uncertainty ranks the predictions")
    metrics: tuple[str, ...] = option((), "which metrics", style="words", metavar="METRIC", unset="all that apply")
    resamples: int = option(1000, "of the bootstrap")
    level: float = option(0.95, "of the intervals")
    seed: int = option(0, "of the bootstrap")
    report: str | None = option(None, "write index.html and rows.csv there", metavar="DIR")
    format: str = formats()


def run(options: Options) -> int:
    from nescio import report
    from nescio.analysis.comparison import compare

    names = _names(options.files)
    models = {name: Predictions.load(file) for name, file in zip(names, options.files, strict=True)}
    comparison = compare(
        models,
        measure=options.measure,
        metrics=options.metrics or None,
        resamples=options.resamples,
        level=options.level,
        seed=options.seed,
    )
    story = report.card_story([], comparison)
    if options.report:
        written = report.write(story, options.report, rows=comparison.rows)
    if options.format == "json":
        say(json_of({"rows": comparison.rows, "differences": comparison.differences, "reasons": comparison.reasons}))
    elif options.format == "table":
        report.terminal(story)
        if options.report:
            say(f"\nThe page is {written}.")
    elif options.format == "csv":
        say(report.rows_csv(comparison.rows))
    else:
        say((report.markdown if options.format == "markdown" else report.latex)(story))
    return 0


def _names(files: Sequence[str]) -> Sequence[str]:
    """File names without their ending where that tells them apart, else as they were given."""
    stems = [Path(file).stem for file in files]
    names = stems if len(set(stems)) == len(files) else files
    if len(set(names)) < len(names):
        raise BadInput("A file is given twice; compare different models.")
    return names
