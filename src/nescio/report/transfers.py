"""Transfer to other classes: tables by kind of score, and the page."""

from __future__ import annotations

from nescio.analysis.transfer import GALLERY, IMAGE, TransferResult
from nescio.report.blocks import Blocks, Definitions, Prose, SectionSpec, Story, sections_of
from nescio.report.frame import Frame
from nescio.report.tables import Column, Index, Table, decimals, table
from nescio.report.verdicts import TRANSFER_TITLES, transfer_sentences

NOTES = {IMAGE: "", GALLERY: "These scores compare each image with all others. Do not compare them with the others"}


def transfer_tables(result: TransferResult) -> list[Table]:
    """Return R-AUROC with intervals, one table per kind of score, best first."""
    rows = Frame(sorted(Frame(result.rows).where(metric="r_auroc"), key=lambda row: -row["value"]))
    index, columns = (Index("measure", "score"),), [Column("R-AUROC ↑", metric="r_auroc", format=decimals(3))]
    return [
        table(members, title, index=index, columns=columns, note=NOTES[kind])
        for kind, title in TRANSFER_TITLES.items()
        if (members := rows.where(score_input=kind))
    ]


def transfer_story(result: TransferResult) -> Story:
    """Return the page of a transfer."""
    specs: list[SectionSpec] = [(built.title, built.title, [built]) for built in transfer_tables(result)]
    notes: list[Blocks] = [Prose(result.notes), Definitions(list(result.reasons.items()))]
    specs.append(("notes", "Notes", notes))
    return Story(f"Transfer: {result.name}", transfer_sentences(result), sections_of(specs))
