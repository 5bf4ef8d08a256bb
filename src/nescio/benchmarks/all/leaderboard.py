"""The leaderboard: methods × questions, with ranks, significance and rank correlations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from statistics import fmean, stdev

import numpy as np

from nescio.analysis.significance import compare_with_best
from nescio.errors import Undefined
from nescio.evaluations import Evaluation, Headline
from nescio.metrics import ranks, spearman
from nescio.report.frame import Frame, repetitions_of
from nescio.report.labels import ARROWS
from nescio.rows import Row

NATIVE, ENTROPY = "native", "entropy"
LINE = ("method", "backbone", "members")
Line = tuple[str, str, int]  # method, backbone, networks


@dataclass(frozen=True)
class LeaderboardQuestion:
    """One column of a leaderboard."""

    evaluation: str
    headline: Headline

    @property
    def title(self) -> str:
        return f"{self.headline.title or self.headline.metric} {ARROWS[self.headline.better]}"


def questions(evaluations: Iterable[type[Evaluation]]) -> list[LeaderboardQuestion]:
    """Every headline of the evaluations, in their order."""
    return [LeaderboardQuestion(kind.name, headline) for kind in evaluations for headline in kind.headlines]


@lru_cache(maxsize=4)
def rows_by_evaluation(rows: Frame) -> dict[str, Frame]:
    """Evaluation → its rows."""
    return {str(name): group for (name,), group in rows.group_by("evaluation")}


def line_of(row: Row) -> Line:
    return str(row["method"]), str(row["backbone"]), int(row["members"] or 1)


@dataclass(frozen=True)
class Leaderboard:
    """Values and ranks of every line for every question.

    scores       names of uncertainty scores in order of preference; a line uses its first available one
    undertrained lines that have no rank
    """

    rows: Frame
    questions: Sequence[LeaderboardQuestion]
    scores: Sequence[str] = (NATIVE, ENTROPY)
    undertrained: frozenset[Line] = field(default_factory=frozenset)

    @cached_property
    def lines(self) -> list[Line]:
        """Lines with at least one value, in order of mean rank; those without a rank come last."""
        lines = dict.fromkeys(line for standings in self.standings.values() for line in standings)
        mean = self.mean_ranks
        return sorted(lines, key=lambda line: (line not in mean, mean[line][0] if line in mean else 0.0, line))

    @cached_property
    def standings(self) -> dict[LeaderboardQuestion, dict[Line, Row]]:
        """LeaderboardQuestion → line → mean over seeds, of questions with two lines or more.

        Beside the columns of `Frame.summarise`: `score`; `rank`, None for undertrained lines; and `among_best`, whether
        the line is the best or not significantly different from it.
        """
        standings = {question: self._standings(question) for question in self.questions}
        return {question: lines for question, lines in standings.items() if len(lines) > 1}

    def _standings(self, question: LeaderboardQuestion) -> dict[Line, Row]:
        headline = question.headline
        results = rows_by_evaluation(self.rows).get(question.evaluation, Frame())
        lines: dict[Line, Row] = {}
        for _, group in results.where(metric=headline.metric, **headline.columns).group_by(*LINE):
            score = next((name for name in self.scores if group.where(measure=name)), None)
            if headline.by_score and score is None:
                continue
            measure = score if headline.by_score else headline.columns.get("measure")
            for row in group.where(measure=measure).summarise(LINE, over=["data_seed"]):
                lines[line_of(row)] = row | {"score": score if headline.by_score else None}
        ranked_rows = {line: row for line, row in lines.items() if line not in self.undertrained}
        rank_of = rank_lines({line: row["value"] for line, row in ranked_rows.items()}, headline.better)
        values_by_seed = {line: repetitions_of(row) for line, row in ranked_rows.items()}
        winners = compare_with_best(values_by_seed, headline.better).equals if values_by_seed else set()
        return {line: row | {"rank": rank_of.get(line), "among_best": line in winners} for line, row in lines.items()}

    @cached_property
    def mean_ranks(self) -> dict[Line, tuple[float, float | None, int]]:
        """Line → mean rank over questions, half the width of its 95 % interval over seeds, and number of questions.

        A rank is divided by the number of ranked lines, so that questions with few lines count alike: 0 is the best of
        a question and 1 the worst. With fewer than two seeds there is no interval. Lines with fewer than half of the
        questions have no mean rank.
        """
        relative_ranks: dict[Line, dict[object, list[float]]] = {}
        for question, standings in self.standings.items():
            values_by_line = {line: repetitions_of(row) for line, row in standings.items() if row["rank"] is not None}
            for seed in {seed for values in values_by_line.values() for seed in values}:
                values = {line: runs[seed] for line, runs in values_by_line.items() if seed in runs}
                for line, rank in rank_lines(values, question.headline.better).items():
                    relative_rank = (rank - 1) / max(1, len(values) - 1)
                    relative_ranks.setdefault(line, {}).setdefault(seed, []).append(relative_rank)
        means = {line: _mean_rank(list(seeds.values())) for line, seeds in relative_ranks.items()}
        return {line: mean for line, mean in means.items() if 2 * mean[2] >= len(self.standings)}

    @cached_property
    def correlations(self) -> dict[tuple[LeaderboardQuestion, LeaderboardQuestion], tuple[float, int]]:
        """Spearman's correlation of two questions over the ranked lines with both, and the number of lines."""
        correlations = {}
        values = {question: self._signed(question) for question in self.standings}
        columns = list(values)
        for number, first in enumerate(columns):
            for second in columns[number + 1 :]:
                x_values, y_values = values[first], values[second]
                common = [line for line in x_values if line in y_values]
                try:
                    if len(common) > 2:
                        rho = spearman([x_values[line] for line in common], [y_values[line] for line in common])
                        correlations[first, second] = rho, len(common)
                except Undefined:
                    continue
        return correlations

    def _signed(self, question: LeaderboardQuestion) -> dict[Line, float]:
        """The means of ranked lines, signed so that higher is better."""
        sign = 1 if question.headline.better == "higher" else -1
        return {line: sign * row["value"] for line, row in self.standings[question].items() if row["rank"] is not None}


def rank_lines(values: Mapping[Line, float], better: str) -> dict[Line, float]:
    """Line → rank from 1, the best; ties share their mean rank."""
    if not values:
        return {}
    losses = [-value if better == "higher" else value for value in values.values()]
    rank_values = ranks(np.asarray(losses)) + (len(losses) + 1) / 2
    return dict(zip(values, rank_values.tolist(), strict=True))


def _mean_rank(seeds: Sequence[Sequence[float]]) -> tuple[float, float | None, int]:
    from scipy.special import stdtrit

    means, count = [fmean(shares) for shares in seeds], max(map(len, seeds))
    if len(means) < 2:
        return means[0], None, count
    half_width = float(stdtrit(len(means) - 1, 0.975)) * stdev(means) / len(means) ** 0.5
    return fmean(means), half_width, count
