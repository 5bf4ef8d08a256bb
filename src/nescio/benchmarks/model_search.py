"""Guided search of hyper-parameters, early stopping and the choice of networks, by criteria of validation images."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar, Unpack

from nescio.benchmarks.lineup import columns_of
from nescio.rows import NetworkFacts, Row, RowBuilder, merge_networks
from nescio.search import HParams, guided, searched
from nescio.trials import Training, Trial
from nescio.work.steps import Work

L = TypeVar("L", bound=Hashable)  # a line: what is searched separately
K = TypeVar("K", bound=Hashable)  # a candidate
CriterionValues = Mapping[str, tuple[float, str]]  # criterion → value, and the uncertainty score that it is of


def guided_search(
    hparam_classes: Mapping[L, type[HParams]],
    trial_of: Callable[[L, HParams, int], Trial],
    evaluate: Callable[[Sequence[Trial]], Mapping[Trial, Trial]],
    criterion: Callable[[Trial], float | None],
    count: int,
    work: Work,
    *,
    seed: int = 0,
    extension: int = 0,
) -> dict[L, list[Trial]]:
    """The trials of every line (what is searched separately), suggested by Optuna from the results of those before.

    trial_of   (line, hyper-parameters, their number) → trial
    evaluate   train and evaluate trials; trial → the same at the epoch where it stopped
    criterion  a number of an evaluated trial, higher is better; None if it has none
    extension  further trials of a line whose best value is near a bound of its range

    All draws are seeded: a second run suggests the same trials and finds them finished.
    """
    trials: dict[L, list[Trial]] = {}

    def losses(number: int, suggested: Mapping[L, HParams]) -> dict[L, float | None]:
        started = {line: trial_of(line, hparams, number) for line, hparams in suggested.items()}
        for trial in started.values():
            describe(work, columns_of(trial), hparams=format_searched(trial.hparams))
        stopped = evaluate(list(started.values()))
        values: dict[L, float | None] = {}
        for line, trial in started.items():
            trials.setdefault(line, []).append(stopped[trial])
            value = criterion(stopped[trial])
            values[line] = None if value is None else -value
        return values

    guided(hparam_classes, count, losses, seed, extension)
    extended = [trial for suggested in trials.values() for trial in suggested if trial.trial >= count]
    if extended:
        names = dict.fromkeys(f"{trial.method} ({trial.backbone})" for trial in sorted(extended, key=lambda t: t.trial))
        work.add_notes(f"The best value was at a bound of its range, and the range was extended: {', '.join(names)}.")
    return trials


def format_searched(hparams: HParams) -> str:
    """The hyper-parameters that a search varies, as text."""
    values = {name: getattr(hparams, name) for name in searched(type(hparams))}
    texts = {name: f"{value:.3g}" if isinstance(value, float) else value for name, value in values.items()}
    return ", ".join(f"{name} {text}" for name, text in texts.items())


def checkpoint_epochs(training: Training, count: int) -> tuple[int, ...]:
    """The epochs before the last of `count` evenly spaced ones, at which a training may stop."""
    last = training.epochs
    return tuple(sorted({round(last * number / count) for number in range(1, count)} - {0, last}))


def stop_early(
    trials: Iterable[Trial],
    evaluate: Callable[[Sequence[Trial]], None],
    criterion: Callable[[Trial], float | None],
    work: Work,
) -> dict[Trial, Trial]:
    """Every trial at the checkpoint with the highest criterion; the last one if none has a criterion, or in a tie."""
    ends = {trial: [*(replace(trial, stop=epoch) for epoch in trial.kept), trial] for trial in trials}
    evaluate([end for checkpoints in ends.values() if len(checkpoints) > 1 for end in checkpoints])

    def value(end: Trial) -> float:
        number = criterion(end)
        return -math.inf if number is None else number

    best = {
        trial: max(reversed(checkpoints), key=value) if len(checkpoints) > 1 else trial
        for trial, checkpoints in ends.items()
    }
    for trial, end in best.items():
        if trial.kept:
            describe(work, columns_of(end), stopped_epoch=epoch_of(end))
    return best


def epoch_of(trial: Trial) -> int:
    """The number of epochs after which the weights of a trial were taken."""
    return trial.stop or trial.training.epochs


def choose(
    candidates: Mapping[K, Row], values: Mapping[K, CriterionValues | None], criteria: Iterable[str], work: Work
) -> dict[str, K]:
    """Criterion → the candidate with the highest value, which is added to the facts about networks.

    candidates  their columns
    """
    criterion_values = {key: values[key] or {} for key in candidates}
    chosen: dict[str, K] = {}
    names: dict[K, list[str]] = {}
    for criterion in criteria:
        numbers = {key: value[criterion][0] for key, value in criterion_values.items() if criterion in value}
        if numbers:
            best = chosen[criterion] = max(numbers, key=lambda key: numbers[key])
            names.setdefault(best, []).append(criterion)
    for key, chosen_by in names.items():
        _, measure = next(iter(criterion_values[key].values()))
        describe(work, candidates[key], chosen_by=", ".join(chosen_by), chosen_measure=measure)
    return chosen


def describe(work: Work, columns: Row, **facts: Unpack[NetworkFacts]) -> None:
    """Add facts about the network with these columns."""
    builder = RowBuilder(columns)
    builder.describe(**facts)
    work.networks = merge_networks([*work.networks, *builder.networks])
