"""Segmentation: every location of the features' map is a row, and every method that says so is alive on them."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from safetensors.torch import load
from torch import nn

from nescio import datasets
from nescio.backbones import Locations
from nescio.cli import main
from nescio.datasets import Batches
from nescio.datasets.changes import Crop, Rotation
from nescio.datasets.corruptions import Corruption
from nescio.datasets.image_set import ImageSet
from nescio.datasets.view import View
from nescio.errors import BadInput
from nescio.methods import NetworkSpec, Output, registry
from nescio.networks.forward import Segmenter
from nescio.networks.models import network_of_trial
from nescio.predict import count_pixels, count_step, load_counts, pixel_predictions, predict_step
from nescio.runtime import runtime_for
from nescio.testing.evidence import method_evidence, observe, small_trial
from nescio.training import WEIGHTS, facts_of, fit, initial_method, train, train_step, usual_batch
from nescio.trials import Training, Trial
from nescio.work.steps import Context
from nescio.work.store import Store
from tests.support.shapes import VOID, write_shapes

torch.set_num_threads(1)
HERE = runtime_for("cpu")
REFUSED = {"byol", "simclr", "moco", "dcu", "mimo", "mixup", "due", "duq", "losspred-order"}
REFUSED |= {"elk", "hib", "infonce", "mc-infonce", "nivmf"}
DENSE = sorted(set(registry) - REFUSED)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_shapes(tmp_path_factory.mktemp("shapes") / "shapes.npz")


def dense_trial(data, method="erm", epochs=8, backbone="conv", **more):
    plan = Training(epochs=epochs, batch_size=8, augment="none", schedule="cosine")
    hparams = more.pop("hparams", registry[method].hparams_class())
    return Trial(
        method=method, hparams=hparams, data=data, backbone=backbone, training=plan, task="segmentation", **more
    )


@pytest.fixture(scope="module")
def learnt(data):
    """Trained methods, each trained once."""
    made = {}

    def of(name, **more):
        key = (name, *more.items())
        if key not in made:
            made[key], _ = fit(dense_trial(data, name, **more), datasets.load(data), HERE, None, float("inf"), None)
        return made[key]

    return of


def shown(method, data):
    """All training images, and the labels of their known locations."""
    dataset = datasets.load(data)
    images = datasets.split_dataset(dataset).train
    return next(iter(method.as_rows(Batches(images, dataset, HERE.device, batch=len(images)))))


# ---- locations


class Means(nn.Module):
    """Features that are the mean colours of squares of 4 × 4 pixels."""

    def forward(self, x):
        return nn.functional.avg_pool2d(x, 4, ceil_mode=True)


def test_methods_dense__a_row_is_a_location_in_the_order_of_its_label():
    features = Locations(Means(), 3)
    assert (features.num_features, features.stride, features.grid((10, 16))) == (3, 4, (3, 4))
    x, maps = torch.randn(2, 3, 8, 12), torch.arange(2 * 8 * 12).view(2, 8, 12) % 5
    known, labels = features.with_known(x, maps, void=4)
    at = [(image, 4 * i + 2, 4 * j + 2) for image in range(2) for i in range(2) for j in range(3)]  # centres
    at = [place for place in at if maps[place] != 4]
    assert 0 < len(at) < 12 and labels.tolist() == [int(maps[place]) for place in at]
    expected = torch.stack([x[b, :, i - 2 : i + 2, j - 2 : j + 2].mean((1, 2)) for b, i, j in at])
    assert torch.allclose(features(known), expected, atol=1e-6)
    assert features(x).shape == (12, 3)  # images alone: every location
    assert torch.equal(features.with_known(x, maps, None)[1], features.reduced(maps).flatten())


def test_methods_dense__void_pixels_teach_nothing(data, learnt):
    method, dataset = learnt("erm"), datasets.load(data)
    x, y, _ = shown(method, data)
    maps = torch.from_numpy(datasets.split_dataset(dataset).train.label_maps().astype(np.int64))
    every = method.features.reduced(maps).flatten()
    assert 0 < (every == VOID).sum() < len(every) and not (y == VOID).any()
    with torch.no_grad():
        logits = method.head(method.features(x[:, :3]))
        expected = nn.functional.cross_entropy(logits[every != VOID], every[every != VOID])
        assert float(method.loss(x, y)) == pytest.approx(float(expected), rel=1e-4)
    with pytest.raises(BadInput, match=r"label 255, .* 3 classes"):
        fit(dense_trial(data), replace(dataset, void=None), HERE, None, float("inf"), None)


@pytest.mark.parametrize(("backbone", "stride", "width"), [("conv", 4, 64), ("resnet18", 2, 512)])
def test_network_spec__small_images_keep_their_resolution(backbone, stride, width):
    features = NetworkSpec(backbone, 3, (24, 40), 3, dense=True).features()
    assert (features.stride, features.num_features) == (stride, width)
    assert features.maps(torch.randn(2, 3, 24, 40)).shape == (2, width, *features.grid((24, 40)))


def test_network_spec__a_dilated_resnet_is_the_resnet_with_dilations_for_its_last_strides():
    plain, dense = (NetworkSpec("resnet18", 3, (96, 160), 3, dense=each).features() for each in (False, True))
    assert dense.stride == 8 and dense.maps(torch.randn(1, 3, 96, 160)).shape == (1, 512, 12, 20)
    shapes = {name: weight.shape for name, weight in plain.state_dict().items()}
    assert shapes == {name: weight.shape for name, weight in dense.backbone.state_dict().items()}
    last = [*dense.backbone.layer3.modules(), *dense.backbone.layer4.modules()]
    strides = {layer.stride for layer in last if isinstance(layer, nn.Conv2d)}
    assert strides == {(1, 1)} and dense.backbone.layer4[1].conv1.dilation == (4, 4)


# ---- methods


def test_network_spec__what_cannot_segment_says_why():
    for name in REFUSED:
        with pytest.raises(BadInput, match=f"The method {name} cannot segment images: it"):
            registry[name](registry[name].hparams_class(), NetworkSpec("conv", 3, (24, 40), 3, dense=True))


@pytest.mark.parametrize("name", DENSE)
def test_methods_dense__every_other_method_learns_and_answers_for_every_pixel(name, data, learnt):
    method = learnt(name)
    counts = count_pixels(
        [Segmenter(method)], network_of_trial(dense_trial(data, name)), ImageSet(data).load(), None, HERE
    )
    images = datasets.load(data).test
    assert counts.n == (images.label_maps() != VOID).sum()
    assert counts.accuracy > np.max(counts.confusion.sum(1)) / counts.n  # better than the most frequent class
    assert {"entropy", *method.scores} <= counts.scores.keys()
    assert ("mutual_information" in counts.scores) == (name in ("heads", "mc-dropout"))


@pytest.mark.parametrize("name", ["erm", "mc-dropout", "sngp", "ddu", "mir"])
def test_methods_dense__alive_on_pixels(name, data, learnt):
    """The method's own evidence, taken on locations."""
    seen = method_evidence(learnt(name), dense_trial(data, name), datasets.load(data), HERE)
    assert seen and all(evidence.passed for evidence in seen.values()), seen


def test_methods_dense__a_part_that_is_switched_off_is_seen(data):
    """One epoch without finalisation: no precision, no Gaussians; a decoder that learns nothing."""
    dataset = datasets.load(data)
    for name, dead in (("sngp", "precision changed"), ("ddu", "density away from the data"), ("mir", "reconstructs")):
        start = initial_method(dense_trial(data, name), dataset, HERE)
        assert not method_evidence(start, dense_trial(data, name), dataset, HERE)[dead].passed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sngp", "ddu"])
def test_methods_dense__all_of_verify(name, data):
    seen = dict(observe(small_trial(name, data=data, epochs=10, task="segmentation")))
    assert len(seen) >= 9 and all(evidence.passed for evidence in seen.values()), seen
    assert "locations in" in seen["learns"].observed


@pytest.mark.parametrize("name", ["ddu", "mir"])
def test_methods_dense__gaussians_are_those_of_the_known_locations_of_each_class(name, data, learnt):
    method = learnt(name)
    with torch.no_grad():
        x, y, _ = shown(method, data)
        rows = method.features(x).double()
    for label in range(3):
        own = rows[y == label]
        assert torch.allclose(method.gaussians.means[label], own.mean(0), atol=1e-6)
        factor = torch.linalg.inv(method.gaussians.whiteners[label])
        covariance = torch.cov(own.T)
        assert torch.allclose(factor @ factor.T, covariance, atol=1e-6 * float(covariance.diagonal().mean()))
    assert torch.allclose(method.gaussians.log_shares.exp(), torch.bincount(y).double() / len(y), atol=1e-9)


def test_methods_dense__one_process_is_shared_by_all_locations(data, learnt):
    method = learnt("sngp")
    with torch.no_grad():
        x, _, _ = shown(method, data)
        expanded = method.gp.expand(method.features(x)).double()
        precision = torch.eye(expanded.shape[1], dtype=torch.float64) + expanded.T @ expanded
        assert torch.allclose(method.gp.precision.double(), precision, rtol=1e-4, atol=1e-3)
        one, all_of_it = method(x[:1, :3]), method(x[:4, :3])  # a location's answer is a function of its features
        assert torch.allclose(one.logits, all_of_it.logits[: len(one.logits)], atol=1e-5)
    assert method.rows == 36 * 6 * 10  # the prior is weighed against all locations of all images


def test_methods_dense__the_decoder_of_mir_sees_the_whole_map(data, learnt):
    method = learnt("mir")
    x, y, _ = shown(method, data)
    with torch.no_grad():
        rows, error = method.reconstructed(x)
        image = method.decoder(method.features.maps(x))
    assert len(rows) == len(y) and image.shape == (len(x), 3, 24, 40)
    assert float(error) == pytest.approx(float((image - x[:, :3]).square().mean()), rel=1e-5)


# ---- predictions


def test_methods_dense__answers_are_interpolated_bilinearly_and_scores_bicubically(learnt):
    network, x = Segmenter(learnt("ddu")), torch.randn(2, 3, 22, 37)  # no multiples of the stride
    with torch.no_grad():
        output = network(x)
        called, scores = pixel_predictions([output], (22, 37))
    assert output.logits.shape == (2, 1, 3, 6, 10) and output.scores["density"].shape == (2, 6, 10)
    upsampled = nn.functional.interpolate(output.logits[:, 0], (22, 37), mode="bilinear")
    assert torch.equal(called, upsampled.argmax(1))
    p = upsampled.double().softmax(1)
    assert torch.allclose(scores["entropy"].double(), -(p * p.log()).sum(1), atol=1e-5)
    density = nn.functional.interpolate(output.scores["density"][:, None], (22, 37), mode="bicubic")
    assert torch.equal(scores["density"], density[:, 0])
    rows = learnt("ddu")(x)
    assert torch.equal(output.logits[1, 0, :, 2, 3], rows.logits[60 + 2 * 10 + 3, 0])


def test_output__an_average_of_members_and_of_draws():
    def output(*draws):
        return Output(torch.stack(draws, 1), scores={"own": torch.zeros(2, 4, 5)})

    def entropy(p):
        return -(p * p.log()).sum(1)

    a, b, c = (torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
    pa, pb, pc = (each.softmax(1) for each in (a, b, c))
    called, scores = pixel_predictions([output(a, b), output(c)], (4, 5))
    first = (pa + pb) / 2
    mean = (first + pc) / 2
    assert torch.equal(called, mean.argmax(1)) and scores.keys() == {"entropy", "mutual_information"}
    assert torch.allclose(scores["entropy"], entropy(mean), atol=1e-6)
    over_members = entropy(mean) - (entropy(first) + entropy(pc)) / 2
    assert torch.allclose(scores["mutual_information"], over_members, atol=1e-6)
    _, scores = pixel_predictions([output(a, b)], (4, 5))
    over_draws = entropy(first) - (entropy(pa) + entropy(pb)) / 2
    assert torch.allclose(scores["mutual_information"], over_draws, atol=1e-6) and "own" in scores
    _, scores = pixel_predictions([output(c)], (4, 5))
    assert "mutual_information" not in scores


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    return Context(Store(tmp_path_factory.mktemp("store")), device="cpu")


def test_methods_dense__an_ensemble_is_counted_by_a_step_of_its_own(data, context):
    members = [network_of_trial(dense_trial(data, init_seed=seed)) for seed in range(3)]
    steps = [count_step(member, ImageSet(data)) for member in (*members, members)]
    for step in steps:
        step.run(context)
    singles, average = [load_counts(step, context.store) for step in steps[:3]], load_counts(steps[3], context.store)
    assert len({step.key for step in steps}) == 4
    assert average.n == singles[0].n and "mutual_information" in average.scores
    assert average.accuracy > min(single.accuracy for single in singles)
    assert 0 < facts_of(train_step(members[0].trial), context.store)["train_accuracy"] <= 1
    with pytest.raises(BadInput, match="every pixel"):
        predict_step(members[0], ImageSet(data))
    with pytest.raises(BadInput, match=r"(?i)label map"):
        count_step(members[0], ImageSet(data, view=View(8, 8)))
    with pytest.raises(BadInput, match="at least one"):
        count_step([], ImageSet(data))


@pytest.mark.parametrize("change", [Rotation(20.0), Crop()])
def test_methods_dense__changes_that_move_what_is_seen_are_refused(data, change):
    with pytest.raises(BadInput, match="moves pixels"):
        count_step(network_of_trial(dense_trial(data)), ImageSet(data, change=change))


def test_methods_dense__levels_of_a_shift_are_pooled_by_adding(data, context):
    network = network_of_trial(dense_trial(data))
    found = []
    for change in (None, Corruption("contrast", 3), Corruption("contrast", 5)):
        step = count_step(network, ImageSet(data, change=change))
        step.run(context)
        found.append(load_counts(step, context.store))
    clean, _, worst = found
    assert np.array_equal(clean.confusion.sum(1), worst.confusion.sum(1))  # the labels are the same
    assert worst.accuracy < clean.accuracy
    pooled = found[0] + found[1] + found[2]
    assert pooled.n == 3 * clean.n
    values = {(row.get("measure"), row["metric"]): row["value"] for row in pooled.rows()[0]}
    assert values[None, "accuracy"] == pytest.approx(np.mean([each.accuracy for each in found]))
    assert 0.5 < values["entropy", "auroc"] < 1 and values["entropy", "raulc"] > 0


# ---- training


def test_methods_dense__stopped_and_resumed_is_bit_identical(data, tmp_path):
    trial = dense_trial(data, "mc-dropout", epochs=3)
    trial = replace(trial, training=replace(trial.training, augment="crop-flip"))
    whole, broken = Store(tmp_path / "whole"), Store(tmp_path / "broken")
    key = train(trial, whole, HERE)

    def stop(seen):
        if seen["epoch"] >= 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(trial, broken, HERE, checkpoint_seconds=0.0, watch=stop)
    assert train(trial, broken, HERE) == key
    assert len({(store.path("train", key) / WEIGHTS).read_bytes() for store in (whole, broken)}) == 1


def test_methods_dense__a_segmenter_starts_from_a_classifier(data, tmp_path):
    rng = np.random.default_rng(0)
    arrays = {}
    for part in ("train", "test"):
        arrays |= {f"x_{part}": rng.integers(0, 256, (16, 24, 40, 3), np.uint8), f"y_{part}": np.arange(16) % 2}
    np.savez(tmp_path / "plain.npz", **arrays)
    plan = Training(epochs=1, batch_size=8, augment="none")
    hparams = registry["erm"].hparams_class()
    images = f"npz:{tmp_path / 'plain.npz'}"
    pretrained = Trial(method="erm", hparams=hparams, data=images, backbone="resnet18", training=plan)
    store = Store(tmp_path / "store")
    key = train(pretrained, store, HERE)
    trial = dense_trial(data, backbone="resnet18", start=f"store:{key}")
    begun = initial_method(trial, datasets.load(data), HERE, store)
    weights = load((store.path("train", key) / WEIGHTS).read_bytes())
    assert torch.equal(begun.features.backbone.conv1.weight, weights["features.conv1.weight"])
    assert begun.head.out_features == 3  # the head is new


def test_methods_dense__what_does_not_fit_together_is_one_sentence(data):
    dataset, digits = datasets.load(data), datasets.load("digits")
    for trial, images, words in (
        (dense_trial("digits"), digits, "digits, which has no label maps"),
        (dense_trial(data, classes=(0, 1)), dataset, "all classes"),
        (replace(dense_trial(data), task="classification"), dataset, "segmentation"),
        (dense_trial(data, backbone="mlp"), dataset, "mlp"),
        (dense_trial(data, backbone="vit_tiny_patch16_224"), dataset, "vit_tiny_patch16_224"),
    ):
        with pytest.raises(BadInput, match=words):
            initial_method(trial, images, HERE)


def test_methods_dense__the_command(data, tmp_path, capsys):
    words = ["train", "--task", "segmentation", "--data", data, "--epochs", "1", "--device", "cpu"]
    assert main([*words, "--store", str(tmp_path)]) == 0
    assert "is finished" in capsys.readouterr().out
    (run,) = Store(tmp_path).runs()
    hparams = Store(tmp_path).record("train", run.key)["config"]
    assert hparams["task"] == "segmentation"
    assert usual_batch(2975, task="segmentation") == 8
