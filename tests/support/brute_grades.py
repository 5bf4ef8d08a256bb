"""Graded detection by its plain definition, for tests of the grading and of its benchmark."""

from __future__ import annotations

from fractions import Fraction
from statistics import fmean
from typing import Any


def brute_auroc(inside: Any, outside: Any) -> Fraction:
    won = sum(Fraction(2 * (o > i) + (o == i), 2) for o in outside for i in inside)
    return won / (len(inside) * len(outside))


def brute_grades(u_in: Any, u_out: Any, division: Any, window: int, severities: int) -> list[tuple[set[int], float]]:
    """Appendix L.2, word by word: (class ids, AUROC) of every severity."""
    score = {
        int(label): fmean(-float(u_out[row]) for row in rows)
        for label, rows in zip(division.classes, division.estimation, strict=True)
    }
    test = dict(zip(division.classes.tolist(), division.test, strict=True))
    ranked = sorted(score, key=lambda label: (score[label], label))
    groups = [ranked[at : at + window] for at in range(len(ranked) - window + 1)]
    groups.sort(key=lambda group: fmean(score[label] for label in group))
    found = []
    for level in range(severities):
        group = groups[round(level * (len(groups) - 1) / (severities - 1))]
        rows = [row for label in group for row in test[label]]
        found.append((set(group), float(brute_auroc(u_in, u_out[rows]))))
    return found
