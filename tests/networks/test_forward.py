"""What pretrained networks say: dropout passes, last layers, precision."""

from dataclasses import replace

import numpy as np
import pytest

from nescio.work.store import Store
from tests.support.zoo_help import answers

torch = pytest.importorskip("torch")
timm = pytest.importorskip("timm")

from nescio.networks import forward  # noqa: E402
from nescio.networks.forward import DropoutPasses, heads  # noqa: E402
from nescio.networks.models import build_classifier, find_network, with_weights  # noqa: E402
from nescio.runtime import runtime_for  # noqa: E402

pytest_plugins = ("tests.support.zoo_fixtures",)
pytestmark = pytest.mark.usefixtures("offline")


def test_heads__the_last_layer_is_found():
    deit = timm.create_model("deit_tiny_distilled_patch16_224")
    assert heads(deit, 1000) == [deit.head, deit.head_dist]
    resnet = timm.create_model("test_resnet", num_classes=32)
    assert heads(resnet, 32) == [resnet.fc], "other layers give 32 numbers as well"
    plain = torch.nn.Sequential(torch.nn.Linear(8, 10), torch.nn.Linear(10, 10))
    assert heads(plain, 10) == [plain[1]] and heads(plain, 11) == []


def dropout_answers(place, tmp_path, name="test_resnet", **settings):
    (dump,), _ = answers(place, Store(tmp_path), name, **settings)
    return dump.load()


def test_forward__a_model_without_dropout_has_no_such_variant(place, tmp_path):
    assert dict(dropout_answers(place, tmp_path).variants) == {}
    assert dict(dropout_answers(place, tmp_path, dropout=0.0).variants) == {}
    assert dict(dropout_answers(place, tmp_path, dropout=0.5, mc_samples=0).variants) == {}


def test_forward__dropout_gives_the_log_of_the_mean_of_softmaxes(place, tmp_path):
    dump = dropout_answers(place, tmp_path, dropout=0.5)
    logs = dump.variants["mc-dropout"].astype(np.float64)
    np.testing.assert_allclose(np.exp(logs).sum(1), 1, atol=5e-3)
    plain = dump.logits[:, 0].astype(np.float64)
    plain -= np.log(np.exp(plain).sum(1, keepdims=True))
    assert np.abs(logs - plain).max() > 0.01, "dropout was on"
    np.testing.assert_allclose(dump.logits, dropout_answers(place, tmp_path / "plain").logits, atol=1e-3)


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_efficientnet"])
def test_dropout_passes__passes_by_hand(place, tmp_path, name):
    """The same seeds and the whole network in every pass: as the split into features and head gives."""
    module, _ = build_classifier(with_weights(find_network(name, Store(tmp_path)), place / "w"), dropout=0.3)
    module = module.eval()
    layers, x = forward.dropouts(module), torch.rand(3, 3, 160, 160)
    assert layers
    with torch.inference_mode():
        torch.manual_seed(0)
        whole_passes = DropoutPasses(module, layers, 4)
        whole_passes.parts = forward._identity, module
        whole = whole_passes(x)[1]["mc-dropout"]
        parts = forward._split_at_dropout(module, layers, x)
        assert parts[1] != module, "all dropout of these models is in the head"
        torch.manual_seed(0)
        split = DropoutPasses(module, layers, 4)
        split.parts = parts
        torch.testing.assert_close(split(x)[1]["mc-dropout"], whole)
        with forward.dropout_enabled(layers):
            torch.manual_seed(0)
            mean = torch.stack([module(x).softmax(-1) for _ in range(4)]).mean(0)
    torch.testing.assert_close(whole.exp(), mean)


def test_dropout_passes__dropout_inside_the_features_is_left_on_there():
    torch.manual_seed(0)
    network = timm.create_model("test_vit", proj_drop_rate=0.2, attn_drop_rate=0.3).eval()
    layers, x = forward.dropouts(network), torch.rand(2, 3, 160, 160)
    kinds = {type(layer).__name__ for layer in layers}
    assert "Attention" in kinds and "Dropout" in kinds, "fused attention asks the flag of the module around it"
    with torch.inference_mode():
        body, head = forward._split_at_dropout(network, layers, x)
        assert head is network and body is forward._identity
        mean = DropoutPasses(network, layers, 3)(x)[1]["mc-dropout"]
        assert (mean - network(x).log_softmax(-1)).abs().max() > 1e-3


def test_dropout_enabled__only_dropout_is_switched_on():
    network = timm.create_model("test_resnet", drop_rate=0.5).eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    layers = forward.dropouts(network)
    with forward.dropout_enabled(layers), torch.inference_mode():
        assert not any(m.training for m in network.modules() if isinstance(m, torch.nn.BatchNorm2d))
        network(torch.rand(4, 3, 64, 64))
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert not any(module.training for module in network.modules())


@pytest.mark.parametrize("arch", ["mobilenet_v3_small", "squeezenet1_1", "alexnet"])
def test_dropout_passes__torchvisions_dropout_is_found(arch):
    """Those whose dropout lies in the last child are asked for features once; the mean stays the same."""
    import torchvision

    torch.manual_seed(0)
    network = torchvision.models.get_model(arch, weights=None).eval()
    layers, x = forward.dropouts(network), torch.rand(2, 3, 64, 64)
    assert layers and all(isinstance(layer, torch.nn.Dropout) for layer in layers)
    with torch.inference_mode():
        torch.manual_seed(1)
        whole_passes = DropoutPasses(network, layers, 3)
        whole_passes.parts = forward._identity, network
        whole = whole_passes(x)
        parts = forward._split_at_dropout(network, layers, x)
        assert (parts[1] is network) == (arch == "squeezenet1_1")
        torch.manual_seed(1)
        split = DropoutPasses(network, layers, 3)
        split.parts = parts
        torch.testing.assert_close(split(x)[1], whole[1])


def test_forward__the_same_weights_give_the_same_dropout(place, tmp_path):
    one, two = (dropout_answers(place, tmp_path / word, dropout=0.5) for word in "ab")
    np.testing.assert_array_equal(one.variants["mc-dropout"], two.variants["mc-dropout"])


def test_keep_heads_float32__the_last_layer_keeps_its_digits_in_bf16():
    torch.manual_seed(0)
    head = torch.nn.Linear(64, 100)
    x = torch.randn(8, 64).bfloat16()
    expected = x.float() @ head.weight.T + head.bias
    forward.keep_heads_float32([head], replace(runtime_for("cpu"), precision="bf16"))
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        made = head(x)
    assert made.dtype == torch.float32
    torch.testing.assert_close(made, expected)
    assert len(torch.unique(made)) > len(torch.unique(made.bfloat16())), "bf16 would tie some"
