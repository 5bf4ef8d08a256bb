"""Choose the model to deploy: the most accepted predictions at the accuracy that you need, under your limits.

The models are predictions files on the same images: FILE, NAME=FILE, or zoo:NAME from the store. Without files, all
models that `nescio zoo` has predicted with are compared. Three requirements are possible.

  --accuracy A  the largest coverage at which the accepted predictions have accuracy A
  --coverage C  the fewest errors among the share C of predictions with the lowest uncertainty
  neither       the highest AUROC of misclassification detection

Rows are joined on `index`. A paired bootstrap gives intervals, and the models that are not significantly different from
the best.

Exit code: 0 chosen, 1 no model reaches the accuracy (in JSON "choice" is null), 2 bad input.

examples:
  nescio choose --accuracy 0.99 --max-params 30M
  nescio choose --store store --data imagenet:PATH --coverage 0.8 --families vit --max-input-size 224
  nescio choose vit.npz resnet=r50.npz --accuracy 0.95 --measure entropy --format json
  nescio choose *.npz --facts results-imagenet.csv --max-params 30M
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nescio.commands._output import Format, emit, print_findings, say
from nescio.options import argument, option
from nescio.provenance import follow_up_command
from nescio.specs import ZOO

if TYPE_CHECKING:
    from nescio.analysis.model_choice import ModelChoice
    from nescio.predictions.model_predictions import ModelPredictions


@dataclass(frozen=True, kw_only=True)
class Options:
    files: tuple[str, ...] = argument(
        "predictions of each model (default: those in --store)", default=(), metavar="FILE"
    )
    store: str = option("store", group="models")
    data: str | None = option(None, unset="the only set in the store", group="models", kind="dataset")
    facts: str | None = option(None, group="models")
    accuracy: float | None = option(None, group="requirement")
    coverage: float | None = option(None, group="requirement")
    max_params: str | None = option(None, "maximum number of parameters, such as 30M", metavar="N", group="limits")
    max_input_size: int | None = option(None, "maximum side of the input images", metavar="PIXELS", group="limits")
    families: tuple[str, ...] = option((), unset="all", group="limits")
    measure: str = option("msp", kind="measure")
    compare_top: int = option(20, "number of best models that the bootstrap compares", metavar="N")
    bootstrap: int | None = option(None, unset="1000, or more for many models")
    level: float = option(0.95)
    limit: int | None = option(None, unset="all")
    seed: int = option(0)
    format: Format = option("table", group="output")


def run(options: Options) -> int:
    from nescio.analysis.model_choice import Requirement, choose_model
    from nescio.datasets.names import name_for_keys_if_present
    from nescio.networks.limits import Limits, parse_parameter_count
    from nescio.networks.published import with_facts
    from nescio.predictions.model_predictions import collect_predictions
    from nescio.work.store import Store

    requirement = Requirement(options.accuracy, options.coverage)
    params = None if options.max_params is None else parse_parameter_count(options.max_params)
    limits = Limits(params, options.max_input_size, options.families)
    data = name_for_keys_if_present(options.data, None, "test") if options.data else None
    damaged: list[str] = []
    models = with_facts(collect_predictions(options.files, Store(options.store), data, damaged), options.facts)
    for sentence in damaged:
        print(f"left out: {sentence}", file=sys.stderr)
    models = [model.sampled(options.limit, options.seed) for model in models]
    chosen = choose_model(
        models,
        requirement,
        limits.refused(models),
        measure=options.measure,
        compare_top=options.compare_top,
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
        argv = [f"{first.model}={first.path}", *goal]
    else:
        argv = [f"{ZOO}:{first.model}", *goal, *(["--store", store] if store != "store" else [])]
    return follow_up_command("threshold", *argv, "--measure", chosen.measure)


def _show(chosen: ModelChoice, format: Format, models: Sequence[ModelPredictions], store: str) -> None:
    from nescio.report.model_choices import choice_sentences, choice_table

    def show() -> None:
        print_findings(choice_sentences(chosen), [choice_table(chosen)], chosen.notes)
        if chosen.attained:
            say(f"\nNext, find its abstention threshold: {next_command(chosen, models, store)}")

    emit(
        format,
        table=show,
        plain=lambda: _plain(chosen),
        rows=lambda: chosen.models,
        story=lambda: choice_table(chosen),
    )


def _plain(chosen: ModelChoice) -> dict[str, Any]:
    first = chosen.models[0] if chosen.attained else dict.fromkeys(("model", "value", "low", "high"))
    return {
        "choice": first["model"],
        **{name: first[name] for name in ("value", "low", "high")},
        "group": chosen.group,
        "metric": chosen.requirement.metric,
        **{name: getattr(chosen, name) for name in ("measure", "n", "level", "candidates", "closest", "models")},
        "omitted": [{"model": model, "reason": why} for model, why in chosen.omitted],
        "notes": chosen.notes,
    }
