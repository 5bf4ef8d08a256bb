"""Images in, features (b, num_features) out, whatever the family."""

import pytest
import torch
from torch import nn

from nescio import backbones
from nescio.errors import BadInput
from nescio.methods import NetworkSpec, registry

torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("name", "channels", "size", "features"),
    [
        ("mlp", 1, 8, 100),
        ("conv", 1, 8, 64),
        ("conv", 3, 32, 64),
        ("resnet18", 3, 32, 512),
        ("mobilenetv3_small_050", 3, 32, 1024),  # timm calls it 288 features: a layer comes after them
        ("vit_tiny_patch16_224", 3, 32, 192),
    ],
)
def test_build__features(name, channels, size, features):
    net = backbones.build(name, channels, size)
    assert net.num_features == features
    assert net.training
    assert net.eval()(torch.randn(2, channels, size, size)).shape == (2, features)


def test_parameters__mlp_has_three_layers_of_a_hundred():
    widths = [each.out_features for each in backbones.build("mlp", 3, 4).modules() if isinstance(each, nn.Linear)]
    assert widths == [100, 100, 100]
    assert backbones.parameters(backbones.build("mlp", 3, 4)) == 48 * 100 + 100 + 2 * (100 * 100 + 100)


def test_build__a_resnet_keeps_the_resolution_of_small_images():
    small, large = backbones.build("resnet18", 3, 64), backbones.build("resnet18", 3, 96)
    assert small.conv1.stride == (1, 1) and small.conv1.kernel_size == (3, 3)
    assert isinstance(small.maxpool, nn.Identity)
    assert large.conv1.stride == (2, 2) and large.conv1.kernel_size == (7, 7)


@pytest.mark.parametrize("name", ["conv", "resnet18"])
def test_build__features_are_maxima_of_the_map_where_the_name_says_so(name):
    mean, largest = (backbones.build(each, 3, 32).eval() for each in (name, f"{name}:max"))
    largest.load_state_dict(mean.state_dict())
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        maps = mean.forward_features(x) if name == "resnet18" else nn.Sequential(*list(mean)[:-2])(x)
        assert torch.allclose(largest(x), maps.amax((2, 3)), atol=1e-5)
        assert torch.allclose(mean(x), maps.mean((2, 3)), atol=1e-5)


@pytest.mark.parametrize(("name", "dense"), [("conv:min", False), ("mlp:max", False), ("conv:max", True)])
def test_build__no_other_pooling_is_taken(name, dense):
    with pytest.raises(BadInput, match=name):
        backbones.build(name, 3, 32, dense=dense)


def test_build__the_seed_is_all_that_matters():
    nets = []
    for _ in range(2):
        torch.manual_seed(3)
        nets.append(backbones.build("resnet18", 1, 8).state_dict())
    assert all(torch.equal(a, b) for a, b in zip(nets[0].values(), nets[1].values(), strict=True))


@pytest.mark.parametrize("name", ["conv", "resnet18", "convnext_atto"])
@pytest.mark.parametrize("shape", [(45, 60), (64, 96), (71, 90)])
def test_build__the_grid_is_that_of_the_map_whatever_the_size(name, shape):
    """A ResNet rounds up what is left of a side, a stem of patches down."""
    net = backbones.build(name, 3, shape, dense=True).eval()
    x, labels = torch.randn(2, 3, *shape), torch.randint(0, 3, (2, *shape))
    with torch.no_grad():
        assert net.grid(shape) == net.maps(x).shape[2:]
        known, reduced = net.with_known(x, labels, 0)
        assert len(net(known)) == len(reduced)


def test_build__unknown_and_unfit_names_are_sentences():
    with pytest.raises(BadInput, match="Did you mean resnet18"):
        backbones.build("resnett18", 3, 32)
    with pytest.raises(BadInput, match="8 × 8 pixels"):
        backbones.build("vit_tiny_patch16_224", 3, 8)


def test_backbones__dropout_gets_into_a_network_of_timm():
    """A constructor's dropout option may do nothing; these layers are put in after the network exists."""
    cls = registry["mc-dropout"]
    method = cls(
        cls.hparams_class(dropout=0.3, position="activations", mc_samples=3), NetworkSpec("resnet18", 3, 8, 4)
    ).eval()
    assert len(method.dropouts) == 18  # one after each of the 17 activations, one before the head
    with torch.no_grad():
        logits = method(torch.randn(2, 3, 8, 8)).logits
    assert logits.shape == (2, 3, 4) and logits.std(1).min() > 0


def test_build__a_transformer_has_the_patches_that_its_name_says():
    built = backbones.build("vit_tiny_patch16_224:patch4", 3, 32)
    assert built.patch_embed.patch_size == (4, 4) and built.num_features == 192
    assert built(torch.zeros(1, 3, 32, 32)).shape == (1, 192)
    for name in ("resnet18:patch4", "conv:patch4", "vit_tiny_patch16_224:patch"):
        with pytest.raises(BadInput, match=name):
            backbones.build(name, 3, 32)
