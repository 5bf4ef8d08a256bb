"""What a transfer says, for people: scores of the image alone, and scores that see the gallery, in tables apart."""

from __future__ import annotations

from nescio.analysis.transfer import GALLERY, IMAGE, Transfer
from nescio.report.blocks import Made, Prose, SectionParts, Story, Terms, sections_of
from nescio.report.frame import Frame
from nescio.report.tables import Column, Head, Table, decimals, table
from nescio.report.words import number, percent

TITLES = {IMAGE: "Scores that see the image alone", GALLERY: "Scores that see the gallery"}
NOTES = {IMAGE: "", GALLERY: "They compare every image with all others, which the scores above cannot"}


def transfer_tables(result: Transfer) -> list[Table]:
    """R-AUROC with intervals, one table for each kind of score, the highest first."""
    rows = sorted(Frame(result.rows).where(metric="r_auroc"), key=lambda row: -row["value"])
    lines, heads = (Column("measure", "score"),), [Head("R-AUROC ↑", metric="r_auroc", form=decimals(3))]
    kinds = {sees: Frame(rows).where(condition=sees) for sees in TITLES}
    return [table(own, TITLES[sees], lines=lines, heads=heads, note=NOTES[sees]) for sees, own in kinds.items() if own]


def transfer_sentences(result: Transfer) -> list[str]:
    """How many images find their kind, and which score to use."""
    frame = Frame(result.rows)
    recall = frame.where(metric="recall_at_1")
    sentences = []
    for row in recall:
        interval = "" if row["low"] is None else f" ({percent(row['low'])} to {percent(row['high'])})"
        what = f"{percent(row['value'])} of {row['n']:,} images{interval}"
        sentences.append(f"R@1: the nearest neighbour of {what} is of their class.")
    value = frame.where(measure=result.use, metric="r_auroc").one("value")
    known = "" if value is None else f" (R-AUROC {number(value, 3)})"
    return [*sentences, f"Use {result.use}{known}, a score that sees the {result.sees[result.use]}. {result.why}"]


def transfer_story(result: Transfer) -> Story:
    """The page of a transfer."""
    parts: list[SectionParts] = [(made.title, made.title, [made]) for made in transfer_tables(result)]
    notes: list[Made] = [Prose(result.notes), Terms(list(result.reasons.items()))]
    parts.append(("notes", "What else to know", notes))
    return Story(f"Transfer: {result.name}", transfer_sentences(result), sections_of(parts))
