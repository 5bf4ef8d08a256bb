"""The ImageNot rule: class means in, in- and out-of-distribution classes out; its file, its picture, its command."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nescio.cli import main
from nescio.datasets import partition as imagenot
from nescio.datasets.partition import Partition, class_means, partition
from nescio.errors import BadInput
from nescio.predictions import Predictions
from tests.support.paths import TESTS

SEEDS = st.integers(0, 2**32 - 1)


def gaussian(seed, most=12):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rng.integers(2, most + 1), rng.integers(1, 5)))


def test_partition__leaves_torch_out():
    code = "import sys, nescio.datasets.partition; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- the rule, against its definition


def scatter(points):
    return ((points - points.mean(0)) ** 2).sum()


def ward(means):
    """Merge the two sets that add least to the scatter within sets; a node is (what it added, leaves in order)."""
    nodes = [(-1.0, (number,)) for number in range(len(means))]
    while len(nodes) > 2:
        pairs = [(a, b) for a in range(len(nodes)) for b in range(a)]
        added = [scatter(means[[*nodes[a][1], *nodes[b][1]]]) - sum(scatter(means[list(nodes[i][1])]) for i in (a, b))
                 for a, b in pairs]  # fmt: skip
        best = int(np.argmin(added))
        children = sorted(nodes[i] for i in pairs[best])  # lower first, single classes before all, by their number
        nodes = [node for i, node in enumerate(nodes) if i not in pairs[best]]
        nodes.append((added[best], children[0][1] + children[1][1]))
    small, large = sorted((leaves for _, leaves in nodes), key=lambda leaves: (len(leaves), min(leaves)))
    return sorted(small), sorted(large[: len(small)])


@given(SEEDS)
def test_partition__equals_ward_by_brute_force(seed):
    means = gaussian(seed)
    made = partition(means)
    assert (list(made.inside), list(made.outside)) == ward(means)


@given(SEEDS)
def test_partition__sides_are_equal_apart_and_divided_by_the_root(seed):
    made = partition(gaussian(seed, most=30))
    n = len(made.order)
    assert sorted(made.order) == list(range(n))
    assert 1 <= len(made.inside) == len(made.outside) <= n // 2
    assert not set(made.inside) & set(made.outside)
    # In-distribution classes are one end of the order; out-of-distribution ones are the first of the rest.
    places = {label: place for place, label in enumerate(made.order)}
    inside = sorted(places[label] for label in made.inside)
    start = 0 if inside[0] else len(inside)
    assert inside == list(range(inside[0], inside[0] + len(inside))) and (inside[0] == 0 or inside[-1] == n - 1)
    assert sorted(places[label] for label in made.outside) == list(range(start, start + len(inside)))


def planted(sizes, seed=0, spread=0.1, d=5):
    """Clusters that lie on a line, 10 apart; the class numbers are shuffled."""
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    means = spread * rng.standard_normal((len(group), d))
    means[:, 0] += 10.0 * group
    return means, group


@pytest.mark.parametrize(("sizes", "inside"), [((5, 9), 0), ((9, 5), 1), ((2, 20), 0)])
def test_partition__planted_clusters_are_found_and_the_smaller_one_is_in(sizes, inside):
    means, group = planted(sizes)
    made = partition(means)
    assert made.inside == tuple(np.flatnonzero(group == inside))
    assert set(group[list(made.outside)]) == {1 - inside}


def test_partition__planted_clusters_vanish_when_labels_are_shuffled():
    means, group = planted((6, 9))
    rng = np.random.default_rng(1)
    shuffled = np.array([rng.permutation(column) for column in means.T]).T + rng.standard_normal(means.shape) * 30
    assert partition(shuffled).inside != tuple(np.flatnonzero(group == 0))


def test_partition__a_thousand_saved_class_means():
    """266 classes far from the rest, of which 266 lie closer together than the others: the shape of the paper's case.

    ImageNet itself was not run: these means are synthetic.
    """
    held = np.load(TESTS / "data" / "class_means_1000.npz")
    made = partition(held["means"])
    assert len(made.inside) == len(made.outside) == 266
    assert made.inside == tuple(np.flatnonzero(held["group"] == 0))
    assert made.outside == tuple(np.flatnonzero(held["group"] == 1))


@given(SEEDS)
def test_partition__rotation_shift_and_scale_change_nothing(seed):
    means = gaussian(seed, most=20)
    rng = np.random.default_rng(seed)
    rotation, _ = np.linalg.qr(rng.standard_normal((means.shape[1],) * 2))
    made, moved = partition(means), partition(7 * means @ rotation + 3)
    assert (moved.inside, moved.outside, moved.order) == (made.inside, made.outside, made.order)
    assert np.allclose(moved.linkage[:, 2], 7 * made.linkage[:, 2])
    if means.shape[1] > 1:  # the comparison can tell: stretching one feature is no rotation
        stretched = partition(means * np.r_[1e3, np.ones(means.shape[1] - 1)])
        assert not np.allclose(stretched.linkage[:, 2], made.linkage[:, 2])


@given(SEEDS)
def test_partition__renumbering_the_classes_moves_nothing_but_ties(seed):
    means = gaussian(seed, most=20)
    new = np.random.default_rng(seed).permutation(len(means))  # class new[i] becomes class i
    made, other = partition(means), partition(means[new])
    inside, outside = ({int(new[label]) for label in side} for side in (other.inside, other.outside))
    if 2 * len(made.inside) == len(means):
        assert inside in (set(made.inside), set(made.outside))  # equally large children: the smallest number decides
        return
    assert inside == set(made.inside)
    moved = outside ^ set(made.outside)
    sisters = [{int(a), int(b)} for a, b, _, _ in made.linkage if max(a, b) < len(means)]
    assert not moved or moved in sisters  # a cut between two single sisters takes the smaller number


def test_partition__renumbering_planted_clusters_gives_the_same_sets():
    means, group = planted((4, 5, 6), spread=0.5)
    means[group == 1, 0] += 5  # clusters 1 and 2 are one side of the root
    made = partition(means)
    for seed in range(5):
        new = np.random.default_rng(seed).permutation(len(means))
        other = partition(means[new])
        assert {int(new[label]) for label in other.inside} == set(made.inside) == set(np.flatnonzero(group == 0))
        assert len(set(group[list(made.outside)])) == 1
        assert {group[new[label]] for label in other.outside} == {group[made.outside[0]]}


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (1, 3, 0, 2), (3, 1, 2, 0)])
def test_partition__of_equal_children_the_one_with_the_smallest_class_is_in(order):
    line = np.empty((4, 1))
    line[list(order), 0] = [0.0, 1.0, 10.0, 11.5]
    made = partition(line)
    assert made.inside == (0, 2) and made.outside == (1, 3)


def test_partition__the_smallest_cases():
    assert partition([[0.0], [1.0]]).inside == (0,) and partition([[5.0], [1.0]]).outside == (1,)
    made = partition([[0.0], [10.0], [1.0]])
    assert made.inside == (1,) and made.outside == (0,)
    same = partition(np.zeros((5, 3)))  # nothing tells the classes apart: still an answer, and always the same
    assert len(same.inside) == len(same.outside) and partition(np.zeros((5, 3))) == same


@pytest.mark.parametrize(
    ("means", "classes", "sentence"),
    [
        (np.zeros((1, 3)), None, "at least two classes, and means has 1"),
        (np.zeros((0, 3)), None, "at least two classes"),
        (np.zeros(3), None, r"shape \(3,\)"),
        (np.zeros((3, 0)), None, r"shape \(3, 0\)"),
        ([["a"], ["b"]], None, "must be numbers"),
        ([[0.0], [np.nan]], None, "mean of class 1 is not finite"),
        (np.zeros((3, 1)), ["a", "b"], "2 names and 3 class means"),
    ],
)
def test_partition__what_cannot_be_divided_is_a_sentence(means, classes, sentence):
    with pytest.raises(BadInput, match=sentence):
        partition(means, classes)


# ---- class means


@given(SEEDS)
def test_class_means_are_the_means_of_the_classes(seed):
    rng = np.random.default_rng(seed)
    c = int(rng.integers(1, 5))
    labels = rng.permutation(np.r_[np.arange(c), rng.integers(0, c, rng.integers(0, 20))])
    features = rng.standard_normal((len(labels), 2, 3)).astype(np.float32) + 1e4
    expected = [features[labels == label].reshape(-1, 6).mean(0, dtype=np.float64) for label in range(c)]
    assert np.allclose(class_means(features, labels), expected, rtol=1e-12)


def test_class_means__blocks_do_not_change_the_means(monkeypatch):
    rng = np.random.default_rng(0)
    features, labels = rng.integers(0, 256, (500, 8), np.uint8), rng.integers(0, 7, 500)
    whole = class_means(features, labels)
    monkeypatch.setattr(imagenot, "BLOCK_VALUES", 64)
    assert np.array_equal(class_means(features, labels), whole)  # whole numbers add up exactly in any order


@pytest.mark.parametrize(
    ("features", "labels", "classes", "sentence"),
    [
        (np.zeros((3, 2)), [0, 1], None, "features has 3 rows, labels has 2"),
        (np.zeros((2, 2)), [0, 2], None, "Class 1 has no row"),
        (np.zeros((2, 2)), [0, 1], 3, "Class 2 has no row"),
        (np.zeros((2, 2)), [0, 5], 3, "A label is 5: classes run from 0 to 2"),
        (np.zeros((2, 2)), [-1, 0], None, "A label is -1"),
        (np.zeros((2, 2)), [0.0, 1.0], None, "one class number per row"),
        (np.zeros((0, 2)), np.zeros(0, int), None, "one class number per row"),
    ],
)
def test_class_means__bad_rows_are_a_sentence(features, labels, classes, sentence):
    with pytest.raises(BadInput, match=sentence):
        class_means(features, labels, classes)


# ---- the file


def saved(tmp_path, **changes):
    means, _ = planted((2, 4))
    made = replace(
        partition(means, ["a", "ä", "<b>", "d", "e", "猫"]), dataset="toys", revision="12ab", features="pixels"
    )
    path = made.save(tmp_path / "deep" / "imagenot.json")
    if changes:
        path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **changes}), "utf-8")
    return made, path


def test_partition__a_saved_partition_comes_back_whole(tmp_path):
    made, path = saved(tmp_path)
    back = Partition.load(path)
    assert back == made and back.classes[5] == "猫"
    assert np.array_equal(back.linkage, made.linkage)
    assert json.loads(path.read_text("utf-8"))["rule"] == imagenot.RULE


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"kind": "other"}, "not a partition"),
        ({"rule": 99}, "rule 99"),
        ({"inside": [0, 1]}, "from its tree"),
        ({"outside": []}, "from its tree"),
        ({"order": [0, 1, 2, 3, 4, 5]}, "from its tree"),
        ({"linkage": [[0, 99, 1.0, 2]]}, "tree in .* is damaged"),
        ({"linkage": [[0, 1, 1.0, 2], [2, 4, 2.0, 3], [0, 1, 3.0, 5]]}, "tree in .* is damaged"),
        ({"linkage": [[0, 1, 1.0, 2], [2, 3, 2.0, 9]]}, "tree in .* is damaged"),
        ({"linkage": "x"}, "tree in .* is damaged"),
        ({"linkage": []}, "tree in .* is damaged"),
        ({"classes": ["a"]}, "names 1 classes and its tree has 6"),
    ],
)
def test_partition__a_changed_file_is_not_believed(tmp_path, changes, sentence):
    _, path = saved(tmp_path, **changes)
    with pytest.raises(BadInput, match=sentence):
        Partition.load(path)


def test_partition__what_is_no_partition_is_a_sentence(tmp_path):
    with pytest.raises(BadInput, match="There is no partition"):
        Partition.load(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("hello")
    with pytest.raises(BadInput, match="is not JSON"):
        Partition.load(tmp_path / "text.json")
    (tmp_path / "short.json").write_text(json.dumps({"kind": imagenot.KIND, "rule": imagenot.RULE}))
    with pytest.raises(BadInput, match="has no inside"):
        Partition.load(tmp_path / "short.json")


# ---- real data and reference models


@pytest.fixture(scope="module")
def digits():
    pytest.importorskip("torch")
    from nescio import datasets

    return datasets.load("digits")


def test_pixel_means__digits_by_their_pixels(digits):
    means = imagenot.pixel_means(digits)
    pixels = digits.train.pixels.reshape(len(digits.train.labels), -1) / 255
    assert np.allclose(means, [pixels[digits.train.labels == label].mean(0) for label in range(10)])
    made = imagenot.imagenot(digits, means, "pixels")
    assert made.inside == (0, 4, 6) and made.outside == (3, 5, 9)
    assert (made.dataset, made.revision, made.classes) == (digits.name, digits.revision, digits.classes)
    made.check(digits)
    with pytest.raises(BadInput, match="revision other"):
        made.check(replace(digits, revision="other"))


def test_class_means_of__a_dump_gives_the_means_of_its_embeddings(digits):
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(100) % 10)
    embeddings = rng.standard_normal((100, 4))
    dump = Predictions(labels=labels, embeddings=embeddings)
    assert np.allclose(imagenot.class_means_of(dump, digits), class_means(embeddings, labels))
    for fields, sentence in (
        ({"labels": labels, "logits": rng.standard_normal((100, 10))}, "no embeddings"),
        ({"embeddings": embeddings}, "no labels"),
        ({"labels": labels + 5, "embeddings": embeddings}, "label 14, digits has 10"),
    ):
        with pytest.raises(BadInput, match=sentence):
            imagenot.class_means_of(Predictions(**fields), digits)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A small timm model's weights, as a file of torch and as safetensors."""
    timm, torch = pytest.importorskip("timm"), pytest.importorskip("torch")
    from safetensors.torch import save_file

    torch.manual_seed(0)
    network = timm.create_model("test_resnet").eval()
    folder = tmp_path_factory.mktemp("weights")
    save_file(network.state_dict(), folder / "net.safetensors")
    torch.save({"state_dict": {f"module.{k}": v for k, v in network.state_dict().items()}}, folder / "net.pth")
    return network, folder


# ---- the command


def test_partition__the_command_writes_and_prints(digits, tmp_path, capsys):
    to = tmp_path / "imagenot.json"
    assert main(["imagenot", "--data", "digits", "--output", str(to)]) == 0
    out = capsys.readouterr().out
    assert "in-distribution (3)" in out and "out-of-distribution (3)" in out and "4 of 10 classes" in out
    made = Partition.load(to)
    made.check(digits)
    assert made.inside == (0, 4, 6) and made.features == "pixels"
    assert main(["imagenot", "--data", "digits", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(to.read_text("utf-8"))


def command(capsys, *words):
    assert main(["imagenot", *words, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def linkage_of(features, labels):
    return partition(class_means(features, labels)).linkage


def test_class_means__the_command_takes_a_file_of_predictions(digits, tmp_path, capsys):
    embeddings, labels = np.random.default_rng(0).standard_normal((50, 3)), np.arange(50) % 10
    path = Predictions(labels=labels, embeddings=embeddings).save(tmp_path / "d.npz")
    made = command(capsys, "--data", "digits", "--features", str(path))
    assert made["features"] == "predictions d.npz"
    assert np.allclose(made["linkage"], linkage_of(embeddings, labels))


def test_class_means__a_trained_trial_is_a_reference(digits, tmp_path, capsys):
    import torch

    from nescio.datasets import Batches
    from nescio.methods import registry as methods
    from nescio.runtime import runtime_for
    from nescio.training import load_method, train
    from nescio.trials import Training, Trial
    from nescio.work.store import Store

    store, here = Store(tmp_path), runtime_for("cpu")
    budget = Training(epochs=1, batch_size=64, augment="none")
    trial = Trial(method="erm", hparams=methods["erm"].hparams_class(), data="digits", backbone="mlp", training=budget)
    key = train(trial, store, here)
    words = ["--data", "digits", "--features", key[:10], "--store", str(tmp_path), "--device", "cpu"]
    made = command(capsys, *words)
    method = load_method(key, trial, store, here)
    with torch.no_grad():
        features = torch.cat([method.features(x) for x, _, _ in Batches(digits.train, digits, here.device)]).numpy()
    assert np.allclose(made["linkage"], linkage_of(features, digits.train.labels), atol=1e-4)
    assert made["features"] == f"training {key[:10]}"
    assert main(["imagenot", "--data", "digits", "--features", "ffff", "--store", str(tmp_path)]) == 2
    assert "trained network ffff" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["net.safetensors", "net.pth"])
def test_class_means__a_timm_model_reads_its_weights_by_name(weights, tmp_path, name, capsys):
    """It sees the training images as it was trained to see them."""
    import torch
    from PIL import Image
    from timm.data import create_transform, resolve_data_config

    network, folder = weights
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (40, 24, 24, 3), np.uint8), np.arange(40) % 4
    np.savez(tmp_path / "toy.npz", x_train=images, y_train=labels, x_test=images[:8], y_test=labels[:8])
    words = ["--data", f"npz:{tmp_path / 'toy.npz'}", "--features", "test_resnet", "--weights", str(folder / name)]
    made = command(capsys, *words, "--device", "cpu")
    assert made["features"] == "timm model test_resnet"
    shown = create_transform(**resolve_data_config(pretrained_cfg=network.pretrained_cfg, use_test_size=True))
    x = torch.stack([shown(Image.fromarray(image)) for image in images])
    with torch.no_grad():
        features = network.forward_head(network.forward_features(x), pre_logits=True).numpy()
    assert np.allclose(made["linkage"], linkage_of(features, labels), rtol=1e-3)


def test_imagenot__wrong_weights_are_a_sentence(weights, tmp_path, capsys):
    import torch

    network, folder = weights
    state = network.state_dict()
    torch.save({**state, next(iter(state)): torch.zeros(1, 1, 3, 3)}, tmp_path / "odd.pth")
    for model, path, sentence in (
        ("test_resnet", folder / "none.pth", "none.pth"),
        ("test_vit", folder / "net.pth", "does not fit test_vit"),
        ("no_such_net", folder / "net.pth", "There is no classifier named 'no_such_net'"),
        ("test_resnet", tmp_path / "odd.pth", "does not fit test_resnet"),
    ):
        words = ["--features", model, "--weights", str(path), "--device", "cpu"]
        assert main(["imagenot", "--data", "digits", *words]) == 2
        assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--features", "resnet18"], "name its weights with --weights"),
        (["--features", "x", "--weights", "a", "--store", "b"], "Both --weights and --store"),
        (["--features", "0123456789abcdef", "--store", "nowhere"], "no trained network"),
    ],
)
def test_imagenot__the_command_says_what_is_missing(words, sentence, capsys):
    pytest.importorskip("torch")
    assert main(["imagenot", "--data", "digits", *words]) == 2
    assert sentence in capsys.readouterr().err
