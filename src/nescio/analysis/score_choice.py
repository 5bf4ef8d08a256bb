"""Which score to use: chosen for a stated question, with a figure that the choice itself does not flatter.

The best of many scores looks better than it is on the rows that chose it. So the figure comes from rows that had no
part in the choice: the test rows where validation rows chose; else nested folds of the test rows, each judged by the
score that the other folds chose. Folds are drawn several times; the variance is that of one time (LeDell, Petersen &
van der Laan 2015) and that between them, without which the interval would be too short where scores are much alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from nescio.analysis.results import Scorecard
from nescio.analysis.significance import DeLongComponents, area_interval, best_by_delong, delong_components
from nescio.arrays.types import Array
from nescio.errors import BadInput, Undefined
from nescio.metrics import DEFAULT_OOD_SHARE

Question = Literal["mistakes", "unknown", "both"]
Scores = Mapping[str, Array]
QUESTIONS: tuple[Question, ...] = ("mistakes", "unknown", "both")
BASELINE = "msp"  # the plain largest softmax
MISTAKES = "mistakes"  # the kind of rows that are answered wrong
FOLDS, TIMES = 5, 5  # nested folds, and how often they are drawn
LEAST = 4  # rows of each kind, so that two folds have two of them


@dataclass(frozen=True, eq=False)
class QuestionRows:
    """The rows of a question: those to answer, and the kinds of rows to withhold with their weights."""

    answer: Scores
    withhold: Mapping[str, Scores]
    weights: Mapping[str, float]

    @property
    def n(self) -> int:
        return _rows(self.answer) + sum(map(_rows, self.withhold.values()))

    @property
    def least(self) -> int:
        """Rows of the smallest part."""
        return min(map(_rows, (self.answer, *self.withhold.values())))

    @property
    def names(self) -> list[str]:
        """The scores that all rows have, the baseline first: of equal scores the first is the best."""
        common = [name for name in self.answer if all(name in own for own in self.withhold.values())]
        return sorted(common, key=lambda name: name != BASELINE)

    def placed(self, name: str) -> DeLongComponents:
        return delong_components(
            self.answer[name], {kind: own[name] for kind, own in self.withhold.items()}, self.weights
        )

    def part(self, keep: Mapping[str, Array]) -> QuestionRows:
        """The rows of these masks, by kind; "" are the rows to answer."""

        def cut(scores: Scores, kind: str) -> Scores:
            return {name: u[keep[kind]] for name, u in scores.items()}

        return QuestionRows(
            cut(self.answer, ""), {kind: cut(own, kind) for kind, own in self.withhold.items()}, self.weights
        )


def _rows(scores: Scores) -> int:
    return len(next(iter(scores.values()), ()))


@dataclass(frozen=True)
class ScoreChoice:
    """The score to use, what it is worth on rows that did not choose it, and how it stands to the plain baseline.

    Areas are AUROCs: the chance that a row to withhold has the higher u than a row to answer.
    """

    question: Question
    measure: str  # the choice
    group: tuple[str, ...]  # that cannot be told from the best on the rows that chose, itself first
    baseline: str
    value: float  # honest
    low: float
    high: float
    naive: float  # on the rows that chose it
    baseline_value: float
    gain: float  # the honest value over the baseline, on the same rows
    gain_low: float
    gain_high: float
    n: int  # rows that judged
    chosen_by: int  # rows that chose
    folds: int  # of all times; 0: rows of their own chose
    chosen: dict[str, int] = field(default_factory=dict)  # how many folds chose each score
    elsewhere: float | None = None  # each out-of-distribution set by the score that the others chose
    areas: dict[str, float] = field(default_factory=dict)  # of every score, on the rows that chose
    ood_validation: bool = False  # out-of-distribution validation rows had a say
    ood_tuned: bool = False  # among scores that were tuned on out-of-distribution rows themselves

    @property
    def beats_baseline(self) -> bool:
        return self.gain_low > 0


def question_rows(
    question: Question, u: Scores, wrong: Array | None, outside: Mapping[str, Scores], share: float = DEFAULT_OOD_SHARE
) -> QuestionRows:
    """The rows that answer a question.

    mistakes  wrong answers against right ones
    unknown   out-of-distribution sets, each of the same weight, against all in-distribution rows
    both      wrong answers and out-of-distribution sets against right answers, in a mixture with this share of the sets
    """
    if question not in QUESTIONS:
        raise BadInput(f"There is no question {question!r}. There are: {', '.join(QUESTIONS)}.")
    if question != "unknown" and wrong is None:
        raise Undefined("Mistakes cannot be identified: the rows have no labels.")
    if question != "mistakes" and not outside:
        raise Undefined("There are no out-of-distribution rows to be noticed: give ood.")
    sets = dict.fromkeys(outside, 1 / len(outside)) if outside else {}
    if question == "unknown" or wrong is None:
        return QuestionRows(u, outside, sets)
    right, errors = ({name: values[rows] for name, values in u.items()} for rows in (~wrong, wrong))
    if question == "mistakes":
        return QuestionRows(right, {MISTAKES: errors}, {MISTAKES: 1.0})
    inside = (1 - share) * float(np.mean(wrong))
    weights = {MISTAKES: inside, **{name: share * weight for name, weight in sets.items()}}
    total = sum(weights.values())
    return QuestionRows(right, {MISTAKES: errors, **outside}, {kind: part / total for kind, part in weights.items()})


def choose_scores(
    card: Scorecard,
    question: Question,
    *,
    share: float = DEFAULT_OOD_SHARE,
    ood_tuned: Sequence[str] = (),
    level: float = 0.95,
    seed: int = 0,
) -> list[ScoreChoice]:
    """The score to use for a question, of all that a scorecard holds; those tuned on out-of-distribution rows apart.

    Validation rows choose where the scorecard has what the question needs of them (labels for mistakes, out-of-
    distribution validation sets for unknown rows), else nested folds of the test rows.
    """
    raw = card.raw
    if raw is None:
        raise Undefined("The scorecard has no scores to choose from.")
    if unknown := [name for name in ood_tuned if name not in raw.uncertainty]:
        there = ", ".join(raw.uncertainty)
        raise BadInput(f"There is no score {unknown[0]!r} to be marked as tuned. There are: {there}.")
    test = question_rows(question, raw.uncertainty, raw.wrong, _by_set(raw.ood), share)
    try:
        chooser = question_rows(question, raw.val.uncertainty, raw.val.wrong, _by_set(raw.val.ood), share)
    except Undefined:
        chooser = None
    choices = []
    for tuned in (False, True):
        names = [name for name in test.names if (name in ood_tuned) == tuned]
        if names or not tuned:
            choices.append(choose_among(question, names, test, chooser, level=level, seed=seed, ood_tuned=tuned))
    return choices


def choose_among(
    question: Question,
    names: Sequence[str],
    test: QuestionRows,
    chooser: QuestionRows | None = None,
    *,
    level: float = 0.95,
    seed: int = 0,
    ood_tuned: bool = False,
) -> ScoreChoice:
    """The best of these scores on the rows of `chooser`, or on those of `test` by nested folds where there are none."""
    if chooser is not None:
        names = [name for name in names if name in chooser.names]
    if not names:
        raise Undefined("No score is known for all rows of the question, so there is nothing to choose from.")
    for rows in (test, chooser or test):
        if rows.least < LEAST:
            raise Undefined(f"A choice needs {LEAST} rows to answer and of each kind to withhold, not {rows.least}.")
    placed = {name: (chooser or test).placed(name) for name in names}
    best = best_by_delong(placed, level)
    baseline = BASELINE if BASELINE in test.names else names[0]
    chosen: dict[str, int] = {}
    if chooser is None:
        judged = [_nested(test, names, baseline, np.random.default_rng([seed, time]), chosen) for time in range(TIMES)]
    else:
        judged = [(test.placed(best.name), test.placed(baseline))]
    honest, plain, gains = zip(*((own, base, own - base) for own, base in judged), strict=True)
    (low, high), (gain_low, gain_high) = area_interval(honest, level), area_interval(gains, level)
    return ScoreChoice(
        question=question,
        measure=best.name,
        group=tuple(sorted(best.equals, key=lambda name: (name != best.name, -placed[name].area))),
        baseline=baseline,
        value=_mean_area(honest),
        low=max(low, 0.0),
        high=min(high, 1.0),
        naive=best.auroc,
        baseline_value=_mean_area(plain),
        gain=_mean_area(gains),
        gain_low=gain_low,
        gain_high=gain_high,
        n=test.n,
        chosen_by=(chooser or test).n,
        folds=sum(chosen.values()),
        chosen=chosen,
        elsewhere=_elsewhere(placed) if chooser is None else None,
        areas={name: own.area for name, own in placed.items()},
        ood_validation=chooser is not None and question != "mistakes",
        ood_tuned=ood_tuned,
    )


def _nested(
    rows: QuestionRows, names: Sequence[str], baseline: str, rng: np.random.Generator, chosen: dict[str, int]
) -> tuple[DeLongComponents, DeLongComponents]:
    """Every row as its own fold places it, by the score that the other folds chose; and by the baseline."""
    folds = min(FOLDS, rows.least // 2)
    sizes = {"": _rows(rows.answer), **{kind: _rows(own) for kind, own in rows.withhold.items()}}
    fold_of = {kind: rng.permutation(size) % folds for kind, size in sizes.items()}
    honest, plain = [], []
    for fold in range(folds):
        own = {kind: of == fold for kind, of in fold_of.items()}
        others, judged = rows.part({kind: ~mask for kind, mask in own.items()}), rows.part(own)
        areas = {name: others.placed(name).area for name in names}
        choice = max(areas, key=lambda name: areas[name])
        chosen[choice] = chosen.get(choice, 0) + 1
        honest.append(judged.placed(choice))
        plain.append(judged.placed(baseline))
    return _together(honest), _together(plain)


def _mean_area(parts: Sequence[DeLongComponents]) -> float:
    return float(np.mean([part.area for part in parts]))


def _together(parts: Sequence[DeLongComponents]) -> DeLongComponents:
    above = {kind: np.concatenate([part.above[kind] for part in parts]) for kind in parts[0].above}
    return DeLongComponents(above, np.concatenate([part.below for part in parts]), parts[0].weights)


def _elsewhere(placed: Mapping[str, DeLongComponents]) -> float | None:
    """Mean area of the out-of-distribution sets, each by the score that the other sets choose; None for one set."""
    means = {
        name: {kind: float(rows.mean()) for kind, rows in own.above.items() if kind != MISTAKES}
        for name, own in placed.items()
    }
    sets = list(next(iter(means.values())))
    if len(sets) < 2:
        return None

    def without(left_out: str) -> Callable[[str], float]:
        return lambda name: sum(area for kind, area in means[name].items() if kind != left_out)

    return float(np.mean([means[max(means, key=without(kind))][kind] for kind in sets]))


def _by_set(by_measure: Mapping[str, Scores]) -> dict[str, dict[str, Array]]:
    """{measure: {set: u}} → {set: {measure: u}}."""
    sets: dict[str, dict[str, Array]] = {}
    for measure, own in by_measure.items():
        for name, u in own.items():
            sets.setdefault(name, {})[measure] = u
    return sets
