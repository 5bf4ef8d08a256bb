"""Which line of results is best over repeated runs, such as data seeds, and which cannot be told from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean, variance
from typing import Any

from nescio.analysis.comparison import holm

Line = Any  # its name, or the columns that name it
Runs = Mapping[Any, float]  # run → value


def paired_runs(lines: Mapping[Line, Runs], better: str = "higher", level: float = 0.95) -> list[dict[str, Any]]:
    """Every other line against the best by its mean, in the form of `Comparison.differences`, the next best first: a
    paired t-test over the runs that both have, its interval and Holm's adjustment. Fewer than two runs: no p-value."""

    def tested(line: Line, best: Line) -> dict[str, Any]:
        gaps = [value - lines[best][run] for run, value in lines[line].items() if run in lines[best]]
        noise = variance(gaps) / len(gaps) if len(gaps) > 1 else 0.0
        gap = fmean(gaps) if gaps else _mean(lines[line]) - _mean(lines[best])
        return _difference(line, best, gap, noise, len(gaps) - 1, level)

    return _against_best(lines, better, level, tested)


def unpaired_runs(
    lines: Mapping[Line, Runs], shared: Mapping[Line, float], better: str = "higher", level: float = 0.95
) -> list[dict[str, Any]]:
    """The same where runs are no pairs: Welch's t-test of the means.

    shared  the variance that all runs of a line have in common, as that of their test images is; lines on the same
            images differ by less than these allow, so the test is cautious

    A line of one run is taken to vary as the others do on average; where all have one, nothing is known of that.
    """
    known = [variance(own.values()) for own in lines.values() if len(own) > 1]
    usual = fmean(known) if known else 0.0

    def tested(line: Line, best: Line) -> dict[str, Any]:
        both = lines[line], lines[best]
        noise = [variance(own.values()) / len(own) if len(own) > 1 else usual for own in both]
        total = sum(noise) + shared[line] + shared[best]
        # Satterthwaite; images are many, so only the runs cost degrees of freedom
        lost = sum(part**2 / max(len(own) - 1, 1) for part, own in zip(noise, both, strict=True))
        freedom = total**2 / lost if lost else 1e9 if total else 0.0
        return _difference(line, best, _mean(lines[line]) - _mean(lines[best]), total, freedom, level)

    return _against_best(lines, better, level, tested)


def _mean(runs: Runs) -> float:
    return fmean(runs.values())


def _against_best(lines: Mapping[Line, Runs], better: str, level: float, tested: Any) -> list[dict[str, Any]]:
    sign = -1 if better == "lower" else 1
    best, *others = sorted(lines, key=lambda line: -sign * _mean(lines[line]))
    differences = [tested(line, best) for line in others]
    holm(differences, 1 - level)
    return differences


def _difference(line: Line, best: Line, gap: float, noise: float, freedom: float, level: float) -> dict[str, Any]:
    """line − best with its interval and two-sided p-value; no degree of freedom: neither of them."""
    from scipy.special import stdtr, stdtrit

    low = high = p = None
    if freedom > 0:
        error = math.sqrt(noise)
        reach = float(stdtrit(freedom, (1 + level) / 2)) * error
        low, high = gap - reach, gap + reach
        p = 2 * float(stdtr(freedom, -abs(gap) / error)) if error else float(not gap)
    return {"model": line, "best": best, "difference": gap, "low": low, "high": high, "p": p, "adjusted": None}
