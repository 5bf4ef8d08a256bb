"""Families and regimes are functions of names: every name that timm and torchvision know is read right."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from nescio.networks import families, regimes
from nescio.networks.families import architecture, distilled, family, is_in_family, paper_name

# Galil et al. 2023, Table 1, with the number of models of each architecture
TABLE_1 = {
    "EfficientNet": 50,
    "ResNet": 33,
    "XCiT distilled": 28,
    "XCiT": 28,
    "ViT": 20,
    "SE_ResNet": 18,
    "EfficientNetV2": 15,
    "NFNet": 13,
    "Inception": 13,
    "RegNetY": 12,
    "RegNetX": 12,
    "CaiT distilled": 10,
    "DLA": 10,
    "MobileNetV3": 10,
    "Res2Net": 9,
    "VGG": 8,
    "RepVGG": 8,
    "BiT": 8,
    "ResNeXt": 7,
    "ResNet RS": 7,
    "MixConv": 7,
    "DenseNet": 6,
    "HardCoReNAS": 6,
    "Swin": 6,
    "ECANet": 6,
    "Twins": 6,
    "SWSL ResNet": 6,
    "GENet": 6,
    "SSL ResNet": 6,
    "TResNet": 5,
    "CoaT": 5,
    "LeViT distilled": 5,
    "ResMLP": 5,
    "MobileNetV2": 5,
    "PiT distilled": 4,
    "PiT": 4,
    "WSP ResNeXt": 4,
    "ResMLP distilled": 4,
    "MnasNet": 4,
    "DeiT distilled": 4,
    "DeiT": 4,
}
# of these no model was added or lost since the paper: counting them proves that the families are its families
UNCHANGED = (
    "XCiT distilled",
    "NFNet",
    "CaiT distilled",
    "DLA",
    "VGG",
    "ResNet RS",
    "MixConv",
    "DenseNet",
    "HardCoReNAS",
)
UNCHANGED += ("Twins", "SWSL ResNet", "SSL ResNet", "MobileNetV2", "PiT distilled", "PiT", "ResMLP distilled")
UNCHANGED += ("DeiT distilled", "DeiT")


@pytest.fixture(scope="module")
def timm():
    return pytest.importorskip("timm")


@pytest.fixture(scope="module")
def weights(timm):
    return timm.list_pretrained()


@pytest.fixture(scope="module")
def cfg(timm):
    from timm.models import get_pretrained_cfg

    return get_pretrained_cfg


@pytest.fixture(scope="module")
def renamed(timm):
    """Names from before tags, and what timm makes of them."""
    from timm.models import _registry

    return dict(_registry._deprecated_models)


@pytest.fixture(scope="module")
def lacking(timm, weights):
    """Names of the table of regimes that came to timm after the version that is installed."""
    if tuple(map(int, re.findall(r"\d+", timm.__version__)[:3])) >= NEWEST:
        return set()
    return {name for pair in regimes.regime_table() for name in names_of(pair)} - {*weights}


def names_of(pair):
    return [name for name in (pair.model, pair.counterpart, pair.teacher) if name is not None]


def test_family__every_name_of_timm_has_a_family(timm, weights, renamed):
    names = {*weights, *timm.list_models(), *renamed}
    for name in names:
        found = family(name)
        assert found and found == found.strip().lower(), name
        assert is_in_family(name, found) and is_in_family(name, paper_name(found)), name
    assert len({family(name) for name in names}) < len(names) / 5


def test_paper_name__the_families_of_table_1_are_all_there(weights):
    counts = Counter(paper_name(family(name)) for name in weights)
    assert not set(TABLE_1) - set(counts)
    assert {name: counts[name] for name in UNCHANGED} == {name: TABLE_1[name] for name in UNCHANGED}


def test_architecture__every_family_begins_with_its_own_names(weights):
    """A family that no name reaches would be a mistake in its expression, or hidden by one before it."""
    reached = {architecture(name) for name in weights}
    assert set(families.FAMILIES) <= reached


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("vit_large_patch16_384.augreg_in21k_ft_in1k", "vit"),
        ("vit_base_patch32_224_sam", "vit"),
        ("torchvision:vit_b_16", "vit"),
        ("hf_hub:timm/vit_base_patch16_224.augreg_in1k", "vit"),
        ("deit_base_distilled_patch16_384.fb_in1k", "deit distilled"),
        ("deit3_base_patch16_224.fb_in1k", "deit3"),
        ("xcit_small_24_p8_224_dist", "xcit distilled"),
        ("xcit_small_24_p8_224.fb_in1k", "xcit"),
        ("resmlp_24_distilled_224", "resmlp distilled"),
        ("resmlp_24_224.fb_distilled_in1k", "resmlp distilled"),
        ("cait_s24_224.fb_dist_in1k", "cait distilled"),
        ("levit_128s", "levit distilled"),
        ("efficientvim_m1_dist.in1k", "efficientvim distilled"),
        ("tf_efficientnet_b7_ns", "efficientnet"),
        ("tf_efficientnet_lite0.in1k", "efficientnet"),
        ("efficientnet_b1_pruned.in1k", "efficientnet"),
        ("tf_efficientnetv2_xl_in21ft1k", "efficientnetv2"),
        ("torchvision:efficientnet_v2_s", "efficientnetv2"),
        ("gluon_resnet50_v1d", "resnet"),
        ("wide_resnet50_2.tv_in1k", "resnet"),
        ("torchvision:resnet50", "resnet"),
        ("resnet50.fb_ssl_yfcc100m_ft_in1k", "ssl resnet"),
        ("ssl_resnext101_32x16d", "ssl resnet"),
        ("swsl_resnet18", "swsl resnet"),
        ("resnext101_32x8d.fb_swsl_ig1b_ft_in1k", "swsl resnet"),
        ("ig_resnext101_32x8d", "wsp resnext"),
        ("resnext101_32x8d.fb_wsl_ig1b_ft_in1k", "wsp resnext"),
        ("resnext50_32x4d.tv_in1k", "resnext"),
        ("resnetrs50.tf_in1k", "resnet rs"),
        ("resnetv2_50x1_bitm", "bit"),
        ("resnetv2_50x1_bit.goog_distilled_in1k", "bit distilled"),
        ("resnetv2_50.a1h_in1k", "resnetv2"),
        ("legacy_seresnext50_32x4d.in1k", "se_resnet"),
        ("gluon_senet154", "se_resnet"),
        ("ecaresnet50d_pruned.miil_in1k", "eca"),
        ("eca_nfnet_l0.ra2_in1k", "nfnet"),
        ("nf_regnet_b1.ra2_in1k", "nfnet"),
        ("dla60_res2net.in1k", "res2net"),
        ("dla60x_c.in1k", "dla"),
        ("ens_adv_inception_resnet_v2", "inception"),
        ("gluon_xception65", "inception"),
        ("torchvision:googlenet", "inception"),
        ("inception_next_tiny.sail_in1k", "inceptionnext"),
        ("torchvision:regnet_y_400mf", "regnety"),
        ("regnetz_040.ra3_in1k", "regnetz"),
        ("gernet_l.idstcv_in1k", "genet"),
        ("torchvision:mobilenet_v3_large", "mobilenetv3"),
        ("torchvision:mnasnet1_0", "mnasnet"),
        ("semnasnet_100.rmsp_in1k", "mnasnet"),
        ("tf_mixnet_l.in1k", "mixconv"),
        ("swin_tiny_patch4_window7_224.ms_in1k", "swin"),
        ("torchvision:swin_v2_t", "swinv2"),
        ("coatnet_0_rw_224.sw_in1k", "coatnet"),
        ("tiny_vit_5m_224.dist_in22k_ft_in1k", "tinyvit distilled"),
        ("hgnetv2_b4.ssld_stage2_ft_in1k", "hgnetv2 distilled"),
        ("hrnet_w18_ssld.paddle_in1k", "hrnet distilled"),
        ("convnextv2_tiny.fcmae_ft_in1k", "convnextv2"),
        ("dpn68b.ra_in1k", "dpn"),
        ("store:0123456789abcdef", "own"),
        ("my own net", "my"),
        ("", "own"),
    ],
)
def test_family__known_examples(name, found):
    assert family(name) == found


def test_family__torchvision_names_are_read():
    torchvision = pytest.importorskip("torchvision")
    for name in torchvision.models.list_models(module=torchvision.models):
        assert family(f"torchvision:{name}") == family(name)
    assert family("torchvision:squeezenet1_0") == family("torchvision:squeezenet1_1")


def test_family__an_old_name_is_of_the_family_of_its_new_one(renamed):
    for old, new in renamed.items():
        if new and "." in new and old not in MISTAKEN:
            assert family(old) == family(new), old


def test_is_in_family__a_family_is_asked_for_in_either_spelling():
    name = "xcit_nano_12_p16_224.fb_dist_in1k"
    assert distilled(name) and architecture(name) == "xcit"
    for asked in ("xcit", "XCiT", "xcit distilled", "xcit-distilled", "XCiT_Distilled", " xcit "):
        assert is_in_family(name, asked), asked
    assert not is_in_family(name.replace("_dist", ""), "xcit distilled")
    assert is_in_family("seresnet50.ra2_in1k", "SE_ResNet") and not is_in_family("resnet50.tv_in1k", "SE_ResNet")


# ---- regimes

NEWEST = (1, 0, 31)  # timm with every name of the table; earlier ones lack some
# timm's list of old names sends the larger WSL networks to the weights of the smallest one
MISTAKEN = {"ig_resnext101_32x16d", "ig_resnext101_32x32d", "ig_resnext101_32x48d"}
# pretrained plainly on the same images: against them stands pretraining with distillation alone
ALSO_PRETRAINED = {"mixer_b16_224.goog_in21k_ft_in1k", "vit_base_patch16_224.augreg_in21k_ft_in1k"}


def test_regime_table__every_model_of_the_table_exists(weights, lacking):
    known = {*weights, *lacking}
    for pair in regimes.regime_table():
        assert known.issuperset(names_of(pair)), pair
        assert pair.regime in regimes.REGIMES
        assert pair.counterpart or pair.teacher
    assert len({pair.model for pair in regimes.regime_table()}) == len(regimes.regime_table()) >= 150
    assert {pair.regime for pair in regimes.regime_table()} == set(regimes.REGIMES)


def test_timm_name__every_alias_is_what_timm_makes_of_it(renamed, cfg, lacking):
    with (Path(regimes.__file__).parent / "aliases.csv").open() as file:
        rows = list(csv.DictReader(file))
    in_table = {name for pair in regimes.regime_table() for name in names_of(pair)}
    for row in rows:
        alias, name = row["alias"], row["model"]
        assert name in in_table
        if name in lacking:
            continue
        expected = renamed[alias] if alias in renamed else f"{alias}.{cfg(alias).tag}"
        assert name == expected == regimes.timm_name(alias), alias
    aliases = {row["alias"] for row in rows}
    for old, new in renamed.items():  # and none is missing
        assert new not in in_table or old in aliases or old in MISTAKEN, old
    assert not MISTAKEN & aliases


def test_regime_table__a_counterpart_is_the_same_network(cfg, lacking):
    """The same architecture but for what the regime adds to its name, with the same classes and input."""
    added = re.compile("_pruned|_distilled|_miil")
    for pair in regimes.regime_table():
        if pair.counterpart and not lacking.intersection(names_of(pair)):
            own, other = pair.model.partition(".")[0], pair.counterpart.partition(".")[0]
            assert added.sub("", own) == other, pair
            assert pair.model != pair.counterpart
            a, b = cfg(pair.model), cfg(pair.counterpart)
            assert a.num_classes == b.num_classes == 1000
            if not re.match(r"efficientnet_b\d_pruned", own):  # pruned at the sizes of the first publication
                assert a.input_size == b.input_size and a.test_input_size == b.test_input_size, pair


def test_regime_table__a_counterpart_is_trained_plainly():
    special = {pair.model for pair in regimes.regime_table()}
    for pair in regimes.regime_table():
        assert pair.counterpart not in special - ALSO_PRETRAINED, pair
        assert pair.teacher is None or pair.teacher not in special


@pytest.mark.parametrize(
    ("regime", "tags"),
    [
        ("adversarial", r"\.ap_in1k|adv"),
        ("semi-supervised", r"\.ns_jft|fb_ssl|fb_swsl"),
        ("weakly supervised", r"fb_wsl"),
        ("pretraining", r"in2[12]k.*in1k"),
        ("distillation", r"dist|ssld|miil|teacher"),
        ("pruning with distillation", r"_pruned"),
        ("pruning", r"_pruned"),
    ],
)
def test_regime__names_say_the_regime(regime, tags):
    held = [pair for pair in regimes.regime_table() if pair.regime == regime]
    assert held
    for pair in held:
        assert re.search(tags, pair.model), pair
        assert regimes.regime(pair.model) == regime


def test_timm_name__every_plain_case_of_the_paper_is_there():
    def found(model):
        return next(pair for pair in regimes.regime_table() if pair.model == regimes.timm_name(model))

    for old, other in (
        ("tf_efficientnet_b4_ns", "tf_efficientnet_b4.aa_in1k"),
        ("tf_efficientnet_b7_ap", "tf_efficientnet_b7.ra_in1k"),
        ("ens_adv_inception_resnet_v2", "inception_resnet_v2.tf_in1k"),
        ("adv_inception_v3", "inception_v3.tf_in1k"),
        ("ssl_resnet50", "resnet50.tv_in1k"),
        ("ig_resnext101_32x8d", "resnext101_32x8d.tv_in1k"),
        ("tf_efficientnetv2_l_in21ft1k", "tf_efficientnetv2_l.in1k"),
        ("resmlp_big_24_224_in22ft1k", "resmlp_big_24_224.fb_in1k"),
        ("xcit_large_24_p8_224_dist", "xcit_large_24_p8_224.fb_in1k"),
        ("resmlp_36_distilled_224", "resmlp_36_224.fb_in1k"),
        ("pit_b_distilled_224", "pit_b_224.in1k"),
        ("mobilenetv3_large_100_miil", "mobilenetv3_large_100.ra_in1k"),
    ):
        assert found(old).counterpart == other
    assert found("cait_m48_448.fb_dist_in1k").counterpart is None
    assert found("resnetv2_50x1_bit_distilled").teacher == regimes.timm_name("resnetv2_152x2_bit_teacher")
    assert found("deit_tiny_distilled_patch16_224").teacher == "regnety_160.deit_in1k"
    pruned = found("ecaresnet101d_pruned")
    assert pruned.own_teacher and pruned.counterpart == "ecaresnet101d.miil_in1k"


def test_pairs_are_among_the_models_at_hand_under_their_names_here():
    here = ["tf_efficientnet_b0_ns", "tf_efficientnet_b0.aa_in1k", "deit_tiny_distilled_patch16_224", "my net"]
    here += ["ecaresnet50d_pruned", "ecaresnet50d", "regnety_160.deit_in1k", "xcit_nano_12_p8_224_dist"]
    found = {pair.model: pair for pair in regimes.pairs(here)}
    assert found["tf_efficientnet_b0_ns"].counterpart == "tf_efficientnet_b0.aa_in1k"
    assert found["deit_tiny_distilled_patch16_224"].counterpart is None
    assert found["deit_tiny_distilled_patch16_224"].teacher == "regnety_160.deit_in1k"
    assert found["ecaresnet50d_pruned"].counterpart == found["ecaresnet50d_pruned"].teacher == "ecaresnet50d"
    assert set(found) == {here[0], here[2], here[4], here[7]}
    assert regimes.pairs(["my net"]) == [] and regimes.regime("my net") is None
    # timm's own choice for this name are Noisy Student's weights: no plain EfficientNet stands against itself
    assert regimes.timm_name("tf_efficientnet_b0") == "tf_efficientnet_b0.ns_jft_in1k"
    assert regimes.pairs(["tf_efficientnet_b0", "tf_efficientnet_b0_ns"]) == []


def test_counterparts_are_by_regime_and_only_of_models_at_hand():
    here = ["tf_efficientnet_b0_ns", "tf_efficientnet_b0.aa_in1k", "ecaresnet50d_pruned", "ecaresnet50d", "my net"]
    assert regimes.counterparts([*here, "deit_tiny_distilled_patch16_224"]) == {
        regimes.PRUNING_DISTILLED: {"ecaresnet50d_pruned": "ecaresnet50d"},
        "semi-supervised": {"tf_efficientnet_b0_ns": "tf_efficientnet_b0.aa_in1k"},
    }


def test_distilled__a_distilled_model_is_known_by_its_name_or_by_the_table():
    assert regimes.distilled("my_distilled_net") and regimes.distilled("ecaresnet50d_pruned")
    assert not regimes.distilled("ecaresnet50d") and not regimes.distilled("my net")


def test_by_family__the_largest_families_come_first_by_the_names_of_the_paper():
    models = ["vgg16", "xcit_nano_12_p8_224", "resnet50", "xcit_nano_12_p8_224_dist", "resnet18", "vgg11"]
    assert list(families.by_family(models).items()) == [
        ("ResNet", ["resnet50", "resnet18"]),
        ("VGG", ["vgg16", "vgg11"]),
        ("XCiT", ["xcit_nano_12_p8_224"]),
        ("XCiT distilled", ["xcit_nano_12_p8_224_dist"]),
    ]


def test_families__names_need_no_torch():
    code = (
        "import sys; from nescio.networks import families, regimes; families.family('vit_b_16'); "
        "regimes.regime_table(); sys.exit(str({'torch', 'timm', 'pandas'} & set(sys.modules) or ''))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr.strip() == ""
