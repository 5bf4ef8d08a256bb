"""Long tidy rows in, tables and sentences for people out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nescio.errors import BadInput

if TYPE_CHECKING:
    from nescio.metrics import Metric

Row = Mapping[str, Any]

# One row is one number; these say of what, in the order in which files show them.
COLUMNS = (
    *("protocol", "version", "dataset", "backbone", "params", "spectral", "method", "trial", "data_seed", "init_seed"),
    *("members", "calibrated", "split", "group", "measure", "metric", "value", "low", "high", "n"),
)
IDENTITY = COLUMNS[: COLUMNS.index("calibrated")]  # which model a row speaks of
FAMILIAR = frozenset({None, "", "test"})  # splits of classes that were taught; see `familiar`
USUAL = "largest"  # the measure that speaks for a model unless one is named: every classifier has it

HEADLINE = ("accuracy", "nll", "brier", "ece", "auroc", "aurc", "sac@0.95")  # what a summary of models shows

ANSWERS = "How good are the answers"
RANKING = "Does it know when it is wrong"
DETECTION = "Does it notice what it was never taught"
RETRIEVAL = "Do its embeddings find their kind"
HUMAN = "Does it doubt where people doubt"
OTHER = "What else was measured"
SECTIONS = (ANSWERS, RANKING, DETECTION, RETRIEVAL, HUMAN, OTHER)
ASKED = {  # what is positive, and what u should do, where a table ranks rows
    RANKING: "The uncertainty u should be higher where the answer is wrong: positive rows are wrong answers",
    DETECTION: "The uncertainty u should be higher on what was never taught: positive rows are out-domain",
    RETRIEVAL: "Every row looks for its nearest other row; u should be higher where that one has another label",
    HUMAN: "The uncertainty u should be higher where people's votes differ more",
}
SUMMARY = "The models side by side"
COMPARISON = "Which differences are real"

LABELS = {
    "nll": "NLL",
    "brier": "Brier",
    "ece": "ECE",
    "classwise_ece": "class-wise ECE",
    "auroc": "AUROC",
    "aupr": "AUPR",
    "fpr_at_tpr": "FPR",
    "gamma": "γ",
    "aurc": "AURC",
    "e_aurc": "E-AURC",
    "augrc": "AUGRC",
    "aurc_over": "AURC over",
    "selective_risk": "risk",
    "sac": "SAC",
    "aulc": "AULC",
    "raulc": "rAULC",
    "in_as_in": "in as in",
    "out_as_out": "out as out",
    "recall_at_1": "R@1",
    "r_auroc": "R-AUROC",
    "kendall": "Kendall τ",
    "spearman": "Spearman ρ",
    "miou": "mIoU",
}
ARROWS = {"higher": "↑", "lower": "↓"}
JOINT = " · "
TIED = "*"  # after the rank of a model that cannot be told from the best: plain text has no bold


@dataclass(frozen=True)
class Cell:
    """One number as people read it; bold when it is the best of those it is compared with."""

    text: str
    value: float
    best: bool = False


@dataclass(frozen=True)
class Table:
    """Lines of cells under heads; a cell that is None was not measured."""

    title: str
    corner: str
    heads: tuple[str, ...]
    lines: tuple[tuple[str, tuple[Cell | None, ...]], ...]
    note: str = ""
    legend: tuple[tuple[str, str], ...] = ()  # (name of a metric, its sentence)
    more: bool = False  # a second look at the table before it: shown, but less prominently
    labels: int = 1  # columns that name a line: the corner and every name hold their texts, with JOINT between them

    def split(self, name: str) -> list[str]:
        """The texts of the label columns in the corner or in a line's name."""
        return name.split(JOINT, self.labels - 1)


# ---- what a metric is called, and how it is read


def known(metric: str) -> Metric | None:
    """The registered metric behind a row's `metric` (`sac@0.95` is `sac`), or None if nobody registered it."""
    from nescio.metrics import registry

    name = metric.partition("@")[0]
    return registry[name] if name in registry else None  # noqa: SIM401 (a registry is no dict)


def label(metric: str) -> str:
    """The name in a table, with its arrow: ↑ better when higher, ↓ better when lower."""
    part = known(metric)
    arrow = ARROWS.get(part.better, "") if part else ""
    return f"{bare(metric)} {arrow}".strip()


def bare(metric: str) -> str:
    """The name in a table without its arrow."""
    name, at, parameter = metric.partition("@")
    return f"{LABELS.get(name, name.replace('_', ' '))}{at}{parameter}"


def legend(metrics: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """(name, sentence) of every metric once, its parameters left aside."""
    sentences: dict[str, str] = {}
    for metric in metrics:
        part = known(metric)
        if part is not None and part.sentence:
            sentences.setdefault(label(part.name), part.sentence)
    return tuple(sentences.items())


def stage(calibrated: Any) -> str:
    """The `calibrated` column in words: raw, calibrated, or the name of the calibration."""
    if not calibrated:
        return "raw"
    return calibrated if isinstance(calibrated, str) else "calibrated"


# ---- rows to tables


def pivot(
    rows: Iterable[Row],
    index: str | Sequence[str] = "measure",
    columns: str = "metric",
    *,
    title: str = "",
    note: str = "",
    more: bool = False,
) -> Table:
    """A table with one line for each value of `index` and one column for each value of `columns`, in order of rows.

    Among the cells of one metric (a column, or a line when `index` holds the metric) the best are bold.
    """
    names = (index,) if isinstance(index, str) else tuple(index)
    spots: dict[tuple[Any, Any], Row] = {}
    for row in rows:
        spot = (tuple(row.get(name) for name in names), row.get(columns))
        if spot in spots:
            raise BadInput(
                f"Two rows are both {_words(names, spot[0])} with {columns} {spot[1]}; "
                "name a column in index that tells them apart."
            )
        spots[spot] = row
    by_line = "metric" in names
    return _table(
        [
            (
                " · ".join(_word(name, part) for name, part in zip(names, line, strict=True) if part is not None)
                or "–",
                _word(columns, column),
                line if by_line else column if columns == "metric" else None,
                row,
            )
            for (line, column), row in spots.items()
        ],
        title=title,
        corner=" · ".join(names),
        note=note,
        more=more,
    )


def _word(column: str, value: Any) -> str:
    if column == "metric":
        return label(str(value))
    if column == "calibrated":
        return stage(value)
    return "–" if value is None else str(value)


def _words(names: Sequence[str], values: Sequence[Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True))


def _table(
    spots: Sequence[tuple[str, str, Any, Row]],
    *,
    title: str,
    corner: str,
    note: str = "",
    more: bool = False,
) -> Table:
    """A table of (line, head, group, row) spots; the cells of one group share their digits and have one best."""
    groups: dict[Any, list[Row]] = {}
    for _, _, group, row in spots:
        groups.setdefault(group, []).append(row)
    digits = {group: _digits([row["value"] for row in held]) for group, held in groups.items()}
    best = {group: _best(held, digits[group]) for group, held in groups.items()}
    heads = tuple(dict.fromkeys(head for _, head, _, _ in spots))
    lines: dict[str, dict[str, Cell]] = {}
    for line, head, group, row in spots:
        text = number(row["value"], digits[group])
        marked = bool(row["best"]) if "best" in row else text == best[group]
        if row.get("low") is not None and row.get("high") is not None:
            text += f" [{number(row['low'], digits[group])}, {number(row['high'], digits[group])}]"
        if "best" in row and row.get("rank") is not None:
            text = f"#{row['rank']}{TIED if marked else ''} {text}"
        lines.setdefault(line, {})[head] = Cell(text, row["value"], marked)
    return Table(
        title,
        corner,
        heads,
        tuple((line, tuple(cells.get(head) for head in heads)) for line, cells in lines.items()),
        note,
        legend(row["metric"] for _, _, _, row in spots),
        more,
    )


def _digits(values: Sequence[float]) -> int:
    """Decimals that show three or four significant digits of the largest value."""
    top = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    if top == 0 or 0.01 <= top < 10:
        return 4
    power = math.floor(math.log10(top))
    return max(0, 4 - power) if power > 0 else min(10, 2 - power)


def number(value: float, digits: int = 4) -> str:
    """A number with fixed decimals, and no minus before a zero."""
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if not text.strip("-0.") else text


def _best(rows: Sequence[Row], digits: int) -> str | None:
    """The best value as printed, so that equal print is equally bold; None when there is nothing to choose."""
    part = known(rows[0]["metric"])
    shown = {number(row["value"], digits): row["value"] for row in rows}
    if part is None or part.better == "neither" or len(shown) < 2:
        return None
    return (max if part.better == "higher" else min)(shown, key=lambda text: shown[text])


def tables(source: Any) -> list[Table]:
    """The tables of a scorecard (or of its rows), one question each, in the order in which a reader asks them."""
    if isinstance(source, Table):
        return [source]
    if hasattr(source, "differences"):
        return comparison_tables(source)
    rows = getattr(source, "rows", source)
    rows = [rows] if isinstance(rows, Mapping) else list(rows)
    if rows and all(isinstance(row, Table) for row in rows):
        return rows
    return explained_once(table for section in SECTIONS for table in _section(section, rows))


def explained_once(tables: Iterable[Table], known: set[str] | None = None) -> list[Table]:
    """The tables with every metric explained where it is first seen; `known` are those explained before."""
    known = set() if known is None else known
    result = []
    for table in tables:
        fresh = tuple(entry for entry in table.legend if entry[0] not in known)
        known.update(name for name, _ in fresh)
        result.append(replace(table, legend=fresh))
    return result


def familiar(rows: Iterable[Row]) -> frozenset[Any]:
    """Splits of classes that were taught: `test`, and those whose answers are right or wrong; others are out-domain."""
    own = {row.get("split") for row in rows if row["metric"] == "in_as_in" or "answers" in _kinds(row["metric"])}
    return FAMILIAR | own


def _kinds(metric: str) -> tuple[str, ...]:
    part = known(metric)
    return part.kinds if part else ()


def section(row: Row, taught: frozenset[Any] = FAMILIAR) -> str:
    """The question that a row helps to answer."""
    kinds = _kinds(row["metric"])
    if "answers" in kinds:
        return ANSWERS
    if "threshold" in kinds:
        return DETECTION
    if "ranking" in kinds or "detection" in kinds:
        return RANKING if row.get("split") in taught else DETECTION
    if "retrieval" in kinds or "retrieval-ranking" in kinds:
        return RETRIEVAL
    return HUMAN if "votes" in kinds else OTHER


def out_name(split: Any) -> str:
    """The name of an out-domain set: the split without its prefix."""
    return str(split).removeprefix("ood:").removeprefix("ood/")


def _section(title: str, every: Sequence[Row]) -> list[Table]:
    taught = familiar(every)
    rows = [row for row in every if section(row, taught) == title and row["metric"] != "temperature"]
    rows.sort(key=lambda row: by_fame(row.get("measure")))
    if not rows:
        return []
    whose = tuple(name for name in IDENTITY if len({row.get(name) for row in rows}) > 1)
    if title == ANSWERS:
        fitted = [f"temperature {row['value']:.4g}" for row in every if row["metric"] == "temperature"]
        return [
            pivot(
                part,
                (*whose, "metric"),
                "calibrated",
                title=_title(title, part[0], taught),
                note=", ".join([*_note(part), *dict.fromkeys(fitted)]),
                more=part[0].get("group") is not None,
            )
            for part in _split(rows, "split", "group")
        ]
    if title == DETECTION:
        # What is accepted of the familiar rows belongs beside what is rejected of every strange set.
        strange = [row for row in rows if row.get("split") not in taught]
        own = [row for row in rows if row.get("split") in taught]
        parts = [
            [*part, *(row for row in own if stage(row.get("calibrated")) == stage(part[0].get("calibrated")))]
            for part in _split(strange, "calibrated", "split", "group")
        ] or _split(own, "calibrated", "group")
    else:
        parts = _split(rows, "calibrated", "split", "group")
    found = []
    for part in parts:
        measured = [row for row in part if row.get("measure") is not None]
        whole = [row for row in part if row.get("measure") is None]  # one figure for the model, whatever the measure
        said, words = _note(part), legend(row["metric"] for row in measured)
        if measured and whole and not whose:
            said = [*(f"{label(row['metric'])} {number(row['value'])}" for row in whole), *said]
            whole, words = [], legend(row["metric"] for row in part)
        note = ". ".join(text for text in (ASKED.get(title, ""), ", ".join(said)) if text)
        heading = _title(title, part[0], taught)
        more = bool(part[0].get("calibrated")) or part[0].get("group") is not None
        if whole:
            found.append(pivot(whole, (*whose, "metric"), "calibrated", title=heading, note=note, more=more))
        if measured:
            table = pivot(measured, (*whose, "measure"), title=heading, note=note, more=more)
            found.append(replace(table, legend=words))
    return found


def _split(rows: Iterable[Row], *columns: str) -> list[list[Row]]:
    parts: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        parts.setdefault(tuple(row.get(column) for column in columns), []).append(row)
    return list(parts.values())


def _title(title: str, row: Row, taught: frozenset[Any]) -> str:
    split, group = row.get("split"), row.get("group")
    where = [] if split in taught else [out_name(split)]
    where += [] if group is None else [str(group)]
    where += [stage(row["calibrated"])] if row.get("calibrated") and title != ANSWERS else []
    return ": ".join([title, ", ".join(where)]) if where else title


def _note(rows: Sequence[Row]) -> list[str]:
    counts = sorted({int(row["n"]) for row in rows if row.get("n") is not None})
    if not counts:
        return []
    return [f"{counts[0]:,} rows" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,} rows"]


# ---- several models


def model_name(row: Row) -> str:
    """Who a row of a comparison speaks of."""
    return next((str(row[key]) for key in ("model", "name", "file", "method") if row.get(key) is not None), "–")


def by_fame(measure: str | None) -> tuple[bool, bool]:
    """Sorts the measure that all know first, then those of the logits, then the others."""
    from nescio.measures import registry

    logits = measure in registry and "logits" in registry[str(measure)].needs
    return measure != USUAL, not logits


def usual_measure(rows: Iterable[Row]) -> str | None:
    """The measure that speaks for a model: the largest probability if it is there, else the first one ranked."""
    rows = list(rows)
    taught = familiar(rows)
    ranked = [row["measure"] for row in rows if row.get("measure") is not None and section(row, taught) == RANKING]
    return USUAL if USUAL in ranked else next(iter(ranked), None)


def summary(cards: Sequence[Any]) -> Table:
    """One line for each model with the figures that most people ask for first."""
    spots = []
    names = unique_names(cards)
    measures = {name: usual_measure(card.rows) for name, card in zip(names, cards, strict=True)}
    for name, card in zip(names, cards, strict=True):
        taught = familiar(card.rows)
        for row in card.rows:
            if row.get("calibrated") or row.get("group") is not None:
                continue
            kind, metric, spoken = section(row, taught), row["metric"], row.get("measure") == measures[name]
            if kind == DETECTION and spoken and metric == "auroc":
                head = f"{label(metric)} {out_name(row['split'])}"
            elif (kind == ANSWERS or (kind == RANKING and spoken)) and metric in HEADLINE:
                head = label(metric)
            else:
                continue
            spots.append((name, head, head, {key: row[key] for key in ("metric", "value")}))
    used = sorted({measure for measure in measures.values() if measure})
    note = f"Ranking figures by {', '.join(used)}" if used else ""
    return _table(spots, title=SUMMARY, corner="model", note=note)


def unique_names(cards: Sequence[Any]) -> list[str]:
    """The cards' names, told apart by a number where two are equal."""
    names: list[str] = []
    for position, card in enumerate(cards, start=1):
        name = str(getattr(card, "name", "") or f"model {position}")
        names.append(name if name not in names else f"{name} ({position})")
    return names


def question(row: Row) -> str:
    """What a row of a comparison answers: the metric, by which measure, on what, after which calibration."""
    parts = [label(row["metric"])]
    parts += [] if row.get("measure") is None else [str(row["measure"])]
    parts += [] if row.get("split") in FAMILIAR else [out_name(row["split"])]
    parts += [] if row.get("group") is None else [str(row["group"])]
    parts += [stage(row["calibrated"])] if row.get("calibrated") else []
    return " · ".join(parts)


def comparison_tables(comparison: Any) -> list[Table]:
    """Every model's rank and value with its interval, marked where it cannot be told from the best; the differences."""
    spots = [(question(row), model_name(row), question(row), row) for row in comparison.rows]
    if not spots:
        return []
    drawn = getattr(comparison, "resamples", None)
    how = f"{drawn:,} paired resamples of {comparison.n:,} shared rows. " if drawn else ""
    level = f"{100 * comparison.level:g} % interval" if getattr(comparison, "level", None) else "interval"
    note = f"{how}#rank value [{level}]; {TIED} after the rank: cannot be told from the best"
    found = [_table(spots, title=COMPARISON, corner="metric", note=note)]
    if comparison.differences:
        found.append(_differences(comparison.differences))
    return found


def _differences(differences: Iterable[Row]) -> Table:
    heads = {"difference": "difference", "low": "from", "high": "to", "p": "p", "adjusted": "p, Holm"}
    lines = []
    for row in differences:
        digits = _digits([row["difference"]])
        cells = [
            Cell(number(row[key], 4 if key in ("p", "adjusted") else digits), row[key])
            if row.get(key) is not None
            else None
            for key in heads
        ]
        lines.append((f"{question(row)}: {row['model']} − {row['best']}", tuple(cells)))
    note = "Each model minus the best one, on the same resamples"
    return Table("How far from the best", "difference", tuple(heads.values()), tuple(lines), note, more=True)


# ---- what could not be said, and what it all means


def grouped(reasons: Iterable[Row], most: int = 6) -> list[tuple[str, str]]:
    """(what, reason) with every reason once."""
    held: dict[str, list[Row]] = {}
    for entry in reasons:
        reason, name = str(entry["reason"]), str(entry.get("measure") or "")
        if name and reason.startswith(f"{name} "):  # one reason for several measures, each by its own name
            reason = f"It {reason.removeprefix(name).lstrip()}"
        held.setdefault(reason, []).append(entry)
    result = []
    for reason, entries in held.items():
        metrics = _some((bare(e["metric"]) for e in entries if e.get("metric")), most)
        measures = _some((e["measure"] for e in entries if e.get("measure")), most)
        splits = _some((out_name(e["split"]) for e in entries if e.get("split") not in FAMILIAR), most)
        what = " of ".join(part for part in (metrics, measures) if part) or "everything"
        result.append((f"{what} on {splits}" if splits else what, reason))
    return result


def _some(names: Iterable[Any], most: int) -> str:
    unique = [str(name) for name in dict.fromkeys(names)]
    shown = ", ".join(unique[:most])
    return f"{shown} and {len(unique) - most} more" if len(unique) > most else shown


def percent(share: float) -> str:
    """93.1 %; never 100 % of what is not all, nor 0 % of what is not nothing."""
    if share in (0, 1):
        return f"{100 * share:.0f} %"
    for digits in (1, 2, 3, 4):
        text = f"{100 * share:.{digits}f}"
        if float(text) not in (0, 100):
            return f"{text} %"
    return "nearly 100 %" if share > 0.5 else "nearly 0 %"


def of_hundred(share: float) -> str:
    whole = round(100 * share)
    if whole == 100 and share < 1:
        return "more than 99 of 100"
    if whole == 0 and share > 0:
        return "less than 1 of 100"
    return f"{whole} of 100"


def headline(card: Any) -> list[str]:
    """What the model knows, in plain sentences; a figure that is not there is not spoken of."""
    raw = [row for row in card.rows if not row.get("calibrated") and row.get("group") is None]
    measure, taught = usual_measure(raw), familiar(raw)

    def find(metric: str, where: Callable[[Row], bool]) -> Row | None:
        return next((row for row in raw if row["metric"] == metric and where(row)), None)

    def usual(row: Row) -> bool:
        return section(row, taught) == RANKING and row.get("measure") == measure

    sentences = []
    right = find("accuracy", lambda row: row.get("split") in taught)
    if right:
        count = f" {int(right['n']):,}" if right.get("n") is not None else ""
        sentences.append(f"It is right in {percent(right['value'])} of{count} answers.")
    ranked = find("auroc", usual)
    if ranked:
        chance = ", little better than chance" if 0.45 < ranked["value"] < 0.55 else ""
        chance = ", worse than chance" if ranked["value"] <= 0.45 else chance
        sentences.append(
            "When it is wrong, it is less sure than when it is right "
            f"in {of_hundred(ranked['value'])} comparisons{chance}."
        )
    kept = find("selective_risk@0.8", usual)
    if kept:
        sentences.append(f"Abstaining on the 20 % it is least sure of brings accuracy to {percent(1 - kept['value'])}.")
    sure = _confidence(card)
    if sure is not None and right:
        gap = 100 * (sure - right["value"])
        verdict = f"{abs(gap):.1f} points too {'sure' if gap > 0 else 'modest'}" if abs(gap) >= 0.5 else "which fits"
        sentences.append(f"On average it claims to be {percent(sure)} sure, {verdict}.")
    for row in raw:
        if row["metric"] == "auroc" and section(row, taught) == DETECTION and row.get("measure") == measure:
            sentences.append(
                f"On “{out_name(row['split'])}”, which it was never taught, it is less sure than on what it knows "
                f"in {of_hundred(row['value'])} comparisons."
            )
    return sentences


def overview(cards: Sequence[Any], comparison: Any = None) -> list[str]:
    """Which of several models is right most often and which knows best when it is wrong, in plain sentences."""
    sentences = []
    winners, share = _winners(cards, "accuracy")
    if winners:
        standing = _standing("accuracy", winners, comparison)
        sentences.append(f"Right most often: {_listed(winners)}, in {percent(share)} of answers{standing}.")
    winners, share = _winners(cards, "auroc")
    if winners:
        standing = _standing("auroc", winners, comparison)
        sentences.append(
            f"Knows best when it is wrong: {_listed(winners)}, less sure then in {of_hundred(share)} comparisons"
            f"{standing}."
        )
    return sentences


def _winners(cards: Sequence[Any], metric: str) -> tuple[list[str], float]:
    """The models with the highest value of a metric, raw, by the usual measure if by any; none if only one has it."""
    values: dict[str, float] = {}
    for name, card in zip(unique_names(cards), cards, strict=True):
        taught, measures = familiar(card.rows), (None, usual_measure(card.rows))
        for row in card.rows:
            plain = not row.get("calibrated") and row.get("group") is None and row.get("split") in taught
            if plain and row["metric"] == metric and row.get("measure") in measures:
                values.setdefault(name, row["value"])
    top = max(values.values(), default=0.0)
    return [name for name, value in values.items() if value == top] if len(values) > 1 else [], top


def _standing(metric: str, winners: Sequence[str], comparison: Any) -> str:
    """Who else may be the best, as far as a comparison can tell."""
    rows = [row for row in getattr(comparison, "rows", ()) if row["metric"] == metric and row.get("best") is not None]
    if len(rows) < 2:
        return ""
    others = [model_name(row) for row in rows if row["best"] and model_name(row) not in winners]
    return f"; {_listed(others)} cannot be told from it" if others else "; the others are behind, beyond chance"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _confidence(card: Any) -> float | None:
    """The mean confidence, from the bins of the reliability diagram."""
    curve = (getattr(card, "curves", None) or {}).get("reliability", {}).get("raw")
    if curve is None:
        return None
    count, confidence, _ = curve
    total = float(sum(count))
    return sum(float(n) * float(p) for n, p in zip(count, confidence, strict=True) if n) / total if total else None


# ---- a whole document


@dataclass(frozen=True)
class Part:
    """What is said of one model, or of several side by side."""

    title: str
    sentences: tuple[str, ...]
    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()


def parts(source: Any, comparison: Any = None) -> list[Part]:
    """What there is to say of a scorecard, several, a comparison, tidy rows or tables, in order."""
    found = []
    if isinstance(source, Sequence) and source and all(hasattr(card, "rows") for card in source):
        if len(source) > 1:
            found.append(Part(SUMMARY, tuple(overview(source, comparison)), (replace(summary(source), title=""),)))
        for name, card in zip(unique_names(source), source, strict=True):
            found.append(_part(name, card, headline(card)))
    elif not isinstance(source, Sequence) or source:
        found.append(_part("", source))
    if comparison is not None:
        found.append(_part("", comparison))
    known: set[str] = set()
    return [replace(part, tables=tuple(explained_once(part.tables, known))) for part in found]


def _part(title: str, source: Any, sentences: Sequence[str] = ()) -> Part:
    notes, missing = getattr(source, "notes", ()), grouped(getattr(source, "reasons", ()))
    return Part(title, tuple(sentences), tuple(tables(source)), tuple(notes), tuple(missing))
