"""Table 2 and Figure 1 of the paper, what stands beside them, and the page that holds them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import fmean, stdev
from typing import Any

from nescio.protocols.base import registry
from nescio.report.blocks import Choice, Figure, Made, Panel, SectionParts, Story
from nescio.report.charts import heat_figure, level_points, levels_figure
from nescio.report.frame import Frame
from nescio.report.named import report
from nescio.report.studies import Study, story_of
from nescio.report.tables import Column, Head, Table, decimals, metrics, table
from nescio.report.words import bare, better, listed, number, plural
from nescio.rows import Row

CLEAN = "clean"  # condition of test images as they are
OWN, ENTROPY = "native", "entropy"
MODEL = ("dataset", "method", "backbone", "members")
LINE = (*MODEL, "measure")
RUN = ("data_seed", "init_seed")
LEVEL = 0.05  # of the test that tells two lines apart
BESIDE = ("dataset", "backbone", Column("members", "k"))  # labels of a line beside its method


# ---- rows


def shifted(frame: Frame) -> Frame:
    """Rows of corrupted images: one level each, or (level None) clean images and all levels together."""
    return frame.where(split="test", condition=lambda name: name not in (None, CLEAN))


def pooled(frame: Frame) -> Frame:
    """AUROC and rAULC of clean images and all severities together, the mean over corruptions, of every run."""
    return shifted(frame).where(level=None).summarise([*MODEL, *RUN, "measure", "metric"])


def clean(frame: Frame) -> Frame:
    return frame.where(split="test", condition=CLEAN)


def name_of(row: Row) -> str:
    """What figures call a line: its method, or the network that it is, and the size of an ensemble."""
    name = row["backbone"] if row["method"] == "pretrained" else row["method"]
    return name if row["members"] in (None, 1) else f"{name} × {row['members']}"


def first_measure(frame: Frame) -> Frame:
    """The rows of every line by its own score, or by the first other measure where it has none of its own."""
    others = [name for name in frame.values("measure") if name not in (None, OWN)]
    having = {values_of(row, MODEL) for row in frame.where(measure=OWN)}
    shown = {True: (None, OWN), False: (None, *others[:1])}
    return Frame(row for row in frame if row["measure"] in shown[values_of(row, MODEL) in having])


def values_of(row: Row, columns: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row[name] for name in columns)


def like_the_best(runs: dict[Any, dict[Any, float]], direction: str) -> set[Any]:
    """The lines that cannot be told from the best: a paired t-test over the runs that both have, two-sided."""
    from scipy.special import stdtr

    choose = max if direction == "higher" else min
    best = choose(runs, key=lambda line: fmean(runs[line].values()))
    alike = {best}
    for line, values in runs.items():
        gaps = [runs[best][run] - value for run, value in values.items() if run in runs[best]]
        if line == best or len(gaps) < 2:
            continue
        spread = stdev(gaps) / len(gaps) ** 0.5
        if spread > 0 and 2 * float(stdtr(len(gaps) - 1, -abs(fmean(gaps)) / spread)) >= LEVEL:
            alike.add(line)
    return alike


def compared(frame: Frame, *by: str) -> list[Row]:
    """Mean and standard deviation over runs of every line; `best` where it cannot be told from the best of a metric."""
    rows: list[Row] = []
    for (*_, metric), own in frame.by("dataset", *by, "metric"):
        runs = {line: {seed: runs.mean() for (seed,), runs in part.by("data_seed")} for line, part in own.by(*LINE)}
        alike = like_the_best(runs, better(metric))
        means = own.summarise([*LINE, *by, "metric"], over=["data_seed"])
        rows += [row | {"best": values_of(row, LINE) in alike} for row in means]
    return rows


def over_runs(frame: Frame) -> str:
    runs = len(frame.values("data_seed"))
    if runs < 2:
        return "One run: no spread, and nothing can be told apart"
    return (
        f"Mean ± standard deviation over {runs} runs. Bold: the best, and what a paired t-test over runs cannot tell "
        "from it (5 %, not corrected for the number of lines)"
    )


# ---- the paper's table and figure


@report("shift/table2")
def table_2(frame: Frame) -> Table:
    """Clean accuracy, and AUROC and rAULC of right against wrong over all severities (Postels et al. 2022, Table 2)."""
    rows = compared(pooled(frame))
    accuracy = {values_of(row, MODEL): row for row in compared(clean(frame).where(metric="accuracy"))}
    lines = dict.fromkeys(values_of(row, LINE) for row in rows)
    rows += [accuracy[tuple(model)] | {"measure": measure} for *model, measure in lines]
    low = undertrained_lines(frame)
    mark = Column("method", "method", lambda name: f"{name} (undertrained)" if name in low else str(name))
    return table(
        rows,
        "Does uncertainty tell right from wrong under corruption?",
        lines=(mark, *BESIDE, Column("measure", keep=True)),
        heads=metrics("accuracy", "auroc", "raulc", titles={"accuracy": "clean accuracy ↑"}),
        form=decimals(3),
        within=("dataset",),
        note=f"AUROC and rAULC: clean images and all severities of one corruption together, then the mean over "
        f"{len(shifted(frame).values('condition'))} corruptions. {over_runs(frame)}",
    )


def curves(frame: Frame, metric: str) -> dict[str, dict[str, float]]:
    """Line → severity → mean of a metric over runs and corruptions; clean images have severity 0."""
    own = first_measure(frame.where(metric=metric)).where(level=lambda level: level is not None)
    means = own.sort("level").summarise([*MODEL, "level"], over=["data_seed"])
    return {
        name_of(lines.rows[0]): {f"{row['level']:g}": row["value"] for row in lines} for _, lines in means.by(*MODEL)
    }


def panels(frame: Frame, key: str, title: str, *names: str) -> list[Panel]:
    """Figures of curves side by side, one for each metric that there is."""
    words = "Severity 0: clean images. AUROC and rAULC by the own score, or by the entropy where there is none."
    made = []
    for metric in names:
        if lines := curves(frame, metric):
            points = level_points(lines, "line", "severity", bare(metric))
            chart = partial(levels_figure, lines, bare(metric))
            made.append(Figure(f"{key}-{metric}", f"{bare(metric)}, {title}", words, chart, points))
    return [Panel(made)] if made else []


@report("shift/fig1", needs="rows of corrupted images")
def figure_1(frame: Frame) -> Made:
    """Accuracy, AUROC, rAULC and ECE against severity, the mean over corruptions (Postels et al. 2022, Figure 1)."""
    own = Frame([*clean(frame), *shifted(frame)])
    return panels(own, "fig1", "mean over corruptions", "accuracy", "auroc", "raulc", "ece")


@report("shift/corruptions", needs="rows of two corruptions or more")
def every_corruption(frame: Frame) -> Made:
    """Figure 1 of every corruption, and rAULC of every line on every corruption at a glance."""
    own = shifted(frame)
    if len(own.values("condition")) < 2:
        return None
    options = {}
    for (name,), part in own.by("condition"):
        word = name.replace("_", " ")
        options[word] = panels(Frame([*clean(frame), *part]), f"fig1-{name}", word, "accuracy", "auroc", "raulc")
    means = first_measure(own.where(level=None, metric="raulc")).summarise([*MODEL, "condition"], over=["data_seed"])
    cells = [
        {"line": name_of(row), "column": row["condition"].replace("_", " "), "value": row["value"], "n": row["n"]}
        for row in means
    ]
    words = "Clean images and all severities together. More colour is better; none is chance or worse."
    names = ("line", "corruption", "runs")
    heat = Figure("heat", "rAULC on every corruption", words, lambda: heat_figure(cells, "rAULC", 0.0, names), cells)
    return [heat, Choice("Corruption", options)]


# ---- beside them


@report("shift/answers", needs="rows of corrupted images")
def answers(frame: Frame) -> Made:
    """Accuracy, ECE and NLL against severity, the mean over corruptions."""
    own = Frame([*clean(frame), *shifted(frame)]).where(level=lambda level: level is not None)
    made = []
    for metric in ("accuracy", "ece", "nll"):
        means = own.where(metric=metric).sort("level").summarise([*MODEL, "level", "metric"], over=["data_seed"])
        heads = [
            Head(f"severity {level:g}" if level else CLEAN, where={"level": level}) for level in means.values("level")
        ]
        note = f"Mean over corruptions. {over_runs(frame).partition('. Bold')[0]}"
        title, lines = f"{bare(metric)} by severity", ("method", *BESIDE)
        made.append(table(means, title, lines=lines, heads=heads, form=decimals(3), within=("dataset",), note=note))
    return made


@report("shift/ood", needs="rows about sets of other classes (--out)")
def out_of_distribution(frame: Frame) -> Table:
    """AUROC of images of other sets against clean test images."""
    rows = compared(frame.where(split="out", metric="auroc"), "target")
    heads = [Head(f"{target} ↑", where={"target": target}) for target in Frame(rows).values("target")]
    title = "Does uncertainty tell images of other sets from test images?"
    lines = ("method", *BESIDE, Column("measure", keep=True))
    note = f"AUROC against clean test images. {over_runs(frame)}"
    return table(rows, title, lines=lines, heads=heads, form=decimals(3), within=("dataset",), note=note)


@report("shift/strengths", needs="two strengths or more (--strengths)")
def strengths(frame: Frame) -> Made:
    """Which strength of each method's regularisation was chosen, by the NLL of validation images in run 0."""
    rows: list[Row] = []
    for (data, method), own in frame.where(split="val").by("dataset", "method"):
        losses = {row["trial"]: row["value"] for row in own.where(metric="nll")}
        values = {row["trial"]: row["value"] for row in own.where(metric="strength")}
        best = min(losses, key=lambda trial: losses[trial])
        for trial, loss in losses.items():
            row = {"dataset": data, "method": method, "strength": values[trial], "metric": "nll", "value": loss}
            rows.append(row | {"chosen": "chosen" if trial == best else None})
    if not rows:
        return None
    note = "Run 0; the strength with the lowest NLL of validation images is that of all runs. From the weakest on"
    heads = [Head("validation NLL ↓"), Head("", of="chosen")]
    lines = ("method", "dataset", Column("strength", keep=True))
    return table(rows, "Strengths tried", lines=lines, heads=heads, mark="none", note=note)


def undertrained_lines(frame: Frame) -> list[str]:
    """Methods with a network that is far from the training accuracy that plain training reaches."""
    return frame.where(metric="train_accuracy", group="undertrained").values("method")


@report("shift/training", needs="networks whose training accuracy is known")
def training(frame: Frame) -> Made:
    """Training accuracy of every method: what did not learn cannot be compared."""
    rows = frame.where(metric="train_accuracy", members=1).summarise(MODEL[:3], over=["data_seed"])
    title, heads = "What the networks learnt", [Head("training accuracy ↑")]
    return table(rows, title, lines=("method", *BESIDE[:2]), heads=heads, form=decimals(3), mark="none")


# ---- the page


def first_look(study: Study) -> list[Table]:
    return [table_2(study.frame)]


def story(study: Study) -> Story:
    frame = study.frame
    sections: list[SectionParts] = [
        ("Table", "Does uncertainty tell right from wrong?", [table_2(frame)]),
        ("Severity", "What happens as images get worse?", [figure_1(frame), answers(frame)]),
        ("Corruptions", "Is it the same for every corruption?", [every_corruption(frame)]),
        ("Other sets", "Are images of other sets noticed?", [out_of_distribution(frame)]),
        ("Training", "What was trained?", [training(frame), strengths(frame)]),
    ]
    title = f"{study.data}: who knows what is wrong under corruption?"
    return story_of(study, title, _lead(frame), sections, command=registry["shift"].command)


def _lead(frame: Frame) -> list[str]:
    """Who leads, how far, and who did not learn."""
    lines = [name_of(part.rows[0]) for _, part in clean(frame).by(*MODEL)]
    conditions = shifted(frame).values("condition")
    lead = [f"{plural(len(lines), 'line')}, {len(frame.values('data_seed'))} runs, {len(conditions)} corruptions."]
    for (data,), own in first_measure(pooled(frame).where(metric="raulc")).by("dataset"):
        means = own.summarise([*MODEL], over=["data_seed"]).sort("value", reverse=True)
        best, *others = means
        lead.append(
            f"On {data}, {name_of(best)} ranks right above wrong answers best: rAULC {number(best['value'], 3)}."
        )
        if plain := [row for row in others if name_of(row) == "erm"]:
            lead.append(f"Plain softmax entropy (erm) has {number(plain[0]['value'], 3)}.")
    if low := undertrained_lines(frame):
        lead.append(f"Undertrained, and no finding about the method: {listed(low)}.")
    return lead
