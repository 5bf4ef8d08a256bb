"""Stories of one scorecard, of several, and of their comparison."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nescio.report.blocks import Block, Definitions, Details, Prose, Section, Story, flatten, trim_legends
from nescio.report.choices import SCORE_TITLE, scores_table
from nescio.report.labels import group_reasons
from nescio.report.scorecards.figures import comparison_panel, models_panel, scorecard_panel, thin_curves
from nescio.report.scorecards.questions import measure_kind, unique_names
from nescio.report.scorecards.tables import (
    COMPARISON,
    SUMMARY,
    comparison_tables,
    essentials,
    scorecard_blocks,
    short_comparison_table,
    summary,
)
from nescio.report.verdicts import (
    MAX_NAMES,
    best_measures,
    comparison_verdicts,
    models_verdicts,
    score_choice_verdicts,
    scorecard_verdicts,
)
from nescio.rows import Row

if TYPE_CHECKING:
    from nescio.analysis.results import Comparison, Scorecard

ALL_VALUES = "All values with intervals"
GAPS = "Not computed"
ALL_COMPARED = "All metrics, intervals and differences: --all. Charts: --output DIR."
MAIN_GAPS = ("predictions", "calibrated", "detection", "in_as_in")  # gaps that the short story explains


def scorecard_story(
    cards: Sequence[Scorecard], comparison: Comparison | None = None, title: str = "", incomparable: str = ""
) -> Story:
    """Return the page of one model or several, and of their comparison.

    incomparable  why there is no comparison
    """
    names, multiple = unique_names(cards), len(cards) > 1
    curves = {name: thin_curves(card.curves, len(cards)) for name, card in zip(names, cards, strict=True)}
    sections = [Section("", SUMMARY, [summary(cards), models_panel(curves)])] if multiple else []
    comparisons = [] if comparison is None else [_comparison_section(comparison)]
    models = []
    for number, (name, card) in enumerate(zip(names, cards, strict=True)):
        blocks: list[Block] = [Prose(scorecard_verdicts(card), lead=True)] if multiple else []
        for choice in card.score_choices:
            blocks += [Prose(score_choice_verdicts(choice))] if multiple else []
            blocks.append(Details(SCORE_TITLE, [scores_table(choice)]))
        blocks += [
            scorecard_panel(curves[name], number),
            *scorecard_blocks(card.rows, card.calibration_warning),
            _missing_results(card.reasons),
        ]
        models.append(Section(name if multiple else "", name if multiple else "", blocks, model=multiple))
    lead = _lead(cards, comparison, incomparable)
    title = title or _title(cards, comparison)
    return Story(title, lead, trim_legends([*sections, *(comparisons + models if multiple else models + comparisons)]))


def _comparison_section(comparison: Comparison) -> Section:
    tables = comparison_tables(comparison)
    details = [Details(ALL_VALUES if number == 0 else built.title, [built]) for number, built in enumerate(tables)]
    return Section("", COMPARISON, [comparison_panel(comparison), *details, _missing_results(comparison.reasons)])


def _missing_results(reasons: Sequence[Row]) -> Block:
    return Definitions(group_reasons(reasons), GAPS)


def _title(cards: Sequence[Scorecard], comparison: Comparison | None) -> str:
    names = [Path(name).name for name in unique_names(cards)]
    names = names or ([] if comparison is None else list(comparison.models))
    return " · ".join(names[:3]) + (" …" if len(names) > 3 else "") or "Scorecard"


def _lead(cards: Sequence[Scorecard], comparison: Comparison | None, incomparable: str) -> list[str]:
    """The notes that limit the numbers, then the verdicts."""
    if not cards:
        lines = comparison_verdicts(comparison) if comparison is not None else []
    elif len(cards) > 1:
        lines = models_verdicts(cards, comparison, incomparable)
    else:
        choices = [line for choice in cards[0].score_choices for line in score_choice_verdicts(choice)]
        lines = [*scorecard_verdicts(cards[0]), *(choices or best_measures(cards[0]))]
    return [*(note for note in _notes([*cards, comparison]) if note not in lines), *lines]


def _notes(sources: Iterable[Scorecard | Comparison | None]) -> list[str]:
    """The notes of all sources, each once."""
    return list(dict.fromkeys(note for source in sources if source is not None for note in source.notes))


def all_rows(cards: Sequence[Scorecard], comparison: Comparison | None = None) -> list[Row]:
    """Return the rows of scorecards with a last column `file`, and those of the comparison."""
    rows = [{**row, "file": name} for name, card in zip(unique_names(cards), cards, strict=True) for row in card.rows]
    return rows + ([] if comparison is None else list(comparison.rows))


# ---- on one screen


def short_story(cards: Sequence[Scorecard], comparison: Comparison | None = None, incomparable: str = "") -> Story:
    """Return the verdicts and main metrics, on one screen."""
    table = summary(cards) if len(cards) > 1 else essentials(cards[0])
    gaps = _main_missing_results(cards)
    permanent = [gap for gap in gaps if not missing_options([gap["reason"]])]  # no further file would change them
    blocks = [
        replace(table, legend=()),
        *_short_choices(cards),
        Definitions(group_reasons(permanent, limit=3)),
        Prose([further_options(str(gap["reason"]) for gap in gaps)]),
    ]
    return Story(_title(cards, comparison), _lead(cards, comparison, incomparable), [Section("", "", flatten(blocks))])


def short_comparison(comparison: Comparison) -> Story:
    """Return the verdict of a comparison and its first metrics, on one screen."""
    table, more = short_comparison_table(comparison)
    omitted = [f"{more} more models: --all."] if more else []
    lead = [*_notes([comparison]), *comparison_verdicts(comparison, MAX_NAMES)]
    return Story(_title([], comparison), lead, [Section("", "", [table, Prose([*omitted, ALL_COMPARED])])])


def _short_choices(cards: Sequence[Scorecard]) -> Sequence[Block]:
    """The best scores and the baseline of one model, or the choice of each of several models."""
    if len(cards) == 1:
        return [replace(scores_table(choice, everything=False), legend=()) for choice in cards[0].score_choices]
    return [
        Prose([f"{name}: {' '.join(score_choice_verdicts(choice))}"])
        for name, card in zip(unique_names(cards), cards, strict=True)
        for choice in card.score_choices
    ]


def _main_missing_results(cards: Sequence[Scorecard]) -> list[Row]:
    """Reasons for missing calibration, detection and fitted or slow measures; second names are left out."""
    from nescio.measures import registry

    aliases = [measure.name for measure in registry.parts() if measure.equivalent_to]
    reasons = [reason for card in cards for reason in card.reasons if reason["measure"] not in aliases]
    return [reason for reason in reasons if reason["metric"] in MAIN_GAPS or _needs_further_input(reason["measure"])]


def _needs_further_input(measure: str | None) -> bool:
    """Whether another file or option adds the measure."""
    from nescio.measures import registry

    return measure_kind(measure) == "fitted" or (measure in registry and registry[str(measure)].slow)


def missing_options(reasons: Iterable[str]) -> list[str]:
    """Return the options of files that the reasons for missing numbers mention."""
    mentioned = {name for reason in reasons for name in re.findall(r"\b(val|ood|train)\b", reason)}
    return [f"--{name}" for name in ("val", "ood", "train") if name in mentioned]


def further_options(reasons: Iterable[str]) -> str:
    """Return the sentence on options that add numbers or charts."""
    options = missing_options(reasons)
    return f"More numbers: {', '.join(['--all', *options])}. Charts: --output DIR."
