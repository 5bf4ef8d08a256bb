"""`nescio rank`: the right order on made candidates, every number by brute force, networks, lone models, bad inputs."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import combinations

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.stats import kendalltau, rankdata

from nescio import measures
from nescio.analysis.bootstrap import draw_counts
from nescio.analysis.representations import candidates, downstream, ranking
from nescio.analysis.representations.candidates import Candidate, evaluation_rows, shared_keys, split_references
from nescio.analysis.representations.downstream import downstream_losses
from nescio.analysis.representations.ranking import RowScoreOptions, rank_candidates, score_candidate
from nescio.api.rank import RankOptions as Options
from nescio.api.rank import candidates_of, named_members, sides
from nescio.api.storage import StoreOptions
from nescio.cli import main
from nescio.errors import BadInput
from nescio.measures.siblings import ALONE
from nescio.predictions import Predictions
from nescio.report.representations import ranking_sentences, ranking_tables

R, N, C, D = 150, 90, 3, 6
QUICK = RowScoreOptions(components=(3,))


def ask(capsys, *words):
    code = main([str(word) for word in words])
    said = capsys.readouterr()
    return code, said.out, said.err


def made(seed, noise, members=3, d=D, index=None, scale=1.0):
    """(references, tests) of a candidate: one scene of C classes, through each member's own turn and noise.

    noise None: members that see nothing.
    """
    shared, own = np.random.default_rng(0), np.random.default_rng(100 + seed)
    labels = shared.integers(C, size=R + N)
    scene = 2 * shared.normal(size=(C, D))[labels] + shared.normal(size=(R + N, D))
    sides = [], []
    for _ in range(members):
        q, _ = np.linalg.qr(own.normal(size=(max(d, D),) * 2))
        seen = own.normal(size=(R + N, d)) if noise is None else scene @ q[:D, :d]
        seen = scale * (seen + (noise or 0) * own.normal(size=seen.shape))
        for side, rows in zip(sides, (slice(R), slice(R, None)), strict=True):
            keys = None if index is None else index[: len(seen[rows])]
            side.append(Predictions(embeddings=seen[rows], labels=labels[rows], index=keys))
    return sides


def candidate(name, *args, whole=False, train=True, **options):
    """References apart, which also teach heads; whole: all rows in one."""
    refs, tests = made(*args, **options)
    if whole:
        return Candidate(
            name,
            [
                Predictions(
                    embeddings=np.vstack([r.embeddings, t.embeddings]), labels=np.concatenate([r.labels, t.labels])
                )
                for r, t in zip(refs, tests, strict=True)
            ],
        )
    return Candidate(name, tests, refs, refs if train else None)


@pytest.fixture(scope="module")
def three():
    return [candidate("noise", 0, None), candidate("good", 1, 0.1, d=9), candidate("fair", 2, 0.8)]


@pytest.fixture(scope="module")
def found(three):
    return rank_candidates(three, QUICK, resamples=200)


# ---- the order


def test_chance_nc__the_good_candidate_comes_first_and_noise_last(found):
    assert found.names == ["good", "fair", "noise"] and found.group == ["good"]
    assert [found.row(name, found.nc)["rank"] for name in found.names] == [1, 2, 3]
    noise = found.row("noise", found.nc)
    assert noise["value"] == pytest.approx(ranking.chance_nc(found.k, R, "jaccard"), abs=0.02)
    words = " ".join(ranking_sentences(found))
    assert words.startswith("Most reliable of 3: good") and "significantly worse" in words


def test_default_k__every_mean_is_that_of_the_measure(found, three):
    assert found.k == ranking.default_k(R) == 8
    for each in three:
        nc = 1 - measures.neighborhood_inconsistency(each.refs, each.tests, found.k)
        assert found.row(each.name, "nc@8")["value"] == pytest.approx(nc.mean())
        pairs = list(zip(each.refs, each.tests, strict=True))
        right = {
            "dist@1": np.mean([measures.knn_distance(r)(t) for r, t in pairs]),
            "norm": np.mean([np.linalg.norm(t.embeddings, axis=1) for t in each.tests]),
            "ll": -np.mean([measures.vmf_mixture(r, 3, 0)(t) for r, t in pairs]),
            "fv": np.mean(measures.feature_variance(each.tests)),
        }
        for name, value in right.items():
            assert found.row(each.name, name)["value"] == pytest.approx(value), name


def test_draw_counts__intervals_and_differences_are_those_of_one_paired_bootstrap(found, three):
    nc = {each.name: 1 - measures.neighborhood_inconsistency(each.refs, each.tests, 8) for each in three}
    counts = np.array([draw_counts(N, 0, number) for number in range(200)])
    means = {name: counts @ values / N for name, values in nc.items()}
    for name, sample in means.items():
        row = found.row(name, "nc@8")
        assert (row["low"], row["high"]) == pytest.approx(tuple(np.quantile(sample, [0.025, 0.975])))
        if name != "good":
            away, paired = found.difference(name), sample - means["good"]
            assert away["difference"] == pytest.approx(nc[name].mean() - nc["good"].mean())
            assert (away["low"], away["high"]) == pytest.approx(tuple(np.quantile(paired, [0.025, 0.975])))
    assert found.difference("good") is None


def test_rank_candidates__equals_cannot_be_told_apart():
    two = rank_candidates(
        [candidate("a", 1, 0.5), candidate("b", 2, 0.5), candidate("c", 3, None)], QUICK, labels=False
    )
    assert set(two.group) == {"a", "b"}
    assert "significantly different" in " ".join(ranking_sentences(two))
    bold = {name for (name,), cells in ranking_tables(two)[0].rows if cells[0] and cells[0].best}
    assert bold == {"a", "b"}


def test_row_ranks__places_row_by_row_by_brute_force(found, three):
    nc = np.array([found.scores[each.name].u["nc@8"] for each in three])
    places = np.apply_along_axis(rankdata, 0, nc)
    first = np.array([[(u[c] == u.min()) / (u == u.min()).sum() for c in range(3)] for u in nc.T]).T
    for at, each in enumerate(three):
        assert found.row(each.name, "place")["value"] == pytest.approx(places[at].mean())
        assert found.row(each.name, "first")["value"] == pytest.approx(first[at].mean())
    tied = ranking.row_ranks(np.array([[0.5, 0.2], [0.5, 0.1], [0.7, 0.1]]))
    np.testing.assert_array_equal(tied[0], [[1.5, 3], [1.5, 1.5], [3, 1.5]])
    np.testing.assert_array_equal(tied[1], [[0.5, 0], [0.5, 0.5], [0, 0.5]])


def test_row_score_options__nc_does_not_see_the_scale_of_a_space_and_the_norm_does():
    one, large = candidate("a", 1, 0.5), candidate("a", 1, 0.5, scale=50.0)
    scoring = RowScoreOptions(components=(0,))
    a, b = (rank_candidates([each], scoring, labels=False) for each in (one, large))
    np.testing.assert_allclose(a.scores["a"].u["nc@8"], b.scores["a"].u["nc@8"])
    assert b.row("a", "norm")["value"] == pytest.approx(50 * a.row("a", "norm")["value"])
    assert "candidate" not in str(ranking_tables(a)[0].legend)  # one alone
    legend = dict(ranking_tables(rank_candidates([one, candidate("b", 2, 0.5)], scoring, labels=False))[0].legend)
    assert "scale" in legend["between candidates"]


# ---- a lone model


def test_rank_candidates__a_lone_model_has_distance_norm_and_density_and_the_table_says_why_not_more(three):
    alone = rank_candidates([*three, candidate("alone", 5, 0.1, members=1)], QUICK, resamples=50)
    assert alone.names[-1] == "alone" and alone.row("alone", alone.nc) is None
    assert alone.scores["alone"].reasons[alone.nc] == ALONE
    assert {name for name in ("dist@1", "norm", "ll", "fv") if alone.row("alone", name)} == {"dist@1", "norm", "ll"}
    table = ranking_tables(alone)[0]
    (line,) = [cells for (name,), cells in table.rows if name == "alone"]
    assert line[0] is None and dict(table.legend)["no NC of alone"] == ALONE
    assert "No NC: alone." in " ".join(ranking_sentences(alone))
    # Table 3 ranks the same candidates by every score: those with siblings
    assert {tuple(each["candidates"]) for each in alone.agreement} == {("noise", "good", "fair")}


def test_rank_candidates__lone_models_only_are_not_ranked():
    both = rank_candidates([candidate("a", 1, 0.1, members=1), candidate("b", 2, None, members=1)], QUICK, resamples=50)
    assert both.group == [] and both.names == ["a", "b"]
    assert "No NC: a, b." in " ".join(ranking_sentences(both))
    assert {each["score"] for each in both.agreement} == {"dist@1", "norm", "ll"}


# ---- labels


def test_downstream_losses__table_3_by_brute_force(found, three):
    losses = {each.name: downstream_losses(each.train, each.tests).ensemble for each in three}
    for own in found.agreement:
        u = np.array([found.scores[each.name].u[own["score"]] for each in three])
        loss = np.array([losses[each.name][own["loss"]] for each in three])
        taus = [kendalltau(a, b).statistic for a, b in zip(u.T, loss.T, strict=True)]
        taus = [tau for tau in taus if np.isfinite(tau)]
        assert own["tau"] == pytest.approx(np.mean(taus)) and own["n"] == len(taus)
        assert own["low"] <= own["tau"] <= own["high"]
        assert own["average"] == pytest.approx(kendalltau(u.mean(1), loss.mean(1)).statistic)
    held = {(each["score"], each["loss"]): each["tau"] for each in found.agreement}
    assert len(held) == 15 and held["nc@8", "brier"] > 0.3
    for loss in ("brier", "entropy", "variance"):
        for each in three:
            assert found.row(each.name, loss)["value"] == pytest.approx(losses[each.name][loss].mean())


def test_rank_candidates__labels_are_not_looked_at_where_nobody_says_that_they_fit(three):
    """References of another set may have labels of their own."""
    apart = [Candidate(each.name, each.tests, each.refs) for each in three]
    assert not rank_candidates(apart, QUICK, resamples=20).losses
    assert not rank_candidates(three, QUICK, labels=False, resamples=20).losses
    blind = [candidate("a", 1, 0.1, whole=True), candidate("b", 2, 0.5, whole=True)]
    assert rank_candidates(blind, QUICK, resamples=20).losses.keys() == {"a", "b"}  # halves of one file are of one set


def test_candidate_losses__halves_teach_the_heads_that_judge_the_other():
    one = candidate("a", 1, 0.3, whole=True)
    rows = evaluation_rows([one])
    found = downstream.candidate_losses(one, rows, "one-vs-one")
    for refs, asked in rows.splits:
        right = downstream_losses([t.select(refs) for t in one.tests], [t.select(asked) for t in one.tests])
        at = np.searchsorted(rows.keys, asked)  # the keys rise
        np.testing.assert_allclose(found.ensemble["brier"][at], right.ensemble["brier"])
        np.testing.assert_allclose(found.members["entropy"][:, at], right.members["entropy"])


def test_rank_candidates__labels_that_differ_are_refused():
    one, other = candidate("a", 1, 0.3, whole=True), candidate("b", 2, 0.3, whole=True)
    wrong = [t.replace(labels=(np.asarray(t.labels) + (np.arange(R + N) == 5)) % C) for t in other.tests]
    with pytest.raises(BadInput, match="different labels in 1 shared rows, first at index 5"):
        rank_candidates([one, Candidate("b", wrong)], QUICK, resamples=20)


def test_rank_candidates__heads_that_cannot_be_taught_cost_the_comparison_only():
    lonely = candidate("a", 1, 0.3, whole=True)
    tests = [t.replace(labels=np.where(np.arange(R + N) == 5, 99, t.labels)) for t in lonely.tests]
    found = rank_candidates([Candidate("a", tests)], QUICK, resamples=20)
    assert not found.losses and "downstream heads" in found.notes[0]


# ---- rows


def test_split_references__halves_cover_every_row_once_and_never_judge_a_row_by_itself(monkeypatch):
    keys = np.random.default_rng(0).permutation(101) * 3
    parts = split_references(keys, None, 0)
    assert [len(refs) for refs, _ in parts] == [50, 50]  # the same number of references for all
    np.testing.assert_array_equal(np.sort(np.concatenate([tests for _, tests in parts])), np.sort(keys))
    for refs, tests in parts:
        assert not set(refs) & set(tests)
    for (a, b), (c, d) in zip(
        parts, split_references(np.sort(keys), None, 0), strict=True
    ):  # the order of rows says nothing
        np.testing.assert_array_equal(a, c)
        np.testing.assert_array_equal(b, d)
    assert not np.array_equal(parts[0][0], split_references(keys, None, 1)[0][0])
    monkeypatch.setattr(candidates, "MAX_REFERENCES", 20)
    assert [len(refs) for refs, _ in split_references(keys, None, 0)] == [20, 20]


def test_score_candidate__halves_score_rows_against_the_other_half():
    one = candidate("a", 1, 0.3, whole=True)
    rows = evaluation_rows([one])
    found, _ = score_candidate(one, rows, 5, QUICK)
    np.testing.assert_array_equal(found.index, one.tests[0].index)
    for refs, asked in rows.splits:
        right = measures.neighborhood_inconsistency(
            [t.select(refs) for t in one.tests], [t.select(asked) for t in one.tests], 5
        )
        np.testing.assert_allclose(found.u["nc@5"][np.searchsorted(found.index, asked)], right)


def test_rank_candidates__candidates_are_joined_on_index():
    one, other = candidate("a", 1, 0.3, train=False), candidate("b", 2, 0.3, train=False)
    order = np.random.default_rng(1).permutation(N)
    moved = Candidate("b", [t.take(order) for t in other.tests], other.refs)
    plain, turned = (rank_candidates([one, each], QUICK, resamples=20) for each in (other, moved))
    assert plain.comparison.rows == turned.comparison.rows
    fewer = Candidate("b", [t.take(order[:50]) for t in other.tests], other.refs)
    some = rank_candidates([one, fewer], QUICK, resamples=20)
    assert len(some.rows.keys) == 50 and "50 rows" in some.notes[0]
    np.testing.assert_array_equal(some.rows.keys, np.sort(order[:50]))  # in the order of the first
    np.testing.assert_array_equal(shared_keys([one, fewer]), some.rows.keys)
    text = [Predictions(embeddings=t.embeddings, index=[f"r{i}" for i in range(N)]) for t in other.tests]
    with pytest.raises(BadInput, match="text"):
        rank_candidates([one, Candidate("b", text, other.refs)], QUICK)
    away = [Predictions(embeddings=t.embeddings, index=1000 + np.arange(N)) for t in other.tests]
    with pytest.raises(BadInput, match="no row"):
        rank_candidates([one, Candidate("b", away, other.refs)], QUICK)


def test_rank_candidates__other_references_and_own_references_are_noted():
    one, other = candidate("a", 1, 0.3, train=False), candidate("b", 2, 0.3, train=False)
    fewer = Candidate("b", other.tests, [r.take(np.arange(100)) for r in other.refs])
    found = rank_candidates([one, fewer], QUICK, resamples=20)
    assert any("NC" in note for note in found.notes) and found.rows.references == 100
    itself = rank_candidates([Candidate("a", one.tests, one.tests)], QUICK, resamples=20)
    assert any(f"{N} rows" in note for note in itself.notes)


def test_rank_candidates__many_candidates_get_the_resamples_that_holm_needs():
    many = [candidate(f"c{at}", at, 0.3, members=2, train=False) for at in range(30)]
    found = rank_candidates(many, RowScoreOptions(components=(0,)))
    assert found.comparison.resamples == 1200 and not found.notes


# ---- the command


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """good0.npz …: all rows; good0r.npz and good0t.npz …: references and tests apart."""
    folder = tmp_path_factory.mktemp("files")
    for name, args in (("good", (1, 0.1)), ("fair", (2, 0.8)), ("noise", (0, None))):
        sides = made(*args)
        for member, (refs, tests) in enumerate(zip(*sides, strict=True)):
            refs.save(folder / f"{name}{member}r.npz")
            tests.save(folder / f"{name}{member}t.npz")
            both = {field: [getattr(refs, field), getattr(tests, field)] for field in ("embeddings", "labels")}
            whole = {field: np.concatenate(parts) for field, parts in both.items()}
            np.savez(folder / f"{name}{member}.npz", **whole)
    return folder


def pairs(files, name, members=3):
    return f"{name}=" + ",".join(f"{files}/{name}{m}r.npz:{files}/{name}{m}t.npz" for m in range(members))


def wholes(files, name, members=3):
    return f"{name}=" + ",".join(f"{files}/{name}{m}.npz" for m in range(members))


def plain(capsys, *words):
    code, out, err = ask(capsys, "rank", *words, "--format", "json")
    assert code == 0, err
    return json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def test_ranking__pairs_of_files_are_what_python_gets(capsys, files, found):
    held = plain(
        capsys,
        *(pairs(files, name) for name in ("noise", "good", "fair")),
        *("--head-data", "references", "--components", 3, "--bootstrap", 200),
    )
    assert held["choice"] == "good" and held["group"] == ["good"] and held["by"] == "nc@8"
    assert (held["n"], held["references"], held["halves"]) == (N, R, False)
    noise, right = held["candidates"][-1], found.row("noise", "nc@8")
    assert noise["candidate"] == "noise" and noise["members"] == 3 and noise["features"] == [D]
    assert {name: noise["scores"]["nc@8"][name] for name in ("value", "low", "high", "rank", "best")} == pytest.approx(
        {name: right[name] for name in ("value", "low", "high", "rank", "best")}
    )
    assert noise["scores"]["nc@8"]["better"] == "higher" and noise["scores"]["dist@1"]["better"] == "lower"
    assert len(held["agreement"]) == 15


def test_ranking__without_train_the_labels_of_references_are_left_alone_and_it_is_said(capsys, files):
    words = [pairs(files, "good"), pairs(files, "fair"), "--components", 0, "--bootstrap", 50]
    held = plain(capsys, *words)
    assert held["agreement"] == [] and "--head-data" in held["notes"][0] and len(held["notes"]) == 1
    assert plain(capsys, *words, "--unlabelled")["notes"] == []


def test_ranking__labelled_files_that_teach_by_candidate(capsys, files):
    train = [f"{name}=" + ",".join(f"{files}/{name}{m}r.npz" for m in range(3)) for name in ("good", "fair")]
    words = [pairs(files, "good"), pairs(files, "fair"), "--components", 0, "--bootstrap", 20]
    one = plain(capsys, *words, "--head-data", train[0], "--head-data", train[1])
    assert one["agreement"] and one["agreement"] == plain(capsys, *words, "--head-data", "references")["agreement"]


def test_ranking__one_file_a_member_is_halved_or_split(capsys, files):
    held = plain(capsys, wholes(files, "fair"), wholes(files, "good"), "--components", 0, "--bootstrap", 20)
    assert held["choice"] == "good" and held["halves"] and (held["n"], held["references"]) == (R + N, (R + N) // 2)
    assert held["agreement"]  # halves of one file are of one set
    held = plain(
        capsys,
        *(wholes(files, "fair"), wholes(files, "good"), "--split-references", 140),
        *("--components", 0, "--bootstrap", 20, "--unlabelled"),
    )
    assert (held["n"], held["references"], held["halves"]) == (R + N - 140, 140, False) and not held["agreement"]


def test_ranking__what_people_read(capsys, files):
    words = [wholes(files, "fair"), wholes(files, "good"), files / "noise0.npz", "--components", 0, "--bootstrap", 100]
    code, out, err = ask(capsys, "rank", *words)
    said = re.sub(r"\s+", " ", out)
    assert code == 0 and err == ""
    for sentence in (
        "Most reliable of 2: good",
        "noise0",
        "no NC of noise0",
        "120",
        "k = 6 neighbours",
    ):
        assert sentence in said, sentence
    assert "| good |" in ask(capsys, "rank", *words, "--format", "markdown")[1]
    assert "\\toprule" in ask(capsys, "rank", *words, "--format", "latex")[1]
    lines = list(csv.DictReader(ask(capsys, "rank", *words, "--format", "csv")[1].splitlines()))
    assert {line["metric"] for line in lines} >= {"nc@6", "dist@1", "norm", "fv", "first", "place", "brier"}


def test_ranking__the_page_stands_alone(capsys, files, tmp_path):
    code, out, _ = ask(
        capsys,
        *("rank", wholes(files, "fair"), wholes(files, "good"), files / "noise0.npz"),
        *("--output", tmp_path / "out", "--bootstrap", 20, "--components", 0),
    )
    page = (tmp_path / "out" / "index.html").read_text("utf-8")
    assert code == 0 and "index.html" in out
    assert {"index.html", "config.yaml", "rows.csv", "tables.md", "tables.tex", "tables.csv"} == {
        each.name for each in (tmp_path / "out").iterdir()
    }
    body = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL).partition("<main>")[2]
    assert "http" not in body and ALONE in body and "Table 3" in body and '"ranking":' in page


def test_ranking__the_file_of_rows(capsys, files, tmp_path):
    words = [wholes(files, "fair"), wholes(files, "good"), files / "noise0.npz", "--components", 0, "--bootstrap", 20]
    for ending in ("csv", "parquet", "npz"):
        assert ask(capsys, "rank", *words, "--row-scores", tmp_path / f"s.{ending}")[0] == 0
    with open(tmp_path / "s.csv") as file:
        lines = list(csv.DictReader(file))
    held = pq.ParquetFile(tmp_path / "s.parquet").read().to_pylist()
    n = R + N
    assert len(lines) == len(held) == 3 * n
    assert list(lines[0])[:6] == ["candidate", "index", "nc", "u_nc", "u_dist", "u_norm"]
    with np.load(tmp_path / "s.npz") as arrays:
        assert "noise0/nc" not in arrays.files and arrays["index"].shape == (n,)
        for line, row in zip(lines, held, strict=True):
            name, at = line["candidate"], int(line["index"])
            for column in ("nc", "u_nc", "u_dist", "u_norm", "u_fv", "place", "loss_brier", "loss_entropy"):
                key = f"{name}/{column}"
                if key in arrays.files:
                    assert float(line[column]) == row[column] == arrays[key][at]
                else:
                    assert line[column] == "" and row[column] is None
        places = arrays["good/place"] + arrays["fair/place"]
        np.testing.assert_array_equal(places, 3)
        np.testing.assert_array_equal(
            arrays["good/place"] < arrays["fair/place"], arrays["good/nc"] > arrays["fair/nc"]
        )


def test_ranking__how_candidates_are_typed(files, monkeypatch):
    assert named_members("a=x.npz,y.npz").members == ("x.npz", "y.npz") and not named_members("a=x.npz,y.npz").networks
    assert (named_members("resnet50.a1_in1k").name, named_members("resnet50.a1_in1k").networks) == (
        "resnet50.a1_in1k",
        True,
    )
    assert named_members("torchvision:vgg16").networks and named_members("siblings:3f2a").networks
    assert named_members(f"{files}/good0.npz").name == "good0"
    assert named_members("a=r.npz:t.npz").members == ("r.npz:t.npz",)
    assert sides("r.npz:t.npz") == ("r.npz", "t.npz")
    monkeypatch.chdir(files)
    (files / "odd:name.npz").write_bytes((files / "good0.npz").read_bytes())
    assert sides("odd:name.npz") == (None, "odd:name.npz")
    assert sides("odd:name.npz:good0.npz") == ("odd:name.npz", "good0.npz")
    (files / "odd:name.npz").unlink()


def test_ranking__bad_inputs_are_one_sentence(capsys, files, tmp_path):
    good, fair = pairs(files, "good"), pairs(files, "fair")
    cases = [
        (["a,b.npz"], "has several members and no name"),
        (["a="], "is not a candidate"),
        (["=x.npz"], "is not a candidate"),
        (["a=x.npz,,y.npz"], "is not a candidate"),
        (["a=x.npz,resnet50"], "mixes files and networks"),
        ([good, good], "'good'"),
        (["a=nowhere.npz,other.npz"], "nowhere.npz: there is no such file"),
        (["a=:x.npz"], "neither a file nor two files"),
        ([f"a={files}/good0.npz,{files}/good1r.npz:{files}/good1t.npz"], "write all alike"),
        ([f"a={files}/good0.npz,{files}/good0.npz"], "is given twice"),
        ([f"a={files}/good0.npz,{files}/good1t.npz"], "has other rows than"),
        (["resnet50"], "needs images: give --data"),
        ([good, "--data", "digits"], "all candidates are files"),
        ([good, "--reference", "digits"], "all candidates are files"),
        ([good, "--split-references", 10], "separate references"),
        ([good, fair, "--k", R + 1], f"there are only {R} references"),
        ([good, "--head-data", "digits"], "the candidates are files"),
        ([good, "--head-data", "x=a.npz"], "with one of good"),
        ([good, "--head-data", f"good={files}/good0r.npz"], "1 files for 3 members"),
        ([good, "--bootstrap", 0], "resamples is 0"),
        ([good, "--bootstrap", 10**12], "a whole number from 1 to 1,000,000"),
        ([good, "--level", 2], "level is 2"),
        ([good, "--components", -1], "--components"),
        ([good, "--components", "0,5"], "--components"),
        ([good, "--row-scores", tmp_path / "x.txt"], "use .csv, .parquet or .npz"),
        (["store:3f2a", "--data", "digits", "--store", tmp_path], "There is no trained network 3f2a"),
        (["siblings:3f2a", "--data", "digits", "--store", tmp_path], "There is no trained network 3f2a"),
    ]
    for words, sentence in cases:
        code, out, err = ask(capsys, "rank", *words)
        assert (code, out) == (2, ""), words
        assert sentence in err and err.count("\n") == 1, (words, err)


def test_ranking__dumps_alone_never_import_torch(files, tmp_path):
    words = [
        "rank",
        wholes(files, "good"),
        wholes(files, "fair"),
        "--output",
        str(tmp_path / "out"),
        "--bootstrap",
        "20",
    ]
    code = f"import sys\nfrom nescio.cli import main\nassert main({words!r}) == 0\nassert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ---- networks


@pytest.fixture
def store(trained_store, tmp_path):
    """A store of each test's own: none sees the predictions of another."""
    from nescio.work.store import Store

    held, keys = trained_store
    return Store(shutil.copytree(held.root, tmp_path / "copy")), keys


@pytest.fixture(scope="module")
def trained_store(tmp_path_factory):
    """Two seeds of SimCLR on digits, and one network of another recipe."""
    torch = pytest.importorskip("torch")
    from nescio.methods import registry
    from nescio.runtime import runtime_for
    from nescio.training import train
    from nescio.trials import Training, Trial
    from nescio.work.store import Store

    torch.set_num_threads(1)
    held, keys = Store(tmp_path_factory.mktemp("store")), []
    for epochs, seed in ((2, 0), (2, 1), (1, 0)):
        trial = Trial(
            method="simclr",
            hparams=registry["simclr"].hparams_class(),
            data="digits",
            backbone="mlp",
            training=Training(epochs=epochs, batch_size=64, augment="full"),
            init_seed=seed,
        )
        keys.append(train(trial, held, runtime_for("cpu")))
    return held, keys


def test_chance_nc__trained_siblings_and_a_lone_one(capsys, store, monkeypatch):
    """Real images: untrained labels play no part, work is done once, and the embeddings are the network's own."""
    import torch

    from nescio import datasets
    from nescio.networks.groups import expand_siblings
    from nescio.networks.models import trial_of
    from nescio.runtime import runtime_for
    from nescio.training import load_method

    held, keys = store
    assert expand_siblings([f"siblings:{keys[0]}"], held) == [f"store:{key}" for key in keys[:2]]
    assert expand_siblings([f"siblings:{keys[2]}"], held) == [f"store:{keys[2]}"]
    words = [f"simclr=siblings:{keys[0]}", f"alone=store:{keys[2][:8]}", "--store", held.root]
    words += [
        "--data",
        "digits",
        "--reference",
        "digits",
        "--reference-size",
        600,
        "--components",
        3,
        "--bootstrap",
        50,
    ]
    found = plain(capsys, *words)
    first, alone = found["candidates"]
    assert (first["candidate"], first["members"]) == ("simclr", 2)
    assert (found["references"], found["k"]) == (600, 30)
    nc = first["scores"]["nc@30"]["value"]
    assert 5 * ranking.chance_nc(30, 600, "jaccard") < nc < 1
    assert alone["reasons"]["nc@30"] == ALONE and set(alone["scores"]) >= {"dist@1", "norm", "ll"}
    assert "nc@30" not in alone["scores"] and found["n"] == 599
    assert alone["scores"]["brier"]["value"] < 0.3  # the labels of digits judge, because both sets are digits
    method = load_method(keys[0], trial_of(keys[0], held), held, runtime_for("cpu"))
    digits = datasets.load("digits")
    ((x, _, _),) = datasets.Batches(digits.test, digits, torch.device("cpu"), batch=599)
    with torch.inference_mode():
        right = method(x).embeddings.numpy()
    dumps = [Predictions.load(place / "predictions") for place in (held.root / "predict").iterdir() if place.is_dir()]
    tests = [each for each in dumps if len(each) == 599]
    assert len(dumps) == 6 and any(np.allclose(each.embeddings, right, atol=1e-5) for each in tests)
    refs = [each for each in dumps if len(each) == 600]
    assert all(not set(each.index) & set(digits.test.index) for each in refs)  # no image is its own reference
    assert all(np.array_equal(each.index, refs[0].index) for each in refs)  # the same for all members

    def never(*_, **__):
        raise AssertionError("the work is done already")

    monkeypatch.setattr("nescio.networks.models.build", never)
    assert plain(capsys, *words) == found


def test_ranking__backbones_are_known_of_networks_and_of_dumps_of_a_store(store, tmp_path):
    held, keys = store
    place = StoreOptions(store=str(held.root), device="cpu")
    (networks,) = candidates_of(Options(candidates=(f"a=siblings:{keys[0]}",), data="digits", storage=place))
    assert networks.backbones == ("mlp", "mlp")
    folders = [folder / "predictions" for folder in (held.root / "predict").iterdir() if folder.is_dir()]
    dumps = [folder for folder in folders if len(Predictions.load(folder)) == 599][:2]
    (files,) = candidates_of(Options(candidates=(f"a={','.join(map(str, dumps))}",)))
    assert files.backbones == ("mlp", "mlp")
    Predictions.load(dumps[0]).save(tmp_path / "own.npz")
    (own,) = candidates_of(Options(candidates=(str(tmp_path / "own.npz"),)))
    assert own.backbones == ()


def test_ranking__images_that_are_references_are_refused(capsys, store, tmp_path):
    held, keys = store
    images = tmp_path / "images"
    images.mkdir()
    from PIL import Image

    for number in range(6):
        Image.new("L", (8, 8), 40 * number).save(images / f"{number}.png")
    words = [f"a=siblings:{keys[0]}", "--store", held.root, "--data", images, "--reference", images]
    code, _, err = ask(capsys, "rank", *words)
    assert code == 2 and "6 of the images" in err and "omit --reference" in err


def test_ranking__a_folder_without_labels_and_a_pretrained_model(capsys, tmp_path, monkeypatch, store):
    """A timm name alone: Dist, Norm and LL, the embeddings are the input of its last layer, and no NC."""
    timm = pytest.importorskip("timm")
    import torch

    from nescio.networks import weights
    from tests.support.zoo_help import checkpoint, folder

    held, keys = store
    monkeypatch.delenv("NESCIO_WEIGHTS", raising=False)
    weights.index_folder.cache_clear()
    checkpoint(tmp_path / "w" / "test_resnet.safetensors", "test_resnet")
    photos = folder(tmp_path / "photos", ("a", "b"), each=6)
    place = tmp_path / "store"
    found = plain(
        capsys,
        *("test_resnet", "--weights", tmp_path / "w", "--data", photos, "--store", place, "--k", 2),
        *("--components", 2, "--bootstrap", 20, "--device", "cpu"),
    )
    (only,) = found["candidates"]
    assert found["choice"] is None and found["n"] == 12 and only["reasons"]["nc@2"] == ALONE
    assert set(only["scores"]) == {"dist@1", "norm", "ll"} and found["agreement"] == []
    (dump,) = [Predictions.load(each / "predictions") for each in (place / "predict").iterdir() if each.is_dir()]
    assert dump.labels is None
    network = timm.create_model("test_resnet", checkpoint_path=str(tmp_path / "w" / "test_resnet.safetensors")).eval()
    cfg = timm.data.resolve_data_config(model=network, use_test_size=True)
    look = timm.data.create_transform(**cfg)
    from PIL import Image

    x = torch.stack([look(Image.open(each).convert("RGB")) for each in sorted(photos.rglob("*.jpg"))])
    with torch.inference_mode():
        right = network.forward_head(network.forward_features(x), pre_logits=True)
    np.testing.assert_allclose(dump.embeddings, right.numpy(), atol=2e-3, rtol=1e-3)
    # networks of digits look at the same colour photographs in their own way, and siblings have NC there too
    both = plain(
        capsys,
        *(f"simclr=siblings:{keys[0]}", "--data", photos, "--store", held.root, "--k", 2),
        *("--components", 0, "--bootstrap", 20),
    )
    assert both["choice"] == "simclr" and both["agreement"] == []


@pytest.mark.parametrize("command", ["rank", "predict", "transfer"])
def test_ranking__a_damaged_recipe_of_a_network_is_named(capsys, store, tmp_path, command):
    """One letter of its recipe is another one: nothing else that the recipe says is believed."""
    held, keys = store
    shutil.copytree(held.root, tmp_path / "store")
    config = tmp_path / "store/train" / keys[0] / "config.json"
    config.write_text(config.read_text().replace('"init_seed"', '"init_seeD"'))
    words = {
        "rank": [f"a=siblings:{keys[0]}", "--data", "digits", "--components", 0],
        "predict": [keys[0], "--output", tmp_path / "a.npz"],
        "transfer": [f"store:{keys[0]}", "--data", "digits"],
    }[command]
    code, out, err = ask(capsys, command, *words, "--store", tmp_path / "store")
    assert (code, out) == (1, "") and f"{config} " in err and keys[0] in err


def test_ranking__labels_of_another_set_never_teach_by_accident(capsys, store, tmp_path):
    """References of one set, images of another: the labels of the references mean something else."""
    held, keys = store
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (40, 8, 8, 1), dtype=np.uint8), np.arange(40) % 2
    np.savez(tmp_path / "other.npz", x_train=x[:20], y_train=y[:20], x_test=x[20:], y_test=y[20:])
    words = [f"a=siblings:{keys[0]}", f"b=siblings:{keys[2]}", "--store", held.root, "--components", 0]
    words += [
        "--reference",
        "digits",
        "--reference-size",
        100,
        "--data",
        f"npz:{tmp_path}/other.npz",
        "--bootstrap",
        20,
    ]
    found = plain(capsys, *words)
    assert "brier" not in found["candidates"][0]["scores"] and any("--head-data" in note for note in found["notes"])
    found = plain(capsys, *words, "--head-data", f"npz:{tmp_path}/other.npz")
    assert found["candidates"][0]["scores"]["brier"]["value"] > 0.2  # noise cannot be told apart


def test_row_score_options__pairs_of_members_are_the_ensemble(three):
    """NC of three members is the mean over their pairs."""
    each = three[1]
    whole = rank_candidates([each], RowScoreOptions(components=(0,)), labels=False, resamples=20).row("good", "nc@8")[
        "value"
    ]
    parts = []
    for who in combinations(range(3), 2):
        pair = Candidate("p", [each.tests[m] for m in who], [each.refs[m] for m in who])
        parts.append(
            rank_candidates([pair], RowScoreOptions(components=(0,)), labels=False, resamples=20).row("p", "nc@8")[
                "value"
            ]
        )
    assert whole == pytest.approx(np.mean(parts))


def test_rank_candidates__a_collapsed_candidate_wins_nothing():
    """Where all references are one point, ties by index would look like perfect agreement."""
    still = [[Predictions(embeddings=np.ones((rows, 4)) * (m + 1)) for m in range(3)] for rows in (R, N)]
    found = rank_candidates([candidate("good", 1, 0.3), Candidate("still", still[1], still[0])], QUICK, labels=False)
    assert found.names[0] == "good" and found.group == ["good"] and found.row("still", found.nc) is None
    assert any("Member 0 gives 150" in note for note in found.notes)
    assert any("still" in line for line in str(ranking_tables(found)[0].rows).splitlines())
    with pytest.raises(BadInput, match=r"Member 0 gives"):
        rank_candidates([Candidate("still", still[1], still[0])], QUICK)


def test_candidate__plain_arrays_are_embeddings(tmp_path, capsys):
    whole = candidate("a", 1, 0.3, whole=True)
    for number, each in enumerate(whole.tests):
        np.save(tmp_path / f"{number}.npy", each.embeddings)
    files = [tmp_path / f"{number}.npy" for number in range(3)]
    code, out, _ = ask(capsys, "rank", "a=" + ",".join(map(str, files)), "--components", 0, "--format", "json")
    assert code == 0 and json.loads(out)["choice"] == "a"
    assert json.loads(out)["candidates"][0]["members"] == 3
    np.save(tmp_path / "flat.npy", np.arange(5.0))
    (tmp_path / "bad.npy").write_bytes(b"not an array")
    for name in ("flat", "bad"):
        code, _, said = ask(capsys, "rank", f"a={files[0]},{tmp_path / name}.npy")
        assert code == 2 and name in said and "Traceback" not in said


def test_row_score_options__every_reference_as_a_neighbour_is_told():
    found = rank_candidates(
        [candidate("a", 1, 0.3), candidate("b", 2, 0.5)], RowScoreOptions(k=R, components=(0,)), labels=False
    )
    assert any("lower k" in note for note in found.notes)


def test_candidate__candidates_of_the_same_members_are_refused(tmp_path, capsys):
    for number, each in enumerate(candidate("a", 1, 0.3, whole=True).tests[:2]):
        each.save(tmp_path / f"{number}.npz")
    both = f"{tmp_path / '0.npz'},{tmp_path / '1.npz'}"
    code, _, said = ask(capsys, "rank", f"a={both}", f"b={both}")
    assert code == 2 and "a and b" in said


def test_rank_candidates__candidates_of_other_widths_or_backbones_are_warned_of():
    """An early layer can be the most consistent and the worst (NC 0.43 against 0.22, a probe 0.45 against 0.92)."""

    def notes(*candidates):
        return [
            note for note in rank_candidates(candidates, QUICK, resamples=20).notes if "does not compare layers" in note
        ]

    (note,) = notes(candidate("early", 1, 0.3, d=4), candidate("late", 2, 0.3, d=8))
    assert "differ in width (4, 8 features):" in note
    alike = [candidate("a", 1, 0.3), candidate("b", 2, 0.3)]
    assert notes(*alike) == []
    (note,) = notes(*(replace(each, backbones=(name,)) for each, name in zip(alike, ("conv", "mlp"), strict=True)))
    assert "differ in backbone (conv, mlp):" in note
    assert notes(*(replace(each, backbones=("conv", "conv")) for each in alike)) == []


def test_rank_candidates__candidates_are_compared_by_as_many_members():
    """FV of five members is that of three times 6/5 on average, and their Brier score lower: neither is a merit."""
    many, few = candidate("many", 1, 0.3, members=5), candidate("few", 2, 0.3, members=3)
    found = rank_candidates([many, few], QUICK, resamples=20)
    same = rank_candidates([many.first(3), few], QUICK, resamples=20)
    assert "first 3 networks" in found.notes[0] and "many has 5." in found.notes[0]
    assert found.comparison.rows == same.comparison.rows and not any("networks each" in note for note in same.notes)
    assert {each.members for each in found.candidates} == {3}
    alone = rank_candidates([many, candidate("alone", 3, 0.3, members=1)], QUICK, resamples=20)
    assert {each.name: each.members for each in alone.candidates} == {"many": 5, "alone": 1}  # it has no NC anyway
    assert not any("networks each" in note for note in alone.notes)
