"""The UIMNET paper's tables and figures, as group-bys over rows, and the page that tells them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePath
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from nescio.report import Cell, Table
from nescio.report.cells import JOINT, bare, explained_once, legend, number, of_hundred
from nescio.report.charts import PAGE, dots_figure, heat_figure, scatter_figure
from nescio.report.pages import Block, Choice, Figure, Fold, Section, Story, Terms
from nescio.rows import Row

if TYPE_CHECKING:
    from nescio.report.studies import Told

IN_DOMAIN = ("accuracy", "accuracy@5", "nll", "ece")
OUT_DOMAIN = ("auroc", "in_as_in", "out_as_out")
SHOWN = IN_DOMAIN + OUT_DOMAIN
LOWER = ("nll", "ece")
# AUROC on test rows is another question (right versus wrong): here it asks for in versus out
SPLIT = dict.fromkeys(SHOWN, "test") | {"auroc": "out", "out_as_out": "out"}
NAMES = {"accuracy": "ACC@1 ↑", "accuracy@5": "ACC@5 ↑", "nll": "NLL ↓", "ece": "ECE ↓"} | {
    "auroc": "AUC ↑",
    "in_as_in": "InAsIn ↑",
    "out_as_out": "OutAsOut ↑",
}
LINE = ("backbone", "method", "members", "calibrated", "spectral", "measure", "metric")
USUAL = "entropy"  # the measure of the paper's Table 3
ORACLE = "oracle"
DIGITS = 3
LONG = 24  # lines of a table above which the page folds it
COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


class Lines(list[Row]):
    """Rows that are means over data seeds already."""


def over_seeds(rows: Iterable[Row]) -> Lines:
    """Mean and standard deviation over data seeds of every line: `value` and `spread`, `n` seeds."""
    if isinstance(rows, Lines):
        return rows
    held: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        if row["group"] is None and row["split"] == SPLIT.get(row["metric"]):
            held.setdefault(tuple(row[name] for name in LINE), []).append(row["value"])
    return Lines(
        dict(zip(LINE, line, strict=True))
        | {"value": fmean(values), "spread": stdev(values) if len(values) > 1 else None, "n": len(values)}
        for line, values in held.items()
    )


def methods_of(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row["method"] for row in rows if row["method"] != ORACLE))


def measures_of(rows: Iterable[Row]) -> list[str]:
    """The measures with which new was told from known, the usual one first."""
    found = {row["measure"]: None for row in over_seeds(rows)}
    for name in (None, ORACLE):
        found.pop(name, None)
    return sorted(found, key=lambda name: name != USUAL)


# ---- the paper's tables


def table_2(rows: Sequence[Row], backbone: str) -> Table:
    """In-domain results (UIMNET Table 2): algorithm × k × calibration × spectral norm."""
    held = [row for row in over_seeds(rows) if row["backbone"] == backbone and row["measure"] is None]
    return _grid(f"In-domain results, {backbone}", held, IN_DOMAIN)


def table_3(rows: Sequence[Row], backbone: str, measure: str = USUAL) -> Table:
    """Out-domain results with one measure (UIMNET Table 3), and the oracle that was told what is outside."""
    held = [row for row in over_seeds(rows) if row["backbone"] == backbone and row["measure"] in (measure, ORACLE)]
    if all(row["method"] == ORACLE for row in held):
        held = []
    return _grid(f"Out-domain results, {backbone}, measure {measure}", held, OUT_DOMAIN)


LABELS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "method": ("algorithm", str),
    "members": ("k", str),
    "calibrated": ("calibration", lambda value: "calibrated" if value else "raw"),
    "spectral": ("spectral norm", lambda value: "–" if value is None else f"{value:g}"),
}


def _grid(title: str, rows: Sequence[Row], wanted: Sequence[str]) -> Table:
    """Lines × metrics with mean ± std; the best mean of a column is bold, the oracle's aside."""
    own = [row for row in rows if row["method"] != ORACLE]
    # one column for whatever tells lines apart
    names = [name for name in LABELS if name == "method" or len({row[name] for row in own}) > 1]

    def line(row: Row) -> str:
        if row["method"] == ORACLE:
            return JOINT.join([ORACLE, *("–" for _ in names[1:])])
        return JOINT.join(LABELS[name][1](row[name]) for name in names)

    order = methods_of(own)
    lines: dict[str, dict[str, Row]] = {}
    for row in [*sorted(own, key=lambda row: _place(row, order)), *(row for row in rows if row["method"] == ORACLE)]:
        lines.setdefault(line(row), {})[row["metric"]] = row
    heads = [metric for metric in wanted if any(metric in cells for cells in lines.values())]
    best = {m: _best(m, [row["value"] for row in own if row["metric"] == m], _digits) for m in heads}

    def cell(metric: str, row: Row | None) -> Cell | None:
        if row is None:
            return None
        text = _digits(row["value"])
        around = "" if row["spread"] is None else f" ± {number(row['spread'], DIGITS)}"
        return Cell(text + around, row["value"], text == best[metric] and row["method"] != ORACLE)

    return Table(
        title,
        JOINT.join(LABELS[name][0] for name in names),
        tuple(NAMES[metric] for metric in heads),
        tuple((name, tuple(cell(metric, cells.get(metric)) for metric in heads)) for name, cells in lines.items()),
        _seeds(rows),
        _legend(heads),
        labels=len(names),
    )


def _digits(value: float) -> str:
    return number(value, DIGITS)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _best(metric: str, values: Sequence[float], print_: Callable[[float], str]) -> str | None:
    """The best value as printed, so that equal print is equally bold; None when there is nothing to choose."""
    if len({print_(value) for value in values}) < 2:
        return None
    return print_((min if metric in LOWER else max)(values))


def _place(row: Row, methods: Sequence[str]) -> tuple[Any, ...]:
    return methods.index(row["method"]), row["members"], row["calibrated"], row["spectral"] or 0


def _seeds(rows: Sequence[Row]) -> str:
    n = max((row["n"] for row in rows), default=0)
    return f"Mean ± standard deviation over {n} data seeds" if n > 1 else "One data seed: no spread to show"


def _legend(metrics: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """The metrics' sentences under the paper's names."""
    found = [(NAMES[metric], dict(legend([metric]))) for metric in metrics if "@" not in metric]
    return tuple((name, next(iter(sentences.values()))) for name, sentences in found if sentences)


# ---- what a first reader wants to know


def _first_lines(rows: Sequence[Row], measure: str) -> list[Row]:
    """Calibrated single networks of the first backbone, without spectral norm where that was tried."""
    held = [row for row in over_seeds(rows) if row["method"] != ORACLE and row["measure"] in (None, measure)]
    for name in ("backbone", "calibrated", "members", "spectral"):
        values = list(dict.fromkeys(row[name] for row in held))
        if name == "calibrated":
            values.sort(reverse=True)
        elif name != "backbone":
            values.sort(key=lambda value: value or 0)
        held = [row for row in held if row[name] == values[0]]
    return held


def newcomer(rows: Sequence[Row]) -> Table:
    """One line a method: its calibrated single network, with the usual measure."""
    measure = next(iter(measures_of(rows)), USUAL)
    wanted = {
        "accuracy": "right ↑",
        "ece": "calibration error ↓",
        "auroc": "new from known ↑",
        "out_as_out": "new refused ↑",
    }
    lines: dict[str, dict[str, Row]] = {}
    for row in _first_lines(rows, measure):
        if row["metric"] in wanted:
            lines.setdefault(row["method"], {})[row["metric"]] = row
    best = {
        metric: _best(metric, [cells[metric]["value"] for cells in lines.values() if metric in cells], _percent)
        for metric in wanted
    }

    def cell(metric: str, row: Row | None) -> Cell | None:
        text = _percent(row["value"]) if row else ""
        return Cell(text, row["value"], text == best[metric]) if row else None

    texts = [(name, tuple(cell(metric, cells.get(metric)) for metric in wanted)) for name, cells in lines.items()]
    texts.sort(key=lambda line: -(line[1][2].value if line[1][2] else 0))
    note = (
        "Calibrated single networks. Right: answers on classes that were taught. New from known: pairs in which the "
        f"image of a class that was never taught has the higher {measure}. New refused: images of such classes above "
        f"the {measure} that 95 % of known ones stay below"
    )
    return Table("Does each method know what it does not know?", "method", tuple(wanted.values()), tuple(texts), note)


def measure_ranking(rows: Sequence[Row]) -> Table:
    """Measures by their mean AUC over all methods, ensembles and ablations (UIMNET §8)."""
    held = [row for row in over_seeds(rows) if row["metric"] in OUT_DOMAIN and row["measure"] not in (None, ORACLE)]
    values: dict[str, dict[str, list[float]]] = {}
    for row in held:
        values.setdefault(row["measure"], {}).setdefault(row["metric"], []).append(row["value"])
    means = {name: {metric: fmean(own) for metric, own in cells.items()} for name, cells in values.items()}
    best = {
        metric: _best(metric, [cells[metric] for cells in means.values() if metric in cells], _digits)
        for metric in OUT_DOMAIN
    }

    def cell(metric: str, value: float | None) -> Cell | None:
        if value is None:
            return None
        text = _digits(value)
        return Cell(text, value, text == best[metric])

    ranked = sorted(means.items(), key=lambda each: -each[1].get("auroc", 0))
    lines = tuple((name, tuple(cell(metric, cells.get(metric)) for metric in OUT_DOMAIN)) for name, cells in ranked)
    note = "Mean over methods, ensembles and ablations; a measure that not every method has, over those that have it"
    heads = tuple(NAMES[metric] for metric in OUT_DOMAIN)
    return Table("Which measure notices new classes best?", "measure", heads, lines, note, _legend(OUT_DOMAIN))


ABLATIONS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "calibration": ("calibrated", LABELS["calibrated"][1]),
    "spectral norm": ("spectral", lambda value: "off" if value is None else f"{value:g}"),
    "model size": ("backbone", str),
    "ensembling": ("members", lambda value: f"k = {value}"),
}


def main_effects(rows: Sequence[Row], measure: str | None = None) -> Table:
    """Mean relative change of every metric from each ablation, all else equal (UIMNET §8)."""
    measure = measure or next(iter(measures_of(rows)), USUAL)
    held = [row for row in over_seeds(rows) if row["method"] != ORACLE and row["measure"] in (None, measure)]
    lines = []
    for name, (column, word) in ABLATIONS.items():
        values = list(dict.fromkeys(row[column] for row in held))
        if column != "backbone":  # backbones stand from small to large, as the plan names them
            values.sort(key=lambda value: value or 0)
        if len(values) < 2:
            continue
        cells: list[Cell | None] = []
        for metric in SHOWN:
            changes = _changes([row for row in held if row["metric"] == metric], column, values[0], values[-1])
            cells.append(_change(fmean(changes), metric) if changes else None)
        lines.append((f"{name} ({word(values[0])} → {word(values[-1])})", tuple(cells)))
    note = (
        f"Mean relative change over methods and all else that was tried, out-domain metrics with {measure}; "
        "bold is a change for the better"
    )
    heads = tuple(NAMES[metric] for metric in SHOWN)
    return Table("What helps?", "change", heads, tuple(lines), note, _legend(SHOWN))


def _change(value: float, metric: str) -> Cell:
    text = f"{100 * value:+.1f} %"
    if not text.strip("+-0. %"):
        return Cell("0.0 %", value)
    return Cell(text, value, (value < 0) == (metric in LOWER))


def _changes(rows: Sequence[Row], column: str, before: Any, after: Any) -> list[float]:
    """(after − before) / |before| of every pair of lines that differ in this column only."""
    rest = [name for name in LINE if name != column]
    first = {tuple(row[name] for name in rest): row["value"] for row in rows if row[column] == before}
    return [
        (row["value"] - first[key]) / abs(first[key])
        for row in rows
        if row[column] == after and (key := tuple(row[name] for name in rest)) in first and first[key]
    ]


# ---- figures


NLL, AUC = "validation NLL", "AUC of new versus known"


def nll_against_auc(rows: Sequence[Row]) -> list[Row]:
    """Points of the validation-NLL-versus-AUC plot: one a trained network (UIMNET, footnote 2)."""
    held: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if row["group"] != "trial":
            continue
        key = tuple(row[name] for name in ("method", "backbone", "spectral", "trial", "data_seed"))
        bound = "" if row["spectral"] is None else f", spectral {row['spectral']:g}"
        about = f"{row['backbone']}{bound}, trial {row['trial']}, data seed {row['data_seed']}"
        point = held.setdefault(key, {"name": row["method"], "about": about})
        if (row["split"], row["metric"]) == ("val", "nll"):
            point[NLL] = row["value"]
        elif (row["split"], row["metric"]) == ("out", "auroc"):
            point[AUC] = row["value"]
    return sorted((p for p in held.values() if NLL in p and AUC in p), key=lambda p: (str(p["name"]), p["about"]))


def heat(rows: Sequence[Row]) -> list[Row]:
    """Cells of the picture method × measure: mean AUC over a method's lines; the best lines and columns first."""
    values: dict[tuple[str, str], list[float]] = {}
    for row in over_seeds(rows):
        if row["metric"] == "auroc" and row["method"] != ORACLE:
            values.setdefault((row["method"], row["measure"]), []).append(row["value"])
    columns = [name for name, _ in measure_ranking(rows).lines]
    methods = list(dict.fromkeys(method for method, _ in values))
    methods.sort(key=lambda name: -max(fmean(own) for (method, _), own in values.items() if method == name))
    return [
        {"line": method, "column": measure, "value": fmean(values[method, measure]), "n": len(values[method, measure])}
        for method in methods
        for measure in columns
        if (method, measure) in values
    ]


def dots(rows: Sequence[Row]) -> tuple[list[Row], tuple[str, float] | None]:
    """AUC of each method's single network and ensemble, as in the newcomer's table; and the oracle's."""
    measure = next(iter(measures_of(rows)), USUAL)
    firsts = [row for row in _first_lines(rows, measure) if row["metric"] == "auroc"]
    if not firsts:
        return [], None
    rest = ("backbone", "calibrated", "spectral", "measure", "metric")
    like = tuple(firsts[0][name] for name in rest)
    held = [row for row in over_seeds(rows) if tuple(row[name] for name in rest) == like and row["method"] != ORACLE]
    order = {name: place for place, (name, _) in enumerate(newcomer(rows).lines)}
    held.sort(key=lambda row: (row["members"], order.get(row["method"], len(order))))
    points = [
        {
            "name": row["method"],
            "kind": "one network" if row["members"] == 1 else f"ensemble of {row['members']}",
            "value": row["value"],
            "spread": row["spread"],
        }
        for row in held
    ]
    told = [row["value"] for row in over_seeds(rows) if (row["method"], row["metric"]) == (ORACLE, "auroc")]
    return points, (ORACLE, fmean(told)) if told else None


# ---- the whole


def first_look(told: Told) -> list[Table]:
    """The tables for the terminal."""
    rows = over_seeds(told.rows)
    found = [newcomer(rows), main_effects(rows), measure_ranking(rows)]
    return [table for table in found if table.lines]


def tables(rows: Sequence[Row]) -> list[Table]:
    """Everything, most welcome first."""
    lines = over_seeds(rows)
    found = [newcomer(lines), main_effects(lines), measure_ranking(lines)]
    for backbone in backbones_of(rows):
        found.append(table_2(lines, backbone))
        found += [table_3(lines, backbone, measure) for measure in measures_of(lines)]
    return [table for table in found if table.lines]


def backbones_of(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row["backbone"] for row in rows))


def lead(told: Told) -> list[str]:
    """What was done and what came out, in plain sentences."""
    rows, plan = over_seeds(told.rows), told.plan
    methods = methods_of(told.rows)
    data = _data(told)
    inside, outside = plan.get("inside"), plan.get("outside")
    taught = f"{_count(len(inside))} classes of {data}" if inside else f"some classes of {data}"
    new = f"{_count(len(outside))} they were never taught" if outside else "others they were never taught"
    who = f"{_count(len(methods)).capitalize()} method{'s' if len(methods) != 1 else ''}"
    sentences = [f"{who} learnt {taught} and then met {new}."]
    table = newcomer(rows)
    known = [(name, cells[2].value) for name, cells in table.lines if cells[2]]
    if known:
        best, value = known[0]
        asked = "is less sure of the new image in" if len(known) > 1 else "is less sure of the new one in"
        sentences.append(f"Shown one image of each kind, {best} {asked} {of_hundred(value)} pairs")
        others = dict(known)
        if len(known) > 1:
            plain = "erm" if "erm" in others and best != "erm" else known[-1][0]
            words = "plain training (erm)" if plain == "erm" else f"{plain}, the last,"
            sentences[-1] += f", {words} in {of_hundred(others[plain])}"
        _, guide = dots(rows)
        sentences[-1] += f"; a network that was told what is new reaches {of_hundred(guide[1])}." if guide else "."
    ranking = measure_ranking(rows).lines
    if len(ranking) > 1:
        sentences.append(f"Over everything that was tried, {ranking[0][0]} notices new classes best.")
    if told.failures:
        n = len(told.failures)
        sentences.append(f"{_count(n).capitalize()} piece{'s' if n != 1 else ''} of work failed: see below.")
    return sentences


def _count(n: int) -> str:
    return COUNTS[n] if n < len(COUNTS) else f"{n:,}"


def story(told: Told) -> Story:
    """The page of a UIMNET study."""
    rows = over_seeds(told.rows)
    measures, backbones = measures_of(rows), backbones_of(told.rows)
    look, effects, ranking, *_ = explained_once([newcomer(rows), main_effects(rows), measure_ranking(rows)])
    points, guide = dots(rows)
    cells, networks = heat(rows), nll_against_auc(told.rows)
    sections = []

    def section(link: str, title: str, blocks: Sequence[Block | None], words: str = "") -> None:
        held = [block for block in blocks if block is not None and (not isinstance(block, Table) or block.lines)]
        if held:
            sections.append(Section(link, title, held, words))

    picture = Figure(
        "methods",
        "How often each method is less sure of the new image",
        "Dots are means over data seeds; a line joins a method's single network and its ensemble."
        + (" The dashed line is a network that was told what is new." if guide else ""),
        lambda: dots_figure(points, "tells new from known", guide, PAGE),
    )
    section("Who knows?", look.title, [look, picture if points else None])
    section("What helps?", effects.title, [effects])
    map_ = Figure(
        "heat",
        "Every method with every measure",
        "Mean AUC over a method’s ensembles and ablations: more colour is better, 0.5 is guessing.",
        lambda: heat_figure(cells, "AUC", 0.5, PAGE),
    )
    section("Which measure?", ranking.title, [ranking, map_ if len(cells) > 1 else None])
    cloud = Figure(
        "networks",
        "Every trained network",
        "One point a network, uncalibrated, with entropy. Click on a name to see it alone.",
        lambda: scatter_figure(networks, NLL, AUC, PAGE),
    )
    title = "Does validation tell who will notice new classes?"
    section("Validation", title, [cloud if len(networks) > 1 else None], _agreement(networks))
    known = {entry for table in (look, effects, ranking) for entry in table.legend}

    def without(table: Table) -> Table:
        (fresh,) = explained_once([table], {name for name, _ in known})
        return fresh

    inside = [without(table_2(rows, backbone)) for backbone in backbones]
    section("Table 2", "Results on classes that were taught (Table 2)", [_folded(table) for table in inside])
    panes = {}
    for measure in measures:
        held = [without(table_3(rows, backbone, measure)) for backbone in backbones]
        panes[measure] = [table for table in held if table.lines]
    long = any(len(table.lines) > LONG for blocks in panes.values() for table in blocks)
    chooser = Choice("Measure of uncertainty", panes)
    outside: Block = Fold("Every line, with the measure of your choice", [chooser]) if long else chooser
    words = f"The {ORACLE} was trained to tell in from out: it was told what the others cannot know."
    words = words if any(row["method"] == ORACLE for row in rows) else ""
    section("Table 3", "Results on new classes (Table 3)", [outside if any(panes.values()) else None], words)
    section("Failures", "What failed", [Terms(told.failures) if told.failures else None])
    missing = reasons_of(told.reasons)
    section("Gaps", "What could not be said", [Terms(missing) if missing or told.notes else None], " ".join(told.notes))
    return Story(_title(told), lead(told), sections, told.footer(command_of))


def _folded(table: Table) -> Block:
    return Fold(table.title, [table]) if len(table.lines) > LONG else table


def _data(told: Told) -> str:
    spec = next((str(row["dataset"]) for row in told.rows), str(told.plan.get("data", "")))
    place, _, size = spec.partition("@")
    name = PurePath(place.partition(":")[2] or place).stem
    return f"{name} at {size} pixels" if size else name


def _title(told: Told) -> str:
    return f"{_data(told)}: which classifiers know what they don’t know?"


def _agreement(networks: Sequence[Row]) -> str:
    """How the order by validation NLL and the order by AUC agree."""
    from nescio.errors import Undefined
    from nescio.metrics import spearman

    if len(networks) < 3:
        return ""
    try:
        rho = spearman([-point[NLL] for point in networks], [point[AUC] for point in networks])
    except Undefined:
        return ""
    strength = "hardly " if abs(rho) < 0.3 else "partly " if abs(rho) < 0.7 else ""
    verdict = strength + ("agree" if rho > -0.3 else "oppose each other")
    return (
        f"Trials are chosen by their validation NLL, which has seen no new class. Over {len(networks)} networks, the "
        f"order by validation NLL and the order by AUC {verdict} "
        f"(Spearman’s ρ = {number(rho, 2)}; 1 is the same order, 0 is none)."
    )


def reasons_of(reasons: Iterable[Row]) -> list[tuple[str, str]]:
    """(what, reason) of everything that these tables would show, with every reason once."""
    held: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for row in reasons:
        metric, measure = row.get("metric"), row.get("measure")
        if metric in (None, "calibrated") or row.get("split") == SPLIT.get(metric):
            what = " of ".join(part for part in (bare(metric) if metric else "", measure or "") if part) or "everything"
            whats, whose = held.setdefault(str(row["reason"]), ({}, {}))
            whats[what] = whose[str(row.get("method") or "")] = None
    return [
        (": ".join(part for part in (", ".join(filter(None, whose)), ", ".join(whats)) if part), reason)
        for reason, (whats, whose) in held.items()
    ]


def command_of(plan: dict[str, Any]) -> str:
    """The command that runs a plan again."""
    if not plan:
        return ""
    training = plan.get("training") or {}

    def listed(values: Iterable[Any] | None) -> str:
        return ",".join("none" if v is None else f"{v:g}" if isinstance(v, float) else str(v) for v in values or ())

    options = {name: plan.get(name) for name in ("data", "trials", "seeds", "search")}
    options |= {name: listed(plan.get(name)) for name in ("methods", "backbones", "spectral", "measures", "members")}
    options |= {"in": listed(plan.get("inside")), "out": listed(plan.get("outside"))}
    options |= {name: training.get(name) for name in ("epochs", "batch", "rate", "every", "schedule", "augment")}
    words = ["nescio", "run", "uimnet"]
    for name, value in options.items():
        if value not in (None, ""):
            words += [f"--{name}", str(value)]
    words += [] if plan.get("oracle", True) else ["--no-oracle"]
    return shlex.join(words)
