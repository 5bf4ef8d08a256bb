"""Initial weights: seeds, other trainings and checkpoint files."""

from dataclasses import replace

import pytest
import torch

from nescio import datasets
from nescio.datasets import Batches
from nescio.errors import BadInput
from nescio.methods import registry
from nescio.runtime import runtime_for
from nescio.training import (
    build,
    initial_method,
    load_method,
    take_weights,
    train,
    train_step,
)
from nescio.work.store import Store
from tests.support.trainings import right, trial_of

torch.set_num_threads(1)


# ---- fine-tuning


def test_train_step__a_trial_that_starts_from_another_begins_with_its_backbone(tmp_path):
    store, here, dataset = Store(tmp_path), runtime_for("cpu"), datasets.load("digits")
    key = train(trial_of(classes=(0, 1, 2, 3, 4)), store, here)
    first = load_method(key, trial_of(classes=(0, 1, 2, 3, 4)), store, here)
    plain, tuned = trial_of(init_seed=1), trial_of(init_seed=1, start=f"store:{key}")
    begun = initial_method(tuned, dataset, here, store)
    ours, theirs = begun.features.state_dict(), first.features.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    fresh = initial_method(plain, dataset, here)
    assert torch.equal(begun.head.weight, fresh.head.weight)  # ten classes: the head of five is not taken
    assert not torch.equal(begun.features[1].weight, fresh.features[1].weight)
    assert train_step(tuned).key != train_step(plain).key
    other = train(trial_of(classes=(0, 1, 2, 3, 4), init_seed=5), store, here)
    assert train_step(replace(tuned, start=f"store:{other}")).key != train_step(tuned).key
    assert right(load_method(train(tuned, store, here), tuned, store, here)) > 0.4


def test_take_weights__a_head_that_fits_is_taken_with_its_backbone(tmp_path):
    store, here = Store(tmp_path), runtime_for("cpu")
    key = train(trial_of(), store, here)
    method = build(trial_of("soft-labels"), datasets.load("digits"), rows=0)
    assert take_weights(method, f"store:{key}", store) == []
    assert torch.equal(method.head.weight, load_method(key, trial_of(), store, here).head.weight)


def test_train_step__a_trial_starts_from_a_checkpoint_of_the_whole_or_of_the_bare_backbone(tmp_path):
    from safetensors.torch import save_file

    store, here, dataset = Store(tmp_path), runtime_for("cpu"), datasets.load("digits")
    source = initial_method(trial_of(init_seed=7), dataset, here)
    torch.save({"state_dict": source.state_dict()}, tmp_path / "whole.pth")
    save_file(source.features.state_dict(), tmp_path / "bare.safetensors")
    for name in ("whole.pth", "bare.safetensors"):
        begun = initial_method(trial_of(start=f"file:{tmp_path / name}"), dataset, here, store)
        assert torch.equal(begun.features[1].weight, source.features[1].weight)
    before = train_step(trial_of(start=f"file:{tmp_path / 'bare.safetensors'}")).key
    save_file(initial_method(trial_of(), dataset, here).features.state_dict(), tmp_path / "bare.safetensors")
    assert train_step(trial_of(start=f"file:{tmp_path / 'bare.safetensors'}")).key != before  # other weights, other key


def test_initial__what_a_trial_cannot_start_from_is_one_sentence(tmp_path):
    store, here = Store(tmp_path), runtime_for("cpu")
    torch.save(build(trial_of(backbone="conv"), datasets.load("digits"), 0).state_dict(), tmp_path / "conv.pth")
    for start, sentence in (
        (f"file:{tmp_path / 'conv.pth'}", r"conv.pth does not fit this backbone: it lacks features\..*of \d+ tensors"),
        (f"file:{tmp_path / 'none.pth'}", "store:KEY, or file:PATH"),
        ("elsewhere", "'elsewhere'.*store:KEY, or file:PATH"),
        ("store:0123456789abcdef", "There is no trained network 0123456789abcdef"),
    ):
        with pytest.raises(BadInput, match=sentence):
            train(trial_of(start=start), store, here)


def test_take_weights__bounded_layers_start_from_weights_that_were_learnt_without_bounds(tmp_path):
    store, here, digits = Store(tmp_path), runtime_for("cpu"), datasets.load("digits")
    plain = trial_of(backbone="conv")
    key = train(plain, store, here)
    images = next(iter(Batches(digits.test, digits, here.device)))[0]
    found = {None: load_method(key, plain, store, here)}
    for bound in (100.0, 0.5):
        found[bound] = build(trial_of("sngp", "conv", hparams=registry["sngp"].hparams_class(bound=bound)), digits, 0)
        take_weights(found[bound], f"store:{key}", store)
    with torch.no_grad():
        free, wide, narrow = (each.eval().features(images) for each in found.values())
    assert torch.allclose(wide, free, atol=1e-5) and not torch.allclose(narrow, free, atol=1e-2)


def test_initial__networks_of_one_seed_start_alike():
    def start(method, spectral):
        return build(trial_of(method, spectral=spectral), datasets.load("digits"), rows=100)

    erm, mixup, bounded = start("erm", None), start("mixup", None), start("erm", 5.0)
    assert torch.equal(erm.features[1].weight, mixup.features[1].weight)
    assert torch.equal(erm.head.weight, bounded.head.weight)
