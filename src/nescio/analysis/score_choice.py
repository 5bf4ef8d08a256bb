"""Choice of a score for a question, with an unbiased estimate of its AUROC.

The best of many scores looks better than it is on the rows that selected it. The estimate therefore uses other rows:
the test rows if validation rows selected the score, else nested folds of the test rows. Each fold is evaluated by the
score that the other folds selected. Folds are drawn several times. The variance is that of one draw (LeDell, Petersen &
van der Laan 2015) plus that between draws, without which intervals of similar scores would be too short.
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
BASELINE = "msp"
MISTAKES = "mistakes"  # the kind of misclassified rows
FOLDS, TIMES = 5, 5  # number of nested folds, and of their draws
MIN_ROWS = 4  # rows of each kind, so that each of two folds has two


@dataclass(frozen=True, eq=False)
class QuestionRows:
    """The rows of a question: rows to accept, and kinds of rows to reject with their weights."""

    accept: Scores
    reject: Mapping[str, Scores]
    weights: Mapping[str, float]

    @property
    def n(self) -> int:
        return _rows(self.accept) + sum(map(_rows, self.reject.values()))

    @property
    def smallest(self) -> int:
        """Rows of the smallest kind."""
        return min(map(_rows, (self.accept, *self.reject.values())))

    @property
    def names(self) -> list[str]:
        """The scores that all rows have, the baseline first, because the first of equal scores is selected."""
        common = [name for name in self.accept if all(name in scores for scores in self.reject.values())]
        return sorted(common, key=lambda name: name != BASELINE)

    def components(self, name: str) -> DeLongComponents:
        return delong_components(
            self.accept[name], {kind: scores[name] for kind, scores in self.reject.items()}, self.weights
        )

    def take(self, keep: Mapping[str, Array]) -> QuestionRows:
        """The rows of masks by kind; the kind "" contains the rows to accept."""

        def cut(scores: Scores, kind: str) -> Scores:
            return {name: u[keep[kind]] for name, u in scores.items()}

        return QuestionRows(
            cut(self.accept, ""), {kind: cut(scores, kind) for kind, scores in self.reject.items()}, self.weights
        )


def _rows(scores: Scores) -> int:
    return len(next(iter(scores.values()), ()))


@dataclass(frozen=True)
class ScoreChoice:
    """The score to use, its AUROC on rows that did not select it, and its gain over the baseline.

    AUROC is the probability that a row to reject has a higher u than a row to accept.
    """

    question: Question
    measure: str  # the selected score
    group: tuple[str, ...]  # scores not significantly worse on the selecting rows, the best first
    baseline: str
    value: float  # AUROC on rows that did not select the score
    low: float
    high: float
    naive: float  # AUROC on the selecting rows, which is too high
    baseline_value: float
    gain: float  # value minus the baseline's AUROC on the same rows
    gain_low: float
    gain_high: float
    n: int  # number of evaluated rows
    chosen_by: int  # number of selecting rows
    folds: int  # number of folds in all draws; 0 if validation rows selected
    chosen: dict[str, int] = field(default_factory=dict)  # score → number of folds that selected it
    elsewhere: float | None = None  # mean AUROC of OOD sets, each by the score that the other sets select
    areas: dict[str, float] = field(default_factory=dict)  # AUROC of every score on the selecting rows
    ood_validation: bool = False  # whether OOD validation rows took part in the selection
    ood_tuned: bool = False  # whether the score is one of those tuned on OOD rows

    @property
    def beats_baseline(self) -> bool:
        return self.gain_low > 0


def question_rows(
    question: Question, u: Scores, wrong: Array | None, ood: Mapping[str, Scores], share: float = DEFAULT_OOD_SHARE
) -> QuestionRows:
    """The rows to accept and to reject for a question.

    mistakes  misclassified rows against correct ones
    unknown   OOD sets, each of the same weight, against all in-distribution rows
    both      misclassified rows and OOD sets against correct rows, in a mixture with this share of OOD rows
    """
    if question not in QUESTIONS:
        raise BadInput(f"There is no question {question!r}. There are: {', '.join(QUESTIONS)}.")
    if question != "unknown" and wrong is None:
        raise Undefined("The rows have no labels, which are needed to find misclassified rows.")
    if question != "mistakes" and not ood:
        raise Undefined("There are no out-of-distribution rows: give ood.")
    sets = dict.fromkeys(ood, 1 / len(ood)) if ood else {}
    if question == "unknown" or wrong is None:
        return QuestionRows(u, ood, sets)
    correct, errors = ({name: values[rows] for name, values in u.items()} for rows in (~wrong, wrong))
    if question == "mistakes":
        return QuestionRows(correct, {MISTAKES: errors}, {MISTAKES: 1.0})
    error_weight = (1 - share) * float(np.mean(wrong))
    weights = {MISTAKES: error_weight, **{name: share * weight for name, weight in sets.items()}}
    total = sum(weights.values())
    return QuestionRows(correct, {MISTAKES: errors, **ood}, {kind: weight / total for kind, weight in weights.items()})


def choose_scores(
    card: Scorecard,
    question: Question,
    *,
    share: float = DEFAULT_OOD_SHARE,
    ood_tuned: Sequence[str] = (),
    level: float = 0.95,
    seed: int = 0,
) -> list[ScoreChoice]:
    """Choose a score of a scorecard for a question, and another among scores that were tuned on OOD rows.

    Validation rows select if they have the required fields: labels for mistakes, OOD validation sets for unknown rows.
    Otherwise nested folds of the test rows select.
    """
    raw = card.raw
    if raw is None:
        raise Undefined("The scorecard has no scores to choose from.")
    if unknown := [name for name in ood_tuned if name not in raw.uncertainty]:
        names_text = ", ".join(raw.uncertainty)
        raise BadInput(f"There is no score {unknown[0]!r} to be marked as tuned. There are: {names_text}.")
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
    """The best of these scores on the rows of `chooser`; None: by nested folds of `test`."""
    if chooser is not None:
        names = [name for name in names if name in chooser.names]
    if not names:
        raise Undefined("No score is defined for all rows of the question.")
    for rows in (test, chooser or test):
        if rows.smallest < MIN_ROWS:
            raise Undefined(f"A choice needs at least {MIN_ROWS} rows of each kind, got {rows.smallest}.")
    components = {name: (chooser or test).components(name) for name in names}
    best = best_by_delong(components, level)
    baseline = BASELINE if BASELINE in test.names else names[0]
    selections: dict[str, int] = {}
    if chooser is None:
        estimates = [
            _nested(test, names, baseline, np.random.default_rng([seed, repetition]), selections)
            for repetition in range(TIMES)
        ]
    else:
        estimates = [(test.components(best.name), test.components(baseline))]
    held_out, baselines, gains = zip(
        *((score, baseline_score, score - baseline_score) for score, baseline_score in estimates), strict=True
    )
    (low, high), (gain_low, gain_high) = area_interval(held_out, level), area_interval(gains, level)
    return ScoreChoice(
        question=question,
        measure=best.name,
        group=tuple(sorted(best.equals, key=lambda name: (name != best.name, -components[name].area))),
        baseline=baseline,
        value=_mean_area(held_out),
        low=max(low, 0.0),
        high=min(high, 1.0),
        naive=best.auroc,
        baseline_value=_mean_area(baselines),
        gain=_mean_area(gains),
        gain_low=gain_low,
        gain_high=gain_high,
        n=test.n,
        chosen_by=(chooser or test).n,
        folds=sum(selections.values()),
        chosen=selections,
        elsewhere=_mean_held_out_auroc(components) if chooser is None else None,
        areas={name: score.area for name, score in components.items()},
        ood_validation=chooser is not None and question != "mistakes",
        ood_tuned=ood_tuned,
    )


def _nested(
    rows: QuestionRows, names: Sequence[str], baseline: str, rng: np.random.Generator, selections: dict[str, int]
) -> tuple[DeLongComponents, DeLongComponents]:
    """Components of the score that the other folds select, fold by fold; and of the baseline."""
    folds = min(FOLDS, rows.smallest // 2)
    sizes = {"": _rows(rows.accept), **{kind: _rows(scores) for kind, scores in rows.reject.items()}}
    fold_of = {kind: rng.permutation(size) % folds for kind, size in sizes.items()}
    selected_scores, baseline_scores = [], []
    for fold in range(folds):
        in_fold = {kind: folds_of_rows == fold for kind, folds_of_rows in fold_of.items()}
        selecting_rows, held_out = rows.take({kind: ~mask for kind, mask in in_fold.items()}), rows.take(in_fold)
        areas = {name: selecting_rows.components(name).area for name in names}
        choice = max(areas, key=lambda name: areas[name])
        selections[choice] = selections.get(choice, 0) + 1
        selected_scores.append(held_out.components(choice))
        baseline_scores.append(held_out.components(baseline))
    return _concat(selected_scores), _concat(baseline_scores)


def _mean_area(folds: Sequence[DeLongComponents]) -> float:
    return float(np.mean([fold.area for fold in folds]))


def _concat(folds: Sequence[DeLongComponents]) -> DeLongComponents:
    above = {kind: np.concatenate([fold.above[kind] for fold in folds]) for kind in folds[0].above}
    return DeLongComponents(above, np.concatenate([fold.below for fold in folds]), folds[0].weights)


def _mean_held_out_auroc(components: Mapping[str, DeLongComponents]) -> float | None:
    """Mean AUROC over OOD sets, each by the score that the other sets select; None for one set."""
    means = {
        name: {kind: float(rows.mean()) for kind, rows in score.above.items() if kind != MISTAKES}
        for name, score in components.items()
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
    for measure, of_sets in by_measure.items():
        for name, u in of_sets.items():
            sets.setdefault(name, {})[measure] = u
    return sets
