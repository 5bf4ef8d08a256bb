"""Several models on the same rows: paired bootstrap intervals, ranks, and which cannot be distinguished from the best.

Rows are joined on `index`; the rows that all files hold are compared. Every resample draws the same rows for all
models, so that a difference between two models is judged without the noise they share.

examples:
  nescio compare a.npz b.npz c.npz
  nescio compare small=a.npz large=b.npz --measure entropy --metrics auroc,aurc --bootstrap 5000
  nescio compare a.parquet b.parquet --map logits=predictions,labels=label_ids
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nescio.commands._inputs import InputOptions, check_apart, model_names
from nescio.commands._output import formats, json_of, page_option, say
from nescio.options import argument, nested, option


@dataclass(frozen=True, kw_only=True)
class Options:
    files: tuple[str, ...] = argument("predictions of each model on the same split", metavar="[NAME=]FILE")
    measure: str = option("largest", "which uncertainty ranks the predictions")
    metrics: tuple[str, ...] = option((), "which metrics", metavar="METRIC,…", unset="all that apply")
    bootstrap: int = option(1000, "resamples of the rows behind intervals and verdicts", metavar="B")
    level: float = option(0.95, "of the intervals")
    seed: int = option(0, "of the bootstrap, and of --limit")
    inputs: InputOptions = nested(InputOptions(), omit=("logits", "probs", "labels"))
    to: str | None = page_option("write index.html and rows.csv there")
    format: str = formats()


def run(options: Options) -> int:
    from nescio import report
    from nescio.analysis.comparison import compare

    names = model_names(options.files)
    models = {name: options.inputs.read(file, options.seed) for name, file in zip(names, options.files, strict=True)}
    check_apart(models)
    comparison = compare(
        models,
        measure=options.measure,
        metrics=options.metrics or None,
        resamples=options.bootstrap,
        level=options.level,
        seed=options.seed,
    )
    story = report.card_story([], comparison)
    if options.to:
        written = report.write(story, options.to, rows=comparison.rows)
    if options.format == "json":
        parts = ("rows", "differences", "reasons", "notes")
        said = {part: getattr(comparison, part) for part in parts} | {"verdict": report.verdict(comparison)}
        say(json_of(said))
    elif options.format == "table":
        report.terminal(replace(story, lead=[]))
        say("\n".join(report.verdict(comparison)))
        if options.to:
            say(f"\nThe page is {written}.")
    elif options.format == "csv":
        say(report.rows_csv(comparison.rows))
    else:
        say((report.markdown if options.format == "markdown" else report.latex)(story))
    return 0
