"""Sets for retrieval and human uncertainty, from tiny files in their published layouts; parts of sets by classes."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from PIL import Image

from nescio import datasets
from nescio.datasets import load, retrieval, subsets
from nescio.datasets.image_set import ImageSet
from nescio.errors import BadInput
from nescio.specs import numbers


def image(path, shade):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((10, 12, 3), shade, np.uint8)).save(path)


def shades(images):
    return images.pixels[:, 0, 0, 0].tolist()


@pytest.fixture
def cub(tmp_path):
    """Four classes of two images; the image files do not stand in the order of their classes."""
    place = tmp_path / "CUB_200_2011"
    names = ["001.Auk", "002.Bat", "003.Cat", "004.Dog"]
    order = [3, 0, 2, 1, 1, 0, 3, 2]
    for number, label in enumerate(order, start=1):
        image(place / "images" / names[label] / f"{number}.png", 20 * number)
    (place / "classes.txt").write_text("".join(f"{i} {name}\n" for i, name in enumerate(names, start=1)))
    (place / "images.txt").write_text("".join(f"{i} {names[k]}/{i}.png\n" for i, k in enumerate(order, start=1)))
    (place / "image_class_labels.txt").write_text("".join(f"{i} {k + 1}\n" for i, k in enumerate(order, start=1)))
    return tmp_path


def test_disjoint__cub_is_divided_by_classes(cub):
    found = datasets.load("cub200@8", cub)
    assert found.classes == ("001.Auk", "002.Bat", "003.Cat", "004.Dog") and found.shape == (8, 8)
    assert found.train.labels.tolist() == [0, 1, 1, 0] and found.test.labels.tolist() == [3, 2, 3, 2]
    assert shades(found.test) == pytest.approx([20, 60, 140, 160], abs=3)
    assert subsets.disjoint(found)
    assert datasets.load(f"cub200:{cub / 'CUB_200_2011'}@8").revision == found.revision


def test_retrieval__cars_are_divided_by_classes(tmp_path):
    from scipy.io import savemat

    place, labels = tmp_path / "cars196", [1, 4, 2, 3, 4]
    kinds = [("relative_im_path", object), ("bbox_x1", object), ("class", object), ("test", object)]
    notes = np.zeros((1, len(labels)), kinds)
    for number, label in enumerate(labels):
        image(place / "car_ims" / f"{number}.png", 30 * number)
        notes[0, number] = (f"car_ims/{number}.png", 1, label, number % 2)
    names = np.array([["Audi", "BMW", "Citroen", "Dacia"]], object)
    savemat(place / "cars_annos.mat", {"annotations": notes, "class_names": names})
    found = datasets.load("cars196@8", tmp_path)
    assert found.classes == ("Audi", "BMW", "Citroen", "Dacia")
    assert found.train.labels.tolist() == [0, 1] and found.test.labels.tolist() == [3, 2, 3]  # not by the flag `test`
    assert shades(found.test) == pytest.approx([30, 90, 120], abs=3)


def test_retrieval__online_products_have_two_lists(tmp_path):
    place = tmp_path / "Stanford_Online_Products"
    for name, rows in (("train", [(1, 1), (2, 1), (3, 2)]), ("test", [(4, 3), (5, 3), (6, 4)])):
        lines = ["image_id class_id super_class_id path"]
        for number, label in rows:
            image(place / "sofa_final" / f"{number}.png", 30 * number)
            lines.append(f"{number} {label} 1 sofa_final/{number}.png")
        (place / f"Ebay_{name}.txt").write_text("\n".join(lines) + "\n")
    found = datasets.load("sop@8", tmp_path)
    assert found.train.labels.tolist() == [0, 0, 1] and found.test.labels.tolist() == [2, 2, 3]
    assert shades(found.test) == pytest.approx([120, 150, 180], abs=3) and len(found.classes) == 4


def test_image_set__votes_of_annotators(tmp_path):
    """Labels are what most votes name, of equal ones the first; every vote counts."""
    place = tmp_path / "Treeversity#1"
    for number in range(3):
        image(place / "fold1" / f"{number}.png", 60 * number)
    said = [[(0, "leaf"), (1, "bark"), (2, "bud")], [(0, "leaf"), (1, "bud"), (2, "bud")], [(0, "bark")]]
    votes = [
        {"annotations": [{"image_path": f"Treeversity#1/fold1/{n}.png", "class_label": word} for n, word in own]}
        for own in said
    ]
    (place / "annotations.json").write_text(json.dumps(votes))
    found = ImageSet("treeversity1@8", "all_ood").load(tmp_path)
    assert found.classes == ("bark", "bud", "leaf") and found.labels.tolist() == [2, 0, 1]
    assert found.images.annotations.tolist() == [[1, 0, 2], [1, 1, 0], [0, 2, 0]]
    (place / "annotations.json").write_text("[{}]")
    datasets.readers._load.cache_clear()
    with pytest.raises(BadInput, match="does not list `annotations`"):
        datasets.load("treeversity1@16", tmp_path, "all")


def test_retrieval__cifar10h_adds_the_votes_to_the_test_images(tmp_path, monkeypatch):
    pixels, labels = np.zeros((4, 8, 8, 3), np.uint8), np.array([0, 1, 2, 9])
    monkeypatch.setattr(
        retrieval,
        "cifar10",
        lambda request: datasets.builders.dataset_from_arrays("cifar10", (pixels, labels), (pixels, labels)),
    )
    (tmp_path / "cifar-10h" / "data").mkdir(parents=True)
    np.save(tmp_path / "cifar-10h/data/cifar10h-counts.npy", np.arange(40).reshape(4, 10))
    found = datasets.load("cifar10h", tmp_path)
    assert found.test.annotations[3].tolist() == list(range(30, 40)) and found.train.annotations is None
    np.save(tmp_path / "cifar-10h/data/cifar10h-counts.npy", np.zeros((3, 10)))
    datasets.readers._load.cache_clear()
    with pytest.raises(BadInput, match="must be 4 images"):
        datasets.load("cifar10h", str(tmp_path) + "/.")


# ---- parts by classes


def test_image_set__a_part_has_all_images_of_classes_that_stand_on_one_side_and_else_the_test_images(cub):
    whole = datasets.load("cub200@8", cub)
    part = ImageSet("part:cub200@8#1", "all_ood").load(cub)  # a training class
    assert sorted(part.index.tolist()) == sorted(whole.train.index[whole.train.labels == 1].tolist())
    assert set(part.labels.tolist()) == {1} and not part.images.in_distribution.any()
    digits = datasets.load("digits")
    part = ImageSet("part:digits#7-9", "all_ood").load()
    assert part.index.tolist() == digits.test.index[digits.test.labels >= 7].tolist()
    with pytest.raises(BadInput, match="test classes, not both"):
        datasets.load("part:cub200@8#1,2", cub, "all")
    with pytest.raises(BadInput, match="no class 11"):
        datasets.load("part:digits#11", None, "all")


def test_part_spec__names_of_parts_are_short_and_exact():
    classes = (*range(11318, 22634), 3)
    assert subsets.part_spec("sop", classes) == "part:sop#11318-22633,3"
    assert numbers("11318-22633,3") == classes
    assert subsets.shots_spec("digits", (7, 8), None, 1) == "shots:digits#7-8#all#1"


def test_image_set__shots_are_k_images_of_each_class_and_never_test_images(cub):
    few = {seed: datasets.load(f"shots:digits#7-9#5#{seed}") for seed in (0, 1)}
    for found in few.values():
        assert np.bincount(found.train.labels)[7:].tolist() == [5, 5, 5]
        assert not set(found.train.index.tolist()) & set(found.test.index.tolist())
        assert len(datasets.split_dataset(found, (7, 8, 9), 0).train) == 15  # nothing is held out
    assert few[0].revision != few[1].revision and set(few[0].train.index) != set(few[1].train.index)
    digits = datasets.load("digits")
    assert len(datasets.load("shots:digits#7-9#all#0").train) == (digits.train.labels >= 7).sum()
    birds = [datasets.load(f"shots:cub200@8#2-3#1#{seed}", cub) for seed in (0, 1)]  # of two images
    for found in birds:
        assert sorted(found.train.labels) == sorted(found.test.labels) == [2, 3]
        assert not set(found.train.index.tolist()) & set(found.test.index.tolist())
    assert birds[0].test.index.tolist() == birds[1].test.index.tolist()  # all seeds are tested alike
    none = ImageSet("shots:cub200@8#2-3#0#0", "all_ood").load(cub)
    assert none.index.tolist() == birds[0].test.index.tolist()


def test_in_size__images_of_files_are_resized_to_those_that_were_learnt(cub):
    assert subsets.in_size("cub200", 16, cub) == "cub200@16" and subsets.in_size("cub200@8", 16, cub) == "cub200@8"
    assert subsets.in_size("digits", 16, None) == "digits"  # arrays stay as they are


def test_image_set__a_part_keeps_the_votes(tmp_path):
    """Training images have none, and are not among the images of a part."""
    x, y = np.zeros((6, 8, 8), np.uint8), np.arange(6) % 3
    np.savez(tmp_path / "v.npz", x_train=x, y_train=y, x_test=x, y_test=y, annotations_test=np.arange(18).reshape(6, 3))
    found = ImageSet(f"part:npz:{tmp_path / 'v.npz'}#0-2", "all_ood").load()
    assert found.images.annotations.tolist() == np.arange(18).reshape(6, 3).tolist()


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [
        ("cub200", "image_class_labels.txt", "1 x"),
        ("cub200", "images.txt", "1"),
        ("cub200", "classes.txt", "1 a b"),
        ("cars196", "cars_annos.mat", ""),
        ("cars196", "cars_annos.mat", "MATLAB 5.0 MAT-file"),
        ("sop", "Ebay_train.txt", "head\n1 x 3 a.jpg"),
        ("benthic", "annotations.json", "[" * 100_000),
        ("benthic", "annotations.json", '[{"annotations": [{"image_path": 7, "class_label": "a"}]}]'),
        ("benthic", "annotations.json", "[]"),
        ("benthic", "annotations.json", '[{"annotations": []}]'),
    ],
)
def test_retrieval__damaged_lists_are_refused_in_a_sentence(tmp_path, name, file, content):
    place = tmp_path / "set"
    for folder in ("images", "car_ims"):
        (place / folder).mkdir(parents=True, exist_ok=True)
    texts = {"images.txt": "1 a.jpg", "image_class_labels.txt": "1 1", "classes.txt": "1 a", "Ebay_test.txt": "head"}
    for each, text in (texts | {file: content}).items():
        (place / each).write_text(text)
    with pytest.raises(BadInput):
        load(f"{name}:{place}")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("cub200", "classes.txt"),
        ("cars196", "cars_annos.mat"),
        ("sop", "Ebay_train.txt"),
        ("benthic", "annotations.json"),
        ("maps", "classes.txt"),
    ],
)
def test_retrieval__a_list_without_end_is_refused(tmp_path, name, file):
    (tmp_path / file).symlink_to("/dev/zero")
    with pytest.raises(BadInput, match=file):
        load(f"{name}:{tmp_path}")


def test_retrieval__a_list_of_many_gigabytes_is_refused(tmp_path):
    (tmp_path / "Ebay_train.txt").touch()
    os.truncate(tmp_path / "Ebay_train.txt", 60_000_000_000)
    with pytest.raises(BadInput, match="Ebay_train"):
        load(f"sop:{tmp_path}")
