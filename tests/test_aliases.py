"""Names of the field: aliases and other spellings lead to the registered part, and no suggestion to another thing."""

import json
from dataclasses import dataclass

import numpy as np
import pytest

from nescio import datasets, measures, metrics
from nescio.analysis.comparison import compare
from nescio.analysis.metric_specs import parse_metric
from nescio.analysis.thresholds import guarantee_threshold
from nescio.cli import main
from nescio.datasets.corruptions import ALIASES, CORRUPTIONS
from nescio.errors import BadInput, did_you_mean
from nescio.options import option
from nescio.predictions import Predictions
from nescio.registry import Registry, canonical

MEASURES = {"msp": "msp", "MSP": "msp", "mls": "max_logit", "MaxLogit": "max_logit", "ebo": "energy"}
MEASURES |= {"Energy": "energy", "margin": "gap", "MI": "mutual_information", "bald": "mutual_information"}
MEASURES |= {"Mahalanobis": "mahalanobis", "MDS+": "mds_plus", "RMD": "rmds", "KL-Matching": "kl_matching"}
METRICS = {"ECE": "ece", "FPR95": "fpr_at_tpr", "fpr@95": "fpr_at_tpr", "AUROC": "auroc", "AURC": "aurc"}
METRICS |= {"AUPR": "aupr", "E-AURC": "e_aurc", "NLL": "nll", "Brier score": "brier", "R@1": "recall_at_1"}
DATA = {"CIFAR-10": "cifar10", "FMNIST": "fashion-mnist", "CUB-200-2011": "cub200", "ImageNet-1k": "imagenet"}
DATA |= {"CUB@64": "cub200@64", "NPZ:a.npz": "npz:a.npz", "folder:CUB": "folder:CUB", "nothing": "nothing"}
# what the field has and nescio does not, or under a word that looks like another one
STRANGERS = {
    measures: ("odin", "openmax", "rankfeat", "gram", "vra", "ddu", "duq", "edl", "ash_b", "jsd", "deep-ensembles"),
    metrics: ("auarc", "ausc", "ace", "sce", "tace", "mce", "aupr_in", "aupr_out", "ada-ece", "ks"),
    datasets: ("svhn", "kmnist", "emnist", "cifar10.1", "cifar10-c", "imagenet-o", "imagenet-r", "photos", "places365"),
}


@pytest.mark.parametrize(("room", "names"), [(measures, MEASURES), (metrics, METRICS), (datasets, DATA)])
def test_aliases__names_of_the_field_are_known(room, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert {name: room.registry.canonical(name) for name in names} == names


def test_aliases__methods_and_corruptions():
    methods = pytest.importorskip("nescio.methods").registry
    names = {"ERM": "erm", "MC_Dropout": "mc-dropout", "mcdropout": "mc-dropout", "HetXL": "het-xl", "SNGP": "sngp"}
    assert {name: methods.canonical(name) for name in names} == names
    names = {"JPEG": "jpeg_compression", "Gaussian-Noise": "gaussian_noise", "elastic": "elastic_transform"}
    assert {name: canonical(name, CORRUPTIONS, ALIASES) for name in names} == names
    assert set(ALIASES.values()) <= set(CORRUPTIONS)


@pytest.mark.parametrize("name", ["deep-ensembles", "Deep Ensemble", "ensemble"])
def test_aliases__deep_ensembles_are_asked_for_otherwise(name):
    methods = pytest.importorskip("nescio.methods").registry
    with pytest.raises(BadInput, match=r"--ensemble-size.*deep-ensemble") as no:
        methods[name]
    assert "Did you mean" not in str(no.value)


@pytest.mark.parametrize("room", ["measures", "metrics", "methods", "datasets"])
def test_aliases__every_alias_is_of_one_registered_part_and_of_no_other(room):
    registry = pytest.importorskip(f"nescio.{room}").registry
    assert {part for part in registry.aliases.values() if part not in registry} <= {"deep-ensemble"}
    for alias, part in registry.aliases.items():
        assert registry.canonical(alias) == part
        assert alias not in registry.others or alias == "deepensemble"


@pytest.mark.parametrize("room", STRANGERS)
def test_aliases__no_suggestion_leads_to_another_thing(room):
    for name in STRANGERS[room]:
        with pytest.raises(BadInput) as no:
            room.registry[name]
        assert "Did you mean" not in str(no.value), no.value


@pytest.mark.parametrize(
    ("text", "meant"), [("entrpy", "'entropy'"), ("Entropi", "'entropy'"), ("msq", ""), ("margins", ""), ("photos", "")]
)
def test_aliases__slips_of_the_finger_are_suggested(text, meant):
    hint = did_you_mean(text, [*measures.registry, *datasets.registry])
    assert hint == (f" Did you mean {meant}?" if meant else "")


def test_aliases_of_sets_within_texts_become_registered_names(tmp_path, monkeypatch):
    from nescio.datasets.names import absolute_name, dataset_name

    monkeypatch.chdir(tmp_path)
    assert [absolute_name(name) for name in ("CIFAR-10", "CUB@64", "npz:A.npz")] == [
        "cifar10",
        "cub200@64",
        "npz:A.npz",
    ]
    assert dataset_name("FMNIST") == "fashion-mnist"
    benchmarks = pytest.importorskip("nescio.benchmarks.reliability")
    benchmarks.Plan(pretraining_data=("tiny-imagenet",), downstream=("Tiny_ImageNet_200=CIFAR-10",)).check()


def test_evaluate_names_what_takes_a_measure(capsys):
    assert main(["evaluate", "preds.npz", "--measure", "entropy"]) == 2
    assert "nescio compare FILE --measure NAME" in capsys.readouterr().err


def test_runs__a_store_without_work_says_what_adds_it(tmp_path, capsys):
    assert main(["runs", "--store", str(tmp_path)]) == 2
    assert "nescio train" in capsys.readouterr().err


def test_aliases__a_study_without_rows_is_no_success(tmp_path, capsys):
    from nescio.api.studies import BenchmarkResult
    from nescio.commands._studies import emit_study
    from nescio.report.studies import Study

    result = BenchmarkResult(Study(benchmark="uimnet", version=1, rows=[]))
    assert emit_study(result, tmp_path / "report") == 1
    assert "failed: " in capsys.readouterr().err and not (tmp_path / "report").exists()


def test_aliases__classes_that_a_network_lacks_are_named():
    from nescio.datasets.class_labels import _missing_classes

    assert "unicorn" in _missing_classes(["tench", "goldfish", "unicorn"], 1000, None)
    assert "unicorn" in _missing_classes(["cat", "unicorn"], 2, ["cat", "dog"])
    assert _missing_classes(["tench", "goldfish"], 1000, None) == ""


def test_aliases__exact_names_stand_before_aliases():
    registry: Registry[str] = Registry("thing", aliases={"first": ("one",)})
    for name in ("first", "One", "ONE"):
        registry.add(name, name)
    assert [registry[name] for name in ("first", "FIRST", "One", "one")] == ["first", "first", "One", "first"]


def test_predictions__a_score_of_the_predictions_stands_before_an_alias():
    logits = np.random.default_rng(0).normal(size=(40, 3))
    scored = Predictions(logits=logits, labels=np.arange(40) % 3, scores={"margin": np.arange(40.0)})
    plain = scored.replace(scores={})
    assert measures.canonical("margin", plain) == "gap"
    assert measures.canonical("margin", scored) == "margin"
    np.testing.assert_array_equal(measures.uncertainty("margin", scored), np.arange(40.0))
    np.testing.assert_array_equal(measures.uncertainty("Margin", plain), measures.uncertainty("gap", plain))


def test_aliases__results_hold_registered_names():
    rng = np.random.default_rng(0)
    dump = Predictions(logits=rng.normal(size=(60, 3)), labels=np.arange(60) % 3)
    rows = compare({"a": dump}, measure="MSP", metrics=["AUROC", "FPR95", "sac@0.5"], resamples=20).rows
    assert {row["metric"] for row in rows} >= {"auroc", "fpr_at_tpr", "sac@0.5"}
    assert {row["measure"] for row in rows} <= {"msp", None}
    assert guarantee_threshold(dump, coverage=0.5, measure="msp").measure == "msp"
    assert parse_metric("Accuracy@2").label == "accuracy@2"


def test_threshold__options_take_aliases(tmp_path, capsys):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", logits=rng.normal(size=(60, 3)), labels=np.arange(60) % 3)
    assert (
        main(["threshold", str(tmp_path / "a.npz"), "--coverage", "0.5", "--measure", "Margin", "--format", "json"])
        == 0
    )
    assert json.loads(capsys.readouterr().out)["measure"] == "gap"


def test_option__an_option_of_parts_gives_registered_names():
    import argparse

    from nescio.commands.parsing import add_options
    from nescio.options import options_of

    @dataclass(frozen=True)
    class Plan:
        metrics: tuple[str, ...] = option((), kind="metric")
        data: str | None = option(None, kind="dataset")

    parser = argparse.ArgumentParser()
    add_options(parser, Plan)
    plan = options_of(parser.parse_args(["--metrics", "ECE,auroc", "--data", "CIFAR10"]), Plan)
    assert plan == Plan(("ece", "auroc"), "cifar10")
    assert options_of(parser.parse_args([]), Plan) == Plan()


def test_aliases__a_folder_is_not_taken_for_the_set_that_it_is_an_alias_of(tmp_path, monkeypatch):
    (tmp_path / "cub").mkdir()
    (tmp_path / "photos.npz").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="folder:cub"):
        datasets.load("cub")
    with pytest.raises(BadInput, match=r"npz:photos\.npz"):
        datasets.load("photos.npz")
