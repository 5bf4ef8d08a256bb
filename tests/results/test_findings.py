"""Every finding that a README states follows from rows: a query gives its numbers, and refuses if it is not so."""

from __future__ import annotations

import json
import math
import re
from functools import cache, partial

import pytest

from nescio.analysis.significance import paired_t_tests
from nescio.benchmarks.posthoc import FAR, MISTAKES, NEAR
from nescio.benchmarks.posthoc.reports import areas, mahalanobis_leads, pnorm_repairs, shaping_collapses
from nescio.benchmarks.sensitivity.reports import correlation, correlations, idle_strengths, points
from nescio.benchmarks.uimnet.reports import ORACLE, effects, first_lines, means, ranking
from nescio.benchmarks.url.reports import results as retrieval_table
from nescio.metrics import spearman
from nescio.report.frame import Frame
from nescio.report.studies import read_study
from tests.support.paths import ROOT

RESULTS = ROOT / "results"
SAME_BACKBONE = ("erm", "rnd", "oc", "deep-ae")
SETTINGS = {"cifar10": "cifar10", "npz:cifar100_small.npz": "transfer"}


@cache
def study(name):
    return read_study(RESULTS / name)


@cache
def rows(name):
    return study(name).frame


# ---- uimnet


def order_of_measures():
    """Entropy first, the Jacobian below chance."""
    auc = {labels[0]: cells[0].value for labels, cells in ranking(rows("uimnet")).rows}
    assert list(auc) == ["entropy", "tta", "msp", "gap", "gmm", "native", "jacobian"]
    assert auc["jacobian"] < 0.5
    return auc


def density_threshold():
    """What two-fold cross-fitting made of the promised 95 %."""
    cells = {labels[0]: cells for labels, cells in ranking(rows("uimnet")).rows}["gmm"]
    return {"inside": 100 * cells[1].value, "outside": 100 * cells[2].value}


def first_of_methods():
    """Calibrated single networks: nothing beats plain training by more than its own spread."""
    auc = {row["method"]: row for row in first_lines(rows("uimnet")).where(metric="auroc")}
    plain = auc["erm"]["value"]
    assert all(row["value"] - plain < row["spread"] + auc["erm"]["spread"] for row in auc.values())
    best = max(auc.values(), key=lambda row: row["value"])
    assert best["method"] == "oc"
    oracle = means(rows("uimnet")).where(method=ORACLE, metric="auroc").first()
    return {name: 100 * auc[name]["value"] for name in ("oc", "erm", "rnd")} | {"oracle": 100 * oracle}


def learning_rates():
    """Methods that train the same backbone differ after the search, and hardly at their defaults."""
    accuracy = first_lines(rows("uimnet")).where(metric="accuracy", method=SAME_BACKBONE)
    selected = {row["method"].replace("-", "_"): 100 * row["value"] for row in accuracy}
    trials = rows("uimnet").where(evaluation="search", split="test", metric="accuracy", spectral=None)
    defaults = trials.where(trial=0, method=SAME_BACKBONE).summarise(["method"]).column()
    assert 100 * (max(defaults) - min(defaults)) < 1 < 5 < max(selected.values()) - min(selected.values())
    return selected | {"low": 100 * min(defaults), "high": 100 * max(defaults)}


def ablations():
    """Relative changes, all else equal."""
    changes = {labels[0].partition(" (")[0]: cells for labels, cells in effects(rows("uimnet")).rows}
    heads = dict(zip(("acc", "acc5", "nll", "ece", "auc"), range(5), strict=True))
    return {
        "ensemble_ece": 100 * changes["ensembling"][heads["ece"]].value,
        "ensemble_auc": 100 * changes["ensembling"][heads["auc"]].value,
        "spectral_auc": 100 * changes["spectral norm"][heads["auc"]].value,
        "calibrated_auc": 100 * changes["calibration"][heads["auc"]].value,
    }


def calibration_of_single_networks():
    """Mean ECE of single networks, raw and calibrated."""
    ece = means(rows("uimnet")).where(metric="ece", members=1)
    raw, calibrated = (ece.where(calibrated=word).mean() for word in (False, True))
    assert calibrated < raw
    return {"raw": raw, "calibrated": calibrated}


def least_accurate():
    """Methods that learnt little in 16 epochs."""
    accuracy = {row["method"]: 100 * row["value"] for row in first_lines(rows("uimnet")).where(metric="accuracy")}
    assert sorted(accuracy, key=accuracy.__getitem__)[:3] == ["rbf", "due", "mc-dropout"]
    return {"rbf": accuracy["rbf"], "due": accuracy["due"], "dropout": accuracy["mc-dropout"]}


UIMNET = {
    order_of_measures: (
        "Entropy notices new classes best: its AUC is {entropy:.3f} over everything, then test-time augmentation "
        "({tta:.3f}), the largest softmax ({msp:.3f}), the gap ({gap:.3f}), class Gaussians ({gmm:.3f}) and the"
        " methods' own scores ({native:.3f}). The Jacobian's {jacobian:.3f} is below chance. The paper also has "
        "entropy first, but counts augmentations among the worst measures."
    ),
    first_of_methods: (
        "No method beats plain training by more than the spreads over data seeds: oc {oc:.1f} %, erm {erm:.1f} %, "
        "rnd {rnd:.1f} % of pairs. A network that was trained on both sides reaches {oracle:.1f} %."
    ),
    learning_rates: (
        "The order of the methods is more one of learning rates: erm, rnd, oc and deep-ae train the same backbone, "
        "and are right in {erm:.1f}, {rnd:.1f}, {oc:.1f} and {deep_ae:.1f} % after their searches, which drew rates"
        " of their own. At their defaults they have {low:.1f} to {high:.1f} %."
    ),
    calibration_of_single_networks: (
        "Calibration lowers the mean ECE of single networks from {raw:.3f} to {calibrated:.3f}."
    ),
    ablations: (
        "Calibration hardly moves AUC ({calibrated_auc:+.1f} %), nor does spectral norm 5 ({spectral_auc:+.1f} %). "
        "Ensembles of all three trials, weak draws included, raise the ECE by {ensemble_ece:.0f} % and change AUC by "
        "{ensemble_auc:+.1f} %."
    ),
    density_threshold: (
        "The threshold of the class Gaussians is not the promised 95 %: {inside:.1f} % of known images stay below "
        "it, and {outside:.1f} % of new ones are above it. Version 2 took it from fits on half of the rows; today "
        "every row is left out once."
    ),
    least_accurate: (
        "RBF ({rbf:.1f} %), DUE ({due:.1f} %) and MC-dropout ({dropout:.1f} %) are far from having learnt in 16 epochs."
    ),
}


# ---- reliability


def taus(metric, measure, target=None):
    """Kendall's τ of a score with a loss, one per setting and method, over the samples of references."""
    own = rows("reliability").where(metric=metric, measure=measure, sweep=None, init_seed=None)
    own = own if target is None else own.where(target=target)
    return {key: part.mean() for key, part in own.group_by("target", "method")}


def signs_of_nc_and_fv():
    """NC is above 0 in every case, feature variance below."""
    for metric in ("kendall_brier", "kendall_entropy"):
        assert len(taus(metric, "nc")) == 6
        assert min(taus(metric, "nc").values()) > 0 > max(taus(metric, "fv").values())
    values = {name: taus("kendall_brier", name).values() for name in ("nc", "fv")}
    return {f"{name}_{word}": pick(values[name]) for name in values for word, pick in (("low", min), ("high", max))}


def norm_against_nc():
    """Where the length of the representation is ahead of NC, by the Brier score."""
    nc, norm = taus("kendall_brier", "nc"), taus("kendall_brier", "norm")
    ahead = {key for key in nc if norm[key] > nc[key]}
    assert set(nc) - ahead == {("cifar10", "simclr")}
    return {"ahead": len(ahead), "cases": len(nc)}


def density():
    """LL by von Mises–Fisher mixtures."""
    tau = taus("kendall_brier", "ll")
    assert [key for key, value in tau.items() if value < 0] == [("npz:cifar100_small.npz", "simclr")]
    return {"low": min(tau.values()), "high": max(tau.values())}


def ranking_of_methods():
    """Table 3 for NC: the order of the methods, image by image."""
    tau = {
        f"{SETTINGS[target]}_{metric.partition('_')[2]}": value
        for metric in ("ranking_brier", "ranking_entropy")
        for (target, _), value in taus(metric, "nc").items()
    }
    assert tau["cifar10_brier"] < 0 and tau["cifar10_entropy"] < 0
    return tau


def best_downstream():
    """The Brier score of the members' averaged heads."""
    losses = {key: part.mean() for key, part in rows("reliability").where(metric="brier").group_by("target", "method")}
    for target in SETTINGS:
        own = {method: value for (place, method), value in losses.items() if place == target}
        assert min(own, key=own.__getitem__) == "simclr"
    return {SETTINGS[target]: losses[target, "simclr"] for target in SETTINGS}


def best_k():
    """The number of neighbours with the highest τ of NC, by setting and method."""
    own = rows("reliability").where(metric="kendall_brier", measure="nc", sweep="k")
    best = [
        max(part.group_by("k"), key=lambda pair: pair[1].mean())[0][0] for _, part in own.group_by("target", "method")
    ]
    assert len(best) == 6
    return {"low": int(min(best)), "high": int(max(best))}


def more_networks():
    """Cases in which NC of all networks is better than of two."""
    gains = 0
    own = rows("reliability").where(metric="kendall_brier", measure="nc", sweep="M")
    for _, part in own.group_by("target", "method"):
        tau = [sized.mean() for _, sized in part.sort("members").group_by("members")]
        gains += tau[-1] > tau[0]
    return {"gains": gains, "cases": len(list(own.group_by("target", "method")))}


def variance_of_answers():
    """Against the variance that Theorem 2 bounds, NC is ahead of Norm everywhere."""
    nc, norm = taus("kendall_variance", "nc"), taus("kendall_variance", "norm")
    assert all(nc[key] > norm[key] for key in nc)
    return {"low": min(nc.values()), "high": max(nc.values()), "cases": len(nc)}


RELIABILITY = {
    signs_of_nc_and_fv: (
        "Neighbourhood consistency points the right way for every method in both settings (τ {nc_low:.3f} to "
        "{nc_high:.3f} with the Brier score, and above 0 with the entropy). Feature variance points the wrong way "
        "in all of them ({fv_low:.3f} to {fv_high:.3f}): networks differ *more* where they are right. In the paper,"
        " too, NC is above 0 everywhere, and feature variance low or negative."
    ),
    norm_against_nc: (
        "NC is not the best score here. The length of the representation (Norm) is ahead of it in {ahead} of "
        "{cases} cases; for SimCLR on CIFAR-10 it is behind. The paper, with ten networks, has "
        "NC first in most cases."
    ),
    density: (
        "LL by von Mises–Fisher mixtures of 20 components tells little ({low:.3f} to {high:.3f}), and points the "
        "wrong way for SimCLR in transfer."
    ),
    ranking_of_methods: (
        "Which of the three methods to take (Table 3) NC does not tell: on CIFAR-10 it ranks them backwards more "
        "often than not (τ {cifar10_brier:.3f} by the Brier score, {cifar10_entropy:.3f} by the entropy), in "
        "transfer the two losses disagree ({transfer_brier:.3f} and {transfer_entropy:.3f})."
    ),
    best_downstream: (
        "SimCLR is the best downstream in both settings (Brier score {cifar10:.3f} and {transfer:.3f}), but it has "
        "five networks where the other two have three, and averaging more networks lowers the Brier score."
    ),
    best_k: ("NC has its highest τ between k = {low} and k = {high}."),
    more_networks: ("All networks give NC a higher τ than two of them in {gains} of {cases} cases."),
    variance_of_answers: (
        "Against the variance of the members' answers, the quantity that Theorem 2 bounds, NC is ahead of Norm in "
        "all {cases} cases (τ {low:.3f} to {high:.3f})."
    ),
}


# ---- shift

DETERMINISTIC = ("sngp", "due", "ddu", "mir", "duq", "dcu", "dcs", "postnet")
DENSITIES = ("ddu", "mir", "dcu")
UNDERTRAINED = ("sngp", "due", "duq", "dcu", "postnet")  # on CIFAR-100


METHODS = ("erm", "mc-dropout", *DETERMINISTIC)
HUNDRED = "npz:cifar100_small.npz"


def shifted(dataset="cifar10"):
    return rows("shift").where(dataset=dataset)


def by_run(name, metric, method, measure=None, members=1, **where):
    """run → value of a study; the mean over corruptions or shifts where a run has several."""
    own = rows(name).where(metric=metric, method=method, measure=measure, members=members, **where)
    return {run: part.mean("value") for (run,), part in own.group_by("data_seed")}


def runs(metric, method, measure=None, members=1, dataset="cifar10", **where):
    return by_run("shift", metric, method, measure, members, dataset=dataset, **where)


def down(value):
    """What "at least" may say of it in three digits."""
    return math.floor(1000 * value) / 1000


def mean_of(values):
    return sum(values.values()) / len(values)


def pooled_raulc(method, measure="entropy", members=1, dataset="cifar10"):
    return runs("raulc", method, measure, members, dataset, severity=None, split="test")


def ahead(these, those):
    """In how many runs the first is above the second."""
    return sum(these[run] > those[run] for run in those)


def trained_enough():
    """On CIFAR-10 plain training reaches what the budget allows, and so do all methods but two."""
    assert not shifted().where(undertrained=True)
    clean = {(name, k): mean_of(runs("accuracy", name, members=k, shift="clean")) for name, k in lines()}
    assert clean["erm", 1] >= 0.912 and clean["erm", 5] >= 0.922 and len(clean) == 11
    learnt = {name: min(shifted().where(method=name).facts("train_accuracy").column("value")) for name, _ in clean}
    apart = {name: (clean[name, 1], learnt.pop(name)) for name in ("dcu", "postnet")}
    others = [clean[name, 1] for name in learnt if name != "erm"]
    assert min(clean.values()) == clean["dcu", 1] and min(others) >= 0.912
    assert max(least for _, least in apart.values()) < min(learnt.values())
    return {
        "plain": clean["erm", 1],
        "five": clean["erm", 5],
        "low": min(others),
        "high": max(others),
        "least": down(min(learnt.values())),
        "duq": clean["duq", 1],
        **{name: accuracy for name, (accuracy, _) in apart.items()},
        **{f"{name}_least": down(least) for name, (_, least) in apart.items()},
    }


def lines(dataset="cifar10"):
    return [key for key, _ in shifted(dataset).group_by("method", "members")]


def undertrained():
    """Those that the page marks, on CIFAR-100, and what the others learnt."""
    assert set(shifted(HUNDRED).where(undertrained=True).unique("method")) == set(UNDERTRAINED)
    learnt = {name: shifted(HUNDRED).where(method=name).facts("train_accuracy").column("value") for name in METHODS}
    clean = {k: mean_of(runs("accuracy", "erm", None, k, HUNDRED, shift="clean")) for k in (1, 5)}
    trained = [name for name in METHODS if name not in UNDERTRAINED]
    found = {f"{name}_{word}": of(learnt[name]) for name in UNDERTRAINED for word, of in (("low", min), ("high", max))}
    least = down(min(min(learnt[name]) for name in trained))
    return found | {"least": least, "plain": clean[1], "five": clean[5]}


def behind_of(line, data):
    """How often an ensemble of five, by entropy, is ahead of every other line."""
    others = {(name, each): pooled_raulc(name, each, 1, data) for name in METHODS for each in ("native", "entropy")}
    return {other: ahead(line, own) for other, own in others.items() if own}


def ensembles_lead():
    """CIFAR-10: above every other line but one, in every run."""
    five, dcu = pooled_raulc("erm", "entropy", 5), pooled_raulc("dcu")
    assert {line for line, times in behind_of(five, "cifar10").items() if times < 3} == {("dcu", "entropy")}
    assert ahead(dcu, five) == 3
    return {"five": mean_of(five), "plain": mean_of(pooled_raulc("erm")), "dcu": mean_of(dcu)}


def views_of_ten():
    """dcu leads by entropy; plain training with its augmentations stands between it and plain training without."""
    plain, dcu = pooled_raulc("erm"), pooled_raulc("dcu")
    same = by_run("shift/augmented", "raulc", "erm", "entropy", severity=None, split="test")
    assert ahead(same, plain) == ahead(dcu, same) == 3
    clean = by_run("shift/augmented", "accuracy", "erm", shift="clean")
    learnt = rows("shift/augmented").facts("train_accuracy").column("value")
    its = shifted().where(method="dcu").facts("train_accuracy").column("value")
    assert max(learnt) < min(its)
    worst = [runs("accuracy", name, severity=5) for name in ("dcu", "erm")]
    worst.insert(1, by_run("shift/augmented", "accuracy", "erm", severity=5))
    assert ahead(worst[0], worst[1]) == ahead(worst[1], worst[2]) == 3
    inside = [runs("raulc", name, "entropy", severity=(1, 2, 3, 4, 5), split="test") for name in ("dcu", "erm")]
    inside.insert(1, by_run("shift/augmented", "raulc", "erm", "entropy", severity=(1, 2, 3, 4, 5), split="test"))
    assert ahead(inside[0], inside[1]) == ahead(inside[1], inside[2]) == 3
    marked = rows("shift/augmented").where(undertrained=True).facts("train_accuracy")
    assert marked.unique("method") == ["erm"]
    words = ("worst_dcu", "worst_same", "worst_plain", "inside_dcu", "inside_same", "inside_plain")
    return dict(zip(words, map(mean_of, (*worst, *inside)), strict=True)) | {
        "plain": mean_of(plain),
        "dcu": mean_of(dcu),
        "same": mean_of(same),
        "clean": mean_of(clean),
        "costly": mean_of(runs("accuracy", "dcu", shift="clean")),
        "accurate": mean_of(runs("accuracy", "erm", shift="clean")),
        "low": min(learnt),
        "high": max(learnt),
        "its_low": min(its),
        "its_high": max(its),
    }


def near_corruptions():
    """Where the augmentations of dcu help, and where they do not."""
    found = {}
    for word, condition in (("contrast", "contrast"), ("blur", "defocus_blur")):
        where = {"shift": condition, "severity": 5}
        of = [runs("accuracy", name, **where) for name in ("dcu", "erm")]
        same = by_run("shift/augmented", "accuracy", "erm", **where)
        assert ahead(of[0], of[1]) == ahead(same, of[1]) == 3
        found |= {f"{word}_dcu": mean_of(of[0]), f"{word}_same": mean_of(same), f"{word}_plain": mean_of(of[1])}
    for word, metric, where in (
        ("clean", "raulc", {"shift": "clean", "split": "test"}),
        ("out", "auroc", {"split": "out"}),
    ):
        dcu, plain = (runs(metric, name, "entropy", **where) for name in ("dcu", "erm"))
        assert ahead(plain, dcu) == 3
        found |= {f"{word}_dcu": mean_of(dcu), f"{word}_plain": mean_of(plain)}
    return found


def centroids_of_hundred():
    """CIFAR-100: of what was trained, the entropy of dcs alone is above ensembles, in every run."""
    five, dcs = pooled_raulc("erm", "entropy", 5, HUNDRED), pooled_raulc("dcs", dataset=HUNDRED)
    trained = {line: times for line, times in behind_of(five, HUNDRED).items() if line[0] not in UNDERTRAINED}
    assert {line for line, times in trained.items() if times < 3} == {("dcs", "entropy")} and ahead(dcs, five) == 3
    clean = {k: mean_of(runs("accuracy", "erm", None, k, HUNDRED, shift="clean")) for k in (1, 5)}
    return {
        "five": mean_of(five),
        "plain": mean_of(pooled_raulc("erm", dataset=HUNDRED)),
        "dcs": mean_of(dcs),
        "own": mean_of(pooled_raulc("dcs", "native", dataset=HUNDRED)),
        "clean": mean_of(runs("accuracy", "dcs", dataset=HUNDRED, shift="clean")),
        "plain_clean": clean[1],
        "five_clean": clean[5],
        "p": paired_t_tests({"dcs": dcs, "five": five})[0]["p"],
    }


def dropout_and_sngp():
    """Neither is ahead of plain softmax in every run."""
    plain = pooled_raulc("erm")
    found = {name: pooled_raulc(name) for name in ("mc-dropout", "sngp")}
    assert all(ahead(own, plain) < 3 for own in found.values())
    return {
        "plain": mean_of(plain),
        "low": min(plain.values()),
        "high": max(plain.values()),
        "dropout": mean_of(found["mc-dropout"]),
        "dropout_ahead": ahead(found["mc-dropout"], plain),
        "sngp": mean_of(found["sngp"]),
        "sngp_ahead": ahead(found["sngp"], plain),
    }


def own_scores():
    """Below the entropy of the same networks, in every run."""
    found = {}
    for name, k in [("erm", 5), ("mc-dropout", 1), *((name, 1) for name in DETERMINISTIC)]:
        own, entropy = pooled_raulc(name, "native", k), pooled_raulc(name, members=k)
        assert ahead(entropy, own) == 3
        found[name.replace("-", "_")] = mean_of(own)
    return found


def densities_are_last():
    """Among what points the right way."""
    runs_of = {name: pooled_raulc(name, "native") for name in DETERMINISTIC}
    found = {name: mean_of(own) for name, own in runs_of.items()}
    order = sorted(found, key=found.__getitem__)
    assert order[0] == "due" and set(order[1:4]) == set(DENSITIES)
    assert {min(DENSITIES, key=lambda name: runs_of[name][run]) for run in runs_of["ddu"]} == {"dcu"}
    return {name: found[name] for name in DENSITIES}


def variance_of_due():
    """Lower where the network is wrong."""
    own = pooled_raulc("due", "native")
    assert max(own.values()) < 0
    return {"raulc": mean_of(own), "entropy": mean_of(pooled_raulc("due"))}


def other_classes():
    """10,000 images of CIFAR-100, by AUROC."""
    assert set(shifted().where(split="out").unique("target")) == {HUNDRED}
    own, entropy = (runs("auroc", "sngp", measure, split="out") for measure in ("native", "entropy"))
    five, plain = (runs("auroc", "erm", "entropy", k, split="out") for k in (5, 1))
    assert ahead(own, entropy) == ahead(own, plain) == ahead(five, own) == 3
    scores = {name: runs("auroc", name, "native", split="out") for name in DETERMINISTIC}
    assert all(ahead(own, each) == 3 for name, each in scores.items() if name != "sngp")
    found = {name: mean_of(each) for name, each in scores.items()}
    return found | {
        "five": mean_of(five),
        "own": mean_of(own),
        "entropy": mean_of(entropy),
        "plain": mean_of(plain),
        "dropout": mean_of(runs("auroc", "mc-dropout", "native", split="out")),
    }


def by_validation(dataset):
    """The strength of the lowest NLL of validation images of each method, and its NLLs, the weakest strength first."""
    best, losses = {}, {}
    for (name,), own in shifted(dataset).where(split="val").group_by("method"):
        of_trial = {trial: part.mean("value") for (trial,), part in own.where(metric="nll").group_by("trial")}
        losses[name] = [of_trial[trial] for trial in sorted(of_trial)]
        trial = min(of_trial, key=of_trial.__getitem__)
        (best[name],) = set(own.where(trial=trial).facts("strength").column("value"))
    return best, losses


def strengths_of_ten():
    """What was chosen on CIFAR-10, where all runs have it; the strongest bounds leave networks at chance."""
    best, losses = by_validation("cifar10")
    assert set(best) == {*DETERMINISTIC} - {"dcu"} and all(len(own) == 3 for own in losses.values())
    for name, value in best.items():
        taken = set(shifted().where(method=name, split="test").facts("strength").column("value"))
        assert {round(each, 4) for each in taken} == {round(value, 4)}, name
    chosen = {name: own.index(min(own)) for name, own in losses.items()}
    assert [name for name in best if chosen[name] == 2] == ["postnet"]
    dead = {round(losses[name][-1], 2) for name in ("sngp", "ddu", "due")}
    assert dead == {round(math.log(10), 2)}
    spread = max(losses["postnet"]) - min(losses["postnet"])
    return best | {"dead": max(dead), "spread": spread}


def bounds_of_ten():
    """CIFAR-10: the share of layers that the chosen bounds hold back in each network."""
    found = {name: held_back("shift", name, dataset="cifar10")[1] for name in ("sngp", "due", "ddu")}
    assert all(len(shares) == 3 for shares in found.values()) and set(found["ddu"]) == {0}
    acting = [100 * share for name in ("sngp", "due") for share in found[name]]
    return {"low": min(acting), "high": max(acting)}


def few_images_of_many_classes():
    """CIFAR-100: entropies beside each other, own scores below them."""
    plain = pooled_raulc("erm", dataset=HUNDRED)
    entropy = {name: pooled_raulc(name, dataset=HUNDRED) for name in ("mc-dropout", "ddu", "mir")}
    own = {name: pooled_raulc(name, "native", dataset=HUNDRED) for name in entropy}
    assert all(ahead(entropy[name], own[name]) == 3 for name in own)
    assert all(abs(mean_of(each) - mean_of(plain)) < 0.006 for each in entropy.values())
    return {
        "plain": mean_of(plain),
        "low": min(mean_of(each) for each in entropy.values()),
        "high": max(mean_of(each) for each in entropy.values()),
    } | {f"{name.replace('-', '_')}": mean_of(each) for name, each in own.items()}


SHIFT = {
    trained_enough: (
        "CIFAR-10: clean accuracy is {plain:.3f} for `erm` and {five:.3f} for ensembles of five, {low:.3f} to "
        "{high:.3f} for the others but `dcu` and `postnet`, and all of these have at least {least:.3f} of the training "
        "images right; `duq` has {duq:.3f}, in the paper 0.860. `dcu` has {dcu:.3f} (at least {dcu_least:.3f} of the "
        "training images), the least of all; in the paper, after a prolonged contrastive pretraining, it has 0.945, "
        "the most of all. `postnet` has {postnet:.3f} (at least {postnet_least:.3f}), in the paper 0.882."
    ),
    ensembles_lead: (
        "CIFAR-10: ranked by entropy, deep ensembles have a rAULC of {five:.3f}, above every other line of the table "
        "in every run but one: the entropy of `dcu` has {dcu:.3f} and is ahead of them in every run. Plain softmax has "
        "{plain:.3f}."
    ),
    views_of_ten: (
        "Part of what `dcu` gains are its augmentations. Plain training with the same ones "
        "([control](augmented/README.md)) has {same:.3f}, above plain softmax ({plain:.3f}) and below `dcu` "
        "({dcu:.3f}) in every run; inside one severity, where it does not help to notice worse images, "
        "{inside_same:.3f} ({inside_plain:.3f} and {inside_dcu:.3f}). The control is marked as undertrained ({low:.3f} "
        "to {high:.3f} of the training images, `dcu` {its_low:.3f} to {its_high:.3f}), and `dcu` sees two views of "
        "every image: how much is left for its contrast cannot be said. Both cost clean accuracy: {clean:.3f} and "
        "{costly:.3f}, {accurate:.3f} without; at severity 5 they have more right: {worst_same:.3f} and "
        "{worst_dcu:.3f}, {worst_plain:.3f} without."
    ),
    near_corruptions: (
        "These augmentations change colours and blur, and are near to some corruptions: at severity 5 of contrast "
        "`dcu` has {contrast_dcu:.3f} right, the control {contrast_same:.3f} and `erm` {contrast_plain:.3f}, of "
        "defocus blur {blur_dcu:.3f}, {blur_same:.3f} and {blur_plain:.3f}. Among clean images the entropy of `dcu` "
        "ranks worse than that of `erm` in every run ({clean_dcu:.3f} and {clean_plain:.3f}), and so it does for "
        "images of CIFAR-100 (AUROC {out_dcu:.3f} and {out_plain:.3f})."
    ),
    dropout_and_sngp: (
        "CIFAR-10: by entropy, neither `mc-dropout` ({dropout:.3f}, ahead in {dropout_ahead} of 3 runs) nor `sngp` "
        "({sngp:.3f}, ahead in {sngp_ahead}) is shown to beat plain softmax ({plain:.3f}, from {low:.3f} to "
        "{high:.3f}). In the paper both do; its published code runs MC-dropout in training mode, so that batch-norm "
        "adapts to every batch of corrupted images."
    ),
    own_scores: (
        "CIFAR-10: the methods' own scores rank right and wrong answers worse than the entropy of the same "
        "networks, in every run: mutual information of ensembles {erm:.3f} and of `mc-dropout` {mc_dropout:.3f}, "
        "the Dempster–Shafer score of `sngp` {sngp:.3f}, the distances of `dcs` and `duq` to their centroids "
        "{dcs:.3f} and {duq:.3f}, the evidence of `postnet` {postnet:.3f}."
    ),
    densities_are_last: (
        "Densities of features are far behind: `ddu` {ddu:.3f}, `mir` {mir:.3f}, `dcu` {dcu:.3f}, which is the last of "
        "them in every run. In the paper `ddu` is last (0.441), and `dcu` (0.706) and `mir` (0.697) are beside plain "
        "softmax (0.708)."
    ),
    variance_of_due: (
        "The predictive variance of `due`, its score in UIMNET, points the wrong way: rAULC {raulc:.3f}. Its "
        "entropy ({entropy:.3f}) is as good as the others'."
    ),
    other_classes: (
        "For 10,000 images of CIFAR-100 the order is another one: ensembles by entropy (AUROC {five:.3f}), then the "
        "own score of `sngp` ({own:.3f}), ahead of its entropy ({entropy:.3f}) and of plain softmax ({plain:.3f}) in "
        "every run. Other own scores are behind it in every run: `dcs` {dcs:.3f}, `duq` {duq:.3f}, `postnet` "
        "{postnet:.3f}, the densities of `mir` {mir:.3f}, `ddu` {ddu:.3f} and `dcu` {dcu:.3f}; the variance of `due` "
        "({due:.3f}) points the wrong way here too."
    ),
    strengths_of_ten: (
        "CIFAR-10: of three strengths, the lowest validation loss chose (in earlier networks, see above) a bound of "
        "{sngp:.3g} for `sngp`, {due:.3g} for `due` and {ddu:g} for `ddu`, a weight of {mir:g} for `mir` and {dcs:g} "
        "for `dcs`, a penalty of {duq:g} for `duq`; the strongest, {postnet:g}, for `postnet` alone, whose three "
        "differ by {spread:.3f}. With a bound of 0.5 none of `sngp`, `due` and `ddu` learns (one network each): their "
        "validation loss is that of chance, {dead:.2f}."
    ),
    bounds_of_ten: (
        "CIFAR-10: these bounds hold back {low:.1f} to {high:.1f} % of the layers of `sngp` and `due` and none of "
        "`ddu`, whose density is that of unregularised features."
    ),
    undertrained: (
        "CIFAR-100: plain training has a clean accuracy of {plain:.3f} and ensembles {five:.3f}; five methods learn at "
        "least {least:.3f} of the training images. The other five stay behind with the budget that was looked for with "
        "`erm`: `due` ({due_low:.3f} to {due_high:.3f}), `sngp` ({sngp_low:.3f} to {sngp_high:.3f}), `dcu` "
        "({dcu_low:.3f} to {dcu_high:.3f}), `postnet` ({postnet_low:.3f} to {postnet_high:.3f}) and `duq` "
        "({duq_low:.3f} to {duq_high:.3f}; it did not converge in the paper). Their rows are marked, and no findings "
        "about them."
    ),
    centroids_of_hundred: (
        "CIFAR-100: of what was trained, one line is above deep ensembles (rAULC {five:.3f}; plain softmax "
        "{plain:.3f}) in every run: the entropy of `dcs` ({dcs:.3f}, p {p:.2f}; its own score {own:.3f}). Its clean "
        "accuracy is {clean:.3f}, that of ensembles {five_clean:.3f} and of `erm` {plain_clean:.3f}."
    ),
    few_images_of_many_classes: (
        "CIFAR-100: by entropy, `mc-dropout`, `ddu` and `mir` ({low:.3f} to {high:.3f}) are beside plain "
        "softmax ({plain:.3f}); their own scores are below it in every run (mutual information {mc_dropout:.3f}, "
        "densities {ddu:.3f} and {mir:.3f})."
    ),
}


# ---- shift, digits


digits = partial(by_run, "shift/digits")


def every_method_trains():
    own = rows("shift/digits").facts("train_accuracy")
    assert not own.where(undertrained=True) and len(own.unique("method")) == 10
    clean = [mean_of(digits("accuracy", name, shift="clean")) for name in own.unique("method")]
    duq = own.where(method="duq").column("value")
    return {"least": min(own.column("value")), "low": min(clean), "high": max(clean), "duq": min(duq)}


def weak_or_middle():
    """No method is best at its strongest regularisation, but for dcs."""
    tried = rows("shift/digits").where(split="val", metric="nll")
    best = {}
    for (name,), own in tried.group_by("method"):
        losses = {trial: part.mean("value") for (trial,), part in own.group_by("trial")}
        best[name] = min(losses, key=losses.__getitem__)
    weakest = [name for name, trial in best.items() if trial == 0]
    assert len(best) == 8 and [name for name, trial in best.items() if trial == 2] == ["dcs"]
    return {"weakest": len(weakest), "middle": len(best) - len(weakest) - 1}


def own_scores_of_digits():
    """Against plain softmax: in how many of three runs, and by a paired t-test."""
    plain = digits("raulc", "erm", "entropy", severity=None, split="test")
    lines = {"dcs": ("dcs", 1), "sngp": ("sngp", 1), "duq": ("duq", 1), "ddu": ("ddu", 1), "five": ("erm", 5)}
    found = {key: digits("raulc", name, "native", k, severity=None, split="test") for key, (name, k) in lines.items()}
    assert [key for key, own in found.items() if ahead(own, plain) == 3] == ["dcs", "sngp", "duq", "five"]
    softmax = pooled_raulc("erm")
    assert all(ahead(softmax, pooled_raulc(name, "native", k)) == 3 for name, k in lines.values())  # CIFAR-10
    tests = {key: paired_t_tests({"own": own, "plain": plain})[0]["p"] for key, own in found.items()}
    sngp = digits("raulc", "sngp", "entropy", severity=None, split="test")
    return (
        {key: mean_of(own) for key, own in found.items()}
        | {f"{key}_p": p for key, p in tests.items()}
        | {"plain": mean_of(plain), "ddu_ahead": ahead(found["ddu"], plain), "sngp_entropy": mean_of(sngp)}
    )


def held_back(name, method, **where):
    """The bound of a method's spectral norm, and the share of layers that it holds back in each of its networks."""
    own = rows(name).where(method=method, split="test", members=1, **where)
    (bound,) = own.facts("strength").unique("value")
    return bound, own.facts("at_bound").column("value")


def bounds_of_digits():
    """None of the chosen bounds acts."""
    found = {name: held_back("shift/digits", name) for name in ("sngp", "due", "ddu")}
    assert all(shares == [0, 0, 0] for _, shares in found.values())
    return {name: bound for name, (bound, _) in found.items()}


def views_of_digits():
    """dcu leads by entropy, and plain training does as well with the same augmentations."""
    plain, dcu = (digits("raulc", name, "entropy", severity=None, split="test") for name in ("erm", "dcu"))
    same, five = (
        by_run("shift/digits/augmented", "raulc", "erm", "entropy", size, severity=None, split="test")
        for size in (1, 5)
    )
    assert ahead(dcu, plain) == 3 and ahead(five, plain) == 3 and mean_of(same) >= mean_of(dcu) - 0.01
    known = {"plain": mean_of(plain), "dcu": mean_of(dcu), "same": mean_of(same), "five": mean_of(five)}
    clean = [digits("accuracy", name, shift="clean") for name in ("erm", "dcu")]
    own = by_run("shift/digits/augmented", "accuracy", "erm", shift="clean")
    return known | dict(zip(("accurate", "costly", "likewise"), map(mean_of, (*clean, own)), strict=True))


TEN_AUGMENTED = {
    views_of_ten: (
        "By entropy `dcu` has a rAULC of {dcu:.3f}, plain training with its augmentations {same:.3f}, and plain "
        "training on cropped and mirrored images {plain:.3f}, in this order in every run. Clean accuracy is "
        "{costly:.3f}, {clean:.3f} and {accurate:.3f}. With the augmentations {low:.3f} to {high:.3f} of the training "
        "images are right (`dcu` {its_low:.3f} to {its_high:.3f}): `erm` is marked as undertrained here, and a longer "
        "budget may bring it closer."
    ),
}
AUGMENTED = {
    views_of_digits: (
        "With the augmentations of `dcu`, the entropy of plain training has a rAULC of {same:.3f} (ensembles of five "
        "{five:.3f}), `dcu` {dcu:.3f}; plain training on moved images has {plain:.3f}. So the lead of `dcu` needs no "
        "contrast. The augmentations cost accuracy on clean images: {likewise:.3f} and {costly:.3f}, {accurate:.3f} "
        "without them."
    ),
}
DIGITS = {
    every_method_trains: (
        "All ten methods train: no training accuracy is below {least:.3f} (`duq` {duq:.3f}), clean accuracy is "
        "{low:.3f} to {high:.3f}."
    ),
    weak_or_middle: (
        "Validation loss chooses the weakest of three strengths for {weakest} of eight methods, the middle one "
        "for {middle} and the strongest for `dcs` alone."
    ),
    own_scores_of_digits: (
        "Here some own scores are ahead of plain softmax (rAULC {plain:.3f}) in all three runs: mutual information of "
        "ensembles of five {five:.3f} (p {five_p:.2f}), `dcs` {dcs:.3f} (p {dcs_p:.2f}), `sngp` {sngp:.3f} "
        "(p {sngp_p:.2f}; its entropy has {sngp_entropy:.3f}), `duq` {duq:.3f} (p {duq_p:.2f}); `ddu` {ddu:.3f} in "
        "{ddu_ahead}. Three runs decide little (paired t-tests, not corrected). On CIFAR-10 plain softmax is ahead of "
        "all of these in every run."
    ),
    bounds_of_digits: (
        "The bounds that validation loss chooses for `sngp` ({sngp:g}), `due` ({due:g}) and `ddu` ({ddu:g}) hold no "
        "layer of any trained network back: here these methods say what unregularised features say."
    ),
    views_of_digits: (
        "By entropy `dcu` has {dcu:.3f}, the highest mean of all lines, and it alone has augmentations of its own. "
        "With these, plain training has {same:.3f} ([control](augmented/README.md))."
    ),
}


# ---- scenes


scenes = partial(by_run, "scenes")


def worse_with_every_level():
    """Spearman's ρ of level and mIoU of plain networks, by shift, and how much is lost."""
    clean = mean_of(scenes("miou", "erm", shift="clean"))
    own = rows("scenes").where(metric="miou", method="erm", members=1, severity=lambda level: level is not None)
    rho, lost = {}, {}
    for shift in ("darkness", "fog", "rain"):
        curve = [(level, part.mean("value")) for (level,), part in own.where(shift=shift).group_by("severity")]
        rho[shift] = spearman(*zip(*curve, strict=True))
        lost[shift] = clean - max(curve)[1]
    assert max(rho.values()) <= -0.9 and min(lost.values()) >= 0.1
    return {"clean": clean, **{f"after_{shift}": clean - value for shift, value in lost.items()}}


def pixels_by_entropy():
    """No line can be told from plain softmax, by a paired t-test over six runs; p is that of the best."""
    plain = scenes("raulc", "erm", "entropy", severity=None)
    names = {"mc_dropout": "mc-dropout", "mir": "mir", "sngp": "sngp", "ddu": "ddu"}
    found = {key: scenes("raulc", name, "entropy", severity=None) for key, name in names.items()}
    found["three"] = scenes("raulc", "erm", "entropy", 3, severity=None)
    p = {name: paired_t_tests({name: own, "plain": plain})[0]["p"] for name, own in found.items()}
    assert min(p.values()) == p["mir"] > 0.05 and len(plain) == 6
    numbers = {name: mean_of(own) for name, own in found.items()}
    counts = {f"{name}_ahead": ahead(own, plain) for name, own in found.items()}
    spread = {"plain": mean_of(plain), "low": min(plain.values()), "high": max(plain.values())}
    return numbers | counts | spread | {"p": p["mir"]}


def own_scores_of_pixels():
    """Below the entropy of the same networks, in every run."""
    found = {}
    for name, k in (("erm", 3), ("mc-dropout", 1), ("sngp", 1), ("ddu", 1), ("mir", 1)):
        own, entropy = (scenes("raulc", name, measure, k, severity=None) for measure in ("native", "entropy"))
        assert ahead(entropy, own) == 6
        found[name.replace("-", "_")] = mean_of(own)
    return found


def bounds_of_pixels():
    """Of the authors' bounds, that of sngp does nothing, and that of ddu next to nothing."""
    (sngp, none), (ddu, few) = (held_back("scenes", name) for name in ("sngp", "ddu"))
    assert max(none) == 0 and len(none) == len(few) == 6
    return {"sngp": sngp, "ddu": ddu, "some": sum(share > 0 for share in few), "most": 100 * max(few)}


full = partial(by_run, "scenes/full")


def large_networks_learn():
    """Training accuracy of all lines, clean mIoU, and what is left of it at the last levels."""
    assert not rows("scenes/full").where(undertrained=True)
    own = rows("scenes/full").facts("train_accuracy").column("value")
    singles = [mean_of(full("miou", name, shift="clean")) for name in ("mc-dropout", "sngp", "ddu", "mir")]
    plain, three = (mean_of(full("miou", "erm", members=k, shift="clean")) for k in (1, 3))
    assert three > max(plain, *singles)
    found = {"least": min(own), "plain": plain, "three": three, "low": min(singles), "high": max(singles)}
    last = {}
    for shift in ("darkness", "fog", "rain"):
        level = max(level for level in rows("scenes/full").where(shift=shift).unique("severity") if level is not None)
        last[shift] = mean_of(full("miou", "erm", shift=shift, severity=level))
    return found | last


def large_by_entropy():
    """Two runs: which lines are ahead of plain softmax in both."""
    plain = full("raulc", "erm", "entropy", severity=None)
    found = {name: full("raulc", name, "entropy", severity=None) for name in ("mc-dropout", "mir", "sngp", "ddu")}
    three = full("raulc", "erm", "entropy", 3, severity=None)
    assert ahead(three, plain) == 2 and not any(ahead(own, plain) == 2 for own in found.values())
    assert [name for name, own in found.items() if ahead(plain, own) == 2] == ["sngp"]
    return {"plain": mean_of(plain), "three": mean_of(three)} | {
        name.replace("-", "_"): mean_of(own) for name, own in found.items()
    }


def large_own_scores():
    """Below the entropy of the same networks, in both runs."""
    found = {}
    for name, k in (("erm", 3), ("mc-dropout", 1), ("sngp", 1), ("ddu", 1), ("mir", 1)):
        own, entropy = (full("raulc", name, measure, k, severity=None) for measure in ("native", "entropy"))
        assert ahead(entropy, own) == 2
        found[name.replace("-", "_")] = mean_of(own)
    return found


FULL_SCENES = {
    large_networks_learn: (
        "All lines learn (training accuracy at least {least:.3f}). Clean mIoU is {plain:.3f} for `erm`, {low:.3f} to "
        "{high:.3f} for the other methods and {three:.3f} for ensembles of three; at the last level of darkness, fog "
        "and rain `erm` has {darkness:.3f}, {fog:.3f} and {rain:.3f}."
    ),
    large_by_entropy: (
        "By entropy, ensembles of three (rAULC {three:.3f}) are ahead of plain softmax ({plain:.3f}) in both runs and "
        "`sngp` ({sngp:.3f}) is behind it in both; for `mc-dropout` ({mc_dropout:.3f}), `ddu` ({ddu:.3f}) and `mir` "
        "({mir:.3f}) the two runs disagree."
    ),
    large_own_scores: (
        "Every own score is behind the entropy of the same networks, in both runs: mutual information of ensembles "
        "{erm:.3f} and of `mc-dropout` {mc_dropout:.3f}, the Dempster–Shafer score of `sngp` {sngp:.3f}, the densities "
        "of `ddu` {ddu:.3f} and `mir` {mir:.3f}."
    ),
}

SCENES = {
    worse_with_every_level: (
        "Darkness, fog and rain make the segmentation worse level by level: mIoU of `erm` falls from {clean:.3f} to "
        "{after_darkness:.3f}, {after_fog:.3f} and {after_rain:.3f} at their last levels."
    ),
    pixels_by_entropy: (
        "By entropy, no line can be told from plain softmax (rAULC {plain:.3f}, from {low:.3f} to {high:.3f}) in six "
        "runs: `mir` has {mir:.3f} (ahead in {mir_ahead}, p {p:.2f}), `mc-dropout` {mc_dropout:.3f} "
        "({mc_dropout_ahead}), ensembles of three {three:.3f} ({three_ahead}), `ddu` {ddu:.3f} ({ddu_ahead}), `sngp` "
        "{sngp:.3f} ({sngp_ahead}). In the paper's table of CARLA plain softmax is first."
    ),
    own_scores_of_pixels: (
        "Every own score is behind the entropy of the same networks, in every run: mutual information of ensembles "
        "{erm:.3f} and of `mc-dropout` {mc_dropout:.3f}, the Dempster–Shafer score of `sngp` {sngp:.3f}, and far "
        "behind the densities of `mir` ({mir:.3f}) and `ddu` ({ddu:.3f})."
    ),
    bounds_of_pixels: (
        "The spectral norms hardly act: the bound of {sngp:.3g} of `sngp` holds back no layer of any network, that of "
        "{ddu:.3g} of `ddu` {most:.0f} % of the layers in {some} of six. What these methods say here, they say of "
        "nearly unregularised features."
    ),
}


# ---- sensitivity


def hump_of_ddu():
    """Loose bounds do nothing, one in the middle is better than all of them in every run, the tightest is worse."""
    own = Frame(points(rows("sensitivity"))).where(method="ddu", measure="native")
    idle = {name: idle_strengths(rows("sensitivity"), name, "digits") for name in ("ddu", "sngp")}
    assert idle == {"ddu": [0, 1, 2, 3], "sngp": [0, 1, 2, 3, 4]}
    by_strength = {trial: {row["run"]: row["rAULC"] for row in part} for (trial,), part in own.group_by("trial")}
    loose = [mean_of(by_strength[trial]) for trial in idle["ddu"]]
    best = max(by_strength, key=lambda trial: mean_of(by_strength[trial]))
    assert all(ahead(by_strength[best], by_strength[trial]) == 5 for trial in idle["ddu"])
    bounds = {row["trial"]: row["strength"] for row in own}
    return {
        "last": bounds[3],
        "low": min(loose),
        "high": max(loose),
        "bound": bounds[best],
        "best": mean_of(by_strength[best]),
        "worst": mean_of(by_strength[7]),
    }


def strength_and_raulc(method, learnt=False, name="sensitivity"):
    """Spearman's ρ of strength and rAULC by the method's own score, its p-value, and how many networks it is of."""
    own = Frame(points(rows(name))).where(method=method, measure="native")
    own = own.where(accuracy=lambda value: value > 0.5) if learnt else own
    return (*correlation(own.column("trial"), own.column("rAULC")), len(own))


def of_all_four(study, learnt=False):
    """Method → ρ, p and networks."""
    return {name: strength_and_raulc(name, learnt, study) for name in ("mir", "duq", "ddu", "sngp")}


def told(found, sign):
    """Methods whose correlation has this sign and can be told from none."""
    return [name for name, (rho, p, _) in found.items() if p < 0.05 and sign * rho > 0]


def at_weakest(study):
    """Lowest and highest clean accuracy of a method at its weakest strength."""
    clean = rows(study).where(metric="accuracy", shift="clean", trial=0)
    means = [part.mean() for _, part in clean.group_by("method")]
    return {"low": min(means), "high": max(means)}


def costs(study):
    """Method → its correlation of strength and clean accuracy, with its p-value."""
    own = [row for row in correlations(rows(study)) if row["measure"] == "native"]
    return {row["method"]: (row["ρ accuracy"], row["p accuracy"]) for row in own}


def mir_alone():
    """The paper's claim, of the networks that learnt: positive for mir alone, and in every run."""
    found = of_all_four("sensitivity", learnt=True)
    assert told(found, 1) == ["mir"] and told(found, -1) == ["sngp"]
    own = Frame(points(rows("sensitivity"))).where(method="mir", measure="native", accuracy=lambda value: value > 0.5)
    by_run = [part.correlation("trial", "rAULC") for _, part in own.group_by("run")]
    assert len(by_run) == 5 and min(by_run) > 0 and found["mir"][1] > 0.0125  # a fourth of 0.05
    return {name: rho for name, (rho, _, _) in found.items()} | {
        "p": found["mir"][1],
        "low": min(by_run),
        "high": max(by_run),
    }


def with_collapsed():
    """All networks, those too that answer less than half of the clean images right."""
    found, learnt = of_all_four("sensitivity"), of_all_four("sensitivity", learnt=True)
    assert not told(found, 1) and told(found, -1) == ["sngp"]
    lost = {name: 40 - n for name, (_, _, n) in learnt.items()}
    return {name: rho for name, (rho, _, _) in found.items()} | {"lost": sum(lost.values()), "lost_of_mir": lost["mir"]}


def by_auroc():
    """Of the networks that learnt, and ddu of all networks."""
    learnt = {}
    for name in ("ddu", "duq", "mir"):
        own = Frame(points(rows("sensitivity"))).where(
            method=name, measure="native", accuracy=lambda value: value > 0.5
        )
        learnt[name], learnt[f"{name}_p"] = correlation(own.column("trial"), own.column("auroc"))
    assert max(learnt["ddu_p"], learnt["duq_p"]) < 0.0125 < learnt["mir_p"] < 0.05
    (all_of_ddu,) = Frame(correlations(rows("sensitivity"))).where(method="ddu", measure="native")
    assert all_of_ddu["p auroc"] < 0.05 < all_of_ddu["p rAULC"]
    few = rows("sensitivity").facts("rows_per_feature").column("value")
    assert max(few) < 1.2
    return learnt | {"rho": all_of_ddu["ρ auroc"], "p": all_of_ddu["p auroc"], "few": max(few)}


def price():
    """Stronger regularisation costs accuracy."""
    found = costs("sensitivity").values()
    assert len(found) == 4 and all(rho < 0 and p < 0.01 for rho, p in found)
    return {"low": min(found)[0], "high": max(found)[0]}


SENSITIVITY = {
    mir_alone: (
        "Of the networks that learnt, only those of `mir` have a better rAULC of their own score with more "
        "regularisation, as in the paper (Spearman's ρ {mir:.2f}, p {p:.3f}; {low:.2f} to {high:.2f} in the five "
        "runs). That p takes networks of one run for independent, and of four tests it would have to be below 0.0125. "
        "For `duq` ({duq:.2f}) and `ddu` ({ddu:.2f}) nothing can be told from no correlation, and for `sngp` "
        "({sngp:.2f}) it is negative."
    ),
    with_collapsed: (
        "{lost} networks at the strong ends did not learn (clean accuracy below one half), {lost_of_mir} of `mir` "
        "among them. With these no rAULC rises: `mir` {mir:.2f}, `duq` {duq:.2f}, `ddu` {ddu:.2f}, `sngp` {sngp:.2f}."
    ),
    by_auroc: (
        "By AUROC, of the same networks that learnt, the own scores of `ddu` ({ddu:.2f}, p {ddu_p:.4f}) and `duq` "
        "({duq:.2f}, p {duq_p:.3f}) rise beyond that limit, and that of `mir` ({mir:.2f}, p {mir_p:.2f}) does not "
        "reach it: that `mir` alone rises holds for rAULC only. With all networks `ddu` has {rho:.2f} (p {p:.2f}). "
        "Class Gaussians of `ddu` and `mir` rest on {few:.2f} training images per feature and are nearly singular."
    ),
    hump_of_ddu: (
        "Half of the bounds do nothing: those down to {last:.2f} hold back no layer of any network of `ddu`, five of "
        "eight none of `sngp`, and the correlations count them all. For `ddu` they hide a hump: these loose bounds "
        "have a rAULC of {low:.3f} to {high:.3f}; the best of the eight, {bound:.2f}, has {best:.3f} and is ahead of "
        "each of them in five of five runs; the tightest has {worst:.3f}."
    ),
    price: ("More regularisation costs clean accuracy for all four (ρ {low:.2f} to {high:.2f})."),
}


def weaker_mir(study):
    """The correlation of mir's own score without its two strongest weights, and the last of the others."""
    own = Frame(points(rows(study))).where(method="mir", measure="native", trial=tuple(range(6)))
    assert len(own) == 30
    rho, p = correlation(own.column("trial"), own.column("rAULC"))
    rising = sum(part.correlation("trial", "rAULC") > 0 for _, part in own.group_by("run"))
    last = max(row["strength"] for row in own if row["trial"] == 5)
    return {"weak": rho, "weak_p": p, "rising": rising, "last": last}


def digits_of_mnist():
    """The four correlations, and that of mir without its two strongest weights."""
    found, weak = of_all_four("sensitivity/mnist"), weaker_mir("sensitivity/mnist")
    assert all(n == 40 for _, _, n in found.values()) and weak["weak_p"] > 0.05
    assert told(found, -1) == ["mir", "duq"] and not told(found, 1)
    return {name: rho for name, (rho, _, _) in found.items()} | {"p": found["mir"][1]} | weak


def learnt_of_mnist():
    """At the weakest strengths, and over all."""
    clean = rows("sensitivity/mnist").where(metric="accuracy", shift="clean")
    assert len(clean) == 160
    learnt = rows("sensitivity/mnist").where(trial=0).facts("train_accuracy").column("value")
    least = {"least": down(min(clean.column("value"))), "learnt": down(min(learnt))}
    return at_weakest("sensitivity/mnist") | least


MNIST = {
    learnt_of_mnist: (
        "Clean accuracy is {low:.3f} to {high:.3f} at the weakest strengths (at least {learnt:.3f} of the training "
        "images), and {least:.3f} or more in all networks."
    ),
    digits_of_mnist: (
        "No method's own score ranks better with more regularisation. For `mir`, the paper's one case, it goes with a "
        "worse rAULC (Spearman's ρ {mir:.2f}, p {p:.3f}), by the two strongest weights alone (a cut made after seeing "
        "them): up to {last:.1f} nothing can be told (ρ {weak:.2f}). For `duq` ({duq:.2f}) it goes with a worse one "
        "too, and for `ddu` ({ddu:.2f}) and `sngp` ({sngp:.2f}) nothing can be told from no correlation."
    ),
}


def clothes():
    """The four correlations on Fashion-MNIST, and where that of mir turns."""
    found, weak = of_all_four("sensitivity/fashion-mnist"), weaker_mir("sensitivity/fashion-mnist")
    learnt = strength_and_raulc("mir", learnt=True, name="sensitivity/fashion-mnist")
    assert told(found, -1) == ["duq"] and not told(found, 1) and weak["weak_p"] < 0.0125
    assert learnt[1] > 0.05 and learnt[2] == 36
    own = Frame(points(rows("sensitivity/fashion-mnist"))).where(method="mir", measure="native")
    means = {trial: part.mean("rAULC") for (trial,), part in own.group_by("trial")}
    shown = {"first": means[0], "most": max(means.values()), "then": means[6]}
    return {name: rho for name, (rho, _, _) in found.items()} | weak | shown | {"learnt": learnt[0]}


def learnt_of_clothes():
    """At the weakest strengths, and which did not learn."""
    clean = rows("sensitivity/fashion-mnist").where(metric="accuracy", shift="clean")
    assert {key: len(part) for key, part in clean.group_by("method", "trial") if len(part) != 5} == {("mir", 7): 4}
    lost = clean.where(value=lambda value: value < 0.5)
    assert {(row["method"], row["trial"]) for row in lost} == {("mir", 7)} and len(lost) == 3
    others = [row["value"] for row in clean if row["value"] >= 0.5]
    learnt = rows("sensitivity/fashion-mnist").where(trial=0).facts("train_accuracy").column("value")
    return at_weakest("sensitivity/fashion-mnist") | {"least": down(min(others)), "learnt": down(min(learnt))}


def price_of_clothes():
    """Where a stronger regularisation costs accuracy."""
    found = costs("sensitivity/fashion-mnist")
    assert {name for name, (rho, p) in found.items() if rho < 0 and p < 0.01} == {"duq", "mir", "ddu"}
    assert found["sngp"][1] > 0.05
    return {name: rho for name, (rho, _) in found.items()}


def weak_clothes():
    """Where it turns."""
    return clothes()


FASHION = {
    learnt_of_clothes: (
        "Clean accuracy is {low:.3f} to {high:.3f} at the weakest strengths (at least {learnt:.3f} of the training "
        "images). At its strongest weight one network of `mir` diverged (NaN loss) and has no rows, and three of the "
        "other four did not learn; all others have {least:.3f} or more."
    ),
    clothes: (
        "No method's own score ranks better with more regularisation over the whole range: `mir` {mir:.2f} (of the "
        "networks that learnt {learnt:.2f}), `ddu` {ddu:.2f} and `sngp` {sngp:.2f} cannot be told from no correlation, "
        "and `duq` ({duq:.2f}) ranks worse."
    ),
    weak_clothes: (
        "For `mir`, the paper's one case, it rises at first and then falls: up to a weight of {last:.1f} Spearman's ρ "
        "is {weak:.2f} (p {weak_p:.1g}, positive in {rising} of five runs; where to stop was chosen after seeing the "
        "curve), and rAULC goes from {first:.3f} to {most:.3f} and back to {then:.3f} at the last but one."
    ),
    price_of_clothes: (
        "It costs clean accuracy for `duq` ({duq:.2f}), `mir` ({mir:.2f}) and `ddu` ({ddu:.2f}); for `sngp` "
        "({sngp:.2f}) nothing can be told."
    ),
}


# ---- posthoc

VIT = "erm vit_tiny_patch16_224:patch4"
FIVE = "erm resnet18 × 5"


def area(question):
    """network → score → the row of its AUROC."""
    return {network: own for (network, of), own in areas(rows("posthoc")).items() if of == question}


def average(question, score):
    values = [own[score]["value"] for own in area(question).values()]
    return sum(values) / len(values)


def gains(question, score):
    """By how much a score is above the largest softmax, by network."""
    return {network: own[score]["value"] - own["msp"]["value"] for network, own in area(question).items()}


def five_networks():
    own = rows("posthoc").where(metric="accuracy", measure=None, evaluation="classification")
    accuracy = {(row["method"], row["backbone"], row["members"]): row["value"] for row in own}
    assert len(accuracy) == 5
    return {
        "plain": accuracy["erm", "resnet18", 1],
        "five": accuracy["erm", "resnet18", 5],
        "repvgg": accuracy["erm", "repvgg_a0", 1],
        "vit": accuracy["erm", "vit_tiny_patch16_224:patch4", 1],
    }


def mistakes_need_little():
    """The plain baseline is among the best but for the transformer, where a fitted temperature is enough."""
    own = area(MISTAKES)
    worse = [network for network, scores in own.items() if not scores["msp"]["best"]]
    assert worse == [VIT] and next(iter(own[VIT])) == "msp_tuned"
    return {name: own[VIT][name]["value"] for name in ("msp", "msp_tuned")}


def near_by_logits():
    """The plain baseline is never among the best; nothing that is fitted beats energy on average."""
    own = area(NEAR)
    assert not any(scores["msp"]["best"] for scores in own.values()) and min(gains(NEAR, "energy").values()) > 0
    shared = [name for name in own[VIT] if all(name in scores for scores in own.values())]
    assert max(shared, key=lambda name: average(NEAR, name)) == "energy"
    return {name: average(NEAR, name) for name in ("energy", "gen", "knn", "msp")}


def far_by_neighbours():
    """Neighbours lead on average, and by much."""
    own = area(FAR)
    shared = [name for name in own[VIT] if all(name in scores for scores in own.values())]
    assert max(shared, key=lambda name: average(FAR, name)) == "knn"
    return {
        "knn": average(FAR, "knn"),
        "msp": average(FAR, "msp"),
        "least": min(gains(FAR, "knn").values()),
    }


def length_one():
    """Mahalanobis distances of features at length one against those of features as they are."""
    found = {}
    for name, question in {"near": NEAR, "far": FAR}.items():
        own = area(question)
        assert all(scores["mds_plus"]["value"] > scores["mahalanobis"]["value"] for scores in own.values())
        found |= {f"{name}_plain": average(question, "mahalanobis"), name: average(question, "mds_plus")}
    return found


def claims_elsewhere():
    """In how many cases they hold."""
    frame = rows("posthoc")
    pnorm, shaping, leads = pnorm_repairs(frame), shaping_collapses(frame), mahalanobis_leads(frame)
    assert len(pnorm) == 1 and not pnorm[0]["holds"] and not any(case["holds"] for case in leads)
    collapsed = [case for case in shaping if case["holds"]]
    assert {case["score"] for case in collapsed} == {"ash"}
    near, far = (case["rank"].partition(" ")[0] for case in leads)
    values = {"pnorm": pnorm[0]["value"], "plain": pnorm[0]["its value"], "near": near, "far": far}
    return values | {"collapsed": len(collapsed), "cases": len(shaping), "of": leads[0]["rank"].rpartition(" ")[2]}


POSTHOC = {
    five_networks: (
        "The networks: accuracy {plain:.3f} of a ResNet-18 and {five:.3f} of five averaged; {repvgg:.3f} of a "
        "RepVGG-A0, whose strides are made for larger images, and {vit:.3f} of a small transformer without "
        "pretraining."
    ),
    mistakes_need_little: (
        "To notice mistakes, no score beats the largest softmax on four of five networks. On the transformer, "
        "which is overconfident, a temperature fitted on validation images is enough: AUROC {msp_tuned:.3f} "
        "against {msp:.3f}."
    ),
    near_by_logits: (
        "To notice images of CIFAR-100, the largest softmax ({msp:.3f} on average) is among the best scores "
        "of no network; energy, which needs nothing but logits, has the highest average, {energy:.3f}, and beats "
        "it on each (`gen` {gen:.3f}, neighbours {knn:.3f})."
    ),
    far_by_neighbours: (
        "To notice MNIST, Fashion-MNIST and birds, the distance to the nearest training image has the highest "
        "average, {knn:.3f} against {msp:.3f} of the largest softmax, and is ahead by at least {least:.3f} on "
        "every network."
    ),
    length_one: (
        "Mahalanobis distances need features at length one, on every network: {near:.3f} against {near_plain:.3f} "
        "near, {far:.3f} against {far_plain:.3f} far."
    ),
    claims_elsewhere: (
        "What others found: pNorm does not repair the one network whose largest softmax is not among the best "
        "(NAURC {pnorm:.3f} against {plain:.3f}, lower is better); shaping collapses in {collapsed} of {cases} "
        "cases, each time `ash`; Mahalanobis++ does not lead on the transformer (rank {near} of {of} near, {far} "
        "far)."
    ),
}


# ---- lite: networks of ImageNet, scores of their logits


def lite(question, metric="auroc"):
    """(Lite0 or Lite1, score) → value."""
    own = rows("lite").where(metric=metric, evaluation=question, target=None)
    return {(re.search(r"lite\d", row["backbone"])[0], row["measure"]): row["value"] for row in own}


def lite_networks():
    own = rows("lite").where(metric="accuracy", measure=None, evaluation="classification")
    return {re.search(r"lite\d", row["backbone"])[0]: row["value"] for row in own}


def pnorm_on_lite1():
    """Lite1's largest softmax is worse than that of the weaker network, and pnorm is not."""
    (case,) = pnorm_repairs(rows("lite"))
    assert case["holds"] and "lite1" in case["network"]
    area = lite(MISTAKES)
    assert area["lite1", "msp"] < area["lite0", "msp"] and area["lite1", "pnorm"] > area["lite0", "pnorm"]
    return {f"{name}_{score}": area[name, score] for name in ("lite0", "lite1") for score in ("msp", "pnorm")}


def far_from_imagenet():
    area = lite(FAR)
    assert all(max((s for n, s in area if n == name), key=lambda s, n=name: area[n, s]) == "gen" for name, _ in area)
    assert all(case["holds"] and case["score"] == "gradnorm" for case in shaping_collapses(rows("lite")))
    return {f"{name}_{score}": area[name, score] for name in ("lite0", "lite1") for score in ("msp", "gen", "gradnorm")}


LITE = {
    lite_networks: ("Accuracy on these images is {lite0:.3f} for EfficientNet-Lite0 and {lite1:.3f} for Lite1."),
    pnorm_on_lite1: (
        "pNorm repairs a broken confidence: the largest softmax of Lite1, the better network, notices its "
        "mistakes worse than that of Lite0 (AUROC {lite1_msp:.3f} against {lite0_msp:.3f}); with `pnorm`, "
        "which needs neither labels nor validation images, it is ahead ({lite1_pnorm:.3f} against "
        "{lite0_pnorm:.3f})."
    ),
    far_from_imagenet: (
        "MNIST and Fashion-MNIST are noticed best by `gen` ({lite0_gen:.3f} and {lite1_gen:.3f}; the largest "
        "softmax has {lite0_msp:.3f} and {lite1_msp:.3f}); `gradnorm` collapses on both "
        "({lite0_gradnorm:.3f} and {lite1_gradnorm:.3f})."
    ),
}


# ---- url

SPREADS = ("elk", "nivmf", "hib", "mc-infonce")  # methods with a κ
SETS = {"cub": "npz:cub200_128.npz#50-99#100-199", "cifar100": "npz:cifar100_small.npz"}


def retrieval(metric, method, measure=None, target=None):
    """The mean over downstream sets and seeds."""
    where = {"target": SETS[target]} if target else {}
    return (
        rows("url")
        .where(metric=metric, method=method, measure=measure, split="test", evaluation="transfer", **where)
        .mean()
    )


def upstream_accuracy():
    own = rows("url").where(metric="accuracy", split="upstream")
    found = {method: part.mean() for (method,), part in own.group_by("method")}
    return {"erm": found["erm"], "low": min(found.values()), "high": max(found.values())}


def learning_on_costs_neighbours():
    """losspred-order keeps the backbone as it came; all others move it."""
    frozen = retrieval("recall_at_1", "losspred-order")
    others = {name: retrieval("recall_at_1", name) for name in study("url").plan["methods"] if name != "losspred-order"}
    assert max(others.values()) < frozen
    return {"frozen": frozen, "best": max(others.values()), "least": min(others.values()), "erm": others["erm"]}


def predicted_loss_leads():
    """By the methods' own scores."""
    lines = {labels[0]: (labels[1], cells[0]) for labels, cells in retrieval_table(rows("url")).rows}
    assert next(iter(lines)) == "losspred-order"
    alike = [name for name, (_, cell) in lines.items() if cell.best]
    assert alike == ["losspred-order", "losspred", "infonce", "sngp", "mc-infonce", "mc-dropout", "het-xl", "elk"]
    return {name.replace("-", "_"): cell.value for name, (_, cell) in lines.items()}


def entropy_by_set():
    own = rows("url").where(metric="r_auroc", method="erm", measure="entropy", split="test", evaluation="transfer")
    low, high = sorted(own.where(target=SETS["cub"]).column("value"))
    return {name: retrieval("r_auroc", "erm", "entropy", name) for name in SETS} | {"low": low, "high": high}


def kappa():
    """Alive: no score has one value; and what it is worth."""
    assert not rows("url").where(metric="one_value") and not rows("url/scratch").where(metric="one_value")
    found = {name.replace("-", "_"): retrieval("r_auroc", name, "inverse_kappa") for name in SPREADS}
    assert found["hib"] < 0.5 and found["nivmf"] < 0.5
    return found


def the_rule_chooses():
    """The score it names is within 0.02 of the better of the two, on every network that it was not made for."""
    tried = json.loads((RESULTS / "url" / "transfer.json").read_text("utf-8"))
    for each in tried:
        assert each[each["use"]] > max(each["entropy"], each["gallery_uncertainty"]) - 0.02
    birds, again, hundred, own = tried
    assert [each["use"] for each in tried] == ["gallery_uncertainty"] * 3 + ["entropy"]
    return {
        "birds": birds["gallery_uncertainty"],
        "again": again["gallery_uncertainty"],
        "birds_entropy": birds["entropy"],
        "birds_recall": birds["recall_at_1"],
        "again_recall": again["recall_at_1"],
        "again_entropy": again["entropy"],
        "hundred": hundred["gallery_uncertainty"],
        "hundred_entropy": hundred["entropy"],
        "own": own["entropy"],
        "own_doubt": own["gallery_uncertainty"],
    }


URL = {
    upstream_accuracy: (
        "Accuracy on the upstream test images is {erm:.3f} for `erm`, {low:.3f} to {high:.3f} for all methods "
        "that answer."
    ),
    learning_on_costs_neighbours: (
        "With this budget, learning on costs neighbours: R@1, mean of both sets, is {frozen:.3f} for "
        "`losspred-order`, whose backbone stays as ImageNet left it, and {least:.3f} to {best:.3f} for all "
        "methods that move it (`erm` {erm:.3f})."
    ),
    predicted_loss_leads: (
        "A predicted loss transfers best: R-AUROC {losspred_order:.3f} for `losspred-order` and {losspred:.3f} "
        "for `losspred`, ahead of the entropy of `erm` ({erm:.3f}) and the disagreement of `heads` ({heads:.3f}); "
        "`infonce` ({infonce:.3f}), `sngp` ({sngp:.3f}), `mc-infonce` ({mc_infonce:.3f}), `mc-dropout` "
        "({mc_dropout:.3f}), `het-xl` ({het_xl:.3f}) and `elk` ({elk:.3f}) cannot be told from the best with two "
        "seeds. In the paper losspred and mc-infonce lead."
    ),
    entropy_by_set: (
        "Entropy is hardly more than chance on birds ({cub:.3f}; {low:.3f} and {high:.3f} of the two networks) and "
        "somewhat more on CIFAR-100 ({cifar100:.3f})."
    ),
    kappa: (
        "1/κ of `mc-infonce` has {mc_infonce:.3f} and of `elk` {elk:.3f}; of `nivmf` ({nivmf:.3f}) and `hib` "
        "({hib:.3f}) it is below chance: with hyper-parameters that were not searched, sure embeddings are more "
        "often wrong here."
    ),
    the_rule_chooses: (
        "Of scores that see the gallery, `gallery_uncertainty` has {birds:.3f} and {again:.3f} on birds with two "
        "networks of `erm` (entropy {birds_entropy:.3f} and {again_entropy:.3f}; R@1 {birds_recall:.3f} and "
        "{again_recall:.3f}: weights of other epochs than those of the rows) and {hundred:.3f} on CIFAR-100 "
        "with a network of CIFAR-10 ({hundred_entropy:.3f}); on that network's own test images entropy has "
        "{own:.3f} and it {own_doubt:.3f}. The rule without labels names the better one each time, on networks "
        "that it was not made for."
    ),
}


# ---- url, from new weights


def of_scratch(metric, method, measure=None, split="test"):
    """One network each."""
    return (
        rows("url/scratch")
        .where(metric=metric, method=method, measure=measure, split=split, evaluation="transfer")
        .mean()
    )


def new_weights_learn():
    own = rows("url/scratch").where(metric="accuracy", split="upstream")
    found = {method: part.mean() for (method,), part in own.group_by("method")}
    assert min(found.values()) > 0.88
    return {"erm": found["erm"], "low": min(found.values()), "high": max(found.values())}


def one_network_cannot_tell():
    """Those that the table marks."""
    lines = {labels[0]: cells[0] for labels, cells in retrieval_table(rows("url/scratch")).rows}
    alike = [name for name, cell in lines.items() if cell.best]
    values = {name: cell.value for name, cell in lines.items()}
    assert len(alike) == 8 and "erm" in alike and next(iter(lines)) == "het-xl"
    behind = {name: value for name, value in values.items() if name not in alike}
    assert set(behind) == {"sngp", "hib", "nivmf", "mc-infonce"}
    return {
        "first": values["het-xl"],
        "erm": values["erm"],
        "last": min(values[name] for name in alike),
        **{name.replace("-", "_"): value for name, value in behind.items()},
    }


def hib_hardly_retrieves():
    """What --min-recall of the benchmark would leave out."""
    own = rows("url/scratch").where(metric="recall_at_1", method="hib", split="val")
    (value,) = own.column("value")
    assert value == min(rows("url/scratch").where(metric="recall_at_1", split="val").column("value")) < 0.1
    return {"hib": value}


def human_votes():
    """Rank correlation with the entropy of the votes on CIFAR-10's test images."""
    found = {
        (name, measure): value
        for (name, measure), value in (
            (key, part.mean())
            for key, part in rows("url/scratch").where(metric="human_alignment").group_by("method", "measure")
        )
    }
    entropy = {name: value for (name, measure), value in found.items() if measure == "entropy"}
    kappas = [value for (_, measure), value in found.items() if measure == "inverse_kappa"]
    assert (
        max(kappas) + 0.08 < min(entropy.values()) and abs(found["erm", "entropy"] - found["losspred", "loss"]) < 0.01
    )
    return {
        "erm": found["erm", "entropy"],
        "losspred": found["losspred", "loss"],
        "low": min(entropy.values()),
        "kappa_low": min(kappas),
        "kappa_high": max(kappas),
        "infonce": found["infonce", "norm"],
    }


def other_classes_again():
    """CIFAR-100 among CIFAR-10, by AUROC."""
    own = of_scratch("auroc", "sngp", "scores/dempster_shafer", "out")
    everything = rows("url/scratch").where(metric="auroc", split="out").column("value")
    assert own == max(everything)
    return {"own": own, "erm": of_scratch("auroc", "erm", "entropy", "out")}


SCRATCH = {
    new_weights_learn: (
        "Accuracy on CIFAR-10's test images is {erm:.3f} for `erm`, {low:.3f} to {high:.3f} for all that answer."
    ),
    one_network_cannot_tell: (
        "On CIFAR-100, eight of twelve methods cannot be told from the best, `het-xl` by log det Σ (R-AUROC "
        "{first:.3f}); entropy of `erm` is among them ({erm:.3f}). Behind are `sngp` ({sngp:.3f}), and 1/κ of "
        "`hib` ({hib:.3f}), `nivmf` ({nivmf:.3f}) and `mc-infonce` ({mc_infonce:.3f})."
    ),
    hib_hardly_retrieves: (
        "`hib` has an R@1 of {hib:.3f} on validation classes, the lowest of all: `--min-recall` leaves out such "
        "networks today, as the paper does."
    ),
    human_votes: (
        "Entropy follows the votes of people (rank correlation {erm:.3f} for `erm`, {low:.3f} for the least of "
        "those that answer) like the predicted loss of `losspred` ({losspred:.3f}), and far better than 1/κ "
        "({kappa_low:.3f} to {kappa_high:.3f}) or the norm of `infonce`, which saw no label ({infonce:.3f})."
    ),
    other_classes_again: (
        "For images of CIFAR-100 among those of CIFAR-10, the Dempster–Shafer score of `sngp` has the highest "
        "AUROC ({own:.3f}; entropy of `erm` {erm:.3f}): one network each, no test of the difference."
    ),
}


FINDINGS = {
    "uimnet": UIMNET,
    "reliability": RELIABILITY,
    "shift": SHIFT,
    "shift/augmented": TEN_AUGMENTED,
    "shift/digits": DIGITS,
    "shift/digits/augmented": AUGMENTED,
    "scenes": SCENES,
    "scenes/full": FULL_SCENES,
    "sensitivity": SENSITIVITY,
    "sensitivity/mnist": MNIST,
    "sensitivity/fashion-mnist": FASHION,
    "posthoc": POSTHOC,
    "lite": LITE,
    "url": URL,
    "url/scratch": SCRATCH,
}


def findings(name):
    """The list items of the section that says what came out, each on one line."""
    text = (RESULTS / name / "README.md").read_text("utf-8")
    (section,) = [part for part in re.split(r"^## ", text, flags=re.MULTILINE) if part.startswith("Findings\n")]
    return [" ".join(item.split()) for item in re.split(r"^- ", section, flags=re.MULTILINE)[1:]]


@pytest.mark.parametrize(("name", "sentences"), list(FINDINGS.items()))
def test_findings_are_these_sentences_and_no_others(name, sentences):
    assert findings(name) == [sentence.format(**query()).replace("-0.", "−0.") for query, sentence in sentences.items()]


@pytest.mark.parametrize("name", FINDINGS)
def test_the_version_and_the_budget_are_stated(name):
    text = " ".join((RESULTS / name / "README.md").read_text("utf-8").split())
    own = study(name)
    assert f"version {own.version} of the benchmark" in text
    for plan in own.parts or [own.plan]:
        if plan.get("networks"):  # of others: nothing was trained
            continue
        assert f"{plan['training']['epochs']} epochs" in text and f"rate {plan['training']['lr']}" in text


def test_the_table_of_scores_is_that_of_the_rows():
    """Mean over methods, lowest and highest method."""
    text = (RESULTS / "reliability" / "README.md").read_text("utf-8").replace("−", "-")
    for name in ("nc", "dist", "norm", "ll", "fv"):
        cells = []
        for target in SETTINGS:
            tau = list(taus("kendall_brier", name, target).values())
            cells.append(f"{sum(tau) / len(tau):.3f} ({min(tau):.3f} to {max(tau):.3f})")
        assert f"| {' | '.join(cells)} |" in text, (name, cells)
