"""Networks × evaluations: one prediction per image set, applicability, averages, and an outside evaluation."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from nescio import evaluations, measures
from nescio.benchmarks import lineup
from nescio.evaluations import Subject, average_predictions
from nescio.evaluations.engine import plan_steps, sibling_subjects
from nescio.evaluations.few_shot import classify_by_mean
from nescio.predictions import Predictions
from nescio.trials import Training

SHORT = Training(epochs=1, batch_size=128, augment="none")
CLASSES = (0, 1, 2, 3, 4, 5)


def subject(method: str = "erm", seed: int = 0, members: int = 1, classes: tuple[int, ...] | None = CLASSES) -> Subject:
    trials = [
        lineup.plain_trial(method, "digits", "mlp", SHORT, seed=seed, member=member, classes=classes)
        for member in range(members)
    ]
    return Subject(lineup.average(trials, None), "digits")


def every() -> list[evaluations.Evaluation]:
    return [evaluations.registry[name]() for name in evaluations.registry]


def test_plan_steps_predicts_every_image_set_once_per_network() -> None:
    planned = plan_steps([subject()], every(), None)
    parents = [step for evaluation in planned.steps for step in evaluation.parents]
    by_images = {repr(step.config["images"]): set() for step in parents}
    for step in parents:
        by_images[repr(step.config["images"])].add(step.key)
    assert all(len(keys) == 1 for keys in by_images.values())
    assert len({id(step) for step in parents}) == len({step.key for step in parents}) < len(parents)


def test_plan_steps_gives_a_reason_for_what_does_not_apply() -> None:
    planned = plan_steps([subject("simclr")], every(), None)
    named = {step.config["evaluation"].name for step in planned.steps}
    missing = {entry["evaluation"] for entry in planned.reasons}
    assert {"transfer", "few-shot", "cost", "activity"} <= named
    assert {"calibration", "misclassification", "ood", "shift"} <= missing
    assert all(entry["method"] == "simclr" and entry["reason"] for entry in planned.reasons)


def test_plan_steps__left_out_classes_are_a_near_set_and_new_classes() -> None:
    left_out = subject()
    assert left_out.left_out == (6, 7, 8, 9)
    whole = subject(classes=None)
    assert whole.left_out == ()
    reasons = plan_steps([whole], [evaluations.registry["ood"](), evaluations.registry["transfer"]()], None).reasons
    assert {entry["evaluation"] for entry in reasons} == {"ood", "transfer"}


def test_sibling_subjects_joins_seeds_and_leaves_averages_out() -> None:
    several = [subject(seed=seed) for seed in range(3)] + [subject("mc-dropout"), subject(members=2)]
    joined = sibling_subjects(several)
    assert [len(each.group.networks) for each in joined] == [3, 1]
    assert joined[0].group.columns["data_seed"] is None


def predictions(seed: int, rows: int = 40) -> Predictions:
    rng = np.random.default_rng(seed)
    logits, embeddings = rng.normal(size=(rows, 3)), rng.normal(size=(rows, 5))
    return Predictions(logits=logits, labels=rng.integers(0, 3, rows), embeddings=embeddings, index=np.arange(rows))


def test_average_predictions_has_mean_cosines_and_mutual_information() -> None:
    a, b = predictions(0).replace(labels=predictions(1).labels), predictions(1)
    both = average_predictions([a, b])

    def cosines(x: np.ndarray) -> np.ndarray:
        unit = x / np.linalg.norm(x, axis=1, keepdims=True)
        return unit @ unit.T

    embeddings = [np.asarray(each.embeddings, float) for each in (both, a, b)]
    whole, first, second = map(cosines, embeddings)
    assert np.allclose(whole, (first + second) / 2, atol=1e-6)
    lengths = [np.linalg.norm(each, axis=1) for each in embeddings]
    assert np.allclose(lengths[0], (lengths[1] + lengths[2]) / 2, rtol=1e-6)
    assert np.allclose(both.scores["native"], measures.mutual_information(both))
    assert average_predictions([a]) is a


def test_classify_by_mean_agrees_with_loops() -> None:
    rng = np.random.default_rng(3)
    labels = np.repeat([0, 1, 2], 8)
    embeddings = rng.normal(size=(24, 4)) + np.eye(4)[labels] * 3
    wrong, u = classify_by_mean(embeddings, labels, 2, 0)  # type: ignore[misc]
    assert len(wrong) == len(u) == 24 - 3 * 2
    assert wrong.mean() < 0.5 and (u <= 0).all()
    assert classify_by_mean(embeddings, labels, 8, 0) is None
