"""Published accuracies beside our own."""

from pathlib import Path

import numpy as np
import pytest

from nescio.errors import BadInput
from nescio.networks.published import accuracy_warning, published_of, read_published
from nescio.predictions.model_predictions import ModelPredictions

pytest.importorskip("timm")


def dump_of(accuracy, rows=50_000, **facts):
    return ModelPredictions("net", "imagenet", {"accuracy": accuracy, "rows": rows, **facts}, Path("."), "k")


def test_accuracy_warning__a_published_accuracy_warns_beyond_chance(tmp_path):
    table = tmp_path / "results.csv"
    table.write_text("model,top1,top1_err,img_size\nnet,80.0,20.0,224\nnet,81.0,19.0,288\nother,50.0,50,224\n")
    held = read_published(table, "top1")
    at = published_of(dump_of(0.8, input_size=288), held)
    assert (at.accuracy, at.size) == (0.81, 288) and published_of(dump_of(0.8, input_size=160), held).accuracy == 0.80
    line = published_of(dump_of(0.8, input_size=224), held)
    error = np.sqrt(0.8 * 0.2 / 50_000)
    for off, warned in ((0.003 + 2.9 * error, False), (0.003 + 3.1 * error, True)):
        for sign in (1, -1):
            assert bool(accuracy_warning(dump_of(0.8 + sign * off), line)) is warned
    assert "top-1 75.00% on 2,000 images, but 80.00%" in accuracy_warning(dump_of(0.75, 2000), line)
    assert accuracy_warning(dump_of(0.78, 2000), line) is None, "few images say little"
    assert "published at 224 pixels, and evaluated at 160" in accuracy_warning(dump_of(0.5, input_size=160), line)


def test_published_of__a_name_without_a_tag_finds_its_line(tmp_path):
    (tmp_path / "results.csv").write_text("model,top1\nresnet50.a1_in1k,80.2\nvgg16,71.6\n")
    held = read_published(tmp_path / "results.csv")
    for name, expected in (("resnet50", 0.802), ("resnet50.a1_in1k", 0.802), ("torchvision:vgg16", 0.716)):
        assert published_of(ModelPredictions(name, "d", {}, Path("."), "k"), held).accuracy == pytest.approx(expected)
    assert published_of(ModelPredictions("resnet50.a2_in1k", "d", {}, Path("."), "k"), held) is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name,top1\na,1\n", "has no column named model"),
        ("model,top1\na,x\n", "line 2: top1 is 'x'"),
        ("model,top1\na,0.5\nb,700\n", "line 3: top1 is 700"),
        ("", "has no column named model"),
    ],
)
def test_read_published__bad_tables(tmp_path, text, sentence):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(BadInput, match=sentence):
        read_published(tmp_path / "t.csv", "top1")
    with pytest.raises(BadInput, match="cannot be read"):
        read_published(tmp_path / "none.csv")
