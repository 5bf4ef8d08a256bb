"""Choice of the model to deploy, from saved predictions of several models."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nescio.analysis.model_choice import ModelChoice
from nescio.api.results import ApiResult, status
from nescio.errors import BadInput
from nescio.options import argument, option
from nescio.provenance import current_provenance, follow_up_command
from nescio.rows import Row
from nescio.specs import ZOO

if TYPE_CHECKING:
    from nescio.predictions.model_predictions import ModelPredictions
    from nescio.report.tables import Table


@dataclass(frozen=True, kw_only=True)
class ChooseOptions:
    """Options of `choose`."""

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


@dataclass(repr=False)
class ChosenModel(ApiResult, ModelChoice):
    """The chosen model, with the models that were compared.

    damaged       why predictions of the store were left out
    next_command  the command that sets the threshold of the chosen model
    """

    damaged: list[str] = field(default_factory=list)
    next_command: str = ""

    @property
    def rows(self) -> list[Row]:  # type: ignore[override]
        return self.models

    @property
    def name(self) -> str | None:
        """The name of the chosen model; None if no model attains the requirement."""
        return str(self.models[0]["model"]) if self.attained else None

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        return 0 if self.attained and not self.damaged else 1

    def __repr__(self) -> str:
        return " ".join(self.sentences())

    def sentences(self) -> list[str]:
        from nescio.report.verdicts import choice_sentences

        return choice_sentences(self)

    def tables(self, brief: bool = True) -> Sequence[Table]:
        from nescio.report.choices import choice_table

        return [choice_table(self)]

    def show(self, brief: bool = True) -> None:
        super().show(brief)
        if self.attained:
            print(f"\nNext, find its abstention threshold: {self.next_command}")

    def plain(self) -> dict[str, object]:
        first = self.models[0] if self.attained else dict.fromkeys(("model", "value", "low", "high"))
        return {
            "choice": first["model"],
            **{name: first[name] for name in ("value", "low", "high")},
            "group": self.group,
            "metric": self.requirement.metric,
            **{name: getattr(self, name) for name in ("measure", "n", "level", "candidates", "closest", "models")},
            "omitted": [{"model": model, "reason": why} for model, why in self.omitted],
            "notes": self.notes,
        }


def choose(options: ChooseOptions) -> ChosenModel:
    """Choose the model to deploy by accuracy, coverage and limits."""
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
        status(f"left out: {sentence}")
    if len(sets := sorted({str(model.data) for model in models})) > 1 and not options.files:
        typed = current_provenance().command or "nescio choose"
        commands = " or ".join(f"`{typed} --data {shlex.quote(name)}`" for name in sets)
        raise BadInput(f"data must name one of {len(sets)} sets, {', '.join(sets)}: write {commands}.")
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
    command = next_command(chosen, models, options.store) if chosen.attained else ""
    return ChosenModel(**vars(chosen), damaged=damaged, next_command=command)


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
