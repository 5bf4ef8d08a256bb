"""Datasets by name: missing, misnamed and found."""

import os
from pathlib import Path

import pytest

from nescio.datasets import builders, load
from nescio.errors import BadInput
from tests.support.published_layouts import (
    WRITERS,
    fresh,  # noqa: F401  (used by every test)
    write_mnist,
)

NAMED = ["mnist", "fashion-mnist", "cifar10", "cifar100", "stl10", "tiny-imagenet", "imagenet"]


@pytest.mark.parametrize("name", NAMED)
def test_readers__a_missing_dataset_says_where_it_looked_what_it_wants_and_where_it_is_published(
    name, tmp_path, monkeypatch
):
    with pytest.raises(BadInput) as missing:
        load(name, tmp_path)
    sentence = str(missing.value)
    assert sentence.startswith(f"{name} was not found: searched ") and str(tmp_path) in sentence
    assert "published at http" in sentence and "NESCIO_DATA" in sentence
    monkeypatch.setenv("NESCIO_DATA", str(tmp_path / "mine"))
    with pytest.raises(BadInput) as missing:
        load(name)
    assert str(tmp_path / "mine") in str(missing.value) and str(tmp_path / "home/.cache/nescio/data") in str(
        missing.value
    )
    # Every file of the sentence is needed, and no other one is.
    WRITERS[name](tmp_path / "all")
    size = "@32" if name == "imagenet" else ""
    load(name + size, tmp_path / "all")
    wanted = sentence.split(" for ")[1].split(". It is")[0].split(" (or")[0].split(", ")
    for number, file in enumerate(wanted):
        root = tmp_path / str(number)
        WRITERS[name](root)
        (found,) = [each for each in root.rglob("*") if str(each).endswith(f"/{file}") and each.parent.name != "mine"][
            :1
        ]
        found.rename(found.with_name("elsewhere"))
        with pytest.raises(BadInput, match="was not found"):
            load(name + size, root)


def test_readers__data_is_found_where_the_environment_says(tmp_path, monkeypatch):
    write_mnist(tmp_path)
    with pytest.raises(BadInput):
        load("mnist")
    monkeypatch.setenv("NESCIO_DATA", str(tmp_path))
    assert load("mnist").name == "mnist"  # although it was not there before
    monkeypatch.setenv("NESCIO_DATA", str(tmp_path / "none"))
    with pytest.raises(BadInput):
        load("mnist")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("cifra10", "no dataset named 'cifra10'. Did you mean 'cifar10'"),
        ("imagenet@big", "no dataset named"),
        ("", "no dataset named"),
        ("folder", "has no path: write folder:PATH"),
        ("npz:", "has no path: write npz:PATH"),
        ("digits:here", "takes no path"),
        ("digits@16", "cannot be resized"),
        ("imagenet@0", "have from 1 to 9999 pixels a side"),
        ("folder:nowhere@32", "nothing at nowhere, nor at"),
        ("npz:me@home/x.npz", "nothing at me@home/x.npz"),
        ("binary:digits", "write DATA#"),
    ],
)
def test_readers__what_cannot_be_meant_is_refused(spec, words):
    with pytest.raises(BadInput, match=words):
        load(spec)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("folder:photos@99999999", "have from 1 to 9999 pixels a side"),
        ("folder:photos@" + "9" * 5000, "have from 1 to 9999 pixels a side"),
        ("binary:digits#0,1#2,99", "digits has no class 99"),
        ("binary:digits#0,1#1,2", "Class 1 is named twice"),
    ],
)
def test_readers__names_of_what_no_set_has(spec, sentence):
    with pytest.raises(BadInput, match=sentence):
        load(spec)


def test_checksum_content__names_that_are_no_utf8(tmp_path):
    """Of files they change nothing; the name of the data goes into keys and pages, and is refused before any work."""
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jpg")
    Path(odd).write_bytes(b"123")
    assert builders.checksum_content(odd, whole=False) == os.fsencode(tmp_path.name) + b"/\xff.jpg 3"
    with pytest.raises(BadInput, match=r"UTF-8.*rename"):
        load("folder:" + os.fsdecode(b"/data/\xff"))
