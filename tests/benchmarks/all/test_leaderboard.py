"""The leaderboard on planted rows: ranks, significance groups, preferences of scores, correlations."""

from __future__ import annotations

import pytest

from nescio.benchmarks.all.leaderboard import Leaderboard, LeaderboardQuestion, rank_lines
from nescio.evaluations import Headline
from nescio.report.frame import Frame, repetitions_of
from nescio.rows import COLUMNS, Row

ACCURACY = LeaderboardQuestion("calibration", Headline("accuracy", "higher", by_score=False))
NLL = LeaderboardQuestion("calibration", Headline("nll", "lower", by_score=False))
AREA = LeaderboardQuestion("misclassification", Headline("auroc", "higher"))
A, B, C = (("a", "conv", 1), ("b", "conv", 1), ("c", "conv", 1))


def row(method: str, seed: int, metric: str, value: float, evaluation: str = "calibration", **more: object) -> Row:
    named = {"method": method, "backbone": "conv", "members": 1, "data_seed": seed, "evaluation": evaluation}
    return dict.fromkeys(COLUMNS) | named | {"metric": metric, "value": value, "n": 100} | more


def rows(metric: str, values: dict[str, list[float]], **more: object) -> list[Row]:
    pairs = [(method, seed, value) for method, own in values.items() for seed, value in enumerate(own)]
    return [row(method, seed, metric, value, **more) for method, seed, value in pairs]


def board(found: list[Row], *questions: LeaderboardQuestion, **more: object) -> Leaderboard:
    return Leaderboard(Frame(found), questions, **more)  # type: ignore[arg-type]


def test_rank_lines_shares_ranks_of_ties_and_turns_lower_metrics() -> None:
    assert rank_lines({A: 3.0, B: 1.0, C: 1.0}, "higher") == {A: 1.0, B: 2.5, C: 2.5}
    assert rank_lines({A: 3.0, B: 1.0, C: 2.0}, "lower") == {A: 3.0, B: 1.0, C: 2.0}
    assert rank_lines({}, "higher") == {}


def test_leaderboard__standings_mean_rank_and_spread() -> None:
    found = rows("accuracy", {"a": [0.9, 0.92], "b": [0.8, 0.82], "c": [0.7, 0.72]})
    found += rows("nll", {"a": [0.3, 0.3], "b": [0.1, 0.1], "c": [0.2, 0.2]})
    ranked = board(found, ACCURACY, NLL)
    first = ranked.standings[ACCURACY][A]
    assert (first["value"], first["rank"], repetitions_of(first)) == (pytest.approx(0.91), 1.0, {0: 0.9, 1: 0.92})
    assert first["spread"] == pytest.approx(0.02 / 2**0.5)
    assert {line: ranked.mean_ranks[line][0] for line in (A, B, C)} == {A: 0.5, B: 0.25, C: 0.75}
    assert ranked.lines == [B, A, C]


def test_leaderboard__undertrained_lines_have_values_and_no_rank() -> None:
    found = rows("accuracy", {"a": [0.9, 0.9], "b": [0.95, 0.95], "c": [0.7, 0.7]})
    ranked = board(found, ACCURACY, undertrained=frozenset({B}))
    assert ranked.standings[ACCURACY][B]["rank"] is None and not ranked.standings[ACCURACY][B]["among_best"]
    assert ranked.standings[ACCURACY][A]["rank"] == 1.0
    assert B not in ranked.mean_ranks and ranked.lines[-1] == B


def test_leaderboard__the_score_of_a_line_is_the_first_that_it_has() -> None:
    about = {"evaluation": "misclassification"}
    found = rows("auroc", {"a": [0.9], "b": [0.6]}, measure="entropy", **about)
    found += rows("auroc", {"b": [0.8]}, measure="native", **about)
    own = board(found, AREA).standings[AREA]
    assert (own[A]["score"], own[A]["value"], own[B]["score"], own[B]["value"]) == ("entropy", 0.9, "native", 0.8)
    entropy = board(found, AREA, scores=("entropy",)).standings[AREA]
    assert entropy[B]["value"] == 0.6


def test_leaderboard__lines_that_answer_few_questions_have_no_mean_rank() -> None:
    found = rows("accuracy", {"a": [0.9], "b": [0.8]}) + rows("nll", {"a": [0.1], "b": [0.2]})
    found += rows("auroc", {"a": [0.9], "b": [0.8], "c": [0.99]}, measure="entropy", evaluation="misclassification")
    ranked = board(found, ACCURACY, NLL, AREA)
    assert set(ranked.mean_ranks) == {A, B} and C in ranked.standings[AREA]


def test_leaderboard__correlations_count_higher_as_better() -> None:
    found = rows("accuracy", {"a": [0.9], "b": [0.8], "c": [0.7]}) + rows("nll", {"a": [0.1], "b": [0.2], "c": [0.3]})
    assert board(found, ACCURACY, NLL).correlations == {(ACCURACY, NLL): (pytest.approx(1.0), 3)}


def test_leaderboard__an_interval_over_seeds_needs_two() -> None:
    one = board(rows("accuracy", {"a": [0.9], "b": [0.8]}), ACCURACY)
    assert one.mean_ranks[A] == (0.0, None, 1)
    two = board(rows("accuracy", {"a": [0.9, 0.7], "b": [0.8, 0.8]}), ACCURACY)
    mean, half, _ = two.mean_ranks[A]
    assert mean == 0.5 and half == pytest.approx(12.706 * 0.5, rel=1e-3)
