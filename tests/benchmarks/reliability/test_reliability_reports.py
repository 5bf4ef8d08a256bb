"""The reports of representation reliability: from rows to the paper's tables and figures."""

from __future__ import annotations

from statistics import fmean, stdev

import numpy as np
import pytest

from nescio.analysis.significance import compare_with_best
from nescio.benchmarks.reliability import reports
from nescio.measures.siblings import SCORES
from nescio.report.blocks import Figure, tables_of
from nescio.report.frame import Frame
from nescio.report.named_reports import find_report, report_names
from nescio.report.studies import Study
from nescio.report.tables import Table
from nescio.rows import COLUMNS

WORDS = {name: score.word for name, score in SCORES.items()}


def made_rows(seed=0, samples=3, members=2):
    """Random rows of a study of two settings, two backbones, two methods."""
    rng = np.random.default_rng(seed)
    rows = []
    for data, target in (("cifar10", "cifar10"), ("tiny", "cifar10")):
        for backbone in ("resnet18", "resnet50"):
            place = dict.fromkeys(COLUMNS) | {"benchmark": "reliability", "version": 4}
            place |= {"dataset": data, "target": target, "backbone": backbone}
            for method in ("simclr", "moco"):
                rows += made_candidate(rng, place | {"method": method, "members": members}, samples)
            for name in ("nc", "fv"):
                for sample in range(samples):
                    about = {"measure": name, "metric": "ranking_brier", "distance": "cosine", "draw": sample}
                    rows.append(place | about | {"value": rng.uniform(-1, 1)})
    return rows


MAIN = ({"distance": "cosine"}, {"distance": "euclidean"})
SWEEPS = [{"distance": "cosine", "sweep": "k", "k": k} for k in (1, 10)]
SWEEPS += [{"distance": "cosine", "sweep": "M", "members": m} for m in (1, 2)]


def made_candidate(rng, facts, samples):
    rows = [facts | {"metric": loss, "value": rng.random()} for loss in ("brier", "entropy", "variance")]
    for member in range(facts["members"]):
        own = facts | {"members": 1, "init_seed": member}
        rows.append(own | {"metric": "probe_accuracy", "value": rng.random()})
        rows.append(own | {"metric": "knn_accuracy", "value": rng.random(), "k": 20})
    for about in (*MAIN, *SWEEPS):
        for name in WORDS:
            if (about.get("sweep") == "k" and name not in ("nc", "dist")) or (
                about.get("members") == 1 and name in ("nc", "fv")
            ):
                continue
            fixed = rng.uniform(-1, 1)
            for sample in range(samples):
                own = facts | about | {"measure": name, "draw": sample}
                for loss in ("brier", "entropy"):
                    value = fixed if name in ("norm", "fv") else rng.uniform(-1, 1)
                    rows.append(own | {"metric": f"kendall_{loss}", "value": value})
                    if about == MAIN[0]:
                        rows += made_members(rng, rows[-1], facts["members"])
                if about == MAIN[0]:
                    rows.append(own | {"metric": "mean", "value": rng.random()})
    return rows


def made_members(rng, row, members):
    """A row of every member alone, by the siblings' score and by its own."""
    stars = ("", "*") if row["measure"] in ("dist", "norm", "ll") else ("",)
    return [
        row | {"measure": row["measure"] + star, "value": rng.uniform(-1, 1), "init_seed": member, "members": 1}
        for member in range(members)
        for star in stars
    ]


def one(rows, **wanted):
    (value,) = values(rows, **wanted)
    return value


def values(rows, **wanted):
    return [row["value"] for row in rows if all(row[name] == value for name, value in wanted.items())]


def made(name, rows):
    return find_report(f"reliability/{name}").blocks(Frame(rows))


@pytest.mark.parametrize(
    ("name", "data", "distance", "spread"),
    [
        ("table1", "cifar10", "cosine", False),
        ("table2", "tiny", "cosine", False),
        ("table4", "cifar10", "cosine", True),
        ("table5", "cifar10", "euclidean", True),
        ("table6", "tiny", "cosine", True),
        ("table7", "tiny", "euclidean", True),
    ],
)
def test_reliability_reports__tables_are_means_and_deviations_over_samples(name, data, distance, spread):
    """One table per backbone; in-distribution and transfer apart; Norm and FV know no references, and so no spread."""
    rows = made_rows()
    found = made(name, rows)
    assert len(found) == 2
    head = "cifar10" if data == "cifar10" else "tiny → cifar10"
    for table, backbone in zip(found, ("resnet18", "resnet50"), strict=True):
        assert table.title.endswith(backbone) and f"(Table {name[-1]})" in table.title
        assert table.columns == (f"{head} entropy", f"{head} brier") and table.index == ("method", "score")
        assert [labels for labels, _ in table.rows] == [
            (method, score) for method in ("SimCLR", "MoCo") for score in ("NC", "Dist", "Norm", "LL", "FV")
        ]
        shown = table.cells()
        for method, title in (("simclr", "SimCLR"), ("moco", "MoCo")):
            for loss in ("entropy", "brier"):
                column, samples = {}, {}
                for measure, word in WORDS.items():
                    about = {"dataset": data, "backbone": backbone, "method": method, "distance": distance}
                    about |= {"sweep": None, "init_seed": None}
                    own = values(rows, metric=f"kendall_{loss}", measure=measure, **about)
                    assert len(own) == 3
                    cell = shown[(title, word), f"{head} {loss}"]
                    assert cell.value == pytest.approx(fmean(own))
                    around = f" ± {stdev(own):.4f}" if spread and measure not in ("norm", "fv") else ""
                    assert str(cell) == f"{fmean(own):.4f}{around}"
                    column[measure], samples[measure] = cell, dict(enumerate(own))
                equals = compare_with_best(samples).equals
                assert {measure for measure, cell in column.items() if cell.best} == equals


def test_reliability_reports__table_3_ranks_the_candidates_of_one_backbone():
    rows = made_rows()
    tables = made("table3", rows)
    assert [table.index for table in tables] == [("score",)] * 2
    for table, backbone in zip(tables, ("resnet18", "resnet50"), strict=True):
        for ((word,), head), cell in table.cells().items():
            data = "tiny" if "→" in head else "cifar10"
            own = values(rows, dataset=data, backbone=backbone, measure=word.lower(), metric="ranking_brier")
            assert cell.value == pytest.approx(fmean(own))
            assert str(cell).endswith(f"± {stdev(own):.4f}") == (word == "NC")


@pytest.mark.parametrize(("name", "data"), [("table8", "cifar10"), ("table9", "tiny")])
def test_reliability_reports__single_networks_are_averaged_over_samples_and_spread_over_networks(name, data):
    rows = made_rows(members=4)
    for table, backbone in zip(made(name, rows), ("resnet18", "resnet50"), strict=True):
        assert [labels for labels, _ in table.rows][:8] == [
            ("SimCLR", word) for word in ("NC", "Dist", "Dist*", "Norm", "Norm*", "LL", "LL*", "FV")
        ]
        for ((title, word), _), cell in table.cells().items():
            asked = {"dataset": data, "backbone": backbone, "method": title.lower(), "measure": word.lower()}
            own = [
                fmean(values(rows, metric="kendall_brier", distance="cosine", init_seed=member, **asked))
                for member in range(4)
            ]
            assert cell.value == pytest.approx(fmean(own))
            assert str(cell).endswith(f" ± {stdev(own):.4f}")


@pytest.mark.parametrize(("name", "over"), [("fig4", "M"), ("fig5", "k")])
def test_sweeps__figures_sweep_every_candidate_and_draw_scores_without_k_level(name, over):
    rows = made_rows()
    found = reports.sweeps(Frame(rows), over)
    assert len(found) == 8
    for swept in found:
        data = "tiny" if swept.first("transfer") else "cifar10"
        about = {"dataset": data, "backbone": swept.first("backbone"), "method": swept.first("method")}
        about |= {"metric": "kendall_brier", "init_seed": None, "distance": "cosine"}
        for measure in WORDS:
            line = {row["size"]: row["value"] for row in swept.where(measure=measure)}
            for size in (1, 10) if over == "k" else (1, 2):
                place = {"sweep": over, "k" if over == "k" else "members": size}
                if over == "k" and measure not in ("nc", "dist"):
                    place = {"sweep": None}
                own = values(rows, measure=measure, **(about | place))
                assert (size in line) == bool(own)
                if own:
                    assert line[size] == pytest.approx(fmean(own))
    blocks = made(name, rows)
    figures = [block for block in blocks if isinstance(block, Figure)]
    tables = [block for block in blocks if isinstance(block, Table)]
    assert len(figures) == len(tables) == 8 and len({each.key for each in figures}) == 8
    assert tables[0].columns == (("M = 1", "M = 2") if over == "M" else ("k = 1", "k = 10"))


def test_reliability_reports__figure_2_shows_one_candidate_in_distribution_and_one_in_transfer():
    blocks = made("fig2", made_rows())
    assert [type(block) for block in blocks] == [Figure] * 4 + [Table] * 4
    titles = ["SimCLR, resnet18, cifar10", "SimCLR, resnet18, tiny → cifar10"]
    assert [block.title for block in blocks[:4]] == titles * 2
    assert [block.title for block in blocks[4:]] == [f"{each} (Figure 2)" for each in titles * 2]


def test_reliability_reports__the_summary_counts_where_a_score_points_the_right_way():
    rows = made_rows()
    (table,) = made("summary", rows)
    order = []
    for ((word,), head), cell in table.cells().items():
        loss, what = head.split(": ")
        measure = word.lower()
        taus = [
            fmean(
                values(
                    rows,
                    dataset=data,
                    backbone=backbone,
                    method=method,
                    distance="cosine",
                    sweep=None,
                    metric=f"kendall_{loss}",
                    measure=measure,
                    init_seed=None,
                )
            )
            for data in ("cifar10", "tiny")
            for backbone in ("resnet18", "resnet50")
            for method in ("simclr", "moco")
        ]
        if what.startswith("mean"):
            assert cell.value == pytest.approx(fmean(taus))
            order += [cell.value] * (loss == "brier")
        elif what.startswith("lowest"):
            assert cell.value == pytest.approx(min(taus))
        else:
            assert cell.text == f"{sum(tau > 0 for tau in taus)} of 8"
    assert order == sorted(order, reverse=True) and len(order) == 5


def test_choices__a_score_takes_the_method_with_the_lowest_mean_uncertainty():
    rows = made_rows()
    table = reports.choices(Frame(rows))
    assert table.columns[0] == "cifar10, resnet18" and len(table.columns) == 4
    assert len(table.rows) == 6
    for ((line,), head), cell in table.cells().items():
        place, backbone = head.split(", ")
        asked = {"dataset": "tiny" if "→" in place else place, "backbone": backbone}
        brier = {m: one(rows, measure=None, method=m, metric="brier", **asked) for m in ("simclr", "moco")}
        u = brier if line == reports.TRUTH else {}
        for method in () if u else ("simclr", "moco"):
            u[method] = fmean(values(rows, method=method, measure=line.lower(), metric="mean", **asked))
        taken = min(u, key=u.get)
        assert cell.text == reports.METHODS[taken]
        assert cell.best == (taken == min(brier, key=brier.get) and line != reports.TRUTH)
    assert not reports.choices(Frame(rows).without(method="moco"))  # one alone is no choice


def test_story__reliable_stands_beside_good():
    """NC, accuracies and losses of a representation in one line, which is the first of the page and of the terminal."""
    rows = made_rows(members=3)
    table = reports.downstream(Frame(rows))
    cells = table.cells()
    assert table.columns == ("NC ↑", "linear probe ↑", "k-NN ↑", "Brier ↓", "entropy ↓", "variance ↓", "M")
    for method, backbone, data in (("moco", "resnet50", "tiny"), ("simclr", "resnet18", "cifar10")):
        line = (reports.METHODS[method], backbone, "cifar10" if data == "cifar10" else "tiny → cifar10")
        about = {"method": method, "backbone": backbone, "dataset": data}
        nc = 1 - fmean(values(rows, metric="mean", measure="nc", **about))
        assert cells[line, "NC ↑"].value == pytest.approx(nc)
        probe = values(rows, metric="probe_accuracy", **about)
        assert len(probe) == 3 and str(cells[line, "linear probe ↑"]) == f"{fmean(probe):.4f} ± {stdev(probe):.4f}"
        assert cells[line, "k-NN ↑"].value == pytest.approx(fmean(values(rows, metric="knn_accuracy", **about)))
        assert cells[line, "Brier ↓"].value == one(rows, measure=None, metric="brier", **about)
        assert str(cells[line, "M"]) == "3"
    assert "k = 20" in table.note and reports.NOT_STORED not in table.note and "M differs" not in table.note
    fewer = [
        row | {"members": 2} if row["method"] == "moco" else row for row in rows if "accuracy" not in row["metric"]
    ]
    before = reports.downstream(Frame(fewer))
    assert reports.NOT_STORED in before.note and "M differs" in before.note
    assert before.columns == ("NC ↑", "Brier ↓", "entropy ↓", "variance ↓", "M")
    study = Study(benchmark="reliability", version=4, rows=rows)
    assert tables_of(reports.story(study))[0] == table and reports.first_look(study)[0] == table


def test_lead__other_backbones_are_warned_of():
    """Consistency does not compare layers of different depth."""
    rows = made_rows()
    assert "differ in backbone (resnet18, resnet50)" in reports.lead(Frame(rows))[-1]
    alike = Frame(row for row in rows if row["backbone"] == "resnet18")
    assert not any("compare layers" in sentence for sentence in reports.lead(alike))


def test_reliability_reports__the_chosen_number_of_components_is_bold_and_the_sweep_is_shown():
    base = dict.fromkeys(COLUMNS) | {"dataset": "digits", "target": "digits", "backbone": "conv", "method": "simclr"}
    base |= {"measure": "ll", "sweep": "C", "distance": "cosine"}
    sweep = {1: 10.0, 4: 12.5, 20: 12.6}
    rows = [base | {"metric": "held_out_likelihood", "components": c, "value": value} for c, value in sweep.items()]
    rows += [base | {"metric": "kendall_brier", "components": c, "draw": 0, "value": c / 100} for c in sweep]
    rows.append(base | {"metric": "components", "value": 4})
    likely, figure, taus = sorted(made("components", rows), key=lambda block: block.title)
    assert {head: cell.best for (_, head), cell in likely.cells().items()} == {
        "C = 1": False,
        "C = 4": True,
        "C = 20": False,
    }
    assert isinstance(figure, Figure)
    assert {head: cell.value for (_, head), cell in taus.cells().items()} == {
        "C = 1": 0.01,
        "C = 4": 0.04,
        "C = 20": 0.2,
    }


def test_robustness__the_distance_table_has_both_sides_or_none():
    frame = Frame(made_rows())
    shown = reports.robustness(frame).cells()
    for distance in ("cosine", "euclidean"):
        means = reports.over_samples(frame).where(distance=distance, measure="ll", metric="kendall_brier")
        assert len(means) == 8
        assert shown[("LL",), f"{distance}: mean τ ↑"].value == pytest.approx(means.mean())
    assert not reports.robustness(frame.without(distance="euclidean"))


def test_reliability_reports__one_sample_has_no_spread_and_nothing_is_no_table():
    rows = made_rows(samples=1)
    assert all("±" not in str(cell) for table in made("table4", rows) for cell in table.cells().values())
    for name in report_names("reliability"):
        assert made(name, []) == [], name
