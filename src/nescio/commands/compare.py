"""Several models on the same rows: paired bootstrap intervals, ranks, and which cannot be distinguished from the best.

Rows are joined on `index`; the rows that all files hold are compared. Every resample draws the same rows for all
models, so that a difference between two models is judged without the noise they share. --ood adds how well each tells
out-of-distribution rows, and how well it abstains on them and on wrong answers at once.

examples:
  nescio compare a.npz b.npz c.npz
  nescio compare small=a.npz large=b.npz --measure entropy --metrics auroc,aurc --bootstrap 5000
  nescio compare a.parquet b.parquet --map logits=predictions,labels=label_ids
  nescio compare a.npz b.npz --ood svhn=a_svhn.npz,svhn=b_svhn.npz
"""

from __future__ import annotations

from dataclasses import dataclass

from nescio.commands._inputs import InputOptions, check_apart, model_names, ood_share_option, outside_of_models
from nescio.commands._output import formats, json_of, page_option, say
from nescio.options import argument, nested, option


@dataclass(frozen=True, kw_only=True)
class Options:
    files: tuple[str, ...] = argument("predictions of each model on the same split", metavar="[NAME=]FILE")
    measure: str = option("msp", "which uncertainty ranks the predictions")
    metrics: tuple[str, ...] = option((), "which metrics", metavar="METRIC,…", unset="all that apply")
    ood: tuple[str, ...] = option(
        (),
        "out-of-distribution rows under a name: a file of every model, in the order of the models",
        style="repeats",
        metavar="NAME=FILE,…",
        unset="none",
    )
    ood_share: float = ood_share_option()
    bootstrap: int = option(1000, "resamples of the rows behind intervals and verdicts", metavar="B")
    level: float = option(0.95, "of the intervals")
    seed: int = option(0, "of the bootstrap, and of --limit")
    inputs: InputOptions = nested(InputOptions(), omit=("logits", "probs", "labels"))
    all: bool = option(False, "every metric with its interval, and all differences", group="output")
    to: str | None = page_option("write index.html and rows.csv there")
    format: str = formats()


def run(options: Options) -> int:
    from nescio import report
    from nescio.analysis.comparison import compare

    names = model_names(options.files)
    models = {name: options.inputs.read(file, options.seed) for name, file in zip(names, options.files, strict=True)}
    outside = outside_of_models(options.ood, names, options.inputs, options.seed)
    sets = {f"--ood {split} of {name}": dump for split, dumps in outside.items() for name, dump in dumps.items()}
    check_apart(models, sets)
    comparison = compare(
        models,
        measure=options.measure,
        metrics=options.metrics or None,
        resamples=options.bootstrap,
        level=options.level,
        seed=options.seed,
        ood=outside,
        ood_share=options.ood_share,
    )
    story = report.card_story([], comparison)
    if options.to:
        written = report.write_page(story, options.to, rows=comparison.rows)
    if options.format == "json":
        parts = ("rows", "differences", "reasons", "notes")
        say(json_of({part: getattr(comparison, part) for part in parts} | {"verdict": report.verdict(comparison)}))
    elif options.format == "table":
        report.print_terminal(story if options.all else report.short_comparison(comparison))
        if options.to:
            say(f"\nThe page is {written}.")
    elif options.format == "csv":
        say(report.rows_csv(comparison.rows))
    else:
        say((report.markdown if options.format == "markdown" else report.latex)(story))
    return 0
