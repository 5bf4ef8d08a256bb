"""Lines of tables and figures of `shift`: which rows they compare, and their curves over severities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nescio.analysis.significance import paired_t_tests
from nescio.benchmarks.plans import DEEP_ENSEMBLE, MEMBER
from nescio.errors import BadInput
from nescio.evaluations.base import NATIVE
from nescio.evaluations.shift import ALL, CLEAN, RANKING
from nescio.report.blocks import Panel
from nescio.report.charts.levels import levels_figure
from nescio.report.format import join_names, plural
from nescio.report.frame import Frame
from nescio.report.labels import bare_label, dataset_label, direction_of, network_label
from nescio.report.tables import Index
from nescio.rows import Row

MODEL = ("dataset", "method", "backbone", "members")
LINE = (*MODEL, "measure")
DATA = MODEL[:2]
AXES = ("line", "severity")  # columns of a curve's points, beside its metric
RUN = ("data_seed", "init_seed")
ALTITUDES = ("sun", "darkness")  # shifts whose level is an angle
TESTED = 3  # fewest seeds of a test
LEVEL = 0.05  # of the paired t-test


def images(frame: Frame) -> Frame:
    """Rows of classes of whole images."""
    return frame.where(task="classification")


def pixels(frame: Frame) -> Frame:
    """Rows of classes of pixels."""
    return frame.where(task="segmentation")


def shifted(frame: Frame) -> Frame:
    """Rows of corrupted images: one level each, or (severity None) clean images and all levels together."""
    return frame.where(split="test", shift=lambda name: name not in (None, CLEAN, ALL))


def pooled(frame: Frame) -> Frame:
    """Metrics of clean images and all severities together, the mean over corruptions, of every run."""
    return on_common(shifted(frame).where(severity=None)).summarise([*MODEL, *RUN, "measure", "metric"])


def on_common(frame: Frame) -> Frame:
    """Rows of corruptions (and levels) that every line has in every one of its runs: means over others would compare
    easy corruptions with hard ones. Where all answers are right there is no AUROC, and joined studies may differ."""
    return Frame(row for rows, common in _by_common(frame) for row in rows if _level(row) in common)


def uncommon(frame: Frame) -> list[str]:
    """Names of the corruptions that are left out of means over all severities, since a line has no row of them."""
    parts = _by_common(shifted(frame).where(severity=None))
    left_out = {row["shift"] for rows, common in parts for row in rows if _level(row) not in common}
    return [name.replace("_", " ") for name in shifted(frame).unique("shift") if name in left_out]


def _by_common(frame: Frame) -> list[tuple[Frame, set[Any]]]:
    """Rows of one metric of a dataset, and the corruptions and levels that all its lines have in all their runs."""
    return [
        (rows, set.intersection(*({_level(row) for row in selected} for _, selected in rows.group_by(*LINE, *RUN))))
        for _, rows in frame.group_by("dataset", "metric")
    ]


def _level(row: Row) -> tuple[Any, Any]:
    return row["shift"], row["severity"]


def common_note(frame: Frame, what: str) -> str:
    """Over which corruptions means are, in words."""
    left_out, count = uncommon(frame), len(shifted(frame).unique("shift"))
    caption = f"then the mean over {plural(count - len(left_out), what).lower()}"
    return caption + (f" (without {join_names(left_out)}: not every line has rows of them)" if left_out else "")


def clean(frame: Frame) -> Frame:
    return frame.where(split="test", shift=CLEAN)


def name_of(row: Row) -> str:
    """The name of a line in figures."""
    return network_label(row)


def labels(frame: Frame) -> tuple[str | Index, ...]:
    """Columns that tell lines apart; the backbone always stands where it is the name of a network that existed."""
    existing = any(str(name).startswith("pretrained") for name in frame.unique("method"))
    return "method", "dataset", Index("backbone", keep=existing), "members"


def first_measure(frame: Frame) -> Frame:
    """The rows of every line by its own score, or by the first measure that it has where it has no own score."""
    rows: list[Row] = []
    for _, line in frame.group_by(*MODEL):
        available = [name for name in line.unique("measure") if name is not None]
        rows += line.where(measure=(None, NATIVE if NATIVE in available else next(iter(available), None)))
    return Frame(rows)


def ranked_by(frame: Frame) -> str:
    """By which measure every line is shown, of the rows that `first_measure` chose."""
    others = [name for name in frame.unique("measure") if name != NATIVE]
    selected = len(others) < len(frame.unique("measure"))
    if len(others) + selected == 1:
        return "By the own score." if selected else f"By {others[0]}."
    if selected and len(others) == 1:
        return f"By the own score, or by {others[0]} where there is none."
    return (
        f"By the first measure that a line has: {join_names([*(['its selected score'] if selected else []), *others])}."
    )


def has_native(frame: Frame) -> bool:
    return NATIVE in frame.unique("measure")


def values_of(row: Row, columns: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row[name] for name in columns)


def like_the_best(runs: dict[Any, dict[Any, float]], direction: str) -> set[Any]:
    """The best line, and those that a paired t-test over runs cannot tell from it; each line is tested by itself.
    Of two runs the best alone: a test of two can hardly tell any line from it."""
    others = paired_t_tests(runs, direction)
    best = others[0]["best"] if others else next(iter(runs))
    if max(map(len, runs.values())) < TESTED:
        return {best}
    return {best} | {other["model"] for other in others if other["p"] is not None and other["p"] >= LEVEL}


def compared(frame: Frame, subset: Frame, *by: str) -> list[Row]:
    """Mean and standard deviation over runs of every line of a part; `best` if it is not significantly
    different from the best of a metric, among methods that are not undertrained."""
    _one_network_a_run(frame)
    _same_images(frame)
    rows: list[Row] = []
    for (*_, metric), selected in subset.group_by("dataset", *by, "metric"):
        trained = without_undertrained(frame, selected).group_by(*LINE)
        runs = {line: values.means_by("data_seed") for line, values in trained}
        alike = like_the_best(runs, direction_of(metric)) if runs else set()
        means = selected.summarise([*LINE, *by, "metric"], over=["data_seed"])
        rows += [row | {"best": values_of(row, LINE) in alike} for row in means]
    return rows


def _one_network_a_run(frame: Frame) -> None:
    """Refuses joined studies in which a line has two networks in one run: tables would average them."""
    for (data, method, *_, run), subset in clean(frame).where(metric="accuracy").group_by(*MODEL, "data_seed"):
        if len({values_of(row, ("trial", "init_seed")) for row in subset}) > 1:
            raise BadInput(
                f"Two networks of {method} in run {run} on {dataset_label(data)} have other strengths "
                "or initial weights: "
                "tables would average them. Report their studies one by one."
            )


def _same_images(frame: Frame) -> None:
    """Refuse joined studies whose lines were evaluated on different images or severities of one corruption."""
    ranked = Frame([*clean(frame), *shifted(frame)]).where(metric=RANKING)
    for (data, condition, level, _), subset in ranked.group_by("dataset", "shift", "severity", "metric"):
        if len(sizes := subset.unique("n")) > 1:
            images_of = f"{condition} {level:g}" if level else f"{condition} and clean" if level is None else condition
            raise BadInput(
                f"Lines of {dataset_label(data)} were evaluated on different images: {images_of} has "
                f"{sizes[0]:,} predictions and {sizes[1]:,}. Report their studies one by one."
            )


def over_runs(frame: Frame, rows: Sequence[Row], statistic: str = "Mean ± standard deviation") -> str:
    """What the cells of `rows` are, and which are bold; none are where all methods are undertrained."""
    runs = len(frame.unique("data_seed"))
    if runs < 2:
        sentences = ["One run: no spread, and no test", "Bold: the best alone"]
    elif runs < TESTED:
        sentences = [f"{statistic} over {runs} runs, too few for a test", "Bold: the best alone"]
    else:
        alike = "what a paired t-test over runs cannot tell from it (5 %, not corrected for the number of lines"
        sentences = [f"{statistic} over {runs} runs", f"Bold: the best, and {alike}; without undertrained methods)"]
    return ". ".join(sentences if any(row["best"] for row in rows) else sentences[:1])


def about_level(condition: str) -> str:
    """What the level of a shift is, where its numbers do not say so."""
    return f"The level of {condition} is 90 minus the sun's altitude in degrees." if condition in ALTITUDES else ""


def marked(frame: Frame, rows: Sequence[Row]) -> list[Row]:
    """The rows, with the names of methods that are undertrained marked."""
    low = undertrained(frame)
    return [_marked(row, low) for row in rows]


def _marked(row: Row, low: Sequence[Any]) -> Row:
    return row | {"method": f"{row['method']} (undertrained)"} if values_of(row, DATA) in low else row


def without_undertrained(frame: Frame, subset: Frame) -> Frame:
    low = undertrained(frame)
    return Frame(row for row in subset if values_of(row, DATA) not in low)


def undertrained(frame: Frame) -> list[tuple[Any, ...]]:
    """Data and methods with a network that is far from the training accuracy that plain training reaches."""
    return [key for key, _ in frame.where(undertrained=True).group_by(*DATA)]


def curves(frame: Frame, metric: str, low: Sequence[Any] = ()) -> dict[str, dict[str, float]]:
    """Line → severity → mean of a metric over runs and corruptions; clean images come first.

    low  data and methods that are undertrained: their lines are marked
    """
    selected = on_curves(frame, metric)
    if len((changed := shifted(selected)).unique("shift")) > 1:  # means over them
        selected = Frame([*clean(selected), *on_common(changed)])
    named = selected.with_column("at", lambda row: CLEAN if row["shift"] == CLEAN else f"{row['severity']:g}")
    ordered = named.sort(lambda row: row["at"] != CLEAN, "severity")
    means = ordered.summarise([*MODEL, "at"], over=["data_seed"])
    lines = [(_marked(subset.rows[0], low), subset) for _, subset in means.group_by(*MODEL)]
    return {name_of(first): {row["at"]: row["value"] for row in subset} for first, subset in lines}


def on_curves(frame: Frame, metric: str) -> Frame:
    """The rows that curves of a metric show."""
    return first_measure(frame.where(metric=metric, severity=lambda level: level is not None))


def panels(
    frame: Frame, key: str, title: str, *names: str, caption: str = "", low: Sequence[Any] = (), axis: str = ""
) -> list[Panel]:
    """Figures of curves side by side, one for each metric that there is, for every dataset.

    low   see `curves`
    axis  what levels are numbers of, where they stand at their numbers; "": side by side
    """
    several = len(frame.unique("dataset")) > 1
    averages = [_marked(row, low) for row in frame if row["members"] not in (None, 1)]
    kin = {name_of(row): row["method"].replace(DEEP_ENSEMBLE, MEMBER) for row in averages}
    blocks = []
    for number, ((data,), subset) in enumerate(frame.group_by("dataset")):
        figure_key, subject = (f"{key}-{number}", f"{dataset_label(data)}, {title}") if several else (key, title)
        figures = [
            levels_figure(
                f"{figure_key}-{metric}",
                f"{bare_label(metric)}, {subject}",
                f"{ranked_by(on_curves(subset, metric)) if metric in RANKING else ''} {caption}".strip(),
                lines,
                (*AXES, bare_label(metric)),
                dashed=kin,
                positions=_places(lines) if axis else None,
                axis=axis,
            )
            for metric in names
            if (lines := curves(subset, metric, low))
        ]
        blocks += [Panel(figures)] if figures else []
    return blocks


def _places(lines: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Where levels stand on an axis of numbers; clean images are those of level 0."""
    return {level: 0.0 if level == CLEAN else float(level) for line in lines.values() for level in line}


def by_shift(frame: Frame, selected: Frame, key: str, *names: str, numbers: bool = False) -> dict[str, list[Panel]]:
    """Figures of curves for every shift of which there are rows in `own`.

    numbers  levels stand at their numbers, not side by side
    """
    options, low = {}, undertrained(frame)
    for (name,), subset in selected.group_by("shift"):
        word = name.replace("_", " ")
        beside = clean(frame).where(dataset=subset.unique("dataset"))
        axis = ("90° − altitude of the sun" if name in ALTITUDES else f"level of {word}") if numbers else ""
        caption = "" if numbers else about_level(name)
        displayed = Frame([*beside, *subset])
        options[word] = panels(displayed, f"{key}-{name}", word, *names, caption=caption, low=low, axis=axis)
    return options
