"""Lines of tables and figures of `shift`: the rows that they compare, and their curves over severities."""

from __future__ import annotations

from collections.abc import Sequence

from nescio.benchmarks.plans import DEEP_ENSEMBLE, MEMBER
from nescio.errors import BadInput
from nescio.evaluations.base import NATIVE
from nescio.evaluations.shift import ALL, CLEAN, RANKING
from nescio.report.blocks import Panel
from nescio.report.charts.levels import levels_figure
from nescio.report.format import join_names, plural
from nescio.report.frame import Frame
from nescio.report.labels import bare_label, dataset_label, network_label
from nescio.report.tables import Column, Index, Table, decimals, table
from nescio.rows import Row

MODEL = ("dataset", "method", "backbone", "members")
LINE = (*MODEL, "measure")
SEED = ("data_seed", "init_seed")
ALTITUDES = ("sun", "darkness")  # shifts whose level is an angle
UNDERTRAINED = " (undertrained)"  # suffix of a method's name


# ---- rows


def task_rows(frame: Frame, task: str) -> Frame:
    """Rows of classification or segmentation, with undertrained methods marked; refuse rows that are not comparable."""
    rows = frame.where(task=task)
    _check_networks(rows)
    _check_images(rows)
    low = undertrained(rows)
    return rows.with_column(
        "method", lambda row: f"{row['method']}{UNDERTRAINED * ((row['dataset'], row['method']) in low)}"
    )


def undertrained(frame: Frame) -> list[tuple[str, str]]:
    """Data and methods with a network far below the training accuracy of plain training."""
    return [(data, method) for (data, method), _ in frame.where(undertrained=True).group_by("dataset", "method")]


def is_compared(row: Row) -> bool:
    """Whether a line of `task_rows` is compared with the others."""
    return not row["method"].endswith(UNDERTRAINED)


def _check_networks(frame: Frame) -> None:
    """Refuse joined studies in which a line has two networks of one seed: tables would average them."""
    for (data, method, *_, seed), rows in clean_rows(frame).where(metric="accuracy").group_by(*MODEL, "data_seed"):
        if len(list(rows.group_by("trial", "init_seed"))) > 1:
            raise BadInput(
                f"Two networks of {method} with seed {seed} on {dataset_label(data)} have other strengths or initial "
                "weights: tables would average them. Report their studies one by one."
            )


def _check_images(frame: Frame) -> None:
    """Refuse joined studies whose lines were evaluated on different images or severities of one corruption."""
    ranking_rows = Frame([*clean_rows(frame), *shifted_rows(frame)]).where(metric=RANKING)
    for (data, shift, level, _), rows in ranking_rows.group_by("dataset", "shift", "severity", "metric"):
        if len(sizes := rows.unique("n")) > 1:
            images = f"{shift} {level:g}" if level else f"{shift} and clean" if level is None else shift
            raise BadInput(
                f"Lines of {dataset_label(data)} were evaluated on different images: {images} has {sizes[0]:,} "
                f"predictions and {sizes[1]:,}. Report their studies one by one."
            )


def clean_rows(frame: Frame) -> Frame:
    return frame.where(split="test", shift=CLEAN)


def shifted_rows(frame: Frame) -> Frame:
    """Rows of corrupted images: one level each, or (severity None) clean images and all levels together."""
    return frame.where(split="test", shift=lambda name: name not in (None, CLEAN, ALL))


def pooled_rows(frame: Frame) -> Frame:
    """Metrics of clean images and all severities together, the mean over corruptions, of every seed."""
    return on_common(shifted_rows(frame).where(severity=None)).summarise([*MODEL, *SEED, "measure", "metric"])


def on_common(frame: Frame) -> Frame:
    """Rows of the corruptions (and levels) that every line has under every seed.

    Otherwise means would compare easy corruptions with hard ones: AUROC is undefined if all predictions are correct.
    """
    rows: list[Row] = []
    for _, subset in frame.group_by("dataset", "metric"):
        lines = [{key for key, _ in line.group_by("shift", "severity")} for _, line in subset.group_by(*LINE, *SEED)]
        common_keys = set.intersection(*lines)
        rows += [row for row in subset if (row["shift"], row["severity"]) in common_keys]
    return Frame(rows)


def common_note(frame: Frame, noun: str) -> str:
    """Describe the corruptions over which pooled means are taken."""
    pooled = shifted_rows(frame).where(severity=None)
    common_keys = {key for key, _ in on_common(pooled).group_by("dataset", "metric", "shift")}
    missing = {key[-1] for key, _ in pooled.group_by("dataset", "metric", "shift") if key not in common_keys}
    names = shifted_rows(frame).unique("shift")
    left_out = [name.replace("_", " ") for name in names if name in missing]
    caption = f"then the mean over {plural(len(names) - len(left_out), noun).lower()}"
    return caption + (f" (without {join_names(left_out)}: not every line has rows of them)" if left_out else "")


def over_seeds(frame: Frame, *by: str) -> Frame:
    """Means over seeds of every line."""
    return frame.summarise([*LINE, *by, "metric"], over=["data_seed"])


def beside_scores(scored_rows: Frame, other_rows: Frame) -> list[Row]:
    """Return `scored_rows`, then `other_rows`, repeated for each score of their line (None without scores)."""
    scores = {model: rows.unique("measure") for model, rows in scored_rows.group_by(*MODEL)}
    models = dict(other_rows.group_by(*MODEL))
    models_in_order = [*scores, *(model for model in models if model not in scores)]
    repeated_rows = [
        row | {"measure": measure}
        for model in models_in_order
        for measure in scores.get(model, [None])
        for row in models.get(model, ())
    ]
    return [*scored_rows, *repeated_rows]


def line_table(
    rows: Sequence[Row] | Frame,
    title: str,
    columns: Sequence[Column],
    note: str = "",
    *,
    scores: bool = False,
    spread: bool = True,
) -> Table:
    """A table of means over seeds; undertrained methods are not compared. `scores`: rows differ in their score."""
    frame = Frame(rows)
    pretrained = any(str(name).startswith("pretrained") for name in frame.unique("method"))  # named by backbone
    index = [
        Index(name, keep=(pretrained and name == "backbone") or len(frame.unique(name)) > 1)
        for name in ("method", "dataset", "backbone", "members")
    ]
    index += [Index("measure", keep=True)] if scores else []
    note = ". ".join(
        filter(None, (note, "" if all(map(is_compared, frame)) else "Undertrained methods are not compared"))
    )
    options = {"index": index, "columns": columns, "compare_within": ("dataset",), "compared": is_compared}
    return table(frame, title, format=decimals(3), note=note, spread=spread, **options)  # type: ignore[arg-type]


# ---- curves


def first_measure(frame: Frame) -> Frame:
    """The rows of every line by its native score, or else by the first measure that it has."""
    rows: list[Row] = []
    for _, line in frame.group_by(*MODEL):
        available = [name for name in line.unique("measure") if name is not None]
        rows += line.where(measure=(None, NATIVE if NATIVE in available else next(iter(available), None)))
    return Frame(rows)


def ranked_by(frame: Frame) -> str:
    """Caption about the measures that `first_measure` chose."""
    other_names = [name for name in frame.unique("measure") if name != NATIVE]
    native = NATIVE in frame.unique("measure")
    if len(other_names) + native == 1:
        return "By the native score." if native else f"By {other_names[0]}."
    if native and len(other_names) == 1:
        return f"By the native score, or by {other_names[0]} if there is none."
    return f"By the first measure of each line: {join_names([*['native'] * native, *other_names])}."


def curves(frame: Frame, metric: str) -> dict[str, dict[str, float]]:
    """Line → severity → mean of a metric over seeds and corruptions; clean images come first."""
    selected = on_curves(frame, metric)
    if len((shifts := shifted_rows(selected)).unique("shift")) > 1:  # mean over shifts
        selected = Frame([*clean_rows(selected), *on_common(shifts)])
    with_levels = selected.with_column("at", lambda row: CLEAN if row["shift"] == CLEAN else f"{row['severity']:g}")
    sorted_rows = with_levels.sort(lambda row: row["at"] != CLEAN, "severity")
    lines = sorted_rows.summarise([*MODEL, "at"], over=["data_seed"]).group_by(*MODEL)
    return {network_label(line.rows[0]): {row["at"]: row["value"] for row in line} for _, line in lines}


def on_curves(frame: Frame, metric: str) -> Frame:
    """The rows that curves of a metric show."""
    return first_measure(frame.where(metric=metric, severity=lambda level: level is not None))


def panels(frame: Frame, key: str, title: str, *metrics: str, caption: str = "", axis: str = "") -> list[Panel]:
    """Curves side by side, one figure for each metric, for every dataset.

    axis  title of an axis of numbers on which levels are drawn; "": levels are equally far apart
    """
    multiple = len(frame.unique("dataset")) > 1
    averages = [row for row in frame if row["members"] not in (None, 1)]
    colours = {network_label(row): row["method"].replace(DEEP_ENSEMBLE, MEMBER) for row in averages}
    blocks = []
    for number, ((data,), subset) in enumerate(frame.group_by("dataset")):
        figure_key, figure_title = (f"{key}-{number}", f"{dataset_label(data)}, {title}") if multiple else (key, title)
        figures = []
        for metric in metrics:
            if lines := curves(subset, metric):
                levels = {level: 0.0 if level == CLEAN else float(level) for line in lines.values() for level in line}
                measure = ranked_by(on_curves(subset, metric)) if metric in RANKING else ""
                label = bare_label(metric)
                names = ("line", "severity", label)
                options: Row = {"dashed": colours, "positions": levels if axis else None, "axis": axis}
                texts = f"{label}, {figure_title}", f"{measure} {caption}".strip()
                figures.append(levels_figure(f"{figure_key}-{metric}", *texts, lines, names, **options))
        blocks += [Panel(figures)] if figures else []
    return blocks


def by_shift(frame: Frame, rows: Frame, key: str, *metrics: str, numbers: bool = False) -> dict[str, list[Panel]]:
    """Curves for every shift of `rows`, with the clean images of `frame`; `numbers`: on an axis of levels."""
    options = {}
    for (shift,), subset in rows.group_by("shift"):
        name = shift.replace("_", " ")
        start = clean_rows(frame).where(dataset=subset.unique("dataset"))
        axis = ("90° − altitude of the sun" if shift in ALTITUDES else f"level of {name}") if numbers else ""
        caption = "" if numbers else level_note(shift)
        options[name] = panels(Frame([*start, *subset]), f"{key}-{shift}", name, *metrics, caption=caption, axis=axis)
    return options


def level_note(shift: str) -> str:
    """The meaning of a shift's level, if its name does not define it."""
    return f"The level of {shift} is 90 minus the sun's altitude in degrees." if shift in ALTITUDES else ""
