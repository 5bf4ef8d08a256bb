"""Predict, the only writer of dumps: what is in them, for trained and dense networks, resumed and never made twice."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from torch import nn

from nescio import datasets, metrics
from nescio.analysis.pixels import DISTINCT
from nescio.datasets import Batches
from nescio.datasets.changes import Crop, Rotation
from nescio.datasets.corruptions import Corruption
from nescio.datasets.image_set import ImageSet
from nescio.datasets.pixel_cache import decode_pixels
from nescio.datasets.view import View
from nescio.errors import BadInput
from nescio.methods import Output, registry
from nescio.networks.models import network_of_trial
from nescio.networks.network import Network
from nescio.predict import (
    OutputSpec,
    count_pixels,
    count_step,
    inputs,
    load_counts,
    load_predictions,
    pixels,
    predict_images,
    predict_step,
    probe_step,
    steps,
    stored_predictions,
)
from nescio.predictions.model_predictions import FACTS, PREDICTIONS
from nescio.runtime import runtime_for
from nescio.training import load_method, train_step
from nescio.trials import Training, Trial
from nescio.work.steps import Context
from nescio.work.store import Store
from nescio.work.store_errors import Corrupted
from tests.support.shapes import write_shapes

torch.set_num_threads(1)
HERE = runtime_for("cpu")


def trial_of(data, method="erm", **more):
    budget = Training(epochs=1, batch_size=16, augment="none")
    hparams = registry[method].hparams_class()
    return Trial(method=method, hparams=hparams, data=data, backbone="mlp", training=budget, **more)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Images of 6 × 10 pixels in four classes, with votes and groups."""
    rng = np.random.default_rng(0)
    arrays = {}
    for part, n in (("train", 120), ("test", 40)):
        labels = np.arange(n) % 4
        noise = rng.integers(0, 120, (n, 6, 10, 3), np.uint8)
        arrays |= {
            f"x_{part}": noise + (30 * labels[:, None, None, None]).astype(np.uint8),
            f"y_{part}": labels,
            f"annotations_{part}": rng.integers(1, 9, (n, 4)).astype(float),
            f"groups/domain_{part}": np.array(["day", "night"])[np.arange(n) % 2],
        }
    path = tmp_path_factory.mktemp("images") / "set.npz"
    np.savez(path, **arrays)
    return f"npz:{path}"


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    return Context(Store(tmp_path_factory.mktemp("store")), device="cpu")


def logits_by_hand(trial, images, context):
    method = load_method(train_step(trial).key, trial, context.store, HERE)
    with torch.no_grad():
        shown = Batches(images.load().images, datasets.load(trial.data), HERE.device, batch=7)
        return torch.cat([method(x).logits for x, _, _ in shown]).numpy()


# ---- dumps


def test_predict_step__a_dump_holds_what_the_network_says_and_what_the_data_knows(data, context):
    trial, images = trial_of(data, classes=(3, 1)), ImageSet(data, "test", classes=(3, 1))
    dump = stored_predictions(network_of_trial(trial), images, context)
    shown = images.load()
    assert np.array_equal(dump.index, shown.index) and np.array_equal(dump.labels, shown.labels)
    assert dump.in_distribution.all() and dump.embeddings.shape == (20, 100)
    assert np.array_equal(dump.annotations, shown.images.annotations)  # the votes for its own classes
    assert np.array_equal(dump.groups["domain"], shown.images.groups["domain"])
    assert np.allclose(dump.logits, logits_by_hand(trial, images, context), atol=1e-5)
    step = predict_step(network_of_trial(trial), images)
    facts = json.loads((step.folder(context.store) / FACTS).read_text())
    right = (dump.logits[:, 0].argmax(1) == dump.labels).mean()
    assert (facts["accuracy"], facts["rows"], facts["classes"]) == (pytest.approx(right), 20, 2)
    out = stored_predictions(network_of_trial(trial), replace(images, split="out"), context)
    assert not out.in_distribution.any() and set(out.labels.tolist()) == {0, 2} and out.annotations is None
    assert np.array_equal(out.groups["domain"], replace(images, split="out").load().images.groups["domain"])


def test_predict_step__prediction_trains_first_and_is_made_once(data, context, monkeypatch):
    trial = trial_of(data, init_seed=1)
    network, images = network_of_trial(trial), ImageSet(data)
    step = predict_step(network, images)
    assert not train_step(trial).finished(context.store)
    first = stored_predictions(network, images, context)
    assert train_step(trial).finished(context.store) and step.finished(context.store)
    monkeypatch.setattr(steps, "build", lambda *_: pytest.fail("it predicted again"))
    assert np.array_equal(stored_predictions(network, images, context).logits, first.logits)


def test_load_predictions__a_damaged_dump_is_never_read(data, context):
    step = predict_step(network_of_trial(trial_of(data, init_seed=2)), ImageSet(data))
    step.run(context)
    path = next((step.folder(context.store) / PREDICTIONS).glob("logits*"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(Corrupted, match="changed"):
        load_predictions(step, context.store)


def test_predict_images__batches_do_not_change_a_dump(data, context):
    """The same numbers from batches of 5 as from one, changed images included."""
    trial = trial_of(data)
    stored_predictions(network_of_trial(trial), ImageSet(data), context)
    method = load_method(train_step(trial).key, trial, context.store, HERE)
    for change in (None, Rotation(30.0), Crop(0.3, 0.9)):
        shown = ImageSet(data, change=change).load()
        whole, parts = (
            predict_images(method, network_of_trial(trial), shown, None, HERE, batch=batch) for batch in (64, 5)
        )
        assert np.allclose(whole.logits, parts.logits, atol=1e-5)


def test_predict_step__a_change_is_what_the_network_sees(data, context):
    trial = trial_of(data)
    dumps = {
        name: stored_predictions(network_of_trial(trial), ImageSet(data, change=change), context)
        for name, change in {"none": None, "turned": Rotation(90.0), "around": Rotation(360.0)}.items()
    }
    assert np.allclose(dumps["none"].logits, dumps["around"].logits, atol=1e-5)
    assert np.abs(dumps["none"].logits - dumps["turned"].logits).max() > 0.01
    keys = {
        predict_step(network_of_trial(trial), ImageSet(data, change=change)).key for change in (None, Rotation(90.0))
    }
    assert len(keys) == 2


def test_output_spec__what_is_kept_is_what_was_named(data, context):
    network, images = network_of_trial(trial_of(data)), ImageSet(data)
    dump = stored_predictions(network, images, context, OutputSpec(("embeddings",), "float16"))
    whole = stored_predictions(network, images, context)
    assert dump.logits is None and dump.embeddings.dtype == np.float16
    assert np.allclose(dump.embeddings, whole.embeddings, rtol=1e-2, atol=1e-2)
    assert (
        predict_step(network, images, output_spec=OutputSpec(("embeddings",))).key != predict_step(network, images).key
    )
    with pytest.raises(BadInput, match="dropout is 1"):
        OutputSpec(dropout=1.0)


def test_predict_step__other_data_than_it_was_trained_on_is_resized_and_its_labels_stay(data, context):
    """A downstream set: the view of the network, the set's own labels, none of which was in training."""
    network = network_of_trial(trial_of("digits"))
    dump = stored_predictions(network, ImageSet(data), context)
    assert predict_step(network, ImageSet(data)).config["images"].view == network.view
    assert dump.logits.shape == (40, 1, 10) and not dump.in_distribution.any()
    assert np.array_equal(dump.labels, ImageSet(data).load().labels)


def test_predict_step__images_of_other_sets_are_seen_in_the_shape_of_the_training_images(data, context, tmp_path):
    """6 × 10 pixels as they are; others as their largest central part of that shape."""
    rng = np.random.default_rng(1)
    network = network_of_trial(trial_of(data))
    for shape in ((6, 10), (10, 6), (16, 16)):
        images = rng.integers(0, 256, (8, *shape, 3), np.uint8)
        path = tmp_path / f"{shape[0]}.npz"
        np.savez(path, x_train=images, y_train=np.arange(8) % 4, x_test=images, y_test=np.arange(8) % 4)
        other = ImageSet(f"npz:{path}")
        seen = np.stack([decode_pixels(image, View(10, 10, "trained", height=6)) for image in images])
        assert seen.shape == (8, 6, 10, 3) and (shape != (6, 10) or np.array_equal(seen, images))
        dump = stored_predictions(network, other, context)
        step = predict_step(network, other)
        assert step.config["images"].view == (None if shape == (6, 10) else network.view)
        method = load_method(train_step(network.trial).key, network.trial, context.store, HERE)
        x = torch.from_numpy((seen / 255 - network.mean) / network.std).permute(0, 3, 1, 2).float()
        with torch.no_grad():
            assert np.allclose(dump.logits, method(x).logits, atol=1e-5)


def test_probe_step__probes_refuse_images_that_they_would_not_see(data):
    """They look at the training set's images as they are: a change that only the key knew would be wrong."""
    for images in (ImageSet(data, change=Rotation(90.0)), ImageSet(data, view=View(8, 8)), ImageSet("digits")):
        with pytest.raises(BadInput, match="images of npz"):
            probe_step([trial_of(data)], [1.0], images)


def test_stored_predictions__the_first_score_is_the_native_one(data, context):
    dump = stored_predictions(network_of_trial(trial_of(data, "rnd")), ImageSet(data), context)
    first = next(name for name in dump.scores if name != "native") if len(dump.scores) > 1 else "native"
    assert np.array_equal(dump.scores["native"], dump.scores[first])


def test_predict_images__numbers_that_are_not_finite_are_refused(data):
    class Broken(nn.Module):
        normalized = False

        def forward(self, x):
            logits = torch.zeros(len(x), 1, 4)
            logits[0, 0, 0] = float("inf")
            return Output(logits)

    with pytest.raises(BadInput, match="1 of 40 images"):
        predict_images(Broken(), network_of_trial(trial_of(data)), ImageSet(data).load(), None, HERE)


def test_steps__votes_are_in_the_order_of_the_networks_classes(data):
    """Classes of a set are numbered as the network numbers them, and votes with them."""
    from nescio.datasets.class_labels import align_labels

    shown = ImageSet(data).load()
    other = align_labels(shown, 3, ("2", "0", "3"))
    kept = np.flatnonzero(shown.labels != 1)
    assert np.array_equal(other.index, shown.index[kept])
    assert other.labels.tolist() == [{2: 0, 0: 1, 3: 2}[label] for label in shown.labels[kept].tolist()]
    assert np.array_equal(other.images.annotations, shown.images.annotations[kept][:, [2, 0, 3]])


# ---- dense prediction


class PerPixel(nn.Module):
    """Every pixel on its own: logits and one more score are functions of its colour."""

    normalized = False

    def __init__(self, draws=2, classes=3):
        super().__init__()
        torch.manual_seed(0)
        self.draws, self.classes = draws, classes
        self.map = nn.Conv2d(3, draws * classes, 1)

    def forward(self, x):
        logits = self.map(x).unflatten(1, (self.draws, self.classes))
        return Output(logits, scores={"colour": x[:, 0]})


VOID = 255


@pytest.fixture(scope="module")
def maps(tmp_path_factory):
    """Images of 6 × 10 pixels with a label for every pixel, some of which count nowhere."""
    rng = np.random.default_rng(0)
    arrays = {"void": np.array(VOID)}
    for part, n in (("train", 9), ("test", 21)):
        labels = rng.integers(0, 3, (n, 6, 10)).astype(np.uint8)
        labels[rng.random(labels.shape) < 0.2] = VOID
        arrays |= {f"x_{part}": rng.integers(0, 256, (n, 6, 10, 3), np.uint8), f"y_{part}": labels}
    path = tmp_path_factory.mktemp("maps") / "maps.npz"
    np.savez(path, **arrays)
    return f"npz:{path}"


def dense_network(maps, classes=3):
    data = datasets.load(maps)
    return Network("per-pixel", View(10, 10), data.mean, data.std, classes, checksum="0123456789abcdef")


def by_hand(maps, rows=slice(None)):
    """(truth, answer, scores) of every pixel that counts, with everything in memory at once."""
    data = datasets.load(maps)
    images = data.test.take(np.arange(len(data.test))[rows])
    x = torch.from_numpy(images.pixels).permute(0, 3, 1, 2).float() / 255
    x = (x - torch.tensor(data.mean).view(3, 1, 1)) / torch.tensor(data.std).view(3, 1, 1)
    with torch.no_grad():
        output = PerPixel()(x)
    p = output.logits.double().softmax(2).mean(1)
    truth = images.label_maps()
    known = truth != VOID
    entropy = -(p * p.log()).sum(1)
    each = output.logits.double().softmax(2)
    apart = entropy + (each * each.log()).sum(2).mean(1)
    found = {"entropy": entropy, "mutual_information": apart, "colour": output.scores["colour"]}
    scores = {name: score.numpy()[known] for name, score in found.items()}
    return truth[known], p.argmax(1).numpy()[known], scores


def test_steps__label_maps_come_with_their_void(maps):
    data = datasets.load(maps)
    assert (data.shape, data.classes, data.void) == ((6, 10), ("0", "1", "2"), VOID)
    held = np.load(maps.removeprefix("npz:"))
    assert np.array_equal(data.test.label_maps(np.array([4, 2])), held["y_test"][[4, 2]])


def test_steps__label_maps_of_two_parts_stay_with_their_images(maps):
    data = datasets.load(maps)
    both = ImageSet(maps, "all_ood").load().images
    assert np.array_equal(both.label_maps(), np.concatenate([data.train.label_maps(), data.test.label_maps()]))
    assert np.array_equal(both.label_maps(np.array([20, 3])), both.label_maps()[[20, 3]])


def test_count_step__a_label_map_is_no_label_of_an_image(maps, data, context):
    """A classifier of as many classes as the maps have: its dump knows no labels, and no accuracy."""
    network = network_of_trial(trial_of(data, classes=(0, 1, 2)))
    step = predict_step(network, ImageSet(maps))
    dump = stored_predictions(network, ImageSet(maps), context)
    assert dump.logits.shape == (21, 1, 3) and dump.labels is None and dump.in_distribution is None
    assert "accuracy" not in json.loads((step.folder(context.store) / FACTS).read_text())
    with pytest.raises(BadInput, match="predict_step"):
        count_step(network, ImageSet(maps))


def test_count_pixels__counts_of_pixels_are_those_of_all_pixels_at_once(maps, monkeypatch):
    monkeypatch.setattr(pixels, "default_batch_size", lambda *_: 16)  # several batches
    counts = count_pixels([PerPixel()], dense_network(maps), ImageSet(maps).load(), None, HERE)
    truth, answer, scores = by_hand(maps)
    for true in range(3):
        for called in range(3):
            assert counts.confusion[true, called] == ((truth == true) & (answer == called)).sum()
    assert np.nanmean(counts.iou) == pytest.approx(metrics.miou(answer, truth, 3))
    wrong = truth != answer
    for name, u in scores.items():
        bound = counts.scores[name].bound(metrics.auroc)
        assert counts.scores[name].n == len(truth)
        assert abs(metrics.auroc(counts.scores[name].ranking()) - metrics.auroc(u, wrong)) <= bound + 1e-5 < 0.05
        assert metrics.raulc(counts.scores[name].ranking()) == pytest.approx(metrics.raulc(u, wrong), abs=1e-4)


class Seen(PerPixel):
    """Keeps the sizes of its batches, and has no room for more than some images."""

    def __init__(self, most=1000):
        super().__init__()
        self.sizes, self.most = [], most

    def forward(self, x):
        if len(x) > self.most:
            raise torch.OutOfMemoryError
        self.sizes.append(len(x))
        return super().forward(x)


def test_count_pixels__a_batch_of_pixels_is_as_large_as_the_images_allow(maps, tmp_path):
    """Not as those that the network was trained with."""
    large, module = ImageSet(write_shapes(tmp_path / "large.npz", 2, 8, (300, 400))).load(), Seen()
    counts = count_pixels([module], dense_network(maps), large, None, HERE)
    assert sum(module.sizes) == 8 and max(module.sizes) * 300 * 400 <= inputs.PIXELS["cpu"] / 4
    assert counts.n == (large.images.label_maps() != VOID).sum()


@pytest.mark.parametrize("change", [None, Corruption("contrast", 1)])
def test_count_pixels__a_batch_of_pixels_without_room_is_halved(maps, monkeypatch, change):
    monkeypatch.setattr(pixels, "default_batch_size", lambda *_: 32)
    network, shown = dense_network(maps), ImageSet(maps, change=change).load()
    whole = count_pixels([PerPixel()], network, shown, None, HERE)
    module = Seen(3)
    parts = count_pixels([module], network, shown, None, HERE)
    assert module.sizes == [2] * 10 + [1] and np.array_equal(parts.confusion, whole.confusion)
    monkeypatch.setattr(module, "most", 0)
    with pytest.raises(torch.OutOfMemoryError):
        count_pixels([module], network, shown, None, HERE)


def test_count_pixels__classes_of_logits_that_are_not_finite_are_not_counted(maps):
    class Broken(PerPixel):
        def forward(self, x):
            output = super().forward(x)
            output.logits[0, :, :, -1, -1] = torch.nan
            return output

    with pytest.raises(BadInput, match="1 of 992"):
        count_pixels([Broken()], dense_network(maps), ImageSet(maps).load(), None, HERE)


def test_count_pixels__counts_of_shards_add_up(maps, monkeypatch):
    monkeypatch.setattr(pixels, "default_batch_size", lambda *_: 1)  # softmax rounds by the size of its batch
    network, shown = dense_network(maps), ImageSet(maps).load()
    whole = count_pixels([PerPixel()], network, shown, None, HERE)
    first, second = (
        count_pixels([PerPixel()], network, shown.take(rows), None, HERE) for rows in (np.arange(8), np.arange(8, 21))
    )
    both = first + second
    assert np.array_equal(both.confusion, whole.confusion)
    for name, counts in whole.scores.items():
        assert np.array_equal(both.scores[name].keys, counts.keys)
        assert np.array_equal(both.scores[name].rows, counts.rows)


def test_context__a_step_keeps_counts_and_no_pixel(maps, tmp_path, monkeypatch):
    network, context = dense_network(maps), Context(Store(tmp_path), device="cpu")
    monkeypatch.setattr(pixels, "build", lambda network, *_: (PerPixel(), network))
    step = count_step(network, ImageSet(maps))
    step.run(context)
    files = {path.name for path in step.folder(context.store).iterdir()}
    assert "counts.npz" in files and "predictions" not in files
    kept = load_counts(step, context.store)
    whole = count_pixels([PerPixel()], network, ImageSet(maps).load(), None, HERE)
    assert np.array_equal(kept.confusion, whole.confusion)
    assert metrics.auroc(kept.scores["entropy"].ranking()) == metrics.auroc(whole.scores["entropy"].ranking())
    for counts in whole.scores.values():  # what is kept does not grow with the pixels beyond this
        assert len((counts + counts).keys) == len(counts.keys) <= counts.most == DISTINCT
    assert count_step(network, ImageSet(maps, limit=2)).key != step.key


def test_count_pixels__what_is_not_dense_is_one_sentence(maps, data):
    class Plain(nn.Module):
        normalized = False

        def forward(self, x):
            return Output(torch.zeros(len(x), 1, 3))

    with pytest.raises(BadInput, match=r"\(b, s, c, h, w\)"):
        count_pixels([Plain()], dense_network(maps), ImageSet(maps).load(), None, HERE)
    with pytest.raises(BadInput, match="label maps"):
        count_pixels([PerPixel()], dense_network(maps), ImageSet(data).load(), None, HERE)
    with pytest.raises(BadInput, match="2 classes"):
        count_pixels([PerPixel(classes=2)], dense_network(maps, 2), ImageSet(maps).load(), None, HERE)


def test_steps__scores_beyond_float16_are_kept_in_a_float16_dump(tmp_path):
    """Log-densities reach 10⁶: as float16 they would all be tied at its largest number."""
    from nescio.predict import outputs

    make = outputs.arrays_on_disk(tmp_path)
    assert make("scores/density", (3,)).dtype == np.float32
    assert make("logits", (3, 1, 2)).dtype == np.float16
    host = outputs.OutputBuffer(2, make)
    host.add({"scores/far": torch.tensor([1e6, 2e6]), "embeddings": torch.ones(2, 1)})
    assert host.arrays()["scores/far"].tolist() == [1e6, 2e6]
