"""The UIMNET paper's tables and figures, as group-bys over rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Any

from nescio.report import Cell, Table
from nescio.report._tables import label, legend, number
from nescio.rows import Row

IN_DOMAIN = ("accuracy", "accuracy@5", "nll", "ece")
OUT_DOMAIN = ("auroc", "in_as_in", "out_as_out")
LOWER = ("nll", "ece")
NAMES = {"accuracy": "ACC@1 ↑", "accuracy@5": "ACC@5 ↑", "nll": "NLL ↓", "ece": "ECE ↓"} | {
    "auroc": "AUC ↑",
    "in_as_in": "InAsIn ↑",
    "out_as_out": "OutAsOut ↑",
}
LINE = ("backbone", "method", "members", "calibrated", "spectral", "measure", "metric")
DIGITS = 3


def over_seeds(rows: Iterable[Row]) -> list[Row]:
    """Mean and standard deviation over data seeds of every line: `value` and `spread`, `n` seeds."""
    held: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row["group"] is None:
            held.setdefault(tuple(row[name] for name in LINE), []).append(row)
    found = []
    for line, each in held.items():
        values = [row["value"] for row in each]
        spread = stdev(values) if len(values) > 1 else None
        found.append(dict(zip(LINE, line, strict=True)) | {"value": fmean(values), "spread": spread, "n": len(values)})
    return found


def _methods(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["method"] for row in rows if row["method"] != "oracle"))


def _line(row: Row) -> str:
    bound = "" if row["spectral"] is None else f" · spectral {row['spectral']:g}"
    return f"{row['method']} · k = {row['members']}{' · calibrated' if row['calibrated'] else ''}{bound}"


def _grid(
    title: str, rows: Sequence[Row], wanted: Sequence[str], corner: str, note: str = "", line: Any = _line
) -> Table:
    """Lines × metrics with mean ± std; the best mean of a column is bold."""
    lines: dict[str, dict[str, Row]] = {}
    for row in rows:
        if row["metric"] in wanted:
            lines.setdefault(line(row), {})[row["metric"]] = row
    heads = [metric for metric in wanted if any(metric in cells for cells in lines.values())]
    best = {}
    for metric in heads:
        values = [
            cells[metric]["value"] for name, cells in lines.items() if metric in cells and not name.startswith("oracle")
        ]
        if values:
            best[metric] = f"{(min if metric in LOWER else max)(values):.{DIGITS}f}"

    def cell(metric: str, row: Row | None) -> Cell | None:
        if row is None:
            return None
        text = number(row["value"], DIGITS)
        marked = text == best.get(metric) and row["method"] != "oracle"
        return Cell(
            text if row["spread"] is None else f"{text} ± {number(row['spread'], DIGITS)}", row["value"], marked
        )

    return Table(
        title,
        corner,
        tuple(NAMES.get(metric, label(metric)) for metric in heads),
        tuple((name, tuple(cell(m, cells.get(m)) for m in heads)) for name, cells in lines.items()),
        note,
        legend(heads),
    )


def table_2(rows: Sequence[Row], backbone: str) -> Table:
    """In-domain results (UIMNET Table 2): algorithm × k × calibration × spectral norm."""
    held = [row for row in over_seeds(rows) if row["backbone"] == backbone and row["measure"] is None]
    return _grid(f"In-domain results, {backbone}", _sorted(held), IN_DOMAIN, "algorithm", _seeds(held))


def table_3(rows: Sequence[Row], backbone: str, measure: str = "entropy") -> Table:
    """Out-domain results with one measure (UIMNET Table 3), and the oracle that was told what is outside."""
    held = [row for row in over_seeds(rows) if row["backbone"] == backbone and row["measure"] in (measure, "oracle")]
    held = [row for row in held if row["metric"] in OUT_DOMAIN]
    title = f"Out-domain results, {backbone}, measure {measure}"

    def line(row: Row) -> str:
        return "oracle (told in from out)" if row["method"] == "oracle" else _line(row)

    return _grid(title, _sorted(held), OUT_DOMAIN, "algorithm", _seeds(held), line)


def _sorted(rows: Sequence[Row]) -> list[Row]:
    order = {name: place for place, name in enumerate(_methods(rows))}
    return sorted(rows, key=lambda r: (order.get(r["method"], 99), r["members"], r["calibrated"], r["spectral"] or 0))


def _seeds(rows: Sequence[Row]) -> str:
    n = max((row["n"] for row in rows), default=0)
    return f"Mean ± standard deviation over {n} data seeds." if n > 1 else "One data seed: no spread to show."


def newcomer(rows: Sequence[Row]) -> Table:
    """One line a method, calibrated, best single model: what a first reader wants to know."""
    held = [
        row
        for row in over_seeds(rows)
        if row["calibrated"]
        and row["members"] == 1
        and row["spectral"] is None
        and row["backbone"] == rows[0]["backbone"]
    ]
    wanted = {("accuracy", None): 0, ("ece", None): 1, ("auroc", "entropy"): 2, ("out_as_out", "entropy"): 3}
    heads = ("right answers ↑", "calibration error ↓", "tells new from known ↑", "new things refused ↑")
    lines: dict[str, list[Row | None]] = {}
    for row in held:
        place = wanted.get((row["metric"], row["measure"]))
        if place is not None:
            lines.setdefault(row["method"], [None] * 4)[place] = row
    best = [
        (min if place == 1 else max)((cells[place]["value"] for cells in lines.values() if cells[place]), default=None)  # type: ignore[index]
        for place in range(4)
    ]
    texts = [
        (
            name,
            tuple(
                None if r is None else Cell(f"{100 * r['value']:.1f} %", r["value"], r["value"] == b)
                for r, b in zip(cells, best, strict=True)
            ),
        )
        for name, cells in lines.items()
    ]
    ranked = sorted(texts, key=lambda line: -(line[1][2].value if line[1][2] else 0))
    note = (
        "Calibrated single networks. Right answers: on classes that were taught. Tells new from known: in how many of 100 "
        "pairs the image of a class that was never taught has the higher entropy. Refused: new images above the entropy "
        "that 95 % of known ones stay below."
    )
    return Table("Does each method know what it does not know?", "method", heads, tuple(ranked), note)


def measure_ranking(rows: Sequence[Row]) -> Table:
    """Measures by their mean AUC over all methods, ensembles and ablations (UIMNET §8)."""
    held = [row for row in over_seeds(rows) if row["metric"] in OUT_DOMAIN and row["measure"] not in (None, "oracle")]
    lines = []
    for measure in dict.fromkeys(row["measure"] for row in held):
        cells = []
        for metric in OUT_DOMAIN:
            values = [row["value"] for row in held if row["measure"] == measure and row["metric"] == metric]
            cells.append(Cell(number(fmean(values), DIGITS), fmean(values)) if values else None)
        lines.append((measure, tuple(cells)))
    lines.sort(key=lambda line: -(line[1][0].value if line[1][0] else 0))
    heads = tuple(NAMES[metric] for metric in OUT_DOMAIN)
    note = "Mean over methods, ensembles and ablations. A measure that not every method has is averaged over those that have it."
    return Table("Which measure notices new classes best", "measure", heads, tuple(lines), note)


ABLATIONS = {
    "calibration": ("calibrated", False, True),
    "spectral norm": ("spectral", None, "any"),
    "model size": ("backbone", "first", "last"),
    "ensembling": ("members", "first", "last"),
}


def main_effects(rows: Sequence[Row], measure: str = "entropy") -> Table:
    """Mean relative change of every metric from each ablation, all else equal (UIMNET §8)."""
    held = [row for row in over_seeds(rows) if row["method"] != "oracle" and row["measure"] in (None, measure)]
    held = [row for row in held if row["metric"] in IN_DOMAIN + OUT_DOMAIN]
    lines = []
    for name, (column, before, after) in ABLATIONS.items():
        values = list(dict.fromkeys(row[column] for row in held))
        if column == "spectral":
            values = sorted(values, key=lambda v: v is not None)
        elif column != "backbone":
            values = sorted(values)
        if len(values) < 2:
            continue
        before, after = values[0], values[-1]
        cells = []
        for metric in IN_DOMAIN + OUT_DOMAIN:
            changes = _changes([row for row in held if row["metric"] == metric], column, before, after)
            cells.append(Cell(f"{100 * fmean(changes):+.1f} %", fmean(changes)) if changes else None)
        lines.append((f"{name} ({_word(before)} → {_word(after)})", tuple(cells)))
    heads = tuple(NAMES[metric] for metric in IN_DOMAIN + OUT_DOMAIN)
    note = f"Mean relative change over methods and the other ablations, out-domain metrics with {measure}."
    return Table("What helps", "change", heads, tuple(lines), note)


def _word(value: Any) -> str:
    return (
        {None: "off", False: "raw", True: "calibrated"}.get(value, str(value))
        if not isinstance(value, int) or isinstance(value, bool)
        else f"k = {value}"
    )


def _changes(rows: Sequence[Row], column: str, before: Any, after: Any) -> list[float]:
    """(after − before) / |before| of every pair of lines that differ in this column only."""
    rest = [name for name in LINE if name != column]
    first = {tuple(row[name] for name in rest): row["value"] for row in rows if row[column] == before}
    return [
        (row["value"] - first[key]) / abs(first[key])
        for row in rows
        if row[column] == after and (key := tuple(row[name] for name in rest)) in first and first[key]
    ]


def nll_against_auc(rows: Sequence[Row]) -> list[Row]:
    """Points of the validation-NLL-versus-AUC plot: one a trained network (UIMNET, footnote 2)."""
    held: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if row["group"] != "trial":
            continue
        key = tuple(row[name] for name in ("method", "backbone", "spectral", "trial", "data_seed"))
        point = held.setdefault(key, {"method": row["method"], "backbone": row["backbone"], "trial": row["trial"]})
        if (row["split"], row["metric"]) == ("val", "nll"):
            point["validation NLL"] = row["value"]
        elif (row["split"], row["metric"]) == ("out", "auroc"):
            point["AUC"] = row["value"]
    return [point for point in held.values() if "validation NLL" in point and "AUC" in point]


def tables(rows: Sequence[Row]) -> list[Table]:
    """Everything, most welcome first."""
    held = [row for row in rows if row["method"] != "oracle" or row["measure"] == "oracle"]
    backbones = list(dict.fromkeys(row["backbone"] for row in held))
    found = [newcomer(held), main_effects(held), measure_ranking(held)]
    for backbone in backbones:
        found += [table_2(held, backbone), table_3(held, backbone)]
    return [table for table in found if table.lines]
