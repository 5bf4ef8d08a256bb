"""Every finding that a README states follows from rows: a query gives its numbers, and refuses if it is not so."""

from __future__ import annotations

import json
import math
import re
import textwrap
from functools import cache, partial

import pytest

from nescio.analysis.significance import compare_with_best
from nescio.benchmarks.posthoc import FAR, MISTAKES, NEAR
from nescio.benchmarks.posthoc.reports import areas, mahalanobis_leads, pnorm_repairs, shaping_collapses
from nescio.benchmarks.sensitivity.reports import correlation, correlations, idle_strengths, points
from nescio.benchmarks.uimnet.reports import ORACLE, effects, first_lines, means, ranking
from nescio.benchmarks.url.reports import retrieval as retrieval_table
from nescio.metrics import spearman
from nescio.report.frame import Frame
from nescio.report.studies import read_study
from tests.results.sentences import SENTENCES
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
        "p": compare_with_best({"dcs": dcs, "five": five}).differences[0]["p"],
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
    found = {name: share_above_bound("shift", name, dataset="cifar10")[1] for name in ("sngp", "due", "ddu")}
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
    tests = {key: compare_with_best({"own": own, "plain": plain}).differences[0]["p"] for key, own in found.items()}
    sngp = digits("raulc", "sngp", "entropy", severity=None, split="test")
    return (
        {key: mean_of(own) for key, own in found.items()}
        | {f"{key}_p": p for key, p in tests.items()}
        | {"plain": mean_of(plain), "ddu_ahead": ahead(found["ddu"], plain), "sngp_entropy": mean_of(sngp)}
    )


def share_above_bound(name, method, **where):
    """The bound of a method's spectral norm, and the share of layers that it holds back in each of its networks."""
    own = rows(name).where(method=method, split="test", members=1, **where)
    (bound,) = own.facts("strength").unique("value")
    return bound, own.facts("at_bound").column("value")


def bounds_of_digits():
    """None of the chosen bounds acts."""
    found = {name: share_above_bound("shift/digits", name) for name in ("sngp", "due", "ddu")}
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
    p = {name: compare_with_best({name: own, "plain": plain}).differences[0]["p"] for name, own in found.items()}
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
    (sngp, none), (ddu, few) = (share_above_bound("scenes", name) for name in ("sngp", "ddu"))
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


# ---- sensitivity


def hump_of_ddu():
    """Loose bounds do nothing, one in the middle is better than all of them in every run, the tightest is worse."""
    own = Frame(points(rows("sensitivity"))).where(method="ddu", measure="native")
    idle = {name: idle_strengths(rows("sensitivity"), name, "digits") for name in ("ddu", "sngp")}
    assert idle == {"ddu": [0, 1, 2, 3], "sngp": [0, 1, 2, 3, 4]}
    by_strength = {trial: {row["seed"]: row["rAULC"] for row in part} for (trial,), part in own.group_by("trial")}
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
    by_run = [part.correlation("trial", "rAULC") for _, part in own.group_by("seed")]
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


def weaker_mir(study):
    """The correlation of mir's own score without its two strongest weights, and the last of the others."""
    own = Frame(points(rows(study))).where(method="mir", measure="native", trial=tuple(range(6)))
    assert len(own) == 30
    rho, p = correlation(own.column("trial"), own.column("rAULC"))
    rising = sum(part.correlation("trial", "rAULC") > 0 for _, part in own.group_by("seed"))
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
        assert each[each["recommended"]] > max(each["entropy"], each["gallery_uncertainty"]) - 0.02
    birds, again, hundred, own = tried
    assert [each["recommended"] for each in tried] == ["gallery_uncertainty"] * 3 + ["entropy"]
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
        "own_gallery": own["gallery_uncertainty"],
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


def sentences(name):
    """The findings of a study, with the numbers of its rows."""
    templates = SENTENCES[name].items()
    return [text.format(**globals()[query]()).replace("-0.", "−0.") for query, text in templates]


def sections(name):
    """The sections of a README, by title; the text before the first has no title."""
    text = (RESULTS / name / "README.md").read_text("utf-8")
    return {part.partition("\n")[0]: part for part in re.split(r"^## ", text, flags=re.MULTILINE)}


def findings(name):
    """The list items of the section of findings, each on one line."""
    return [" ".join(item.split()) for item in re.split(r"^- ", sections(name)["Findings"], flags=re.MULTILINE)[1:]]


def write_findings(name):
    """Write the findings into the README; run this module to do it for all studies."""
    path = RESULTS / name / "README.md"
    section = sections(name)["Findings"].rstrip("\n")
    head = section.partition("\n- ")[0]
    layout = {"initial_indent": "- ", "subsequent_indent": "  ", "break_on_hyphens": False, "break_long_words": False}
    items = [textwrap.fill(text.replace(" %", "\u00a0%"), 118, **layout) for text in sentences(name)]
    lines = "\n".join([head, *items]).replace("\u00a0%", " %")
    path.write_text(path.read_text("utf-8").replace(section, lines), "utf-8")


@pytest.mark.parametrize("name", SENTENCES)
def test_findings_are_these_sentences_and_no_others(name):
    assert findings(name) == sentences(name)


@pytest.mark.parametrize("name", SENTENCES)
def test_findings__the_version_and_the_budget_are_stated(name):
    text = " ".join((RESULTS / name / "README.md").read_text("utf-8").split())
    own = study(name)
    assert f"version {own.version} of the benchmark" in text
    for plan in own.parts or [own.plan]:
        if plan.get("networks"):  # of others: nothing was trained
            continue
        assert f"{plan['training']['epochs']} epochs" in text and f"rate {plan['training']['lr']}" in text


def test_findings__the_table_of_scores_is_that_of_the_rows():
    """Mean over methods, lowest and highest method."""
    text = (RESULTS / "reliability" / "README.md").read_text("utf-8").replace("−", "-")
    for name in ("nc", "dist", "norm", "ll", "fv"):
        cells = []
        for target in SETTINGS:
            tau = list(taus("kendall_brier", name, target).values())
            cells.append(f"{sum(tau) / len(tau):.3f} ({min(tau):.3f} to {max(tau):.3f})")
        assert f"| {' | '.join(cells)} |" in text, (name, cells)


if __name__ == "__main__":
    for study_name in SENTENCES:
        write_findings(study_name)
