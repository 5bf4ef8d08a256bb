"""Architecture families of pretrained networks, by their names.

The families are those of Galil et al. 2023, Table 1; a later architecture is a family of its own. As in that table,
distilled networks are separate families ("xcit distilled"): their results may differ in sign from those of plain ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from nescio.specs import STORE, NetworkName

DISTILLED = " distilled"
OWN = "own"  # networks of a store, whose names have no architecture

# family → (its name in the paper's Table 1, pattern of its models' names); the first match is the family.
# As in the table, Xception and GoogLeNet are Inception, wide ResNets are ResNets,
# squeeze-and-excitation ResNeXts are SE_ResNets, normaliser-free ResNets and RegNets are NFNets.
FAMILIES: dict[str, tuple[str, str]] = {
    "ssl resnet": ("SSL ResNet", r"ssl_resne[xt]|resne[xt].*\.fb_ssl_"),
    "swsl resnet": ("SWSL ResNet", r"swsl_resne[xt]|resne[xt].*\.fb_swsl_"),
    "wsp resnext": ("WSP ResNeXt", r"ig_resnext|resnext.*\.fb_wsl_"),
    "res2net": ("Res2Net", r"res2ne[xt]|dla60_res2ne[xt]"),
    "dla": ("DLA", r"dla\d"),
    "efficientnetv2": ("EfficientNetV2", r"(gc_)?efficientnet_?v2"),
    "efficientnet": ("EfficientNet", r"efficientnet"),
    "resnet rs": ("ResNet RS", r"resnetrs"),
    "bit": ("BiT", r"resnetv2_\d+x\d+_bit"),
    "se_resnet": ("SE_ResNet", r"(legacy_)?se(resne[xt]|net)"),
    "nfnet": ("NFNet", r"(dm_|eca_)?nfnet|nf_"),
    "eca": ("ECANet", r"eca"),
    "resnext": ("ResNeXt", r"resnext"),
    "tresnet": ("TResNet", r"tresnet"),
    "resnet": ("ResNet", r"(wide_)?resnet(aa|blur)?\d"),
    "regnetx": ("RegNetX", r"regnet_?x"),
    "regnety": ("RegNetY", r"regnet_?y"),
    "inception": ("Inception", r"(legacy_)?xception|(adv_|ens_adv_)?inception_(v\d|resnet)|googlenet"),
    "xcit": ("XCiT", r"xcit"),
    "cait": ("CaiT", r"cait"),
    "vit": ("ViT", r"vit_"),
    "deit": ("DeiT", r"deit_"),
    "swin": ("Swin", r"swin_(?!v2)"),
    "swinv2": ("SwinV2", r"swin_?v2"),
    "twins": ("Twins", r"twins"),
    "coat": ("CoaT", r"coat_"),
    "levit": ("LeViT", r"levit"),
    "pit": ("PiT", r"pit_"),
    "resmlp": ("ResMLP", r"resmlp"),
    "mobilenetv2": ("MobileNetV2", r"mobilenet_?v2"),
    "mobilenetv3": ("MobileNetV3", r"mobilenet_?v3"),
    "mnasnet": ("MnasNet", r"(se)?mnasnet"),
    "mixconv": ("MixConv", r"mixnet"),
    "hardcorenas": ("HardCoReNAS", r"hardcorenas"),
    "genet": ("GENet", r"gernet"),
    "repvgg": ("RepVGG", r"repvgg"),
    "vgg": ("VGG", r"vgg"),
    "densenet": ("DenseNet", r"densenet"),
    # later than the paper, with an ambiguous first word
    "inceptionnext": ("InceptionNeXt", r"inception_next"),
    "tinyvit": ("TinyViT", r"tiny_vit"),
    "vovnet": ("VoVNet", r"(ese_)?vovnet"),
    "eva02": ("EVA-02", r"eva02"),
}
ALWAYS_DISTILLED = ("cait", "levit")  # no others exist
DISTILLED_NAME = re.compile(r"distilled|[._](dist|ssld)(?=[_.]|$)")  # ssld: semi-supervised label distillation
# Prefixes of origin: `gluon_resnet50_v1d` is a ResNet.
ORIGINS = ("hf_hub:", "hf-hub:", "timm/", "torchvision:", "tf_", "tv_", "gluon_", "jx_")


@cache
def family(name: str) -> str:
    """The family of a network, such as "vit" or "xcit distilled"; an unknown architecture is a family of its own."""
    if NetworkName.parse(name).kind == STORE:
        return OWN
    bare = _bare(name)
    for name_of_family, (_, pattern) in FAMILIES.items():
        if re.match(pattern, bare):
            is_distilled = DISTILLED_NAME.search(bare) or name_of_family in ALWAYS_DISTILLED
            return name_of_family + (DISTILLED if is_distilled else "")
    return _unknown(bare) + (DISTILLED if DISTILLED_NAME.search(bare) else "")


def architecture(name: str) -> str:
    """The family without the suffix for distilled networks."""
    return family(name).removesuffix(DISTILLED)


def distilled(name: str) -> bool:
    """Whether the name is that of a distilled network."""
    return family(name).endswith(DISTILLED)


def paper_name(family: str) -> str:
    """The name of a family in the paper."""
    plain = family.removesuffix(DISTILLED)
    return FAMILIES.get(plain, (plain, ""))[0] + family.removeprefix(plain)


def by_family(models: Iterable[str]) -> dict[str, list[str]]:
    """The networks of each family, by its name in the paper, the largest families first."""
    members: dict[str, list[str]] = {}
    for model in models:
        members.setdefault(family(model), []).append(model)
    ordered = sorted(members.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    return {paper_name(name): models_of_family for name, models_of_family in ordered}


def is_in_family(name: str, family_name: str) -> bool:
    """Whether a network is of a family, by nescio's name or the paper's.

    "xcit" includes distilled XCiTs; "xcit distilled" (or "xcit-distilled") are the distilled ones only.
    """
    word = _folded(family_name)
    return any(word in (_folded(alias), _folded(paper_name(alias))) for alias in (family(name), architecture(name)))


def _folded(text: str) -> str:
    return re.sub(r"[\s_-]+", " ", text.strip().lower())


def _bare(name: str) -> str:
    bare = name.strip().lower()
    while start := next((origin for origin in ORIGINS if bare.startswith(origin)), None):
        bare = bare[len(start) :]
    return bare


def _unknown(bare: str) -> str:
    """The first word of a name without a size: `convnextv2_tiny` → convnextv2, `dpn68b` → dpn."""
    word = re.split(r"[_.\s]", bare, maxsplit=1)[0]
    return re.sub(r"(?<=[a-z])\d{2,}[a-z]{0,3}$", "", word) or bare or OWN
