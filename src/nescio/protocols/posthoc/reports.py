"""The scores of every network, which of them are best, what is said of them elsewhere, and the page of all this."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import fmean

from nescio.protocols.base import registry
from nescio.protocols.posthoc import AMONG_BEST, FAR, MISTAKES, NEAR, QUESTIONS, TRANSFORMERS
from nescio.report.blocks import Choice, Figure, Made, Prose, SectionParts, Story
from nescio.report.charts import heat_figure
from nescio.report.frame import Frame
from nescio.report.named import report
from nescio.report.studies import Study, story_of
from nescio.report.tables import COUNT, Column, Head, Table, decimals, metrics, table
from nescio.report.words import data_name, listed, number, plural
from nescio.rows import Row

BASELINE = "largest"  # the plain largest softmax
SHAPING = ("react", "ash", "scale", "dice", "gradnorm")
COLLAPSE = 0.1  # of AUROC below that of the baseline
ALIKE = "DeLong's paired test over rows (Holm's adjustment, 5 %) cannot tell from the best, in every run"
Areas = dict[str, dict[str, dict[str, Row]]]  # network → question → score → its AUROC


def name_of(row: Row) -> str:
    """What a network is called: its method and backbone, and the size of an ensemble."""
    name = row["backbone"] if row["method"] == "pretrained" else f"{row['method']} {row['backbone']}"
    return name if row["members"] in (None, 1) else f"{name} × {row['members']}"


def scores(frame: Frame) -> Frame:
    """Every metric of every network, question and score, mean over sets and runs; an AUROC knows if it is `best`."""
    key = ("network", "group", "measure")
    own = frame.with_column("network", name_of).where(target=None, group=QUESTIONS)
    verdicts = own.where(metric=AMONG_BEST).summarise(key)
    alike = {tuple(row[name] for name in key) for row in verdicts if row["value"] == 1}  # in every run
    means = own.without(metric=AMONG_BEST).summarise([*key, "condition", "metric"], over=["data_seed"])
    return Frame(
        row | ({"best": tuple(row[name] for name in key) in alike} if row["metric"] == "auroc" else {}) for row in means
    )


def areas(frame: Frame) -> Areas:
    made: Areas = {}
    for row in scores(frame).where(metric="auroc"):
        made.setdefault(row["network"], {}).setdefault(row["group"], {})[row["measure"]] = row
    return made


def top(own: dict[str, Row], among: Sequence[str] = ()) -> Row:
    return max((row for name, row in own.items() if not among or name in among), key=lambda row: row["value"])


def runs_in(frame: Frame) -> str:
    runs = len(frame.values("data_seed"))
    return "one run" if runs == 1 else f"mean ± standard deviation over {runs} runs"


@report("posthoc/networks")
def networks(frame: Frame) -> Table:
    """Accuracy of training and test images, ECE and NLL of every network."""
    answers = frame.with_column("network", name_of).where(group=None, measure=None)
    training = Head("training accuracy", where={"metric": "train_accuracy"}, form=decimals(3))
    return table(
        answers.summarise(["dataset", "network", "metric"], over=["data_seed"]),
        "The networks",
        lines=("network", "dataset"),
        heads=[training, *metrics("accuracy", "ece", "nll")],
        mark="none",
        note=f"Test images; {runs_in(frame)}. Of an ensemble the lowest training accuracy of its members",
    )


@report("posthoc/best")
def best_scores(frame: Frame) -> Table:
    """For every network and question the best score, how many cannot be told from it, and the baseline."""
    rows = [
        {"network": network, "question": question, "score": top(own)["measure"], "auroc": top(own)["value"]}
        | {"alike": sum(row["best"] for row in own.values()), "scores": len(own), "plain": own[BASELINE]["value"]}
        | {"verdict": "as good" if own[BASELINE]["best"] else "beaten"}
        for network, questions in areas(frame).items()
        for question, own in questions.items()
    ]
    heads = [
        Head("best", "score"),
        Head("AUROC", "auroc", form=decimals(3)),
        Head("as good", "alike", form=COUNT),
        Head("of", "scores", form=COUNT),
        Head(BASELINE, "plain", form=decimals(3)),
        Head("which is", "verdict"),
    ]
    return table(
        rows,
        "Which score is best?",
        lines=("network", Column("question", keep=True)),
        heads=heads,
        mark="none",
        note=f"As good: what {ALIKE}. {BASELINE} is the baseline. The best of so many looks better than it is",
    )


@report("posthoc/scores")
def every_score(frame: Frame) -> Made:
    """Every score of every network: how well it tells mistakes, near and far sets, and each set."""
    options = {}
    apart = frame.with_column("network", name_of).where(metric="auroc", target=lambda name: name is not None)
    for (network,), own in scores(frame).by("network"):
        sets = apart.where(network=network)
        each = sets.summarise(["group", "target", "measure", "condition", "metric"], over=["data_seed"])
        last = {row["measure"]: row["value"] for row in own.where(metric="auroc")}  # of the last question that there is
        order = sorted(last, key=lambda name: (name != BASELINE, -last[name]))
        heads = [head for question in QUESTIONS for head in _heads(question)]
        heads += [
            Head(f"{group}: {data_name(name)} AUROC ↑", where={"group": group, "target": name})
            for (group, name), _ in sets.by("group", "target")
        ]
        options[network] = [
            table(
                [row for name in order for row in (*own.where(measure=name), *each.where(measure=name))],
                f"Every score of {network}",
                lines=(Column("measure", "score"), Column("condition", "fitted on", keep=True)),
                heads=heads,
                form=decimals(3),
                note=f"The baseline first, the others by the last question's AUROC; {runs_in(frame)}. Bold AUROC of a "
                f"question: the best, and what {ALIKE}; otherwise the best",
            )
        ]
    return Choice("Network", options)


def _heads(question: str) -> list[Head]:
    """The columns of a question."""
    names = ("auroc", "aurc", "e_aurc", "augrc") if question == MISTAKES else ("auroc", "fpr_at_tpr@0.95", "scod_aurc")
    return [
        Head(f"{question} {head.title}", where={**head.where, "group": question, "target": None}, metric=head.metric)
        for head in metrics(*names)
    ]


@report("posthoc/figure")
def heat(frame: Frame) -> Made:
    """AUROC of every score and network at a glance, one picture for each question."""
    options = {}
    for (question,), own in scores(frame).where(metric="auroc").by("group"):
        cells = [{"line": r["measure"], "column": r["network"], "value": r["value"], "n": r["n"]} for r in own]
        chart = partial(heat_figure, cells, "AUROC", 0.5, ("score", "network", "runs"))
        words = "More colour is better; none is chance or worse."
        options[question] = [Figure(f"scores-{question}", f"Every score: {question}", words, chart, cells)]
    return Choice("Question", options)


# ---- what is said elsewhere


@report("posthoc/claims")
def claims(frame: Frame) -> Prose:
    """What others found about these scores, and what came out here."""
    return Prose((pnorm_repairs(frame), shaping_collapses(frame), mahalanobis_leads(frame)))


def pnorm_repairs(frame: Frame) -> str:
    """Where the largest softmax can be told from the best score of mistakes, MaxLogit-pNorm has a lower NAURC."""
    claim = "pNorm repairs broken confidences (Cattelan & Silva 2024)"
    own = {name: questions.get(MISTAKES, {}) for name, questions in areas(frame).items()}
    broken = [name for name, of in own.items() if of and not of[BASELINE]["best"]]
    if not broken:
        return f"{claim}: not tested, the largest softmax is among the best scores of mistakes of every network."
    naurc = {(row["network"], row["measure"]): row["value"] for row in scores(frame).where(metric="naurc")}
    gains = {name: naurc[name, BASELINE] - naurc[name, "pnorm"] for name in broken}
    figures = listed([f"{number(gain, 3)} of {name}" for name, gain in gains.items()])
    return f"{claim}: {_verdict([gain > 0 for gain in gains.values()])}. It lowers NAURC by {figures}."


def shaping_collapses(frame: Frame) -> str:
    """The lowest shaping score of a network is far below its largest softmax on near or far sets."""
    claim = "Shaping collapses on some architectures (OpenOOD)"
    lowest: dict[str, tuple[float, str]] = {}
    for name, questions in areas(frame).items():
        gaps = [
            (own[shaped]["value"] - own[BASELINE]["value"], f"{shaped}, {question}")
            for question, own in questions.items()
            for shaped in SHAPING
            if question != MISTAKES and shaped in own
        ]
        lowest |= {name: min(gaps)} if gaps else {}
    if not lowest:
        return f"{claim}: not tested, no network has such scores and out-of-distribution sets."
    figures = listed([f"{number(gap, 3)} of {name} ({of})" for name, (gap, of) in lowest.items()])
    verdict = _verdict([gap < -COLLAPSE for gap, _ in lowest.values()])
    return f"{claim}, by more than {COLLAPSE:g} of AUROC below {BASELINE}: {verdict}. The lowest are {figures}."


def mahalanobis_leads(frame: Frame) -> str:
    """mds_plus or rmds_plus is among the best scores of near and far sets of every transformer."""
    claim = "Mahalanobis++ leads on transformers (Müller & Hein 2025)"
    leads, figures = [], []
    for name, questions in areas(frame).items():
        for question in (NEAR, FAR):
            own = questions.get(question, {})
            if not any(f"{family}_" in name for family in TRANSFORMERS) or "mds_plus" not in own:
                continue
            ours, best = top(own, ("mds_plus", "rmds_plus")), top(own)
            leads.append(ours["best"])
            ahead = "" if ours is best else f", the best, {best['measure']}, {number(best['value'], 3)}"
            figures.append(f"{question}, {name}: {ours['measure']} {number(ours['value'], 3)}{ahead}")
    if not leads:
        return f"{claim}: not tested, there is no transformer with out-of-distribution sets."
    return f"{claim}: {_verdict(leads)}. {'; '.join(figures).capitalize()}."


def _verdict(cases: Sequence[bool]) -> str:
    return "holds" if all(cases) else f"holds in {sum(cases)} of {len(cases)}" if any(cases) else "does not hold"


# ---- the page


def first_look(study: Study) -> list[Table]:
    return [networks(study.frame), best_scores(study.frame)]


def story(study: Study) -> Story:
    frame = study.frame
    sections: list[SectionParts] = [
        ("Best", "Which score is best?", [best_scores(frame), heat(frame)]),
        ("Claims", "What is said elsewhere, and what came out here", [claims(frame)]),
        ("Scores", "Every score", [every_score(frame)]),
        ("Networks", "The networks", [networks(frame)]),
    ]
    title = f"{study.data}: which score of saved outputs should one use?"
    return story_of(study, title, _lead(frame), sections, command=registry["posthoc"].command)


def _lead(frame: Frame) -> list[str]:
    """How often the baseline is as good as the best, by question; and which score is best on average."""
    found = areas(frame)
    lead = [f"{plural(len(found), 'network')}, {len(scores(frame).values('measure'))} scores."]
    for question in QUESTIONS:
        own = [questions[question] for questions in found.values() if question in questions]
        if not own:
            continue
        means = {name: fmean(of[name]["value"] for of in own) for name in own[0] if all(name in of for of in own)}
        best = max(means, key=lambda name: means[name])
        lead.append(
            f"{question.capitalize()}: the largest softmax is as good as the best score of "
            f"{sum(of[BASELINE]['best'] for of in own)} of {len(own)} networks; of the scores that all have, {best} "
            f"has the highest mean AUROC, {number(means[best], 3)}; the largest softmax, {number(means[BASELINE], 3)}."
        )
    return lead
