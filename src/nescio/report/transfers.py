"""Transfer to other classes: verdicts, tables by kind of score, and the page."""

from __future__ import annotations

from nescio.analysis.transfer import GALLERY, IMAGE, TransferResult
from nescio.report.blocks import Blocks, Definitions, Prose, SectionSpec, Story, sections_of
from nescio.report.format import format_interval, format_number, format_percent
from nescio.report.frame import Frame
from nescio.report.tables import Column, Index, Table, decimals, table

TITLES = {IMAGE: "Scores of single images", GALLERY: "Gallery scores"}
NOTES = {IMAGE: "", GALLERY: "These scores compare each image with all others. Do not compare them with the others"}
CHANCE = 0.5  # R-AUROC of a random score


def transfer_tables(result: TransferResult) -> list[Table]:
    """Return R-AUROC with intervals, one table per kind of score, best first."""
    rows = sorted(Frame(result.rows).where(metric="r_auroc"), key=lambda row: -row["value"])
    index, columns = (Index("measure", "score"),), [Column("R-AUROC ↑", metric="r_auroc", format=decimals(3))]
    kinds = {kind: Frame(rows).where(score_input=kind) for kind in TITLES}
    return [
        table(members, TITLES[kind], index=index, columns=columns, note=NOTES[kind])
        for kind, members in kinds.items()
        if members
    ]


def transfer_sentences(result: TransferResult) -> list[str]:
    """Return recall at 1, and the recommended score with its R-AUROC."""
    frame = Frame(result.rows)
    ranked = frame.where(metric="r_auroc")
    sentences = [
        f"R@1 {format_interval(row['value'], row['low'], row['high'], format_percent)}, n = {row['n']:,}."
        for row in frame.where(metric="recall_at_1")
    ]
    if not result.recommended:
        return [*sentences, result.recommendation_reason]
    value = ranked.where(measure=result.recommended).first("value")
    estimate = "" if value is None else f", R-AUROC {format_number(value, 3)}"
    score_input = result.score_inputs[result.recommended]
    sentences.append(
        f"Recommended score: {result.recommended} ({score_input} score){estimate}. {result.recommendation_reason}"
    )
    best = max(ranked, key=lambda row: float(row["value"]), default=None)
    if value is not None and best is not None and best["value"] > value:
        sentences.append(
            f"Best score on these labels: {best['measure']}, R-AUROC {format_number(best['value'], 3)}. It is not "
            "recommended, because the best of many scores is overestimated on the images that selected it."
        )
    for kind, title in TITLES.items():
        values = ranked.where(score_input=kind).column()
        if values and max(values) < CHANCE:
            low, high = format_number(min(values), 3), format_number(max(values), 3)
            sentences.append(f"{title}: all worse than chance, R-AUROC {low} to {high}.")
    return sentences


def transfer_story(result: TransferResult) -> Story:
    """Return the page of a transfer."""
    specs: list[SectionSpec] = [(built.title, built.title, [built]) for built in transfer_tables(result)]
    notes: list[Blocks] = [Prose(result.notes), Definitions(list(result.reasons.items()))]
    specs.append(("notes", "Notes", notes))
    return Story(f"Transfer: {result.name}", transfer_sentences(result), sections_of(specs))
