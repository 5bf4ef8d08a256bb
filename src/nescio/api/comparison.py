"""Comparison of models on the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nescio.analysis.results import Comparison
from nescio.api.inputs import InputOptions, Source, check_apart, load_ood_of_models, model_names
from nescio.api.results import ApiResult
from nescio.options import argument, nested, option

if TYPE_CHECKING:
    from nescio.report.blocks import Story
    from nescio.report.tables import Table


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of `compare`."""

    files: tuple[Source, ...] = argument("predictions of each model on the same rows", metavar="[NAME=]FILE")
    measure: str = option("msp")
    metrics: tuple[str, ...] = option((), unset="all that apply")
    ood: tuple[Source, ...] = option((), style="repeats", metavar="NAME=FILE,…")
    ood_share: float = option(0.5)
    bootstrap: int = option(1000)
    level: float = option(0.95)
    seed: int = option(0)
    inputs: InputOptions = nested(InputOptions(), omit=("logits", "probs", "labels"))


@dataclass(repr=False)
class ModelComparison(ApiResult, Comparison):
    """Models compared on the same rows, with verdicts and a page."""

    def sentences(self) -> list[str]:
        from nescio.report.verdicts import comparison_verdicts

        return comparison_verdicts(self)

    def tables(self, brief: bool = True) -> Sequence[Table]:
        from nescio.report.scorecards.tables import comparison_tables

        return comparison_tables(self)

    def story(self) -> Story:
        from nescio.report.scorecards.stories import scorecard_story

        return scorecard_story([], self)

    document = story

    def plain(self) -> dict[str, object]:
        fields = {name: getattr(self, name) for name in ("rows", "differences", "reasons", "notes")}
        return fields | {"verdict": self.sentences()}

    def show(self, brief: bool = True) -> None:
        from nescio.report.scorecards.stories import short_comparison
        from nescio.report.text import print_terminal

        print_terminal(short_comparison(self) if brief else self.story())


def compare(options: CompareOptions) -> ModelComparison:
    """Compare models on the rows that all of them share, by a paired bootstrap over these rows."""
    from nescio.analysis.comparison import compare as compare_models

    names = model_names(options.files)
    models = {name: options.inputs.read(file, options.seed) for name, file in zip(names, options.files, strict=True)}
    ood = load_ood_of_models(options.ood, names, options.inputs, options.seed)
    check_apart(models, {f"ood {s} of {name}": rows for s, sets in ood.items() for name, rows in sets.items()})
    compared = compare_models(
        models,
        measure=options.measure,
        metrics=options.metrics or None,
        resamples=options.bootstrap,
        level=options.level,
        seed=options.seed,
        ood=ood,
        ood_share=options.ood_share,
    )
    return ModelComparison(**vars(compared))
