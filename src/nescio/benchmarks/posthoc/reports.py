"""Scores of every network, the best of them, claims of the literature, and the page."""

from __future__ import annotations

from statistics import fmean

from nescio.analysis.significance import DELONG, compare_with_best
from nescio.benchmarks.posthoc import MISTAKES, QUESTIONS, TRANSFORMERS
from nescio.evaluations.posthoc import AMONG_BEST
from nescio.networks.families import architecture
from nescio.report.blocks import Blocks, Prose, SectionSpec, Story, Tabs
from nescio.report.charts.points import heat_figure
from nescio.report.format import format_number, plural
from nescio.report.frame import Frame, repetitions_of
from nescio.report.labels import dataset_label, network_label
from nescio.report.named_reports import report
from nescio.report.studies import Study, story_of
from nescio.report.tables import COUNT, Column, Index, Table, decimals, metrics, table
from nescio.rows import Row

BASELINE = "msp"
BEST = "Best score of every network"
SHAPING = ("react", "ash", "scale", "dice", "gradnorm")
COLLAPSE = 0.1  # difference of AUROC to the baseline that counts as a collapse
DIFFERENT = (
    "significantly different from the best by a paired t-test over seeds, or with fewer than three by DeLong's test of "
    "images under any seed (5 %, Holm's adjustment)"
)
CASE = ("network", Index("question", keep=True))
AREA, CHANGE = decimals(3), decimals(3, sign=True)


def scores(frame: Frame) -> Frame:
    """Every metric of every network, question and score, mean over sets and seeds.

    `best` marks an AUROC that is the best or not DIFFERENT; None for too few rows.
    """
    key = ("network", "evaluation", "measure")
    rows = frame.with_column("network", name_of).where(target=None, evaluation=QUESTIONS)
    of_images = {
        tuple(row[name] for name in key): row["value"] == 1 for row in rows.where(metric=AMONG_BEST).summarise(key)
    }
    means = rows.without(metric=AMONG_BEST).summarise([*key, "backbone", "fitted_on", "metric"], over=["data_seed"])
    result_rows: list[Row] = []
    for (network, question), group in means.where(metric="auroc").group_by("network", "evaluation"):
        verdict = compare_with_best({row["measure"]: repetitions_of(row) for row in group})
        for row in group:
            is_best = of_images.get((network, question, row["measure"]))
            if verdict.tests:
                is_best = row["measure"] in verdict.equals
            result_rows.append(row | {"best": is_best, "tests": verdict.tests or (DELONG,)})
    return Frame([*result_rows, *means.without(metric="auroc")])


def areas(frame: Frame) -> dict[tuple[str, str], dict[str, Row]]:
    """(network, question) → score → the row of its AUROC, the highest first."""
    cases = scores(frame).where(metric="auroc").group_by("network", "evaluation")
    return {key: {row["measure"]: row for row in rows.sort(lambda row: -row["value"])} for key, rows in cases}


def name_of(row: Row) -> str:
    return network_label(row, backbone=True)


@report("posthoc/networks")
def networks(frame: Frame) -> Table:
    """Accuracy of training and test images, ECE and NLL of every network."""
    outcomes = Frame([*frame.where(evaluation="classification"), *frame.facts("train_accuracy")])
    outcomes = outcomes.with_column("network", name_of)
    training = Column("training accuracy", where={"metric": "train_accuracy"}, format=decimals(4))
    return table(
        outcomes.summarise(["dataset", "network", "metric"], over=["data_seed"]),
        "The networks",
        index=("network", "dataset"),
        columns=[training, *metrics("accuracy", "ece", "nll")],
        bold="none",
        note="Test images. Ensembles have the lowest training accuracy of their members",
    )


@report("posthoc/best")
def best_scores(frame: Frame) -> Table:
    """The best score of every network and question, the number of scores that are not different, and the baseline."""
    rows = []
    for (network, question), ranking in areas(frame).items():
        best, baseline_row = next(iter(ranking.values())), ranking[BASELINE]
        case = {"network": network, "question": question, "score": best["measure"], "auroc": best["value"]}
        verdict = {None: None, True: "yes", False: "no"}[baseline_row["best"]]
        count = sum(row["best"] for row in ranking.values()) if verdict else None
        rows.append(case | {"equal": count, "scores": len(ranking), "plain": baseline_row["value"], "verdict": verdict})
    columns = [
        Column("best", "score"),
        Column("AUROC", "auroc", format=AREA),
        Column("not different", "equal", format=COUNT),
        Column("of", "scores", format=COUNT),
        Column(BASELINE, "plain", format=AREA),
        Column("not different?", "verdict"),
    ]
    note = f"Different: {DIFFERENT}; –: too few rows. The AUROC of the best of many scores is optimistic"
    return table(rows, BEST, index=CASE, columns=columns, bold="none", note=note)


@report("posthoc/scores")
def every_score(frame: Frame) -> Blocks:
    """Every score of every network: misclassification and OOD detection, near and far, and by set."""
    options = {}
    by_target = frame.with_column("network", name_of).where(metric="auroc", target=lambda name: name is not None)
    for (network,), rows in scores(frame).group_by("network"):
        sets = by_target.where(network=network)
        set_means = sets.summarise(["evaluation", "target", "measure", "fitted_on", "metric"], over=["data_seed"])
        columns = [column for question in QUESTIONS for column in _question_columns(question)]
        columns += [
            Column(f"{group}: {dataset_label(name)} AUROC ↑", where={"evaluation": group, "target": name})
            for (group, name), _ in sets.group_by("evaluation", "target")
        ]
        options[network] = [
            table(
                [row for name in _order(rows) for row in (*rows.where(measure=name), *set_means.where(measure=name))],
                f"Every score of {network}",
                index=(Index("measure", "score"), Index("fitted_on", "fitted on", keep=True)),
                columns=columns,
                format=AREA,
                note="The baseline first, the others by their mean AUROC",
            )
        ]
    return Tabs("Network", options)


def _order(rows: Frame) -> list[str]:
    """The scores, the baseline first, the others by their mean AUROC, those without AUROC last."""
    means = {name: rows.where(metric="auroc", measure=name).column() for name in rows.unique("measure")}
    return sorted(means, key=lambda name: (name != BASELINE, -fmean(means[name]) if means[name] else 0))


def _question_columns(question: str) -> list[Column]:
    """The columns of a question."""
    names = ("auroc", "aurc", "e_aurc", "augrc") if question == MISTAKES else ("auroc", "fpr_at_tpr@0.95", "scod_aurc")
    return [
        Column(
            f"{question} {head.title}", where={**head.where, "evaluation": question, "target": None}, metric=head.metric
        )
        for head in metrics(*names)
    ]


@report("posthoc/figure")
def heat(frame: Frame) -> Blocks:
    """AUROC of every score and network, one figure for each question."""
    options = {}
    for question in QUESTIONS:
        rows = scores(frame).where(metric="auroc", evaluation=question)
        cells = [
            {"line": name, "column": row["network"], "value": row["value"], "n": row["n"]}
            for name in _order(rows)
            for row in rows.where(measure=name)
        ]
        caption = (
            "The baseline first, the others by their mean over the networks that have them. More colour is better; "
            "none is chance or worse. Empty cells: the network does not have the score."
        )
        labels, names = (f"AUROC of every score, {question}", caption), ("score", "network", "seeds")
        if figure := heat_figure(f"scores-{question}", *labels, cells, "AUROC", 0.5, names, ".3f"):
            options[question] = [figure]
    return Tabs("Question", options)


# ---- claims of the literature


@report("posthoc/claims")
def claims(frame: Frame) -> Blocks:
    """Claims of papers about these scores, the number of cases that confirm them, and every case."""
    sentences, rows = [], []
    for claim in (pnorm_repairs, shaping_collapses, mahalanobis_leads):
        sentence, cases = " ".join(str(claim.__doc__).split()), claim(frame)
        count = sum(row["holds"] for row in cases)
        verdict = f"Confirmed in {count} of {len(cases)} cases." if cases else "Not tested: there is no such case."
        sentences.append(f"{sentence} {verdict}")
        name = " ".join(sentence.split()[:2])
        rows += [row | {"claim": name, "verdict": "yes" if row["holds"] else "no"} for row in cases]
    formats = {"score": None, "value": AREA, "against": None, "its value": AREA, "difference": CHANGE, "rank": None}
    columns = [Column(name, name, format=format) for name, format in formats.items()] + [Column("confirmed", "verdict")]
    note = "AUROC; of pNorm NAURC, which is better when lower. The rank is among all scores of the network"
    return [Prose(sentences), table(rows, "The cases", index=("claim", *CASE), columns=columns, bold="none", note=note)]


def _case(key: tuple[str, str], score: Row, other: Row, holds: bool, rank: str | None = None) -> Row:
    """A comparison of two scores of a network by one metric."""
    case = {"network": key[0], "question": key[1], "score": score["measure"], "value": score["value"], "rank": rank}
    against = {"against": other["measure"], "its value": other["value"]}
    return case | against | {"difference": score["value"] - other["value"], "holds": holds}


def pnorm_repairs(frame: Frame) -> list[Row]:
    """pNorm repairs broken confidences (Cattelan & Silva 2024): where msp is significantly worse than the best
    score of mistakes, pnorm has a lower NAURC."""
    naurc = {(row["network"], row["measure"]): row for row in scores(frame).where(metric="naurc")}
    beaten = [key for key, rows in areas(frame).items() if key[1] == MISTAKES and rows[BASELINE]["best"] is False]
    pairs = [(key, naurc[key[0], "pnorm"], naurc[key[0], BASELINE]) for key in beaten]
    return [_case(key, pnorm, baseline, pnorm["value"] < baseline["value"]) for key, pnorm, baseline in pairs]


def shaping_collapses(frame: Frame) -> list[Row]:
    """Shaping collapses on some architectures (OpenOOD): the lowest of react, ash, scale, dice and gradnorm is more
    than 0.1 of AUROC below msp."""
    rows = []
    for key, ranking in areas(frame).items():
        shaped = [row for name, row in ranking.items() if name in SHAPING]
        if key[1] != MISTAKES and shaped:
            rows.append(
                _case(key, shaped[-1], ranking[BASELINE], ranking[BASELINE]["value"] - shaped[-1]["value"] > COLLAPSE)
            )
    return rows


def mahalanobis_leads(frame: Frame) -> list[Row]:
    """Mahalanobis++ leads on transformers (Müller & Hein 2025): mds_plus or rmds_plus has the highest AUROC of all
    scores on near and far sets."""
    rows = []
    for key, ranking in areas(frame).items():
        variants = [row for name, row in ranking.items() if name in ("mds_plus", "rmds_plus")]
        if key[1] != MISTAKES and variants and architecture(variants[0]["backbone"]) in TRANSFORMERS:
            rank = 1 + sum(row["value"] > variants[0]["value"] for row in ranking.values())
            rows.append(_case(key, variants[0], next(iter(ranking.values())), rank == 1, f"{rank} of {len(ranking)}"))
    return rows


# ---- the page


def first_look(study: Study) -> list[Table]:
    return [networks(study.frame), best_scores(study.frame)]


def story(study: Study) -> Story:
    frame = study.frame
    sections: list[SectionSpec] = [
        ("Best", BEST, [best_scores(frame), heat(frame)]),
        ("Claims", "Claims of the literature", [claims(frame)]),
        ("Scores", "Every score", [every_score(frame)]),
        ("Networks", "The networks", [networks(frame)]),
    ]
    title = f"Post-hoc uncertainty scores: AUROC on {study.data}"
    return story_of(study, title, _lead(frame), sections)


def _lead(frame: Frame) -> list[str]:
    """The best mean score of every question, and the networks whose baseline is not different from the best."""
    cases = areas(frame)
    count = len({network for network, _ in cases})
    lead = [f"{plural(count, 'network')}, {len(scores(frame).unique('measure'))} scores."]
    for question in QUESTIONS:
        rankings = [rows for (_, name), rows in cases.items() if name == question]
        baselines = [rows[BASELINE]["best"] for rows in rankings if rows[BASELINE]["best"] is not None]
        if not baselines:
            continue
        common_scores = [name for name in rankings[0] if all(name in rows for rows in rankings)]
        means = {name: fmean(rows[name]["value"] for rows in rankings) for name in common_scores}
        best = max(means, key=lambda name: means[name])
        lead.append(
            f"{question.capitalize()}: of the scores that all networks have, {best} has the highest mean AUROC, "
            f"{format_number(means[best], 3)}. {BASELINE} has {format_number(means[BASELINE], 3)} and is not "
            f"significantly different from the best score of {sum(baselines)} of {len(baselines)} networks."
        )
    return lead
