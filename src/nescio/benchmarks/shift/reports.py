"""Tables 2 and 3 and Figures 1, 3 and 4 of the paper, what stands beside them, and the page that holds them."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nescio.analysis.significance import paired_t_tests
from nescio.benchmarks.deep_ensembles import DEEP_ENSEMBLE, MEMBER
from nescio.errors import BadInput
from nescio.evaluations.segmentation_shift import CORRUPTION
from nescio.evaluations.shift import ALL, CLEAN, RANKING
from nescio.report.blocks import Blocks, Gallery, Panel, SectionSpec, Story, Tabs, flatten
from nescio.report.charts import heat_figure, levels_figure
from nescio.report.format import count_methods, format_number, join_names, plural
from nescio.report.frame import Frame
from nescio.report.gaussians import singular_gaussians
from nescio.report.labels import bare_label, dataset_label, direction_of
from nescio.report.named_reports import report
from nescio.report.studies import Study, story_of
from nescio.report.tables import Column, Index, Table, decimals, metrics, table
from nescio.rows import Row

OWN, ENTROPY = "native", "entropy"
MODEL = ("dataset", "method", "backbone", "members")
LINE = (*MODEL, "measure")
DATA = MODEL[:2]
AXES = ("line", "severity")  # columns of a curve's points, beside its metric
RUN = ("data_seed", "init_seed")
PICTURED = "Greys of uncertainty are one scale for each line: they can be compared between images and levels."
ALTITUDES = ("sun", "darkness")  # shifts whose level is an angle
TESTED = 3  # runs from which on lines are tested against the best
LEVEL = 0.05  # of the test that tells two lines apart
NAMED = 3  # lines, in the lead


# ---- rows


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
    return Frame(row for rows, common in _by_common(frame) for row in rows if _place(row) in common)


def uncommon(frame: Frame) -> list[str]:
    """Names of the corruptions that are left out of means over all severities, since a line has no row of them."""
    parts = _by_common(shifted(frame).where(severity=None))
    left_out = {row["shift"] for rows, common in parts for row in rows if _place(row) not in common}
    return [name.replace("_", " ") for name in shifted(frame).unique("shift") if name in left_out]


def _by_common(frame: Frame) -> list[tuple[Frame, set[Any]]]:
    """Rows of one metric of a dataset, and the corruptions and levels that all its lines have in all their runs."""
    return [
        (rows, set.intersection(*({_place(row) for row in own} for _, own in rows.group_by(*LINE, *RUN))))
        for _, rows in frame.group_by("dataset", "metric")
    ]


def _place(row: Row) -> tuple[Any, Any]:
    return row["shift"], row["severity"]


def common_note(frame: Frame, what: str) -> str:
    """Over which corruptions means are, in words."""
    left_out, count = uncommon(frame), len(shifted(frame).unique("shift"))
    words = f"then the mean over {plural(count - len(left_out), what).lower()}"
    return words + (f" (without {join_names(left_out)}: not every line has rows of them)" if left_out else "")


def clean(frame: Frame) -> Frame:
    return frame.where(split="test", shift=CLEAN)


def name_of(row: Row) -> str:
    """What figures call a line: its method, or the network that it is, and the size of an ensemble."""
    name = row["backbone"] if row["method"] == "pretrained" else row["method"]
    return name if row["members"] in (None, 1) else f"{name} × {row['members']}"


def labels(frame: Frame) -> tuple[str | Index, ...]:
    """Columns that tell lines apart; the backbone always stands where it is the name of a network that existed."""
    existing = any(str(name).startswith("pretrained") for name in frame.unique("method"))
    return "method", "dataset", Index("backbone", keep=existing), "members"


def first_measure(frame: Frame) -> Frame:
    """The rows of every line by its own score, or by the first measure that it has where it has no own score."""
    rows: list[Row] = []
    for _, line in frame.group_by(*MODEL):
        known = [name for name in line.unique("measure") if name is not None]
        rows += line.where(measure=(None, OWN if OWN in known else next(iter(known), None)))
    return Frame(rows)


def ranked_by(frame: Frame) -> str:
    """By which measure every line is shown, of the rows that `first_measure` chose."""
    others = [name for name in frame.unique("measure") if name != OWN]
    own = len(others) < len(frame.unique("measure"))
    if len(others) + own == 1:
        return "By the own score." if own else f"By {others[0]}."
    if own and len(others) == 1:
        return f"By the own score, or by {others[0]} where there is none."
    return f"By the first measure that a line has: {join_names([*(['its own score'] if own else []), *others])}."


def has_own(frame: Frame) -> bool:
    return OWN in frame.unique("measure")


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


def compared(frame: Frame, part: Frame, *by: str) -> list[Row]:
    """Mean and standard deviation over runs of every line of a part; `best` where it cannot be told from the best of a
    metric, among methods that are not undertrained."""
    _one_network_a_run(frame)
    _same_images(frame)
    rows: list[Row] = []
    for (*_, metric), own in part.group_by("dataset", *by, "metric"):
        trained = without_undertrained(frame, own).group_by(*LINE)
        runs = {line: values.means_by("data_seed") for line, values in trained}
        alike = like_the_best(runs, direction_of(metric)) if runs else set()
        means = own.summarise([*LINE, *by, "metric"], over=["data_seed"])
        rows += [row | {"best": values_of(row, LINE) in alike} for row in means]
    return rows


def _one_network_a_run(frame: Frame) -> None:
    """Refuses joined studies in which a line has two networks in one run: tables would average them."""
    for (data, method, *_, run), part in clean(frame).where(metric="accuracy").group_by(*MODEL, "data_seed"):
        if len({values_of(row, ("trial", "init_seed")) for row in part}) > 1:
            raise BadInput(
                f"Two networks of {method} in run {run} on {dataset_label(data)} have other strengths "
                "or initial weights: "
                "tables would average them. Report their studies one by one."
            )


def _same_images(frame: Frame) -> None:
    """Refuses joined studies in which lines were judged by other numbers of images or severities of one corruption."""
    ranked = Frame([*clean(frame), *shifted(frame)]).where(metric=RANKING)
    for (data, condition, level, _), part in ranked.group_by("dataset", "shift", "severity", "metric"):
        if len(sizes := part.unique("n")) > 1:
            where = f"{condition} {level:g}" if level else f"{condition} and clean" if level is None else condition
            raise BadInput(
                f"Lines of {dataset_label(data)} were judged by different images: {where} has {sizes[0]:,} answers and "
                f"{sizes[1]:,}. Report their studies one by one."
            )


def over_runs(frame: Frame, rows: Sequence[Row], shown: str = "Mean ± standard deviation") -> str:
    """What the cells of `rows` are, and which are bold; none are where all methods are undertrained."""
    runs = len(frame.unique("data_seed"))
    if runs < 2:
        words = ["One run: no spread, and no test", "Bold: the best alone"]
    elif runs < TESTED:
        words = [f"{shown} over {runs} runs, too few for a test", "Bold: the best alone"]
    else:
        alike = "what a paired t-test over runs cannot tell from it (5 %, not corrected for the number of lines"
        words = [f"{shown} over {runs} runs", f"Bold: the best, and {alike}; without undertrained methods)"]
    return ". ".join(words if any(row["best"] for row in rows) else words[:1])


def about_level(condition: str) -> str:
    """What the level of a shift is, where its numbers do not say so."""
    return f"The level of {condition} is 90 minus the sun's altitude in degrees." if condition in ALTITUDES else ""


# ---- the paper's table and figure


@report("shift/table2")
def table_2(frame: Frame) -> Table:
    """Clean accuracy, and AUROC and rAULC of right against wrong over all severities (Postels et al. 2022, Table 2)."""
    frame = images(frame)
    rows = compared(frame, pooled(frame))
    accuracy = {values_of(row, MODEL): row for row in compared(frame, clean(frame).where(metric="accuracy"))}
    ranked = dict.fromkeys(values_of(row, LINE) for row in rows)
    unranked = [(*model, None) for model in accuracy if model not in {line[:-1] for line in ranked}]
    rows += [accuracy[tuple(model)] | {"measure": measure} for *model, measure in [*ranked, *unranked]]
    own = f"{OWN}: a method's own score, and the mutual information of an ensemble. " if has_own(frame) else ""
    return table(
        marked(frame, rows),
        "Does uncertainty tell right from wrong under corruption?",
        index=(*labels(frame), Index("measure", keep=True)),
        columns=metrics("accuracy", "auroc", "raulc", titles={"accuracy": "clean accuracy ↑"}),
        format=decimals(3),
        within=("dataset",),
        note="AUROC and rAULC of wrong against right answers: clean images and all severities of one corruption "
        f"together, {common_note(frame, 'corruption')}. {own}{over_runs(frame, rows)}",
    )


def curves(frame: Frame, metric: str, low: Sequence[Any] = ()) -> dict[str, dict[str, float]]:
    """Line → severity → mean of a metric over runs and corruptions; clean images come first.

    low  data and methods that are undertrained: their lines are marked
    """
    own = on_curves(frame, metric)
    if len((changed := shifted(own)).unique("shift")) > 1:  # means over them
        own = Frame([*clean(own), *on_common(changed)])
    named = own.with_column("at", lambda row: CLEAN if row["shift"] == CLEAN else f"{row['severity']:g}")
    ordered = named.sort(lambda row: row["at"] != CLEAN, "severity")
    means = ordered.summarise([*MODEL, "at"], over=["data_seed"])
    lines = [(_marked(part.rows[0], low), part) for _, part in means.group_by(*MODEL)]
    return {name_of(first): {row["at"]: row["value"] for row in part} for first, part in lines}


def on_curves(frame: Frame, metric: str) -> Frame:
    """The rows that curves of a metric show."""
    return first_measure(frame.where(metric=metric, severity=lambda level: level is not None))


def panels(
    frame: Frame, key: str, title: str, *names: str, words: str = "", low: Sequence[Any] = (), axis: str = ""
) -> list[Panel]:
    """Figures of curves side by side, one for each metric that there is, for every dataset.

    low   see `curves`
    axis  what levels are numbers of, where they stand at their numbers; "": side by side
    """
    several = len(frame.unique("dataset")) > 1
    averages = [_marked(row, low) for row in frame if row["members"] not in (None, 1)]
    kin = {name_of(row): row["method"].replace(DEEP_ENSEMBLE, MEMBER) for row in averages}
    made = []
    for at, ((data,), part) in enumerate(frame.group_by("dataset")):
        own, about = (f"{key}-{at}", f"{dataset_label(data)}, {title}") if several else (key, title)
        figures = [
            levels_figure(
                f"{own}-{metric}",
                f"{bare_label(metric)}, {about}",
                f"{ranked_by(on_curves(part, metric)) if metric in RANKING else ''} {words}".strip(),
                lines,
                (*AXES, bare_label(metric)),
                kin=kin,
                positions=_places(lines) if axis else None,
                axis=axis,
            )
            for metric in names
            if (lines := curves(part, metric, low))
        ]
        made += [Panel(figures)] if figures else []
    return made


def _places(lines: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Where levels stand on an axis of numbers; clean images are those of level 0."""
    return {level: 0.0 if level == CLEAN else float(level) for line in lines.values() for level in line}


@report("shift/fig1", needs="rows of corrupted images")
def figure_1(frame: Frame) -> Blocks:
    """Accuracy, AUROC, rAULC and ECE against severity, the mean over corruptions (Postels et al. 2022, Figure 1)."""
    own, low = Frame([*clean(images(frame)), *shifted(images(frame))]), undertrained(frame)
    title = "mean over corruptions"
    right = panels(own, "fig1", title, "accuracy", "ece", low=low)
    ranked = {"own score": panels(own, "fig1", title, *RANKING, low=low)}
    if has_own(own) and (others := own.where(measure=(None, ENTROPY))).where(metric=RANKING):
        ranked |= {ENTROPY: panels(others, f"fig1-{ENTROPY}", title, *RANKING, low=low)}
    return flatten([right, Tabs("Ranked by", ranked) if len(ranked) > 1 else ranked["own score"]])


@report("shift/corruptions", needs="rows of two corruptions or more")
def every_corruption(frame: Frame) -> Blocks:
    """Figure 1 of every corruption, and rAULC of every line on every corruption at a glance."""
    own = shifted(images(frame))
    if len(own.unique("shift")) < 2:
        return None
    options = by_shift(images(frame), own, "fig1", "accuracy", *RANKING)
    means = first_measure(own.where(severity=None, metric="raulc")).summarise([*MODEL, "shift"], over=["data_seed"])
    several = len(means.unique("dataset")) > 1
    cells = [
        {"line": f"{name_of(row)}, {dataset_label(row['dataset'])}" if several else name_of(row)}
        | {"column": row["shift"].replace("_", " "), "value": row["value"], "n": row["n"]}
        for row in marked(frame, list(means))
    ]
    words = "Clean images and all severities together. More colour is better; none is chance or worse."
    names = ("line", "corruption", "runs")
    heat = heat_figure("heat", "rAULC on every corruption", words, cells, "rAULC", 0.0, names)
    return flatten([heat, Tabs("Corruption", options)])


def by_shift(frame: Frame, own: Frame, key: str, *names: str, numbers: bool = False) -> dict[str, list[Panel]]:
    """Figures of curves for every shift of which there are rows in `own`.

    numbers  levels stand at their numbers, not side by side
    """
    options, low = {}, undertrained(frame)
    for (name,), part in own.group_by("shift"):
        word = name.replace("_", " ")
        beside = clean(frame).where(dataset=part.unique("dataset"))
        axis = ("90° − altitude of the sun" if name in ALTITUDES else f"level of {word}") if numbers else ""
        words = "" if numbers else about_level(name)
        shown = Frame([*beside, *part])
        options[word] = panels(shown, f"{key}-{name}", word, *names, words=words, low=low, axis=axis)
    return options


# ---- segmentation


@report("shift/table3", needs="rows of segmentation")
def table_3(frame: Frame) -> Table:
    """Clean mIoU, and mIoU, AUROC and rAULC of pixels over all levels (Postels et al. 2022, Table 3)."""
    frame = pixels(frame)
    ranked = compared(frame, pooled(frame).where(measure=lambda name: name is not None))
    answers = [row | {"shift": CLEAN} for row in compared(frame, clean(frame).where(metric="miou"))]
    answers += [row | {"shift": None} for row in compared(frame, pooled(frame).where(metric="miou"))]
    lines = dict.fromkeys(values_of(row, LINE) for row in ranked)
    unranked = dict.fromkeys((*values_of(row, MODEL), None) for row in answers)
    rows = ranked + [
        row | {"measure": measure}
        for *model, measure in [*lines, *(line for line in unranked if line[:-1] not in {own[:-1] for own in lines})]
        for row in answers
        if values_of(row, MODEL) == tuple(model)
    ]
    heads = [
        Column("clean mIoU ↑", where={"metric": "miou", "shift": CLEAN}, metric="miou"),
        Column("pooled mIoU ↑", where={"metric": "miou", "shift": None}),
        *metrics("auroc", "raulc"),
    ]
    bound = max(frame.where(metric="bound").column("value"), default=0.0)
    exact = f" Scores are counted, not kept: no AUROC or rAULC of a shift is off by more than {bound:.1g}."
    return table(
        marked(frame, rows),
        "Does uncertainty tell right from wrong pixels under shift?",
        index=(*labels(frame), Index("measure", keep=True)),
        columns=heads,
        format=decimals(3),
        within=("dataset",),
        note="Pooled mIoU, AUROC and rAULC: all pixels of clean images and of all levels of one shift together, "
        f"{common_note(frame, 'shift')}.{exact if bound else ''} {over_runs(frame, rows)}",
    )


def by_kind(frame: Frame) -> tuple[Frame, Frame]:
    """Rows of corruptions of five severities, and of other shifts, such as a fog by depth."""
    own = shifted(pixels(frame))
    return own.where(shift_kind=CORRUPTION), own.where(shift_kind=lambda kind: kind != CORRUPTION)


@report("shift/fig3", needs="rows of segmentation under corruptions")
def figure_3(frame: Frame) -> Blocks:
    """mIoU, AUROC and rAULC of pixels against severity, every corruption (Postels et al. 2022, Figure 3)."""
    corrupted, _ = by_kind(frame)
    return Tabs("Corruption", by_shift(pixels(frame), corrupted, "fig3", "miou", *RANKING))


@report("shift/fig4", needs="rows of segmentation under a continuous shift")
def figure_4(frame: Frame) -> Blocks:
    """mIoU, AUROC and rAULC of pixels over the levels of every continuous shift (Postels et al. 2022, Figure 4)."""
    _, continuous = by_kind(frame)
    figures = by_shift(pixels(frame), continuous, "fig4", "miou", *RANKING, numbers=True)
    return [panel for side_by_side in figures.values() for panel in side_by_side]


@report("shift/levels", needs="rows of segmentation")
def every_level(frame: Frame) -> Blocks:
    """mIoU at every level of every shift."""
    made, frame = [], pixels(frame)
    own = frame.where(metric="miou")
    for (name,), every in shifted(own).where(severity=lambda level: level is not None).group_by("shift"):
        part = every.sort("severity")
        rows = compared(frame, Frame([*clean(own), *part]), "shift", "severity")
        levels = [Column(f"{level:g}", where={"shift": name, "severity": level}) for level in part.unique("severity")]
        heads = [Column(CLEAN, where={"shift": CLEAN}), *levels]
        made.append(
            table(
                marked(frame, rows),
                f"mIoU at every level: {name.replace('_', ' ')}",
                index=labels(own),
                columns=heads,
                format=decimals(3),
                within=("dataset",),
                note=f"{about_level(name)} {over_runs(frame, rows, 'Mean')}".strip(),
                spread=False,
            )
        )
    return made


def pictures(study: Study) -> Blocks:
    """Image, labels, and every line's answers and uncertainty: of a few images, clean and at the last levels."""
    options = {}
    for (condition, level, image), own in Frame(study.pictures).group_by("shift", "severity", "image"):
        name = condition.replace("_", " ") + (f" {level:g}" if condition != CLEAN else "")
        options[f"{name}, image {image}"] = [Gallery(tuple(_picture(row) for row in own), wide=True)]
    return Tabs("Images", options)


def _picture(row: Row) -> tuple[bytes, str, str]:
    """A picture, what it shows, and what to say of it."""
    shows, words = row["shows"], ""
    if shows == "prediction" and row["value"] is not None:  # None: all of it is void
        words = f"{row['value']:.0%} of the pixels are right"
    elif shows == "uncertainty":
        words = f"{row['measure'].replace('_', ' ')}: brighter is less sure"
    return b64decode(row["png"]), f"{name_of(row)}: {shows}" if "method" in row else shows, words


def class_colours(study: Study) -> Gallery:
    """Bars of the colours that stand for classes in the pictures; empty where a study does not say which do."""
    bars = dict.fromkeys(bar for row in study.pictures for bar in row.get("classes", {}).items())
    return Gallery(tuple((b64decode(bar), name, "") for name, bar in bars), wide=True)


def about_pictures(study: Study) -> str:
    """How to read the pictures, and the level of those whose numbers do not say it."""
    levels = dict.fromkeys(about_level(row["shift"]) for row in study.pictures)
    return " ".join([PICTURED, *filter(None, levels)])


# ---- beside them


@report("shift/answers", needs="rows of corrupted images")
def answers(frame: Frame) -> Blocks:
    """Accuracy, ECE and NLL against severity, the mean over corruptions."""
    frame = images(frame)
    own = Frame([*clean(frame), *shifted(frame)]).where(severity=lambda level: level is not None)
    made = []
    for metric in ("accuracy", "ece", "nll"):
        part = own.where(metric=metric).sort("severity")
        heads = [
            Column(f"severity {level:g}" if level else CLEAN, where={"severity": level})
            for level in part.unique("severity")
        ]
        rows = compared(frame, part, "severity")
        note = f"Mean over corruptions. {over_runs(frame, rows)}"
        title, lines, form = f"{bare_label(metric)} by severity", labels(frame), decimals(3)
        shown = marked(frame, rows)
        made.append(table(shown, title, index=lines, columns=heads, format=form, within=("dataset",), note=note))
    return made


@report("shift/ood", needs="rows about OOD sets")
def out_of_distribution(frame: Frame) -> Table:
    """AUROC of images of other sets against clean test images."""
    found = frame.where(evaluation="ood", metric="auroc", target=lambda name: name is not None)
    rows = compared(frame, found, "target")
    heads = [Column(f"{target} ↑", where={"target": target}) for target in Frame(rows).unique("target")]
    title = "Does uncertainty tell images of other sets from test images?"
    lines = (*labels(frame), Index("measure", keep=True))
    note = f"AUROC against clean test images. {over_runs(frame, rows)}"
    own = marked(frame, rows)
    return table(own, title, index=lines, columns=heads, format=decimals(3), within=("dataset",), note=note)


@report("shift/strengths", needs="two regularisation strengths or more")
def strengths(frame: Frame) -> Blocks:
    """Which strength of each method's regularisation was chosen, by the NLL of validation images in run 0."""
    rows: list[Row] = []
    for (data, method), own in frame.where(split="val").group_by("dataset", "method"):
        tried = own.where(metric="nll")
        losses, values = ({row["trial"]: row[name] for row in tried} for name in ("value", "strength"))
        best = min(losses, key=lambda trial: losses[trial])
        for trial, loss in losses.items():
            row = {"dataset": data, "method": method, "strength": values[trial], "metric": "nll", "value": loss}
            rows.append(row | {"chosen": "chosen" if trial == best else None})
    if not rows:
        return None
    note = "Run 0; the strength with the lowest NLL of validation images is that of all runs. From the weakest on"
    heads = [Column("validation NLL ↓"), Column("", field="chosen")]
    lines = ("method", "dataset", Index("strength", keep=True))
    return table(rows, "Strengths tried", index=lines, columns=heads, format=decimals(3), bold="none", note=note)


def marked(frame: Frame, rows: Sequence[Row]) -> list[Row]:
    """The rows, with the names of methods that are undertrained marked."""
    low = undertrained(frame)
    return [_marked(row, low) for row in rows]


def _marked(row: Row, low: Sequence[Any]) -> Row:
    return row | {"method": f"{row['method']} (undertrained)"} if values_of(row, DATA) in low else row


def without_undertrained(frame: Frame, part: Frame) -> Frame:
    low = undertrained(frame)
    return Frame(row for row in part if values_of(row, DATA) not in low)


def undertrained(frame: Frame) -> list[tuple[Any, ...]]:
    """Data and methods with a network that is far from the training accuracy that plain training reaches."""
    return [key for key, _ in frame.where(undertrained=True).group_by(*DATA)]


@report("shift/training", needs="networks whose training accuracy is known")
def training(frame: Frame) -> Blocks:
    """Training accuracy of every method: what did not learn cannot be compared."""
    titles = {"train_accuracy": "training accuracy ↑", "at_bound": "layers at their bound"}
    rows = frame.facts(*titles).where(members=1).summarise([*MODEL[:3], "metric"], over=["data_seed"])
    notes = ["Layers at their bound: the share that the spectral norm holds back; at 0 it does nothing"]
    notes = [*(notes if frame.facts("at_bound") else []), *singular_gaussians(frame)]
    heads = [Column(titles[name], where={"metric": name}) for name in titles if name in rows.unique("metric")]
    lines, title = labels(frame)[:3], "What the networks learnt"
    return table(rows, title, index=lines, columns=heads, format=decimals(3), bold="none", note=". ".join(notes))


# ---- the page


def first_look(study: Study) -> list[Table]:
    """The paper's tables, one for every dataset."""
    parts = list(study.frame.group_by("dataset"))
    made = [(data, each) for (data,), part in parts for each in (table_2(part), table_3(part)) if each]
    if len(parts) == 1:
        return [each for _, each in made]
    return [replace(each, title=f"{dataset_label(data)}: {each.title}") for data, each in made]


def story(study: Study) -> Story:
    frame = study.frame
    sections: list[SectionSpec] = [
        ("Table", "Does uncertainty tell right from wrong?", first_look(study)),
        ("Severity", "What happens as images get worse?", [figure_1(frame), answers(frame)]),
        ("Corruptions", "Is it the same for every corruption?", [every_corruption(frame)]),
        ("Levels", "What happens as the shift grows?", [figure_4(frame), figure_3(frame), every_level(frame)]),
        ("Pictures", "What does it look like?", [pictures(study), class_colours(study)], about_pictures(study)),
        ("Other sets", "Are images of other sets noticed?", [out_of_distribution(frame)]),
        ("Training", "What was trained?", [training(frame), strengths(frame)]),
    ]
    title = (
        f"{join_names([dataset_label(data) for data in frame.unique('dataset')])}: who knows what is wrong under shift?"
    )
    return story_of(study, title, _lead(frame), sections)


def _alike(best: Row, alike: Sequence[Row]) -> str:
    """What can be said of the lead of a line, behind its figure."""
    if best["n"] < TESTED:
        return f" ({plural(best['n'], 'run').lower()}: no test)"
    names = [f"{name_of(row)} by {row['measure']}" for row in alike]
    more = [f"{len(names) - NAMED} more"] if len(names) > NAMED + 1 else []
    return f"; {join_names([*names[: NAMED if more else None], *more])} cannot be told from it" if names else ""


def _lead(frame: Frame) -> list[str]:
    """Who leads, how far, and who did not learn."""
    lines = [row for _, (row, *_) in clean(frame).group_by(*MODEL)]
    conditions = shifted(frame).unique("shift")
    runs = plural(len(frame.unique("data_seed")), "run").lower()
    lead = [f"{count_methods(lines)}, {runs}, {plural(len(conditions), 'shift').lower()}."]
    for (data,), part in frame.group_by("dataset"):
        own = Frame(compared(frame, pooled(part).where(metric="raulc")))
        if not (trained := without_undertrained(frame, own)):
            continue
        best, *others = trained.sort("value", reverse=True)
        lead.append(
            f"On {dataset_label(data)}, {name_of(best)} ranks right above wrong answers best, by {best['measure']}: "
            f"rAULC {format_number(best['value'], 3)}{_alike(best, [row for row in others if row['best']])}."
        )
        if plain := [row for row in others if (name_of(row), row["measure"]) == ("erm", ENTROPY)]:
            lead.append(f"Plain softmax entropy (erm) has {format_number(plain[0]['value'], 3)}.")
        if part.where(own_augmentation=True, method=best["method"]):
            lead.append(
                f"{best['method']} is trained with augmentations of its own, which may be what leads: the setting "
                "augment=full gives the same to all."
            )
    if low := undertrained(frame):
        several = len(frame.unique("dataset")) > 1
        names = [f"{method} on {dataset_label(data)}" if several else method for data, method in low]
        lead.append(f"Undertrained, and no finding about the method: {join_names(names)}.")
    return lead
