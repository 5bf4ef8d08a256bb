"""Which images an image set holds for pretrained networks, under which labels."""

import numpy as np
import pytest

from nescio.datasets.class_labels import align_labels
from nescio.datasets.image_set import ImageSet
from nescio.datasets.names import absolute_name
from nescio.errors import BadInput
from nescio.specs import DatasetName
from tests.support.zoo_help import encoded, folder, pack, picture


def labelled(data, split="test_or_all", **options):
    return ImageSet(data, split=split, **options).load()


def arrays(path, classes=10, n=40, size=8):
    rng = np.random.default_rng(0)
    parts = {}
    for name in ("train", "test"):
        parts[f"x_{name}"] = rng.integers(0, 256, (n, size, size, 3), dtype=np.uint8)
        parts[f"y_{name}"] = np.arange(n) % classes
    np.savez(path, **parts)
    return path


def test_image_set__a_pack_of_validation_images_alone_can_be_evaluated_and_not_trained_on(tmp_path):
    from nescio.datasets import load

    spec = f"npz:{pack(tmp_path / 'val.npz')}"
    found = labelled(spec)
    assert len(found) == 24 and len(found.classes) == 1000
    assert isinstance(found.source(3), bytes)
    with pytest.raises(BadInput, match="no training images"):
        load(spec)


def test_image_set__outside_means_every_labelled_image(tmp_path):
    spec = f"npz:{arrays(tmp_path / 'set.npz')}"
    inside, outside = labelled(spec), labelled(spec, "all_ood")
    assert (len(inside), len(outside)) == (40, 80)
    assert len(set(outside.index.tolist())) == 80
    held = np.load(tmp_path / "set.npz")
    np.testing.assert_array_equal(outside.source(0), held["x_train"][0])
    np.testing.assert_array_equal(outside.source(40), held["x_test"][0])
    np.testing.assert_array_equal(inside.source(7), held["x_test"][7])
    words = tmp_path / "words.npz"
    held = dict(np.load(pack(tmp_path / "a.npz", n=9)))
    held["split"] = np.array(["train", "val", "test"] * 3)
    np.savez(words, **held)
    assert len(labelled(f"npz:{words}")) == 3
    assert len(labelled(f"npz:{words}", "all_ood")) == 9


def test_class_labels__folders(tmp_path):
    whole = folder(tmp_path / "plain", ("ant", "bee"), each=10)
    assert len(labelled(f"folder:{whole}")) == 20, "nothing was trained on it"
    assert len(labelled(f"folder:{whole}", "test")) == 4, "what `nescio train` leaves for testing"
    folder(tmp_path / "both/train", ("ant", "bee"), each=5)
    folder(tmp_path / "both/val", ("ant", "bee"), each=2)
    assert len(labelled(f"folder:{tmp_path / 'both'}")) == 4
    assert len(labelled(f"folder:{tmp_path / 'both'}", "all_ood")) == 14
    only = folder(tmp_path / "only/test", ("ant", "bee"), each=3).parent
    assert len(labelled(f"folder:{only}")) == 6


WNIDS = ("n01440764", "n01443537", "n15075141")  # ImageNet-1k's classes 0, 1 and 999


def test_align_labels__imagenet_by_its_path(tmp_path, monkeypatch):
    folder(tmp_path / "in/val", WNIDS)
    for spec in (f"imagenet:{tmp_path / 'in'}", f"imagenet:{tmp_path / 'in/val'}"):
        found = labelled(spec)
        assert len(found) == 6 and found.classes == WNIDS
        assert align_labels(found, 1000).labels.tolist() == [0, 0, 1, 1, 999, 999]
    monkeypatch.setenv("NESCIO_DATA", str(tmp_path / "in"))
    assert len(labelled("imagenet")) == 6
    with pytest.raises(BadInput, match=r"folder val .* WordNet"):
        labelled(f"imagenet:{folder(tmp_path / 'other', ('ant', 'bee'))}")
    with pytest.raises(BadInput, match="no training images"):
        from nescio.datasets import load

        load(f"imagenet:{tmp_path / 'in'}")


def test_align_labels__imagenet_as_kaggle_packs_it(tmp_path):
    val = tmp_path / "ILSVRC/Data/CLS-LOC/val"
    val.mkdir(parents=True)
    rng = np.random.default_rng(0)
    lines = ["ImageId,PredictionString"]
    for number, wnid in enumerate((WNIDS[2], WNIDS[0], WNIDS[1])):
        (val / f"ILSVRC2012_val_{number:08}.JPEG").write_bytes(encoded(picture(rng, (40, 50))))
        lines.append(f"ILSVRC2012_val_{number:08},{wnid} 85 1 499 272")
    (tmp_path / "LOC_val_solution.csv").write_text("\n".join(lines))
    found = align_labels(labelled(f"imagenet:{tmp_path}"), 1000)
    assert found.labels.tolist() == [999, 0, 1]
    assert found.source(0).endswith("val_00000000.JPEG")


def test_align_labels__labels_in_the_numbering_of_the_model(tmp_path):
    texts = labelled(f"folder:{folder(tmp_path / 'numbers', tuple(map(str, range(12))))}")
    assert texts.classes[:3] == ("0", "1", "10"), "folders are sorted as texts"
    found = align_labels(texts, 12)
    assert sorted(set(found.labels.tolist())) == list(range(12))
    assert all(found.source(row).split("/")[-2] == str(found.labels[row]) for row in range(len(found)))
    with pytest.raises(BadInput, match=r"numbers has 12 classes .* the model 1000"):
        align_labels(texts, 1000)
    animals = labelled(f"folder:{folder(tmp_path / 'animals', ('ant', 'bee', 'cat'))}")
    assert align_labels(animals, 3).labels.tolist() == [0, 0, 1, 1, 2, 2]
    in_distribution = align_labels(animals, 2, ("cat", "ant"))
    assert in_distribution.labels.tolist() == [1, 1, 0, 0] and in_distribution.rows != animals.rows
    some = folder(tmp_path / "some", (WNIDS[0], "n00000001"))
    with pytest.raises(BadInput, match=r"has 2 classes .* the model 1000"):
        align_labels(labelled(f"folder:{some}"), 1000)


def test_class_labels__a_few_rows_stand_for_all(tmp_path):
    data = f"npz:{arrays(tmp_path / 'set.npz', classes=10, n=100)}"
    images, few, some = labelled(data), labelled(data, limit=30), labelled(data, labels=(3, 7))
    assert np.bincount(few.labels).tolist() == [3] * 10
    assert (np.diff(few.index) > 0).all()
    assert sorted(set(labelled(data, limit=4).labels.tolist())) == [1, 3, 6, 8]
    assert labelled(data, limit=100).rows == images.rows == labelled(data, limit=999).rows
    assert set(some.labels.tolist()) == {3, 7} and len(some) == 20
    assert len({images.rows, few.rows, some.rows, labelled(data, limit=31).rows}) == 4
    place = {int(key): row for row, key in enumerate(images.index)}
    for row in range(len(few)):
        np.testing.assert_array_equal(few.source(row), images.source(place[int(few.index[row])]))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"limit": 0}, "limit must be at least 1, got 0"),
        ({"labels": (10,)}, "has no class 10"),
        ({"labels": (-1,)}, "has no class -1"),
    ],
)
def test_class_labels__bad_choices(tmp_path, options, sentence):
    with pytest.raises(BadInput, match=sentence):
        labelled(f"npz:{arrays(tmp_path / 'set.npz')}", **options)


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("digits", ("digits", None, None)),
        ("scenes@64", ("scenes", None, "64")),
        ("maps:/a/b", ("maps", "/a/b", None)),
        ("maps:/a@b/c:d@64", ("maps", "/a@b/c:d", "64")),
        ("maps:/a@2024/b", ("maps", "/a@2024/b", None)),
        ("npz:", ("npz", "", None)),
        ("digits@x", ("digits@x", None, None)),
    ],
)
def test_class_labels__the_parts_of_a_name(spec, parts):
    name = DatasetName.parse(spec)
    assert name == parts
    if name.path is not None:
        assert name.with_path(name.path) == spec


def test_absolute_name__one_set_has_one_name(tmp_path, monkeypatch):
    pack(tmp_path / "val.npz")
    monkeypatch.chdir(tmp_path)
    assert absolute_name("npz:val.npz") == absolute_name("npz:./val.npz") == f"npz:{tmp_path.resolve() / 'val.npz'}"
    assert absolute_name("digits") == "digits" and absolute_name("npz:nowhere.npz@32") == "npz:nowhere.npz@32"
    assert absolute_name("npz:val.npz@32") == f"npz:{tmp_path.resolve() / 'val.npz'}@32"


def test_align_labels__imagenet_is_known_by_its_class_names_too(tmp_path):
    """Folders in the order of the alphabet are not ImageNet's order: names decide, and two of them say nothing."""
    names = ("Goldfish", "great_white_shark", "tench")
    found = labelled(f"folder:{folder(tmp_path / 'fish', names, each=2)}")
    assert align_labels(found, 1000).labels.tolist() == [1, 1, 2, 2, 0, 0]
    for odd in ("crane", "my dog"):
        images = labelled(f"folder:{folder(tmp_path / odd, ('tench', odd), each=1)}")
        with pytest.raises(BadInput, match=r"WordNet ids .* class names .*--classes FILE"):
            align_labels(images, 1000)
    images = labelled(f"folder:{tmp_path / 'crane'}")
    assert align_labels(images, 1000, class_map=[("crane", 517), ("tench", 0)]).labels.tolist() == [517, 0]
    assert align_labels(images, 3, names=("bee", "crane", "tench")).labels.tolist() == [1, 2]
    with pytest.raises(BadInput, match="--classes names ant"):
        align_labels(images, 1000, class_map=[("ant", 1)])


def test_class_labels__phones_hold_images_upright_and_16_bits_are_not_white(tmp_path):
    from PIL import Image

    from nescio.datasets.decode import rgb

    wide = np.zeros((4, 8, 3), np.uint8)
    wide[:, 4:] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by 90 degrees
    Image.fromarray(wide).save(tmp_path / "turned.png", exif=exif)
    turned = np.asarray(rgb(str(tmp_path / "turned.png")))
    assert turned.shape == (8, 4, 3) and turned[:4].max() == 0 and turned[4:].min() == 255
    grey = np.linspace(0, 65535, 16).astype(np.uint16).reshape(4, 4)
    Image.fromarray(grey).save(tmp_path / "deep.png")
    np.testing.assert_array_equal(np.asarray(rgb(str(tmp_path / "deep.png")))[..., 0], grey // 257)


def test_image_set__large_images_are_not_called_damaged_and_gifs_are_read(tmp_path, monkeypatch):
    from PIL import Image

    from nescio.datasets.decode import rgb

    for name in ("ant", "bee"):
        (tmp_path / "set" / name).mkdir(parents=True)
        Image.fromarray(np.full((6, 6), 77, np.uint8)).save(tmp_path / "set" / name / "one.gif")
    assert len(labelled(f"folder:{tmp_path / 'set'}")) == 2
    assert np.asarray(rgb(str(tmp_path / "set/ant/one.gif"))).tolist()[0][0] == [77] * 3
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(BadInput, match="is too large") as no:
        rgb(str(tmp_path / "set/ant/one.gif"))
    assert "damaged" not in str(no.value)


@pytest.mark.parametrize("kind", ["folder", "images"])
def test_class_labels__files_of_other_endings_are_counted_as_skipped(tmp_path, kind):
    from PIL import Image

    from nescio import datasets

    for name in ("ant", "bee"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for number in range(5):
            Image.fromarray(np.full((6, 6), number, np.uint8)).save(tmp_path / "set" / name / f"{number}.png")
    assert datasets.load(f"{kind}:{tmp_path / 'set'}@6", required="test").notes == ()
    for name in ("a.txt", "b.HEIC", "c.heic", "README", ".hidden"):
        (tmp_path / "set" / "ant" / name).write_text("no image")
    (tmp_path / "set").rename(tmp_path / "other")
    found = datasets.load(f"{kind}:{tmp_path / 'other'}@6", required="test")
    assert found.notes == ("4 files skipped: .heic, .txt, no ending.",) and len(found.test) == 10
