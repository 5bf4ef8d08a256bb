"""Graded class-out-of-distribution detection: out-classes from easy to hard for each model and its own confidence.

For every (model, κ): the severity of an out-class is its mean confidence over estimation images; classes are sorted by
severity; windows of as many classes as the in-data has slide over them; eleven windows, from the easiest to the hardest
in equal steps, are the severities 0 to 10; each gives one AUROC of its test images against the in-domain images.
Source: Galil, Dabbah and El-Yaniv 2023, §4, appendices L and M.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nescio import measures, metrics
from nescio.errors import BadInput, Undefined
from nescio.identity import seed_for, tag, to_json
from nescio.measures._softmax import summary
from nescio.metrics._ranking import as_scores
from nescio.predictions import Predictions
from nescio.protocols._evaluations import Evaluation, Job, Say, Study, do, read, record, table
from nescio.protocols.cood import hierarchy
from nescio.protocols.cood.hierarchy import ORDERS
from nescio.protocols.selective import MC_DROPOUT, judged
from nescio.rows import COLUMNS, Row
from nescio.work.local import Crew, Task
from nescio.work.store import Store

if TYPE_CHECKING:
    from nescio.predictions.entries import Entry

NAME, VERSION = "cood", 2
Array = NDArray[Any]
Names = tuple[Sequence[str], Sequence[str]]  # of the in-classes and of the out-classes, class 0 first
CLASSES, ABOUT = "classes.npz", "about.json"  # beside the rows of one model: which classes it got, and what to know
SEVERITY = "severity "  # before the number, in the column `group`
LISTED = 10  # images that most models get wrong alike
FACTS = ("input_size", "embedding_size")  # of a model, as rows


@dataclass(frozen=True)
class Pair:
    """What one model says about in-domain images, and about images of classes it was never taught."""

    model: str
    inside: Entry
    outside: Entry
    others: Mapping[str, Entry] = field(default_factory=dict, hash=False)  # fixed out-sets, such as ImageNet-O


@tag("plan:cood")
@dataclass(frozen=True)
class Plan:
    """How out-classes are divided and graded."""

    estimation: int = 150  # images of each out-class by which its severity is estimated …
    test: int = 50  # … and others by which detection is tested
    severities: int = 11
    window: int | None = None  # classes of a group; None: as many as the in-data has (see `window_of`)
    measures: tuple[str, ...] = ("largest", "entropy", MC_DROPOUT)
    hierarchy: str | None = None  # an is-a file: out-classes above or below an in-class are left out
    order: str = ORDERS[0]  # of the names on a line of it
    seed: int = 0

    def check(self) -> None:
        least = {"estimation": 1, "test": 1, "severities": 2, "window": 1, "seed": 0}
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise BadInput(f"--{name} must be at least {low}, not {value}.")
        if not self.measures:
            raise BadInput("There is no measure to grade by: name some with --measures.")
        for name in self.measures:
            if name != MC_DROPOUT and measures.registry[name].kind != "plain":
                raise BadInput(f"{name} is fitted on reference rows or several networks: it cannot grade one dump.")
        if self.hierarchy is not None:
            hierarchy.read(self.hierarchy, self.order)


# ---- the division: which images estimate, and which test


@dataclass(frozen=True, eq=False)
class Division:
    """The out-classes that take part, and their images; k classes, e images for estimation and t for test of each."""

    classes: Array  # (k,) class ids, rising
    estimation: Array  # (k, e) rows
    test: Array  # (k, t) rows
    scarce: int = 0  # classes that have too few images


def divide(
    labels: Any, index: Any, estimation: int = 150, test: int = 50, seed: int = 0, refused: Iterable[int] = ()
) -> Division:
    """Takes `estimation` and `test` images of every class that has so many, whatever their order in the dump.

    Every image draws a number, a function of its key in `index` and the seed alone; the lowest of a class estimate, the
    next ones test, the rest are not used. So all models, and all dumps that hold the same images, are divided alike.
    """
    classes, kind, counts = _counted(np.asarray(labels))
    bits = max(1, int(len(classes) - 1).bit_length())
    key = kind.astype(np.uint64) << np.uint64(64 - bits)
    key |= _drawn(np.asarray(index), seed) >> np.uint64(bits)
    order = np.argsort(key)
    need = estimation + test
    enough, allowed = counts >= need, ~np.isin(classes, list(refused))
    kept = enough & allowed
    if not kept.any():
        raise BadInput(_too_few(counts[allowed], need, estimation, test))
    starts = (np.cumsum(counts) - counts)[kept]
    rows = order[starts[:, None] + np.arange(need)]
    return Division(classes[kept], rows[:, :estimation], rows[:, estimation:], int((allowed & ~enough).sum()))


def _counted(labels: Array) -> tuple[Array, Array, Array]:
    """np.unique with places and counts; class ids are small numbers almost always, and need no sort then."""
    low, high = int(labels.min()), int(labels.max())
    if high - low > 10 * len(labels):
        return np.unique(labels, return_inverse=True, return_counts=True)
    counts = np.bincount(labels - low)
    held = np.flatnonzero(counts)
    place = np.cumsum(counts > 0) - 1
    return held + low, place[labels - low], counts[held]


def _too_few(counts: Array, need: int, estimation: int, test: int) -> str:
    if not len(counts):
        return "No out-class is left: every one is an in-class, or above or below one in the hierarchy."
    most = int(counts.max())
    asked = f"No out-class has {need} images ({estimation} to estimate its severity, {test} to test)"
    if most < 2:
        return f"{asked}: none has two, and one of each is needed at least."
    share = min(max(1, round(most * estimation / need)), most - 1)
    return f"{asked}; the largest has {most}. Ask for fewer, for instance --estimation {share} --test {most - share}."


def _drawn(index: Array, seed: int) -> Array:
    """(n,) 64-bit numbers that look random: a function of each key and the seed alone."""
    if index.dtype.kind == "U":
        even = index.astype(f"U{-(-index.dtype.itemsize // 8) * 2}", order="C")  # two letters make 64 bits
        held = np.zeros(len(index), np.uint64)
        for letters in even.view(np.uint64).reshape(len(index), -1).T:  # zeros fill up short texts, and must not count
            held = np.where(letters == 0, held, _mixed(held + letters))
    else:
        held = index.astype(np.int64).view(np.uint64)
    return _mixed(held ^ np.uint64(seed_for(NAME, "division", seed)))


def _mixed(z: Array) -> Array:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): one-to-one, and every bit moves every other."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


# ---- the grades: severities, windows, AUROCs


@dataclass(frozen=True, eq=False)
class Grades:
    """The out-classes in order of severity, and the groups among them, for one model and one κ."""

    order: Array  # (k,) positions in Division.classes, the easiest class first
    severity: Array  # (k,) of every class, in order of Division.classes
    window: int  # classes of a group
    starts: Array  # (g,) where each group begins in `order`
    severities: Array  # (g,) of the groups
    aurocs: tuple[float, ...]  # of in against out, one a group

    def group(self, level: int) -> Array:
        """Positions in Division.classes of the group at a level."""
        start = int(self.starts[level])
        return self.order[start : start + self.window]


def class_severities(u: Any, estimation: Array) -> Array:
    """(k,) mean confidence, −u, over the estimation images (k, e) of each class: s(y|f, κ) of appendix L.2.

    The sum is divided by the number of estimation images, not by all images of the class.
    """
    return np.asarray(-np.asarray(u)[estimation].mean(axis=1))


def window_severities(severity: Array, window: int) -> Array:
    """(k − window + 1,) mean severity of every window of neighbours, by one cumulative sum; `severity` is sorted."""
    total = np.concatenate([[0.0], np.cumsum(severity)])
    return np.asarray((total[window:] - total[:-window]) / window)


def levels(windows: int, severities: int = 11) -> list[int]:
    """Which window each severity takes: round(i·(G − 1)/10) of G windows, the percentiles 0, 10 … 100."""
    return [round(i * (windows - 1) / (severities - 1)) for i in range(severities)]


def grade(u_in: Any, u_out: Any, division: Division, window: int, severities: int = 11) -> Grades:
    """Severity groups of one model and one κ, and the AUROC of each; u_in (m,), u_out (n,), higher = less sure.

    Windows of a sorted list are sorted by their means. The in-domain rows are sorted once: an out-row's place among
    them is how many pairs it wins, so that a class is one whole number and a group a difference of cumulative sums.
    """
    u_in, u_out = np.sort(as_scores(u_in, "u_in")), as_scores(u_out, "u_out")
    severity = class_severities(u_out, division.estimation)
    order = np.argsort(severity, kind="stable")  # classes stand in order of their ids, so that ties do
    means = window_severities(severity[order], window)
    starts = np.array(levels(len(means), severities))
    won = np.concatenate([[0], np.cumsum(_won_twice(u_in, u_out[division.test])[order])])
    pairs = 2 * len(u_in) * window * division.test.shape[1]
    aurocs = tuple(int(won[at + window] - won[at]) / pairs for at in starts)
    return Grades(order, severity, window, starts, means[starts], aurocs)


def _won_twice(u_in: Array, u_out: Array) -> Array:
    """(k,) twice the pairs in which an out-row (k, t) has the higher u, ties counted half; `u_in` is sorted."""
    flat = u_out.reshape(-1)
    order = np.argsort(flat)  # places that rise are found several times faster
    rising = flat[order]
    below = np.searchsorted(u_in, rising)
    tied = u_in[np.minimum(below, len(u_in) - 1)] == rising
    twice = np.empty(len(flat), np.int64)
    twice[order] = 2 * below
    twice[order[tied]] = below[tied] + np.searchsorted(u_in, rising[tied], side="right")
    return np.asarray(twice.reshape(u_out.shape).sum(axis=1))


def window_of(plan: Plan, inside: int, outside: int) -> int:
    """Classes of a group: as asked, else as many as the in-data has (Galil et al. 2023).

    Where there are no more out-classes than that, one window would be all: then half of the out-classes.
    """
    if outside < 2:
        raise BadInput("One out-class is left: with a single one there is nothing to grade.")
    if plan.window is None:
        return inside if inside < outside else outside // 2
    if plan.window > outside:
        raise BadInput(f"--window {plan.window} is more than the {outside} out-classes that are left.")
    return plan.window


# ---- one model


def uncertainty(dump: Predictions, measure: str) -> Array:
    """u (n,) by the measure's name; mc-dropout is the entropy of the mean softmax over passes with dropout."""
    answers, name = judged(dump, measure)
    return np.asarray(measures.registry[name].function(answers))


@dataclass
class _Maker:
    """Makes the rows of one pair."""

    plan: Plan
    pair: Pair
    refused: tuple[int, ...]
    rows: list[Row] = field(default_factory=list)
    reasons: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    chosen: dict[str, Array] = field(default_factory=dict)

    def files(self) -> dict[str, bytes]:
        inside = Predictions.load(self.pair.inside.place)
        outside = self._outside(self.pair.outside, inside)
        known = _known(inside)
        self._facts(inside, known)
        labels = outside.labels
        if labels is None:
            raise BadInput(f"{self.pair.outside.place}: out-classes are graded by their labels, and there are none.")
        rows = _untaught(outside, self.pair.outside)
        plan = self.plan
        division = divide(labels[rows], outside.index[rows], plan.estimation, plan.test, plan.seed, self.refused)
        k = len(division.classes)
        taught = inside.classes if inside.labels is None else len(np.unique(inside.labels[known]))
        window = window_of(plan, taught, k)
        self._note(division, window, taught)
        self.row("out_classes", k, k, split="out")
        self.row("window", window, k, split="out")
        self.chosen = {"classes": division.classes.astype(np.int32), "window": np.array(window)}
        fixed = {name: self._outside(entry, inside) for name, entry in sorted(self.pair.others.items())}
        for measure in plan.measures:
            try:
                own, name = judged(inside, measure)
                u_in = np.asarray(measures.registry[name].function(own))[known]
                u_out = uncertainty(outside, measure)[rows]
            except Undefined as reason:
                self.because(measure, None, "out", str(reason))
                continue
            self._inside(u_in, own, known, measure)
            grades = grade(u_in, u_out, division, window, plan.severities)
            self._graded(grades, measure, len(u_in))
            for name, dump in fixed.items():
                self._fixed(name, dump, u_in, measure)
            if not any(name.startswith("hard.") for name in self.chosen):
                self._hardest(division.test[grades.group(-1)], outside, rows)
        about = json.dumps({"notes": self.notes}).encode()
        return table(self.rows, self.reasons) | {CLASSES: _npz(self.chosen), ABOUT: about}

    def row(self, metric: str, value: float, n: int, **more: Any) -> None:
        entry = self.pair.inside
        base = {"protocol": NAME, "version": VERSION, "dataset": entry.data, "backbone": self.pair.model}
        base |= {"params": entry.facts.get("params"), "method": "pretrained", "members": 1, "calibrated": False}
        found = {"split": "test", "metric": metric, "value": float(value), "n": int(n)}
        self.rows.append(dict.fromkeys(COLUMNS) | base | found | more)

    def because(self, measure: str | None, metric: str | None, split: str, reason: str) -> None:
        who = {"backbone": self.pair.model, "method": "pretrained"}
        self.reasons.append(who | {"measure": measure, "metric": metric, "split": split, "reason": reason})

    def _outside(self, entry: Entry, inside: Predictions) -> Predictions:
        dump = Predictions.load(entry.place, outside=True)
        if dump.logits is not None and inside.logits is not None and dump.classes != inside.classes:
            raise BadInput(
                f"{entry.place} answers with {dump.classes} classes, {self.pair.inside.place} with {inside.classes}: "
                "both must come from one model."
            )
        return dump

    def _facts(self, inside: Predictions, known: Array) -> None:
        """What is known of the model beside its uncertainty."""
        for name in FACTS:
            if (value := _side(self.pair.inside.facts.get(name))) is not None:
                self.row(name, value, len(inside))
        if inside.labels is None or inside.logits is None:
            lacking = "labels" if inside.labels is None else "logits"
            self.because(None, "accuracy", "test", f"There are no {lacking}: right and wrong answers cannot be told.")
        else:
            answers = summary(inside).answers(known)
            self.row("accuracy", metrics.accuracy(answers), answers.n)

    def _inside(self, u: Array, answered: Predictions, known: Array, measure: str) -> None:
        """The AUROC of right against wrong answers on in-domain rows."""
        if answered.labels is None or answered.logits is None:
            return
        try:
            wrong = ~summary(answered).answers(known).right
            self.row("auroc", metrics.auroc(u, wrong), len(u), measure=measure)
        except Undefined as reason:
            self.because(measure, "auroc", "test", str(reason))

    def _graded(self, grades: Grades, measure: str, n_in: int) -> None:
        n = n_in + grades.window * self.plan.test
        for level, (auroc, severity) in enumerate(zip(grades.aurocs, grades.severities, strict=True)):
            where = {"split": "out", "group": f"{SEVERITY}{level}", "measure": measure}
            self.row("auroc", auroc, n, **where)
            self.row("severity", severity, grades.window * self.plan.estimation, **where)
        self.chosen |= {
            "starts": grades.starts,
            f"order.{measure}": grades.order.astype(np.int32),
            f"severity.{measure}": grades.severity.astype(np.float32),
        }

    def _fixed(self, name: str, dump: Predictions, u_in: Array, measure: str) -> None:
        """A set that is the same for all models, beside the severities."""
        try:
            u = uncertainty(dump, measure)[_untaught(dump, self.pair.others[name])]
        except Undefined as reason:
            self.because(measure, "auroc", name, str(reason))
            return
        out = np.repeat([False, True], [len(u_in), len(u)])
        value = metrics.auroc(np.concatenate([u_in, u]), out)
        self.row("auroc", value, len(out), split="out", group=name, measure=measure)

    def _hardest(self, test: Array, outside: Predictions, rows: Array) -> None:
        """What the model answers to the test images of its hardest group, by the first measure."""
        if outside.logits is None or outside.labels is None:
            return
        at = rows[test.reshape(-1)]
        self.chosen |= {
            "hard.index": outside.index[at],
            "hard.label": outside.labels[at].astype(np.int32),
            "hard.answer": summary(outside).predicted[at].astype(np.int32),
            "hard.outputs": np.array(outside.classes),
        }

    def _note(self, division: Division, window: int, taught: int) -> None:
        k, plan = len(division.classes), self.plan
        if division.scarce:
            self.notes.append(
                f"{division.scarce:,} of {k + division.scarce:,} out-classes have fewer than "
                f"{plan.estimation + plan.test} images and are left out."
            )
        if plan.window is None and window < taught:
            self.notes.append(
                f"There are {k:,} out-classes for {taught:,} in-classes: a group has {window:,} classes, half of the "
                "out-classes, so that the easiest and the hardest group share none (--window sets it)."
            )
        if k - window + 1 < plan.severities:
            self.notes.append(
                f"{k:,} out-classes have {k - window + 1} windows of {window:,}, fewer than the {plan.severities} "
                "severities: some severities are the same group."
            )


def _known(inside: Predictions) -> Array:
    """Which rows are of classes that the model can answer; all where nobody says."""
    if inside.labels is not None and inside.logits is not None:
        known = summary(inside).known
    else:
        known = np.ones(len(inside), bool) if inside.taught is None else inside.taught
    if not known.any():
        raise BadInput("Every row of the in-data is of a class that was not in training; is it the out-data?")
    return np.asarray(known)


def _untaught(outside: Predictions, entry: Entry) -> Array:
    """Row numbers of the classes that were not in training."""
    assert outside.taught is not None  # loaded as outside
    rows = np.flatnonzero(~outside.taught)
    if not len(rows):
        raise BadInput(f"{entry.place} says that every row is of a class that was in training (taught).")
    return rows


def _side(size: Any) -> float | None:
    """A number, or the last one of a shape: the side of an image of (channels, height, width)."""
    if isinstance(size, (list, tuple)):
        size = size[-1] if size else None
    return None if size is None else float(size)


def _npz(arrays: Mapping[str, Array]) -> bytes:
    held = io.BytesIO()
    np.savez_compressed(held, **arrays)  # type: ignore[arg-type]
    return held.getvalue()


# ---- many models


def run(
    plan: Plan,
    pairs: Sequence[Pair],
    store: Store,
    workers: int = 0,
    say: Say | None = None,
    names: Names | None = None,
    notes: Sequence[str] = (),
) -> Study:
    """Grades what is not graded yet, one task a model, and returns the study.

    names  of the in-classes and of the out-classes, class 0 first: out-classes that are in-classes are left out, and
           with a hierarchy those above or below one
    notes  what to know beside the numbers: they stay with the study
    """
    plan.check()
    _check(pairs)
    study = Study(plan, notes=list(notes))
    refused = refused_classes(plan, names, study.notes)
    jobs = [_job(plan, pair, refused, store) for pair in pairs]
    with Crew(workers) as crew:
        do(study, jobs, store, crew, (lambda *counts: say("grading the out-classes", *counts)) if say else None)
    held = []
    for evaluation in read(study, jobs, store):
        folder = evaluation.folder(store)
        about = json.loads((folder / ABOUT).read_text("utf-8"))["notes"]
        study.notes += [note for note in about if note not in study.notes]
        held.append(_chosen(folder / CLASSES))
    study.rows += overlap(held, plan) + alike(held, plan, names)
    if study.rows:
        record(study, store, NAME, VERSION)
    return study


def _check(pairs: Sequence[Pair]) -> None:
    if not pairs:
        raise BadInput("There is no model to grade: name at least one pair of in-data and out-data.")
    seen: set[str] = set()
    for pair in pairs:
        if pair.model in seen:
            raise BadInput(f"Two pairs are named {pair.model}: every model needs a name of its own.")
        seen.add(pair.model)
        for name in pair.others:
            if name.startswith(SEVERITY):
                raise BadInput(f"A fixed out-set cannot be named {name!r}: that is the name of a group.")


def refused_classes(plan: Plan, names: Names | None, notes: list[str]) -> tuple[int, ...]:
    """Out-classes that overlap with in-classes; what to know of them goes to the notes."""
    if names is None:
        if plan.hierarchy is not None:
            raise BadInput("A hierarchy needs the names of the classes: give --in-names and --out-names.")
        return ()
    tree = None if plan.hierarchy is None else hierarchy.read(plan.hierarchy, plan.order)
    inside, outside = names
    found = hierarchy.overlapping(inside, outside, tree)
    if found:
        why = "are in-classes" if tree is None else "are in-classes, or above or below one in the hierarchy"
        notes.append(f"{len(found):,} of {len(outside):,} out-classes {why}, and are left out.")
    if tree is not None and tree.upside_down:
        notes.append(
            f"Read as {plan.order!r}, the hierarchy has more tops than leaves: its lines may be the other way round "
            "(--hierarchy-order). Which classes are left out is the same either way."
        )
    if tree is not None and (unknown := sum(name not in tree for name in (*inside, *outside))):
        notes.append(f"The hierarchy does not know {unknown:,} of the {len(inside) + len(outside):,} classes.")
    return found


def check_names(names: Names, pairs: Sequence[Pair]) -> None:
    """Names that a person listed are those of the dumps' classes: one each of the in-classes, none of an id missing.

    In-classes are all that the model can answer, or those that it was asked about; a dump does not say how many
    out-classes there are beyond its largest label.
    """
    for pair in pairs:
        try:
            inside, outside = pair.inside.dump(), Predictions.load(pair.outside.place, outside=True)
            asked = 0 if inside.labels is None else len(np.unique(inside.labels[_known(inside)]))
        except BadInput:
            continue  # it costs its own line later
        counts = [each for each in dict.fromkeys((inside.classes, asked)) if each]
        if counts and len(names[0]) not in counts:
            raise BadInput(
                f"--in-names has {len(names[0])} names and {pair.inside.place} has {' or '.join(map(str, counts))} "
                "classes: name each class once, class 0 first."
            )
        last = -1 if outside.labels is None else int(outside.labels.max())
        if last >= len(names[1]):
            raise BadInput(
                f"--out-names has {len(names[1])} names and {pair.outside.place} has a class {last}: name every class, "
                "class 0 first."
            )


def _job(plan: Plan, pair: Pair, refused: tuple[int, ...], store: Store) -> Job:
    task = Task(pair.model, _task, (plan, pair, refused, str(store.root)), _died)
    return _evaluation(plan, pair, refused), task


def _evaluation(plan: Plan, pair: Pair, refused: tuple[int, ...]) -> Evaluation:
    asked = {name: getattr(plan, name) for name in ("estimation", "test", "severities", "window", "measures", "seed")}
    facts = {name: _side(pair.inside.facts.get(name)) for name in ("params", *FACTS)}
    others = sorted(pair.others.items())
    recipe = asked | {
        "model": pair.model,
        "data": pair.inside.data,
        "out": pair.outside.data,
        "others": [name for name, _ in others],
        "facts": facts,
        "refused": sha256(to_json(refused).encode()).hexdigest()[:16],
    }
    return Evaluation(NAME, VERSION, recipe, (pair.inside.key, pair.outside.key, *(each.key for _, each in others)))


def _task(plan: Plan, pair: Pair, refused: tuple[int, ...], root: str) -> None:
    _evaluation(plan, pair, refused).keep(Store(root), _Maker(plan, pair, refused).files)


def _died(reason: str, plan: Plan, pair: Pair, refused: tuple[int, ...], root: str) -> None:
    _evaluation(plan, pair, refused).mark(Store(root), reason)


def _chosen(path: Path) -> dict[str, Array]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


# ---- between models (appendix M.8)


def _across(metric: str, value: float, n: int, **more: Any) -> Row:
    base = {"protocol": NAME, "version": VERSION, "method": "pretrained", "split": "out", "calibrated": False}
    return dict.fromkeys(COLUMNS) | base | {"metric": metric, "value": float(value), "n": n} | more


def overlap(held: Sequence[Mapping[str, Array]], plan: Plan) -> list[Row]:
    """Rows without a model: how many classes any model's group holds (`union`), and every one's (`intersection`).

    One of each for a κ and a severity, over the n models that have it.
    """
    rows = []
    for measure in plan.measures:
        own = [each for each in held if f"order.{measure}" in each]
        if len(own) < 2:
            continue
        every = np.unique(np.concatenate([each["classes"] for each in own]))
        for level in range(plan.severities):
            times = np.zeros(len(every), np.int64)
            for each in own:
                start = int(each["starts"][level])
                group = each[f"order.{measure}"][start : start + int(each["window"])]
                times[np.searchsorted(every, each["classes"][group])] += 1
            for metric, value in (("union", np.sum(times > 0)), ("intersection", np.sum(times == len(own)))):
                rows.append(_across(metric, int(value), len(own), group=f"{SEVERITY}{level}", measure=measure))
    return rows


def alike(held: Sequence[Mapping[str, Array]], plan: Plan, names: Names | None = None) -> list[Row]:
    """Rows without a model: the images to which most models give the same answer, among their hardest (Fig. 27).

    The group says which image, of which class, and the answer; the value is how many of the n models give it.
    """
    own = [each for each in held if "hard.index" in each]
    kinds = {each["hard.index"].dtype.kind for each in own}
    if len(own) < 2 or len(kinds) > 1:  # keys of text and of numbers cannot be joined
        return []
    keys = np.concatenate([_drawn(each["hard.index"], plan.seed) for each in own])
    answers = np.concatenate([each["hard.answer"] for each in own])
    _, first, times = np.unique(_mixed(keys + answers.astype(np.uint64)), return_index=True, return_counts=True)
    most = np.lexsort((keys[first], -times))[:LISTED]
    ends = np.cumsum([len(each["hard.index"]) for each in own])
    rows = []
    for at in most[times[most] > 1]:
        model = int(np.searchsorted(ends, first[at], side="right"))
        row = int(first[at] - (ends[model - 1] if model else 0))
        image, label, answer = (own[model][f"hard.{part}"][row] for part in ("index", "label", "answer"))
        fit = names is not None and len(names[0]) == own[model]["hard.outputs"]  # else a number of a model of its own
        words = (str(image), _named(label, names and names[1]), _named(answer, names[0] if fit and names else None))
        rows.append(_across("same_answer", int(times[at]), len(own), group=" · ".join(words)))
    return rows


def _named(number: int, names: Sequence[str] | None) -> str:
    return names[number] if names and 0 <= number < len(names) else str(number)


# ---- where pairs come from


def pairs_of(store: Store, data: str, out: str, also: Mapping[str, str] | None = None) -> tuple[list[Pair], list[str]]:
    """The store's models that were asked about both sets, and sentences on those that were not."""
    from nescio.predictions.entries import entries

    asked = {each.model: each for each in entries(store, data, outside=False)}
    outside = {each.model: each for each in entries(store, out, outside=True)}
    fixed = {
        name: {each.model: each for each in entries(store, spec, outside=True)} for name, spec in (also or {}).items()
    }
    both = [model for model in asked if model in outside]
    if not both:
        raise BadInput(
            f"No model in {store.root} was asked about both {data} and {out}: "
            f"`nescio zoo MODEL --data {data} --out {out}` does that."
        )
    notes = [
        f"{len(missing)} models have no answers to {spec} and are not shown there: {_few(missing)}."
        for spec, have in ((out, outside), *(((also or {})[name], each) for name, each in fixed.items()))
        if (missing := [model for model in asked if model not in have])
    ]
    pairs = []
    for model in both:
        others = {name: each[model] for name, each in fixed.items() if model in each}
        pairs.append(Pair(model, asked[model], outside[model], others))
    return pairs, notes


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")


def pair_of_files(model: str, inside: str, outside: str, others: Mapping[str, str] | None = None) -> Pair:
    """A model by its files of predictions."""
    from nescio.predictions.entries import entry_of_file

    fixed = {name: entry_of_file(path, model) for name, path in (others or {}).items()}
    pair = Pair(model, entry_of_file(inside, model), entry_of_file(outside, model), fixed)
    for each in (pair.outside, *fixed.values()):
        if each.key == pair.inside.key and not _mixed_rows(each):
            raise BadInput(
                f"{model}: {each.place} is what the model says of in-domain images, and is given as images of other "
                "classes too: name another file, or mark the rows of each kind by `taught`."
            )
    return pair


def _mixed_rows(entry: Entry) -> bool:
    """Whether a dump marks rows of both sides."""
    taught = entry.dump().taught
    return taught is not None and bool(taught.any()) and not taught.all()


__all__ = [
    "Division",
    "Grades",
    "Pair",
    "Plan",
    "class_severities",
    "divide",
    "grade",
    "levels",
    "overlap",
    "pair_of_files",
    "pairs_of",
    "run",
    "uncertainty",
    "window_severities",
]
