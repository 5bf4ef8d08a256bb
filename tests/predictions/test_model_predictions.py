"""Predictions with the name of their model: those of a store, and a person's own files."""

import time

import numpy as np
import pytest

from nescio.errors import BadInput
from nescio.predictions import Predictions
from nescio.predictions.model_predictions import list_stored_predictions, predictions_from_file, predictions_from_text
from nescio.work.store import Store
from nescio.work.store_errors import Corrupted
from tests.support.zoo_help import N, answers, folder, images_at

pytest.importorskip("timm")

from nescio.datasets.image_set import ImageSet
from nescio.datasets.names import absolute_name
from nescio.networks.models import find_network, with_weights

pytest_plugins = ("tests.support.zoo_fixtures",)
pytestmark = pytest.mark.usefixtures("offline")


def test_list_stored_predictions__of_one_model_the_answer_to_most_rows_is_taken(place, tmp_path):
    store = Store(tmp_path)
    for images in (images_at(place), images_at(place, limit=4)):
        answers(place, store, "test_resnet", images=images)
        time.sleep(0.01)
    assert len(list((tmp_path / "predict").glob("*"))) == 2
    (found,) = list_stored_predictions(store, images_at(place).data)
    assert found.facts["rows"] == N
    assert list_stored_predictions(store, "npz:other.npz") == [] and list_stored_predictions(store, ood=True) == []


def test_list_stored_predictions__sets_outside_are_marked(place, tmp_path):
    store = Store(tmp_path / "store")
    other = folder(tmp_path / "animals", ("ant", "bee"), each=3)
    images = ImageSet(absolute_name(f"folder:{other}"), split="all_ood")
    (found,), _ = answers(place, store, "test_resnet", images=images)
    dump = found.load()
    assert not dump.in_distribution.any() and dump.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.facts["outside"] is True and "accuracy" not in found.facts
    assert [each.key for each in list_stored_predictions(store, ood=True)] == [found.key]
    assert list_stored_predictions(store, ood=False) == []


def test_list_stored_predictions__only_predictions_that_were_made_to_compare_models_are_listed(place, tmp_path):
    store = Store(tmp_path)
    (found,), _ = answers(place, store, "test_resnet", compared=False)
    assert found.facts["rows"] == N and list_stored_predictions(store) == []


def test_predictions_from_file__a_persons_own_file_is_an_entry(tmp_path):
    rng = np.random.default_rng(0)
    dump = Predictions(logits=rng.normal(size=(5, 3)), labels=[0, 1, 2, 0, 1])
    dump.save(tmp_path / "mine.npz")
    dump.save(tmp_path / "theirs")
    file, other = (
        predictions_from_file(tmp_path / "mine.npz"),
        predictions_from_file(tmp_path / "theirs", "net", "digits"),
    )
    assert (file.model, file.data, other.model, other.data) == ("mine", "predictions", "net", "digits")
    np.testing.assert_array_equal(file.load().labels, dump.labels)
    dump.replace(labels=[0, 0, 0, 0, 0]).save(tmp_path / "mine.npz")
    assert predictions_from_file(tmp_path / "mine.npz").key != file.key
    hash(file)
    with pytest.raises(BadInput, match=r"There.*predictions"):
        predictions_from_file(tmp_path / "nothing.npz")


def test_list_stored_predictions__a_damaged_entry_is_named(place, tmp_path):
    (found,), _ = answers(place, Store(tmp_path), "test_resnet")
    (found.path.parent / "facts.json").write_text("{")
    with pytest.raises(BadInput, match=f"{found.key} is damaged"):
        list_stored_predictions(Store(tmp_path))


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_list_stored_predictions__a_flipped_bit_in_a_stored_dump_is_a_sentence(place, tmp_path):
    (found,), _ = answers(place, Store(tmp_path), "test_resnet")
    flip(found.path / "logits.npy")
    (again,) = list_stored_predictions(Store(tmp_path))
    with pytest.raises(Corrupted, match=r"predictions/logits\.npy changed"):
        again.load()
    flip(found.path.parent / "facts.json")
    with pytest.raises(BadInput, match=f"{found.key} is damaged"):
        list_stored_predictions(Store(tmp_path))


def test_predictions_from_text__a_model_of_the_store_by_its_name(place, tmp_path):
    store = Store(tmp_path / "store")
    (found,), _ = answers(place, store, "test_resnet")
    named = predictions_from_text("zoo:test_resnet", store)
    assert named == found and named.weights == with_weights(find_network("test_resnet", store), place / "w").checksum
    np.testing.assert_array_equal(named.load().index, found.load().index)
    named.load().save(tmp_path / "mine.npz")
    file = predictions_from_text(f"my net={tmp_path / 'mine.npz'}", store)
    assert (file.model, file.store, file.weights) == ("my net", None, None)
    with pytest.raises(BadInput, match=r"no predictions of 'test_vit': there are test_resnet\."):
        predictions_from_text("zoo:test_vit", store)
    with pytest.raises(BadInput, match="`nescio zoo` makes some"):
        predictions_from_text("zoo:test_vit", Store(tmp_path / "nothing"))
