"""The leaderboard: methods × questions, with ranks, significance groups and rank correlations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from statistics import fmean, stdev
from typing import Literal

import numpy as np

from nescio.analysis.significance import paired_t_tests
from nescio.errors import Undefined
from nescio.evaluations import Evaluation, Headline
from nescio.metrics import ranks, spearman
from nescio.report.frame import Frame
from nescio.rows import Row

NATIVE, ENTROPY = "native", "entropy"
LEVEL = 0.05  # of the tests against the best, after Holm's correction
Line = tuple[str, str, int]  # method, backbone, networks
Better = Literal["higher", "lower"]


@dataclass(frozen=True)
class LeaderboardQuestion:
    """One column of a leaderboard."""

    evaluation: str
    headline: Headline

    @property
    def title(self) -> str:
        return f"{self.headline.title or self.headline.metric} {'↑' if self.headline.better == 'higher' else '↓'}"


@dataclass(frozen=True)
class Standing:
    """One line under one question: its mean over seeds, and whether it is in the group of the best."""

    mean: float
    spread: float | None
    values: Mapping[int, float]  # seed → value
    score: str | None
    rank: float | None  # None for an undertrained line
    best: bool  # the best, or not significantly different from it
    keys: tuple[str, ...] = ()


def questions(evaluations: Iterable[type[Evaluation]]) -> list[LeaderboardQuestion]:
    """Every headline of the evaluations, in their order."""
    return [LeaderboardQuestion(each.name, headline) for each in evaluations for headline in each.headlines]


@lru_cache(maxsize=4)
def rows_by_evaluation(rows: Frame) -> dict[str, Frame]:
    """Evaluation → its rows."""
    return {str(name): group for (name,), group in rows.group_by("evaluation")}


def line_of(row: Row) -> Line:
    return str(row["method"]), str(row["backbone"]), int(row["members"] or 1)


@dataclass(frozen=True)
class Leaderboard:
    """Every line under every question.

    scores       names of uncertainty scores in order of preference; a line takes the first that it has
    undertrained lines that have no rank
    """

    rows: Frame
    questions: Sequence[LeaderboardQuestion]
    scores: Sequence[str] = (NATIVE, ENTROPY)
    undertrained: frozenset[Line] = field(default_factory=frozenset)

    @cached_property
    def lines(self) -> list[Line]:
        """The lines that answer any question, in order of their mean rank; those without a rank come last."""
        found = dict.fromkeys(line for standings in self.standings.values() for line in standings)
        mean = self.mean_ranks
        return sorted(found, key=lambda line: (line not in mean, mean[line][0] if line in mean else 0.0, line))

    @cached_property
    def standings(self) -> dict[LeaderboardQuestion, dict[Line, Standing]]:
        """LeaderboardQuestion → line → standing, of questions that two lines or more answer."""
        found = {question: self._standings(question) for question in self.questions}
        return {question: standings for question, standings in found.items() if len(standings) > 1}

    def _standings(self, question: LeaderboardQuestion) -> dict[Line, Standing]:
        headline = question.headline
        evaluated = rows_by_evaluation(self.rows).get(question.evaluation, Frame())
        rows = evaluated.where(metric=headline.metric, **headline.columns)
        values: dict[Line, dict[int, float]] = {}
        chosen: dict[Line, str | None] = {}
        keys: dict[Line, list[str]] = {}
        for (method, backbone, members), group in rows.group_by("method", "backbone", "members"):
            line = str(method), str(backbone), int(members or 1)
            score = next((name for name in self.scores if len(group.where(measure=name))), None)
            if headline.by_score and score is None:
                continue
            measure = score if headline.by_score else headline.columns.get("measure")
            if own := group.where(measure=measure):
                values[line] = {row["data_seed"] or 0: row["value"] for row in own}
                chosen[line] = score if headline.by_score else None
                keys[line] = [row["key"] for row in own if row.get("key")]
        ranked = {line: seeds for line, seeds in values.items() if line not in self.undertrained}
        best = best_group(ranked, headline.better)
        places = rank_lines({line: fmean(seeds.values()) for line, seeds in ranked.items()}, headline.better)
        return {
            line: Standing(
                fmean(seeds.values()),
                stdev(seeds.values()) if len(seeds) > 1 else None,
                seeds,
                chosen[line],
                places.get(line),
                line in best,
                tuple(keys[line]),
            )
            for line, seeds in values.items()
        }

    @cached_property
    def mean_ranks(self) -> dict[Line, tuple[float, float | None, int]]:
        """Line → mean rank over questions, half the width of its 95 % interval over seeds, and how many questions.

        A rank is divided by the number of ranked lines, so that questions with few lines count alike: 0 is the best of
        a question and 1 the worst. With fewer than two seeds there is no interval. Lines that answer fewer than half of
        the questions have no mean rank.
        """
        by_seed: dict[Line, dict[int, list[float]]] = {}
        for question, standings in self.standings.items():
            ranked = {line: each.values for line, each in standings.items() if each.rank is not None}
            for seed in {seed for values in ranked.values() for seed in values}:
                means = {line: values[seed] for line, values in ranked.items() if seed in values}
                places = rank_lines(means, question.headline.better)
                for line, place in places.items():
                    share = (place - 1) / max(1, len(places) - 1)
                    by_seed.setdefault(line, {}).setdefault(seed, []).append(share)
        found = {line: _mean_rank(seeds) for line, seeds in by_seed.items()}
        return {line: rank for line, rank in found.items() if 2 * rank[2] >= len(self.standings)}

    @cached_property
    def correlations(self) -> dict[tuple[LeaderboardQuestion, LeaderboardQuestion], tuple[float, int]]:
        """Spearman's correlation of two questions over the ranked lines that answer both, and their number."""
        found: dict[tuple[LeaderboardQuestion, LeaderboardQuestion], tuple[float, int]] = {}
        columns = list(self.standings)
        for number, first in enumerate(columns):
            for second in columns[number + 1 :]:
                a, b = (self._better_is_higher(question) for question in (first, second))
                both = [line for line in a if line in b]
                try:
                    if len(both) > 2:
                        found[first, second] = (
                            spearman([a[line] for line in both], [b[line] for line in both]),
                            len(both),
                        )
                except Undefined:
                    continue
        return found

    def _better_is_higher(self, question: LeaderboardQuestion) -> dict[Line, float]:
        sign = 1 if question.headline.better == "higher" else -1
        standings = self.standings[question]
        return {line: sign * each.mean for line, each in standings.items() if each.rank is not None}


def rank_lines(values: Mapping[Line, float], better: Better) -> dict[Line, float]:
    """Line → rank from 1, the best; ties share their mean rank."""
    if not values:
        return {}
    signed = [-value if better == "higher" else value for value in values.values()]
    places = ranks(np.asarray(signed)) + (len(signed) + 1) / 2
    return dict(zip(values, places.tolist(), strict=True))


def best_group(values: Mapping[Line, Mapping[int, float]], better: Better) -> set[Line]:
    """The best line by its mean, and those not significantly different from it: a paired t-test over seeds with Holm's
    correction. Without a second shared seed nothing is known, and the best stands alone."""
    if not values:
        return set()
    tests = paired_t_tests(values, better, 1 - LEVEL)
    means = {line: fmean(seeds.values()) for line, seeds in values.items()}
    first = (max if better == "higher" else min)(means, key=lambda line: means[line])
    return {first} | {test["model"] for test in tests if test["adjusted"] is not None and test["adjusted"] >= LEVEL}


def _mean_rank(seeds: Mapping[int, Sequence[float]]) -> tuple[float, float | None, int]:
    from scipy.special import stdtrit

    means = [fmean(shares) for shares in seeds.values()]
    count = max(len(shares) for shares in seeds.values())
    if len(means) < 2:
        return means[0], None, count
    half = float(stdtrit(len(means) - 1, 0.975)) * stdev(means) / len(means) ** 0.5
    return fmean(means), half, count
