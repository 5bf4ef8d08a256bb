"""Trials for tests of training."""

import math

import torch

from nescio import datasets
from nescio.datasets import Batches
from nescio.methods import registry
from nescio.methods.evidence import accuracy_of
from nescio.runtime import runtime_for
from nescio.training import (
    WEIGHTS,
    fit,
)
from nescio.trials import Training, Trial

QUICK = Training(epochs=3, batch_size=128, augment="none", lr=0.1)


def trial_of(method="erm", backbone="mlp", training=QUICK, hparams=None, data="digits", **more):
    made = hparams or registry[method].hparams_class()
    return Trial(method=method, hparams=made, data=data, backbone=backbone, training=training, **more)


def fitted(trial, watch=None):
    method, _ = fit(trial, datasets.load(trial.data), runtime_for("cpu"), None, math.inf, watch)
    return method


def right(method, split="test"):
    dataset = datasets.load("digits")
    images = getattr(datasets.split_dataset(dataset), split)
    return accuracy_of(method, Batches(images, dataset, torch.device("cpu")))


def weights(store, key):
    return (store.path("train", key) / WEIGHTS).read_bytes()
