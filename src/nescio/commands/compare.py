"""Compare models on the same rows: paired bootstrap intervals, ranks, and differences from the best model.

Rows are joined on `index`, and the rows that all files contain are compared. Every bootstrap resample has the same rows
for all models, so that differences are paired. --ood adds OOD detection, and selective prediction on a mixture of
in-distribution and OOD rows.

examples:
  nescio compare a.npz b.npz c.npz
  nescio compare small=a.npz large=b.npz --measure entropy --metrics auroc,aurc --bootstrap 5000
  nescio compare a.parquet b.parquet --map logits=predictions,labels=label_ids
  nescio compare a.npz b.npz --ood svhn=a_svhn.npz,svhn=b_svhn.npz
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nescio.commands._inputs import InputOptions, check_apart, load_ood_of_models, model_names
from nescio.commands._output import Format, emit, name_options, say
from nescio.options import argument, nested, option


@dataclass(frozen=True, kw_only=True)
class Options:
    files: tuple[str, ...] = argument("predictions of each model on the same rows", metavar="[NAME=]FILE")
    measure: str = option("msp")
    metrics: tuple[str, ...] = option((), unset="all that apply")
    ood: tuple[str, ...] = option((), style="repeats", metavar="NAME=FILE,…")
    ood_share: float = option(0.5)
    bootstrap: int = option(1000)
    level: float = option(0.95)
    seed: int = option(0)
    inputs: InputOptions = nested(InputOptions(), omit=("logits", "probs", "labels"))
    all: bool = option(False, group="output")
    output: str | None = option(None, unset="no page", group="output")
    format: Format = option("table", group="output")


def run(options: Options) -> int:
    from nescio.analysis.comparison import compare
    from nescio.report.pages import write_page
    from nescio.report.scorecards.prose import comparison_verdicts
    from nescio.report.scorecards.stories import scorecard_story, short_comparison
    from nescio.report.text import print_terminal

    names = model_names(options.files)
    models = {name: options.inputs.read(file, options.seed) for name, file in zip(names, options.files, strict=True)}
    outside = load_ood_of_models(options.ood, names, options.inputs, options.seed)
    sets = {f"--ood {split} of {name}": rows for split, by_model in outside.items() for name, rows in by_model.items()}
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
    name_options(options, comparison)
    story = scorecard_story([], comparison)
    if options.output:
        written = write_page(story, options.output, rows=comparison.rows)

    def show() -> None:
        print_terminal(story if options.all else short_comparison(comparison))
        if options.output:
            say(f"\nWrote the page to {written}.")

    def plain() -> dict[str, Any]:
        fields = {name: getattr(comparison, name) for name in ("rows", "differences", "reasons", "notes")}
        return fields | {"verdict": comparison_verdicts(comparison)}

    emit(options.format, table=show, plain=plain, rows=lambda: comparison.rows, story=lambda: story)
    return 0
