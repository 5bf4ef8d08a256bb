"""What a transfer says, for people: scores of the image alone, and scores that see the gallery, in tables apart."""

from __future__ import annotations

from nescio.analysis.transfer import GALLERY, IMAGE, TransferResult
from nescio.report.blocks import Blocks, Definitions, Prose, SectionSpec, Story, sections_of
from nescio.report.format import format_number, format_percent
from nescio.report.frame import Frame
from nescio.report.tables import Column, Index, Table, decimals, table

TITLES = {IMAGE: "Scores that see the image alone", GALLERY: "Scores that see the gallery"}
NOTES = {IMAGE: "", GALLERY: "They compare every image with all others, which the scores above cannot"}


def transfer_tables(result: TransferResult) -> list[Table]:
    """R-AUROC with intervals, one table for each kind of score, the highest first."""
    rows = sorted(Frame(result.rows).where(metric="r_auroc"), key=lambda row: -row["value"])
    lines, heads = (Index("measure", "score"),), [Column("R-AUROC ↑", metric="r_auroc", format=decimals(3))]
    kinds = {sees: Frame(rows).where(score_input=sees) for sees in TITLES}
    return [
        table(own, TITLES[sees], index=lines, columns=heads, note=NOTES[sees]) for sees, own in kinds.items() if own
    ]


def transfer_sentences(result: TransferResult) -> list[str]:
    """How many images find their kind, and which score to use."""
    frame = Frame(result.rows)
    recall = frame.where(metric="recall_at_1")
    sentences = []
    for row in recall:
        interval = "" if row["low"] is None else f" ({format_percent(row['low'])} to {format_percent(row['high'])})"
        what = f"{format_percent(row['value'])} of {row['n']:,} images{interval}"
        sentences.append(f"R@1: the nearest neighbour of {what} is of their class.")
    if not result.use:
        return [*sentences, result.why]
    value = frame.where(measure=result.use, metric="r_auroc").first("value")
    known = "" if value is None else f" (R-AUROC {format_number(value, 3)})"
    sentences.append(f"Use {result.use}{known}, a score that sees the {result.sees[result.use]}. {result.why}")
    rows = frame.where(metric="r_auroc").rows
    best = max(rows, key=lambda row: row["value"], default=None)
    if value is not None and best is not None and best["value"] > value:
        sentences.append(
            f"{best['measure']} is higher on these labels ({format_number(best['value'], 3)}). The "
            "choice does not use the "
            "labels: the best of many scores on the images that judge it would look better than it is."
        )
    kinds = {sees: [row["value"] for row in rows if row["score_input"] == sees] for sees in TITLES}
    for sees, values in kinds.items():
        if values and max(values) < 0.5:
            low, high = format_number(min(values), 3), format_number(max(values), 3)
            what = TITLES[sees][0].lower() + TITLES[sees][1:]
            sentences.append(f"All {what} rank worse than chance: R-AUROC {low} to {high}, and 0.5 is chance.")
    return sentences


def transfer_story(result: TransferResult) -> Story:
    """The page of a transfer."""
    parts: list[SectionSpec] = [(made.title, made.title, [made]) for made in transfer_tables(result)]
    notes: list[Blocks] = [Prose(result.notes), Definitions(list(result.reasons.items()))]
    parts.append(("notes", "What else to know", notes))
    return Story(f"Transfer: {result.name}", transfer_sentences(result), sections_of(parts))
