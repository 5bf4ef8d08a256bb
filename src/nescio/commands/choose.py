"""The model to deploy: the one that answers most images while the accuracy you need is kept, under your limits.

The models are files of predictions on the same images (FILE, or NAME=FILE to name the model; zoo:NAME for one of the
store), or all that `nescio zoo` kept in a store. With --accuracy the best model is the one that may answer the largest
share of the images, the surest first, while that share of its answers is right; with --coverage the one with the fewest
errors when that share of the images must be answered; with neither, the one that knows best when it is wrong (AUROC).
Rows are joined on `index`; a paired bootstrap over them gives intervals, and shows which models cannot be told from the
best one.

Exit code: 0 chosen; 1 no model attains the accuracy (--json then has "choice": null); 2 bad input.

examples:
  nescio choose --accuracy 0.99 --max-params 30M
  nescio choose --store store --data imagenet:PATH --coverage 0.8 --family vit --max-size 224
  nescio choose vit.npz resnet=r50.npz --accuracy 0.95 --measure entropy --json
  nescio choose *.npz --facts results-imagenet.csv --max-params 30M
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nescio.commands._inputs import limit_option
from nescio.commands._output import formats, json_of, say
from nescio.options import argument, option
from nescio.provenance import follow_up_command
from nescio.specs import ZOO

if TYPE_CHECKING:
    from nescio.analysis.model_choice import ModelChoice
    from nescio.predictions.model_predictions import ModelPredictions


@dataclass(frozen=True, kw_only=True)
class Options:
    files: tuple[str, ...] = argument("predictions of each model, or those of --store", default=(), metavar="FILE")
    store: str = option("store", "folder where `nescio zoo` keeps its work", group="models")
    data: str | None = option(
        None, "images of the store", metavar="SPEC", unset="its only set", group="models", part="dataset"
    )
    facts: str | None = option(
        None,
        "parameters and input sizes of models, for files: a table with the columns model, param_count (millions) and "
        "img_size as timm publishes it",
        metavar="CSV",
        group="models",
    )
    accuracy: float | None = option(
        None, "share of the given answers that must be right", metavar="A", group="what is needed"
    )
    coverage: float | None = option(
        None, "share of the images that must be answered", metavar="C", group="what is needed"
    )
    max_params: str | None = option(None, "most parameters, such as 30M or 1.2B", metavar="N", group="limits")
    max_size: int | None = option(None, "largest side of the images that it looks at", metavar="PIXELS", group="limits")
    family: tuple[str, ...] = option(
        (), "architecture families, comma-separated: vit,xcit distilled", metavar="NAMES", group="limits"
    )
    measure: str = option(
        "msp",
        "which uncertainty withholds answers: msp, entropy, mc-dropout … (see `nescio measures`)",
        part="measure",
    )
    among: int = option(20, "how many models, the best first, the bootstrap compares", metavar="M")
    bootstrap: int | None = option(None, "resamples of the rows", unset="1000, or more where --among models need them")
    level: float = option(0.95, "of the intervals")
    limit: int | None = limit_option("rows of every model")
    seed: int = option(0, "of the bootstrap, and of --limit")
    format: str = formats()


def run(options: Options) -> int:
    from nescio.analysis.model_choice import Requirement, choose_model
    from nescio.datasets.images import named_if_there
    from nescio.networks.limits import Limits, parse_parameter_count
    from nescio.networks.published import with_facts
    from nescio.predictions.model_predictions import collect_predictions
    from nescio.work.store import Store

    requirement = Requirement(options.accuracy, options.coverage)
    params = None if options.max_params is None else parse_parameter_count(options.max_params)
    limits = Limits(params, options.max_size, options.family)
    data = named_if_there(options.data, None, "test") if options.data else None
    damaged: list[str] = []
    models = with_facts(collect_predictions(options.files, Store(options.store), data, damaged), options.facts)
    for sentence in damaged:
        print(f"left out: {sentence}", file=sys.stderr)
    models = [model.limited(options.limit, options.seed) for model in models]
    chosen = choose_model(
        models,
        requirement,
        limits.refused(models),
        measure=options.measure,
        among=options.among,
        resamples=options.bootstrap,
        level=options.level,
        seed=options.seed,
    )
    _show(chosen, options.format, models, options.store)
    return 0 if chosen.attained and not damaged else 1


def next_command(chosen: ModelChoice, models: Sequence[ModelPredictions], store: str) -> str:
    """The command that sets the threshold of the chosen model, for the risk that was required or 5 %."""
    first = next(model for model in models if model.model == chosen.models[0]["model"])
    accuracy, coverage = chosen.requirement.accuracy, chosen.requirement.coverage
    risk = 0.05 if accuracy is None or accuracy == 1 else 1 - accuracy
    goal = ["--risk", f"{risk:.6g}"] if coverage is None else ["--coverage", f"{coverage:g}"]
    if first.store is None:
        words = [f"{first.model}={first.place}", *goal]
    else:
        words = [f"{ZOO}:{first.model}", *goal, *(["--store", store] if store != "store" else [])]
    return follow_up_command("threshold", *words, "--measure", chosen.measure)


def _show(chosen: ModelChoice, form: str, models: Sequence[ModelPredictions], store: str) -> None:
    from nescio.report.model_choices import choice_sentences, choice_table
    from nescio.report.text import latex, make_console, markdown, print_terminal, rows_csv

    if form == "json":
        say(json_of(_plain(chosen)))
    elif form == "csv":
        say(rows_csv(chosen.models))
    elif form != "table":
        say({"markdown": markdown, "latex": latex}[form](choice_table(chosen)))
    else:
        from rich.text import Text

        console = make_console()
        console.print(Text(" ".join(choice_sentences(chosen))), end="\n\n")
        print_terminal(choice_table(chosen), console)
        for note in chosen.notes:
            print(note, file=sys.stderr)
        if chosen.attained:
            say(f"\nNext, from which uncertainty on it must abstain: {next_command(chosen, models, store)}")


def _plain(chosen: ModelChoice) -> dict[str, Any]:
    first = chosen.models[0] if chosen.attained else dict.fromkeys(("model", "value", "low", "high"))
    return {
        "choice": first["model"],
        **{name: first[name] for name in ("value", "low", "high")},
        "group": chosen.group,
        "metric": chosen.requirement.metric,
        **{name: getattr(chosen, name) for name in ("measure", "n", "level", "candidates", "closest", "models")},
        "left_out": [{"model": model, "reason": why} for model, why in chosen.left_out],
        "notes": chosen.notes,
    }
