"""Candidates, each some sibling networks, scored on the same unlabelled rows and ranked: which representation to trust.

A candidate is the embeddings of its members: of test rows, and of references, which lie apart or are a part of the
test rows. Siblings are networks of one algorithm and other seeds; where there are two or more, neighbourhood
consistency (NC) says how far they agree about a row. Every number is a mean over rows, so that one paired bootstrap
judges all of them.
Source: Park, Wang, Ardeshir and Azizan 2024, §4.3 (ranking, Table 3) and §4.4 (why a lone model needs siblings).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nescio.analysis.bootstrap import Asked, draw, interval
from nescio.analysis.comparison import Comparison, _check, _judge
from nescio.errors import BadInput, Undefined
from nescio.identity import seed_for
from nescio.measures.siblings import SCORES, Scores, Similarity, kind, rankings_agree, scores_of
from nescio.metrics import Metric, kendall
from nescio.predictions.dump import Predictions, _check_same_keys, join
from nescio.work.progress import track

if TYPE_CHECKING:
    from nescio.protocols.reliability import Truth

Array = NDArray[Any]
MOST = 5000  # references, as in the paper, where they are a part of the rows
K = 100  # neighbours of NC …
SHARE = 20  # … or one for so many references, where there are fewer than K · SHARE
RESAMPLES = 1000
SAME = 1e-12  # a distance that is rounding
TOLD = {  # score → (its name, which way is more reliable, what it is)
    "nc": ("NC", "higher", "how far siblings agree on which references are nearest to a row, from 0 to 1"),
    "dist": ("Dist", "lower", "distance to the nearest references"),
    "norm": ("Norm", "higher", "length of the embedding"),
    "ll": ("LL", "higher", "log-likelihood under a mixture fitted to the references"),
    "fv": ("FV", "lower", "variance of the embedding between siblings"),
    "first": ("first", "higher", "share of the rows on which it has the highest NC, ties shared"),
    "place": ("mean place", "lower", "its place by NC, row by row, on average; ties get the mean of their places"),
    "brier": ("Brier", "lower", "of downstream heads: squared error of the probabilities"),
    "entropy": ("entropy", "lower", "of downstream heads, in nats"),
    "variance": ("variance", "lower", "of downstream heads between siblings"),
}
LOSSES = ("brier", "entropy", "variance")


@dataclass(frozen=True)
class How:
    """How rows are scored. k None: `usual_k`. split None: the rows are halved, and each half judges the other."""

    k: int | None = None
    k_dist: int = 1
    metric: str = "cosine"
    similarity: Similarity = "jaccard"
    components: int = 20  # of LL's mixture; 0: no LL
    split: int | None = None
    seed: int = 0  # of the division and of the mixture's start
    tasks: str = "one-vs-one"  # downstream

    def __post_init__(self) -> None:
        for name, least in (("k", 1), ("k_dist", 1), ("components", 0), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise BadInput(f"--{name.replace('_', '-')} is {value}; it must be a whole number from {least} on.")


def usual_k(references: int) -> int:
    """100 as in the paper, or a twentieth of the references where there are fewer than 2,000."""
    return min(K, math.ceil(references / SHARE))


def chance(k: int, references: int, similarity: str) -> float:
    """About the NC of members that have nothing to do with each other: their neighbours meet by chance."""
    return k / references if similarity == "overlap" else k / (2 * references - k)


# ---- embeddings


@dataclass(frozen=True, eq=False)
class Candidate:
    """A name and the embeddings of its members, one dump each, of the same rows in the same order."""

    name: str
    tests: Sequence[Predictions]
    refs: Sequence[Predictions] | None = None  # None: a part of the test rows
    train: Sequence[Predictions] | None = None  # labelled rows for downstream heads
    origin: str = "files"

    @property
    def members(self) -> int:
        return len(self.tests)

    @property
    def features(self) -> list[int]:
        """d of every member, each once."""
        return sorted({int(np.asarray(each.embeddings).shape[1]) for each in self.tests})


def read(files: Sequence[str | Path]) -> list[Predictions]:
    """Embeddings of the same rows, one file a member; rows come in the order of the first."""
    places = [Path(file).expanduser().resolve() for file in files]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise BadInput(f"{files[number]} is given twice: a model always agrees with itself.")
    return in_one_order([embeddings_of(file) for file in files], [str(file) for file in files])


def embeddings_of(file: str | Path) -> Predictions:
    """Index, embeddings and labels of a file, without the rest."""
    held = _array(Path(file)) if str(file).lower().endswith(".npy") else Predictions.load(file)
    if held.embeddings is None:
        there = ", ".join(name for name, _ in held.columns() if name != "index")
        raise BadInput(f"{file} holds no embeddings (n, d), only {there}: NC and its kin compare representations.")
    return Predictions(index=held.index, labels=held.labels, embeddings=held.embeddings)


def _array(path: Path) -> Predictions:
    """A .npy file holds one array without a name, which here can only be the embeddings."""
    from nescio.predictions.files import _naming

    with _naming(path, "read"):
        try:
            return Predictions(embeddings=np.load(path, allow_pickle=False))
        except ValueError as error:
            raise BadInput(f"it is no array of numbers ({error}).") from None


def in_one_order(dumps: Sequence[Predictions], names: Sequence[str]) -> list[Predictions]:
    """The dumps with their rows in the order of the first; all must hold the same rows, and each its own numbers."""
    first, found = dumps[0], [dumps[0]]
    for each, name in zip(dumps[1:], names[1:], strict=True):
        _check_same_keys(first.index, each.index)
        if not np.array_equal(each.index, first.index):
            odd = np.setxor1d(each.index, first.index)
            if len(odd):
                raise BadInput(
                    f"{name} holds other rows than {names[0]}: {len(odd)} are in one of them only, index {odd[0]} "
                    "first. Members must describe the same images."
                )
            each = each.select(first.index)
        for other, word in zip(found, names, strict=False):
            if _same(each, other):
                raise BadInput(f"{name} and {word} hold the same embeddings: a model always agrees with itself.")
        if each.labels is not None and first.labels is not None and not np.array_equal(each.labels, first.labels):
            at = int(np.argmax(each.labels != first.labels))
            raise BadInput(f"{name} and {names[0]} have different labels at index {first.index[at]}.")
        found.append(each)
    return found


def _same(one: Predictions, other: Predictions) -> bool:
    a, b = np.asarray(one.embeddings), np.asarray(other.embeddings)
    return a.shape == b.shape and np.array_equal(a[:16], b[:16]) and np.array_equal(a, b)


# ---- which rows are references, which are asked about


Parts = list[tuple[Array, Array]]  # keys of the references and of the rows that they judge


def divide(keys: Array, split: int | None, seed: int) -> Parts:
    """Some of the rows as references of the others; or two halves, at most 5,000 of each the references of the other.

    Which rows these are depends on their keys and the seed, not on their order. By raw bits of PCG64, because NumPy may
    change its permutations.
    """
    n, keys = len(keys), np.sort(keys)
    order = keys[np.argsort(np.random.PCG64(seed_for("references", seed)).random_raw(n), kind="stable")]
    if split is not None:
        if not 0 < split < n:
            raise BadInput(
                f"--split-references is {split}, and there are {n} rows: it must leave some of them to be judged."
            )
        return [(order[:split], order[split:])]
    if n < 4:
        raise BadInput(f"There are only {n} rows: give references apart, or more rows.")
    count = min(MOST, n // 2)
    first, second = order[: n // 2], order[n // 2 :]
    return [(first[:count], second), (second[:count], first)]


def shared(candidates: Sequence[Candidate]) -> Array:
    """Keys of the test rows that all candidates hold, in the order of the first."""
    light = [Predictions(index=each.tests[0].index, taught=True) for each in candidates]
    for each, held in zip(candidates, light, strict=True):
        if (held.index.dtype.kind == "U") != (light[0].index.dtype.kind == "U"):
            raise BadInput(
                f"The index of {each.name} and that of {candidates[0].name} are of two kinds, text and numbers."
            )
    return join(light)[0].index


@dataclass(frozen=True, eq=False)
class Division:
    """The rows that are judged, and against which references."""

    keys: Array  # (n,) rows that get a score
    parts: Parts  # for candidates without references of their own
    references: int  # the fewest that any row is judged against
    notes: tuple[str, ...] = ()


def division(candidates: Sequence[Candidate], how: How) -> Division:
    """The rows of all candidates; where references are a part of them, the same part for all."""
    keys, notes = shared(candidates), []
    lost = max(len(each.tests[0]) for each in candidates) - len(keys)
    if lost:
        notes.append(f"{len(keys):,} rows are judged, which all candidates hold; up to {lost:,} rows of one are not.")
    apart = [each for each in candidates if each.refs is not None]
    counts = [len(each.refs[0]) for each in apart if each.refs is not None]
    parts: Parts = []
    if len(apart) < len(candidates):
        parts = divide(keys, how.split, how.seed)
        keys = keys[np.isin(keys, np.concatenate([tests for _, tests in parts]))]
        counts += [len(refs) for refs, _ in parts]
    elif how.split is not None:
        raise BadInput("--split-references takes references from the rows, and references are given apart: drop one.")
    for each in apart:
        assert each.refs is not None
        own, first = each.refs[0].index, apart[0].refs[0].index  # type: ignore[index]
        if parts or not np.array_equal(np.sort(own), np.sort(first)):
            notes.append("The candidates were judged against different references: compare their NC with care.")
            break
    return Division(keys, parts, min(counts), tuple(notes))


def neighbours(rows: Division, how: How) -> int:
    """k of NC; no k may be larger than the number of references."""
    k = usual_k(rows.references) if how.k is None else how.k
    for name, value in (("k", k), ("k-dist", how.k_dist)):
        if value > rows.references:
            raise BadInput(
                f"--{name} is {value}, but there are only {rows.references} references: choose a smaller one, or give "
                "more of them."
            )
    return k


# ---- scores


def scored(candidate: Candidate, rows: Division, k: int, how: How) -> Scores:
    """The scores of a candidate, in the order of the keys."""

    if how.metric == "cosine":
        _check_lengths(candidate)

    def scores(refs: Sequence[Predictions], keys: Array) -> Scores:
        tests = [each.select(keys) for each in candidate.tests]
        try:
            return scores_of(
                refs,
                tests,
                metric=how.metric,
                k_nc=(k,),
                k_dist=(how.k_dist,),
                components=how.components,
                similarity=how.similarity,
                seed=how.seed,
            )
        except BadInput as error:
            raise BadInput(f"{candidate.name}: {error}" if candidate.name else str(error)) from None

    if candidate.refs is not None:
        return scores(candidate.refs, rows.keys)
    found = [scores([each.select(refs) for each in candidate.tests], keys) for refs, keys in rows.parts]
    order = _order(np.concatenate([each.index for each in found]), rows.keys)
    names = [name for name in found[0].u if all(name in each.u for each in found)]
    reasons = {name: reason for each in found for name, reason in each.reasons.items()}
    u = {name: np.concatenate([each.u[name] for each in found])[order] for name in names}
    return Scores(rows.keys, u, reasons, found[0].members)


def _check_lengths(candidate: Candidate) -> None:
    for what, dumps in (("row", candidate.tests), ("reference", candidate.refs or ())):
        for member, each in enumerate(dumps):
            zero = np.flatnonzero(~np.asarray(each.embeddings).any(1))
            if len(zero):
                raise BadInput(
                    f"The embedding of the {what} of index {each.index[zero[0]]} by member {member} of "
                    f"{candidate.name or 'the models'} has length zero, so that it has no cosine: leave that row out, "
                    "or take the Euclidean distance."
                )


def own_references(found: Scores) -> list[str]:
    """A warning where rows lie on a reference: they may be their own neighbours."""
    count = int((found.u["dist@1"] < SAME).sum()) if "dist@1" in found.u else 0
    if not count:
        return []
    return [f"{count:,} rows lie on a reference: if they are among the references, their NC looks better than it is."]


def _order(keys: Array, wanted: Array) -> Array:
    order = np.argsort(keys, kind="stable")
    return np.asarray(order[np.searchsorted(keys, wanted, sorter=order)])


def natural(name: str, u: Array) -> Array:
    """A score as the paper has it: NC, distance, length, log-likelihood, variance; TOLD says which way is better."""
    return 1 - u if kind(name) == "nc" else -u if kind(name) in ("norm", "ll") else u


def title(name: str) -> str:
    """nc@100 → NC@100 ↑."""
    word, better, _ = TOLD[kind(name)]
    return f"{word}{name.removeprefix(kind(name))} {'↑' if better == 'higher' else '↓'}"


def by_paper(names: Iterable[str]) -> list[str]:
    """Scores in the paper's order."""
    return sorted(dict.fromkeys(names), key=lambda name: SCORES.index(kind(name)))


def columns_of(found: Scores) -> dict[str, Array]:
    """For a file: index, nc (higher = more reliable), and every score as u_NAME, higher = less reliable."""
    u = {kind(name): found.u[name] for name in by_paper(found.u)}
    nc = {"nc": 1 - u["nc"]} if "nc" in u else {}
    return {"index": found.index, **nc} | {f"u_{name}": values for name, values in u.items()}


# ---- downstream


def truth(candidate: Candidate, rows: Division, tasks: str) -> Truth:
    """Losses of optimal heads on the candidate's features (Definition 1), in the order of the keys.

    The heads learn from the labelled rows of `train`, else from the references that are a part of the rows: each half
    teaches the heads that judge the other.
    """
    from nescio.protocols.reliability import Truth, truth_of

    def losses(train: Sequence[Predictions], keys: Array) -> Truth:
        return truth_of(train, [each.select(keys) for each in candidate.tests], tasks)

    if candidate.train is not None:
        return losses(candidate.train, rows.keys)
    if candidate.refs is not None:
        raise Undefined(f"{candidate.name} has no labelled rows from which downstream heads could learn.")
    found = [losses([each.select(refs) for each in candidate.tests], keys) for refs, keys in rows.parts]
    order = _order(np.concatenate([each.index for each in found]), rows.keys)
    whole = {name: np.concatenate([each.losses[name] for each in found])[order] for name in found[0].losses}
    own = {name: np.concatenate([each.own[name] for each in found], axis=1)[:, order] for name in found[0].own}
    return Truth(rows.keys, whole, own)


def has_labels(candidates: Sequence[Candidate]) -> bool:
    """Whether heads can be taught and judged for all of them."""
    return all(
        each.tests[0].labels is not None
        and (each.refs is None if each.train is None else each.train[0].labels is not None)
        for each in candidates
    )


# ---- the ranking


@dataclass
class Ranked:
    """Candidates in the order of their NC, the most reliable first, those without NC last.

    rows        one a candidate and quantity, as a `Comparison` has them: method, metric, value, low, high,
                rank, best. Metrics: the scores as the paper has them, first and place by NC, losses of heads.
    agreement   dicts `score, loss, tau, low, high, n, average, candidates`: Table 3, and τ of the order on average
    """

    candidates: list[Candidate]
    rows: Division
    k: int
    how: How
    comparison: Comparison
    scores: dict[str, Scores]
    truths: dict[str, Truth] = field(default_factory=dict)
    agreement: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def nc(self) -> str:
        return f"nc@{self.k}"

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.candidates]

    @property
    def group(self) -> list[str]:
        """The best by NC and those that cannot be told from it."""
        return [name for name in self.names if (row := self.row(name, self.nc)) is not None and row["best"]]

    def row(self, name: str, metric: str) -> dict[str, Any] | None:
        return next((r for r in self.comparison.rows if (r["method"], r["metric"]) == (name, metric)), None)

    def difference(self, name: str) -> dict[str, Any] | None:
        """How far its NC is from the best one's."""
        return next(
            (d for d in self.comparison.differences if (d["model"], d["metric"]) == (name, self.nc)),
            None,
        )

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys(str(row["metric"]) for row in self.comparison.rows))


def rank(
    candidates: Sequence[Candidate],
    how: How | None = None,
    *,
    labels: bool = True,
    resamples: int | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> Ranked:
    """Scores every candidate on the rows that all of them hold, and ranks them by mean NC.

    A resample draws the same rows for all, so that a difference between two candidates is judged without the noise
    that they share; the group that cannot be told from the best is `compare`'s. `labels`: compare with the losses of
    downstream heads where there are labels. `resamples` None: 1,000, or more where Holm's first step needs them.
    """
    how = how or How()
    if resamples is None:
        resamples = max(RESAMPLES, math.ceil(2 * len(candidates) / (1 - level)) if 0 < level < 1 else 0)
    _check(resamples, level, seed)
    names = [each.name for each in candidates]
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadInput(f"Two candidates are called {twice[0]!r}: give them names, NAME=….")
    rows = division(candidates, how)
    k = neighbours(rows, how)
    scores = {each.name: scored(each, rows, k, how) for each in track(candidates, "candidates")}
    if not any(each.u for each in scores.values()):
        raise BadInput("There is nothing to rank. " + next(iter(scores[names[0]].reasons.values())))
    notes = [*rows.notes, *(f"{who}: {note}" for who, each in scores.items() for note in own_references(each))]
    notes += [f"{who} is not ranked. {next(iter(each.reasons.values()))}" for who, each in scores.items() if not each.u]
    if k == rows.references:
        notes.append(f"Every reference is one of the {k} nearest, so that NC is 1 whatever the models say: lower --k.")
    truths: dict[str, Truth] = {}
    if labels and has_labels(candidates):
        _same_labels(candidates, rows)
        try:
            truths = {each.name: truth(each, rows, how.tasks) for each in track(candidates, "downstream heads")}
        except BadInput as reason:
            if any(each.train is not None for each in candidates):
                raise
            notes.append(f"There is no comparison with downstream heads. {reason}")
    comparison = Comparison(tuple(names), len(rows.keys), resamples, level, seed)
    _means(comparison, _quantities(scores, truths, f"nc@{k}"))
    notes += dict.fromkeys(str(each["reason"]) for each in comparison.reasons)
    found = Ranked(
        list(candidates), rows, k, how, comparison, scores, truths, _table_3(scores, truths, comparison), notes
    )
    order = {name: row["rank"] for name in names if (row := found.row(name, found.nc)) is not None}
    found.candidates.sort(key=lambda each: order.get(each.name, math.inf))
    return found


def _same_labels(candidates: Sequence[Candidate], rows: Division) -> None:
    first = candidates[0].tests[0].select(rows.keys).labels
    for each in candidates[1:]:
        differ = np.flatnonzero(np.asarray(each.tests[0].select(rows.keys).labels) != np.asarray(first))
        if len(differ):
            raise BadInput(
                f"{each.name} and {candidates[0].name} have different labels in {len(differ)} shared rows, first at "
                f"index {rows.keys[differ[0]]}; the same index must mean the same image."
            )


def _quantities(scores: Mapping[str, Scores], truths: Mapping[str, Truth], nc: str) -> dict[str, dict[str, Array]]:
    """Metric → candidate → a number for every row."""
    found = {
        name: {who: natural(name, each.u[name]) for who, each in scores.items() if name in each.u}
        for name in by_paper(name for each in scores.values() for name in each.u)
    }
    if len(found.get(nc, {})) > 1:
        places, first = _places(np.stack([scores[who].u[nc] for who in found[nc]]))
        found["first"], found["place"] = (dict(zip(found[nc], each, strict=True)) for each in (first, places))
    for loss in LOSSES:
        if held := {who: each.losses[loss] for who, each in truths.items() if loss in each.losses}:
            found[loss] = held
    return found


def _places(u: Array) -> tuple[Array, Array]:
    """(c, n) in every row the place of each candidate, ties at the mean of their places; and its share of the first."""
    below, equal = ((u[None] < u[:, None]).sum(1), (u[None] == u[:, None]).sum(1))
    least = u == u.min(0)
    return 1 + below + (equal - 1) / 2, least / least.sum(0)


def _means(comparison: Comparison, values: Mapping[str, Mapping[str, Array]]) -> None:
    """Adds rows and differences of the means of all quantities, on the same resamples."""
    held = np.stack([each for own in values.values() for each in own.values()])
    n = held.shape[1]
    samples = np.empty((comparison.resamples, len(held)))
    for number in track(range(comparison.resamples), "resamples"):
        samples[number] = held @ draw(n, comparison.seed, number) / n
    columns = iter(samples.T)
    for name, own in values.items():
        word, better, _ = TOLD[kind(name)]
        metric = Metric(word, _nothing, ("other",), better, False)  # type: ignore[arg-type]
        _judge(
            comparison,
            Asked(name, metric, {}),
            None,
            {who: (float(each.mean()), next(columns)) for who, each in own.items()},
        )


def _nothing() -> None:
    """A mean over rows."""


def _table_3(scores: Mapping[str, Scores], truths: Mapping[str, Truth], comparison: Comparison) -> list[dict[str, Any]]:
    """Kendall's τ between the order of the candidates by a score and by a downstream loss, row by row; its mean."""
    if len(truths) < 2:
        return []
    # all scores rank the same candidates: those with siblings, unless there are too few of them
    there = [each for each in scores if scores[each].u]
    kin = [each for each in there if scores[each].members > 1]
    who = kin if len(kin) > 1 else there
    if len(who) < 2:
        return []
    found = []
    for name in by_paper(name for each in who for name in scores[each].u):
        for loss in LOSSES:
            if not all(name in scores[each].u and loss in truths[each].losses for each in who):
                continue
            u = np.stack([scores[each].u[name] for each in who])
            losses = np.stack([truths[each].losses[loss] for each in who])
            try:
                taus = rankings_agree(u, losses)
            except Undefined:
                continue
            again = [taus @ draw(len(taus), comparison.seed, b) / len(taus) for b in range(comparison.resamples)]
            low, high = interval(np.array(again), comparison.level)
            found.append(
                {"score": name, "loss": loss, "tau": float(taus.mean()), "low": low, "high": high, "n": len(taus)}
                | {"average": _average(u, losses), "candidates": who}
            )
    return found


def _average(u: Array, losses: Array) -> float | None:
    """τ between the order by mean score and by mean loss."""
    try:
        return kendall(u.mean(1), losses.mean(1))
    except Undefined:
        return None


# ---- files of scores


def table_of(found: Ranked) -> dict[str, list[Any]]:
    """One line a candidate and row: candidate, index, nc, u_…, place by NC in this row, loss_…; None where missing."""
    every = [_columns(found, each.name) for each in found.candidates]
    names = list(dict.fromkeys(name for columns in every for name in columns))
    n = len(found.rows.keys)
    held: dict[str, list[Any]] = {"candidate": [name for name in found.names for _ in range(n)]}
    for name in names:
        held[name] = [value for own in every for value in (own[name].tolist() if name in own else [None] * n)]
    return held


def arrays_of(found: Ranked) -> dict[str, Array]:
    """index, and CANDIDATE/COLUMN of everything that a candidate has."""
    held = {"index": found.rows.keys}
    for name in found.names:
        held |= {f"{name}/{column}": values for column, values in _columns(found, name).items() if column != "index"}
    return held


def _columns(found: Ranked, name: str) -> dict[str, Array]:
    columns = columns_of(found.scores[name])
    rivals = [each for each in found.scores if found.nc in found.scores[each].u]
    if len(rivals) > 1 and name in rivals:
        places, _ = _places(np.stack([found.scores[each].u[found.nc] for each in rivals]))
        columns["place"] = places[rivals.index(name)]
    if name in found.truths:
        columns |= {f"loss_{loss}": values for loss, values in found.truths[name].losses.items()}
    return columns


def save_columns(path: str | Path, table: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> Path:
    """Writes a table as .csv or .parquet, arrays (by default its columns) as .npz; what is None is left empty."""
    from nescio.predictions.files import _beside, _flush, _naming

    goal = Path(path)
    writers = {".csv": _write_csv, ".parquet": _write_parquet, ".npz": _write_npz}
    if goal.suffix.lower() not in writers:
        raise BadInput(f"{goal}: the ending {goal.suffix or '(none)'} is not known: use .csv, .parquet or .npz.")
    held = (arrays or table) if goal.suffix.lower() == ".npz" else table
    with _naming(goal, "written"), _beside(goal) as part, part.open("xb") as file:
        writers[goal.suffix.lower()](held, file)
        _flush(file)
    return goal


def _write_csv(table: Mapping[str, Any], file: Any) -> None:
    import io

    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    columns = [values.tolist() if isinstance(values, np.ndarray) else values for values in table.values()]
    writer.writerows(["" if value is None else value for value in line] for line in zip(*columns, strict=True))
    text.detach()


def _write_parquet(table: Mapping[str, Any], file: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({name: pa.array(values) for name, values in table.items()}), file)


def _write_npz(arrays: Mapping[str, Any], file: Any) -> None:
    np.savez(file, allow_pickle=False, **{name: np.asarray(values) for name, values in arrays.items()})
