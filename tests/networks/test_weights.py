"""Weights are found by name, read without pickle, and loaded by name with every shape checked."""

import hashlib
import os
import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest

from nescio.checkpoints import check_frame, read_weights
from nescio.errors import BadInput
from nescio.networks import weights
from nescio.networks.models import build_classifier, find_network, select_networks, with_weights
from nescio.networks.network import output_class_names, with_class_names
from nescio.training import start_key
from nescio.work.store import Store
from tests.support.zoo_help import checkpoint

torch = pytest.importorskip("torch")
timm = pytest.importorskip("timm")
safetensors = pytest.importorskip("safetensors.torch")
STORE = Store("no-store")
SMALL = "test_resnet"


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    """No test asks the network, nor finds what this machine has fetched before."""
    import huggingface_hub.constants

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.file_download.HF_HUB_CACHE", str(tmp_path / "hub"), raising=False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.delenv("NESCIO_WEIGHTS", raising=False)
    weights.index_folder.cache_clear()
    weights._unreachable.clear()


def loaded(name, file):
    return build_classifier(with_weights(find_network(name, STORE), Path(file)))[0].eval()


def same(network, state):
    held = network.state_dict()
    return all(torch.equal(held[name], value) for name, value in state.items())


# ---- reading


@pytest.mark.parametrize("ending", [".safetensors", ".pth", ".pt", ".bin", ".ckpt"])
def test_build_classifier__every_kind_of_file(tmp_path, ending):
    file = checkpoint(tmp_path / f"w{ending}", SMALL)
    assert same(loaded(SMALL, file), read_weights(file))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model": {f"module.{name}": value for name, value in state.items()}, "optimizer": {"lr": 0.1}},
        lambda state: {f"module.model.{name}": value for name, value in state.items()},
        lambda state: {"state_dict": {f"_orig_mod.{name}": value for name, value in state.items()}},
        lambda state: {"state_dict": {"x": torch.zeros(1)}, "state_dict_ema": state},
    ],
)
def test_weights__wrappings_come_off(tmp_path, wrap):
    state = read_weights(checkpoint(tmp_path / "plain.pth", SMALL))
    torch.save(wrap(state), tmp_path / "wrapped.pth")
    found = read_weights(tmp_path / "wrapped.pth")
    assert found.keys() == state.keys() and all(torch.equal(found[name], state[name]) for name in state)


class Evil:
    def __reduce__(self):
        return os.mkdir, ("was-run",)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_weights__nothing_in_a_checkpoint_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": {"w": torch.zeros(2)}, "args": Evil()}, "evil.pth", pickle_protocol=2)
    (tmp_path / "evil.bin").write_bytes(pickle.dumps(Evil()))
    for name in ("evil.pth", "evil.bin"):
        with pytest.raises(BadInput, match=f"{name} (contains|is not)"):
            read_weights(Path(name))
    assert not (tmp_path / "was-run").exists()


def test_weights__bad_files(tmp_path):
    whole = checkpoint(tmp_path / "whole.pth", SMALL).read_bytes()
    (tmp_path / "half.pth").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "half.safetensors").write_bytes(b"12345678901")
    torch.save([1, 2, 3], tmp_path / "list.pth")
    (tmp_path / "garbage.pth").write_bytes(b"garbage")
    for name, sentence in (
        ("half.pth", "is not a complete checkpoint"),
        ("half.safetensors", "is not a complete checkpoint"),
        ("garbage.pth", "is not a checkpoint: neither"),
        ("list.pth", "contains no named tensors"),
        ("nowhere.pth", "cannot be read: No such file"),
    ):
        with pytest.raises(BadInput, match=f"{name} {sentence}"):
            read_weights(tmp_path / name)


# ---- loading by name


def test_build_classifier__what_does_not_fit_is_said_by_name(tmp_path):
    state = read_weights(checkpoint(tmp_path / "w.pth", SMALL))
    state["fc.other"] = state.pop("fc.bias")
    first = next(name for name in state if state[name].dim() == 4)
    state[first] = state[first][:3]
    torch.save(state, tmp_path / "odd.pth")
    with pytest.raises(BadInput) as no:
        loaded(SMALL, tmp_path / "odd.pth")
    for words in ("odd.pth does not fit test_resnet", "fc.bias missing", "fc.other unexpected"):
        assert words in str(no.value)
    assert f"{first} has shape (3, " in str(no.value) and "is needed" in str(no.value)


def test_build_classifier__the_order_of_names_does_not_matter(tmp_path):
    state = read_weights(checkpoint(tmp_path / "w.pth", SMALL))
    torch.save(dict(reversed(state.items())), tmp_path / "reversed.pth")
    assert same(loaded(SMALL, tmp_path / "reversed.pth"), state)


def test_with_weights__another_models_weights_are_refused(tmp_path):
    file = checkpoint(tmp_path / "vit.safetensors", "test_vit")
    with pytest.raises(BadInput, match=r"does not fit test_resnet: .* missing; .* unexpected"):
        loaded(SMALL, file)


def test_build_classifier__a_head_that_is_missing_is_never_left_random(tmp_path):
    """timm allows missing names for some models (DLA): here they are told."""
    file = checkpoint(tmp_path / "dla.pth", "dla46_c")
    state = read_weights(file)
    del state["fc.weight"]
    torch.save(state, file)
    with pytest.raises(BadInput, match=r"fc\.weight missing"):
        loaded("dla46_c", file)


def test_build_classifier__names_of_a_models_authors_are_turned_by_timm(tmp_path):
    """ConvNeXt's first files name its blocks otherwise; timm knows how."""
    state = read_weights(checkpoint(tmp_path / "w.pth", "test_convnext"))
    theirs = {}
    for name, value in state.items():
        name = name.replace("stages.0.downsample", "downsample_layers.0").replace("stem.", "downsample_layers.0.")
        for stage in range(1, 4):
            name = name.replace(f"stages.{stage}.downsample.", f"downsample_layers.{stage}.")
        name = name.replace(".blocks.", ".").replace("conv_dw.", "dwconv.")
        name = name.replace("mlp.fc1.", "pwconv1.").replace("mlp.fc2.", "pwconv2.")
        name = name.replace("head.norm.", "norm.").replace("head.fc.", "head.")
        theirs[name] = value
    assert theirs.keys() != state.keys()
    torch.save(theirs, tmp_path / "theirs.pth")
    assert same(loaded("test_convnext", tmp_path / "theirs.pth"), state)


@pytest.mark.parametrize("arch", ["googlenet", "inception_v3", "densenet121", "mobilenet_v3_small", "mnasnet0_5"])
def test_build_classifier__torchvision_builds_the_same_network(tmp_path, arch):
    """As torchvision's own loading of a file in its cache: inputs scaled again, heads for training left out."""
    import torchvision

    kind = torchvision.models.get_model_weights(arch).DEFAULT
    torch.manual_seed(0)
    options = {"aux_logits": True, "init_weights": False} if arch in ("googlenet", "inception_v3") else {}
    state = torchvision.models.get_model(arch, weights=None, **options).state_dict()
    if arch == "densenet121":  # its published file has the old names
        state = {name.replace("norm1", "norm.1").replace("conv1", "conv.1"): value for name, value in state.items()}
        state = {name.replace("norm2", "norm.2").replace("conv2", "conv.2"): value for name, value in state.items()}
        state = {name: value for name, value in state.items() if "num_batches" not in name}
    cached = tmp_path / "torch/hub/checkpoints" / Path(kind.url).name
    cached.parent.mkdir(parents=True)
    torch.save(state, cached)
    wanted = with_weights(find_network(f"torchvision:{arch}", STORE))
    assert wanted.file == cached
    ours = build_classifier(wanted)[0].eval()
    theirs = torchvision.models.get_model(arch, weights=kind).eval()
    x = torch.rand(2, 3, 96, 96)
    with torch.inference_mode():
        torch.testing.assert_close(ours(x), theirs(x))
    if arch == "googlenet":
        assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


# ---- checkpoints of one's own


@pytest.mark.parametrize("name", [SMALL, "torchvision:squeezenet1_1", "torchvision:resnet18", "test_vit"])
def test_build_classifier__a_fine_tuned_head_has_its_own_number_of_classes(tmp_path, name):
    torch.manual_seed(0)
    if name.startswith("torchvision:"):
        import torchvision

        theirs = torchvision.models.get_model(name.partition(":")[2], num_classes=7).eval()
    else:
        theirs = timm.create_model(name, num_classes=7).eval()
    torch.save({"state_dict": theirs.state_dict()}, tmp_path / "flowers.pth")
    for wanted in (
        find_network(f"{name}@{tmp_path / 'flowers.pth'}", STORE),
        with_weights(find_network(name, STORE), tmp_path / "flowers.pth"),
    ):
        assert wanted.classes == 7 and wanted.checksum and find_network(name, STORE).classes == 1000
        ours = build_classifier(wanted)[0].eval()
        x = torch.rand(2, 3, wanted.view.size, wanted.view.size)
        with torch.inference_mode():
            torch.testing.assert_close(ours(x), theirs(x))
    with pytest.raises(BadInput, match="There is no folder"):
        find_network(f"{name}@{tmp_path / 'nothing.pth'}", STORE)


def test_with_class_names__class_files_name_classes_or_map_names_to_them(tmp_path):
    file, wanted = tmp_path / "classes.txt", replace(find_network(SMALL, STORE), classes=3)
    file.write_text("rose\ntulip\nlily-of-the-valley\n")
    named = with_class_names(wanted, file)
    assert output_class_names(named) == ("rose", "tulip", "lily-of-the-valley") and dict(named.class_map)["tulip"] == 1
    assert named.identity != wanted.identity
    file.write_text("rose\ntulip\nlily-of-the-valley\n", "utf-8-sig")  # as Windows' editors write it
    assert with_class_names(wanted, file) == named
    file.write_text("Rosa canina=rose\nRosa alba=0\nLilium\t2\n")
    assert with_class_names(named, file).class_map == (("Rosa canina", 0), ("Rosa alba", 0), ("Lilium", 2))
    pretrained = find_network(SMALL, STORE)
    assert output_class_names(pretrained)[1] == "goldfish, Carassius auratus" and output_class_names(wanted) is None
    file.write_text("fish=goldfish\nbird=n01514668")
    assert with_class_names(pretrained, file).class_map == (("fish", 1), ("bird", 7))
    for text, sentence in (
        ("a\nb", "2 names; test_resnet has 3 classes"),
        ("a\nb\na", "a twice"),
        ("a=7", "'7' is no class of test_resnet"),
        ("a=" + "9" * 5000, "9' is no class of test_resnet"),
        ("a=1\nb=0\na=2", "gives a two classes of test_resnet"),
    ):
        file.write_text(text)
        with pytest.raises(BadInput, match=sentence):
            with_class_names(wanted, file)
    file.write_text("bird=crane")
    with pytest.raises(BadInput, match=r"the name of 2 classes \(134, 517\)"):
        with_class_names(pretrained, file)


# ---- EfficientNet-Lite in its first PyTorch port


def port_names(state):
    """timm's names to the port's, written the other way round than the package does."""
    blocks = sorted({tuple(map(int, name.split(".")[1:3])) for name in state if name.startswith("blocks.")})
    ends = {"conv_stem": "_conv_stem", "bn1": "_bn0", "conv_head": "_conv_head", "bn2": "_bn1", "classifier": "_fc"}
    found = {}
    for name, value in state.items():
        words = name.split(".")
        if words[0] != "blocks":
            found[".".join([ends[words[0]], *words[1:]])] = value
            continue
        number = blocks.index((int(words[1]), int(words[2])))
        wide = f"blocks.{words[1]}.{words[2]}.conv_pwl.weight" in state
        layer = (
            {"conv_pw": "_expand_conv", "bn1": "_bn0", "conv_dw": "_depthwise_conv", "bn2": "_bn1"}
            | {"conv_pwl": "_project_conv", "bn3": "_bn2"}
            if wide
            else {"conv_dw": "_depthwise_conv", "bn1": "_bn1", "conv_pw": "_project_conv", "bn2": "_bn2"}
        )[words[3]]
        found[".".join(["_blocks", str(number), layer, *words[4:]])] = value
    return found


@pytest.mark.parametrize("number", [0, 1, 2])
def test_build_classifier__efficientnet_lite_by_its_names(tmp_path, number):
    name = f"tf_efficientnet_lite{number}"
    state = read_weights(checkpoint(tmp_path / "w.pth", name))
    theirs = port_names(state)
    assert theirs.keys().isdisjoint(state)
    torch.save(theirs, tmp_path / f"efficientnet-lite{number}-57934424.pth")
    wanted = with_weights(find_network(name, STORE), tmp_path)
    module, fitted = build_classifier(wanted)
    module.eval()
    assert wanted.file.name.startswith("efficientnet-lite") and same(module, state)
    x = torch.arange(256.0)  # its input is (x − 127) / 128
    torch.testing.assert_close((x / 255 - fitted.mean[0]) / fitted.std[0], (x - 127) / 128)
    timms = find_network(name, STORE)
    assert (timms.mean[0], timms.std[0]) == (0.5, 0.5), "timm's own weights want other numbers"
    size = wanted.view.size
    own = timm.create_model(name).eval()
    own.load_state_dict(state)
    with torch.inference_mode():
        image = torch.randn(1, 3, size, size)
        ours, plain = module.forward_features(image), own.forward_features(image)
        torch.testing.assert_close(ours, plain)  # timm's own padding is the default
    theirs["_fc.weight"] = theirs["_fc.weight"][:999]
    torch.save(theirs, wanted.file)
    with pytest.raises(BadInput, match=r"classifier\.weight has shape \(999, 1280\) where \(1000, 1280\)"):
        build_classifier(wanted)


def test_build_classifier__lite_of_another_size_is_refused(tmp_path):
    state = port_names(read_weights(checkpoint(tmp_path / "w.pth", "tf_efficientnet_lite1")))
    torch.save(state, tmp_path / "port.pth")
    with pytest.raises(BadInput, match="it is an EfficientNet-Lite of another size") as no:
        loaded("tf_efficientnet_lite0", tmp_path / "port.pth")
    assert "_blocks.16.conv_pw.weight" in str(no.value) and "blocks.-1" not in str(no.value)


# ---- finding


def test_index_folder__names_of_files(tmp_path):
    for file in (
        "resnet18.pth",
        "resnet18.a1_in1k.safetensors",
        "resnet34-43635321.pth",
        "b/x.pth",
        "c/model.safetensors",
    ):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        write = torch.save if file.endswith(".pth") else safetensors.save_file
        write({"weight": torch.ones(1)}, tmp_path / file)
    found = weights.index_folder(tmp_path)
    assert found["resnet18"].name == "resnet18.pth" and found["resnet18.a1_in1k"].suffix == ".safetensors"
    assert found["resnet34"] == found["resnet34-43635321"]
    assert found["c"].name == "model.safetensors" and "b" not in found
    assert with_weights(find_network("resnet18", STORE), tmp_path).file.name == "resnet18.a1_in1k.safetensors"
    assert with_weights(find_network("resnet18.tv_in1k", STORE), tmp_path).file.name == "resnet18.pth"


def test_checksum__the_hubs_caches_are_used(tmp_path):
    snapshot = tmp_path / "hub/models--timm--test_resnet.r160_in1k/snapshots/abc"
    snapshot.mkdir(parents=True)
    refs = tmp_path / "hub/models--timm--test_resnet.r160_in1k/refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    blob = snapshot.parents[1] / "blobs" / ("0" * 63 + "a")
    checkpoint(blob.with_suffix(".safetensors"), SMALL).rename(blob)
    (snapshot / "model.safetensors").symlink_to(blob)
    found = with_weights(find_network(SMALL, STORE), None).file
    assert found.samefile(blob)
    assert weights.checksum(found) == blob.name, "the hub names it by its checksum"


def test_with_weights__a_clear_sentence_when_weights_are_not_to_be_had(tmp_path):
    with pytest.raises(BadInput) as no:
        with_weights(find_network(SMALL, STORE), tmp_path)
    for words in (
        "weights of test_resnet are not on this machine and could not be fetched",
        "HF_HUB_OFFLINE forbids it",
        f"in {tmp_path};",
        "model.safetensors or pytorch_model.bin of timm/test_resnet.r160_in1k in",
        "test_resnet.r160_in1k.safetensors or .pth",
        "weights=FOLDER",
    ):
        assert words in str(no.value)
    with pytest.raises(BadInput, match=r"Looked for .*torch/hub/checkpoints/vgg11-8a719046\.pth"):
        with_weights(find_network("torchvision:vgg11", STORE))


def test_find_network__a_network_that_does_not_answer_is_asked_once(tmp_path, monkeypatch):
    import huggingface_hub

    asked = []

    def dead(*_, **__):
        asked.append(1)
        raise ConnectionError("no route to host " + "and so on " * 30)

    def patient(*_, **__):
        raise AssertionError("hf_hub_download tries again for half a minute, and says so each time")

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", dead)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", patient)
    monkeypatch.setattr(torch.hub, "download_url_to_file", dead)
    for name in ("test_resnet", "test_vit", "torchvision:vgg11"):
        with pytest.raises(BadInput, match=r"\(ConnectionError: .* …\)\. Looked for"):
            with_weights(find_network(name, STORE))
    assert len(asked) == 1


# ---- names of models


def test_remote__every_classifier_is_known():
    models = select_networks((), STORE, everything=True)
    names = [each.name for each in models]
    assert len(names) == len(set(names)) > 1300
    assert "resnet50.a1_in1k" in names and "torchvision:vgg16" in names
    assert all(each.classes > 0 and each.view.size > 0 and each.view.resize > 0 for each in models)
    assert all(each.remote != weights.Remote() for each in models)


def test_weights__each_model_sees_images_in_its_own_way():
    a1 = find_network("resnet50.a1_in1k", STORE)
    assert (a1.view.size, a1.view.resize) == (288, 288), "the size it is tested with, not the one it was trained with"
    tv = find_network("torchvision:resnet50", STORE)
    assert (tv.view.size, tv.view.resize, tv.view.interpolation) == (224, 232, "bilinear")
    assert find_network("torchvision:resnet50.imagenet1k_v1", STORE).view.resize == 256
    wide = find_network("convnext_base.fb_in22k_ft_in1k_384", STORE)
    assert (wide.view.size, wide.view.mode) == (384, "squash")
    assert find_network("volo_d4_448.sail_in1k", STORE).view.resize == 389, "timm adds a border"
    assert find_network("test_vit", STORE).mean == (0.5, 0.5, 0.5)


def test_select_networks__globs_and_families(tmp_path):
    names = [each.name for each in select_networks(("resnet18*", "torchvision:vgg1?"), STORE)]
    assert "resnet18.a1_in1k" in names and "torchvision:vgg16" in names and not any("resnet50" in n for n in names)
    vits = [each.name for each in select_networks((), STORE, families=("vit",))]
    assert len(vits) > 20 and all("vit" in name for name in vits)
    for file in ("resnet18.a1_in1k.pth", "test_vit.pth", "efficientnet-lite0-57934424.pth", "torchvision-vgg11.pth"):
        (tmp_path / file).write_bytes(b"")
    found = [each.name for each in select_networks((), STORE, everything=True, folder=tmp_path)]
    assert sorted(found) == ["resnet18.a1_in1k", "test_vit", "tf_efficientnet_lite0.in1k", "torchvision:vgg11"]
    assert [each.name for each in select_networks(("*resnet*",), STORE, folder=tmp_path)] == ["resnet18.a1_in1k"]
    (tmp_path / "none").mkdir()
    with pytest.raises(BadInput, match="No pretrained model has"):
        select_networks((), STORE, everything=True, folder=tmp_path / "none")


@pytest.mark.parametrize(
    ("patterns", "sentence"),
    [
        (("resnet51",), "no classifier named 'resnet51'. Did you mean resnet"),
        (("torchvision:vgg17",), "Did you mean torchvision:vgg1"),
        (("vgg16_bn_",), "Did you mean vgg16_bn"),
        (("resnet50.no_such_tag",), "no classifier named 'resnet50.no_such_tag'"),
        (("zzz*",), "No pretrained model has a name like 'zzz\\*'"),
        (("torchvision:vgg16.best",), "has no weights 'best'. There are: IMAGENET1K_V1"),
        ((), "There is no model to predict with"),
    ],
)
def test_select_networks__unknown_names(patterns, sentence):
    with pytest.raises(BadInput, match=sentence):
        select_networks(patterns, STORE)


def test_select_networks__a_family_has_its_distilled_models_with_it(tmp_path):
    every, distilled = (
        {each.name for each in select_networks((), STORE, families=(word,))} for word in ("xcit", "XCiT-distilled")
    )
    assert distilled < every and all("dist" in name for name in distilled)
    with pytest.raises(BadInput, match=r"of the family 'xcit' has its weights"):
        select_networks((), STORE, families=("xcit",), folder=tmp_path)


def test_select_networks__an_unknown_family_lists_the_known_ones():
    with pytest.raises(BadInput, match=r"of the family 'bert'\..* The families are: .*vit"):
        select_networks((), STORE, families=("bert",))


@pytest.mark.parametrize("head", [b"", b"PK\3\4", b"\x80\2", (100).to_bytes(8, "little") + b"{}"])
@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_weights__a_huge_file_that_is_no_checkpoint_is_refused_before_it_is_hashed(tmp_path, monkeypatch, head, ending):
    file = tmp_path / f"resnet18.{ending}"
    with file.open("wb") as handle:
        handle.write(head)
        handle.truncate(50 << 30)
    monkeypatch.setattr(hashlib, "file_digest", None)
    with pytest.raises(BadInput, match=re.escape(str(file))):
        start_key(f"file:{file}")
    with pytest.raises(BadInput, match=re.escape(str(file))):
        with_weights(find_network("resnet18", STORE), tmp_path)


@pytest.mark.parametrize("zipped", [True, False])
def test_weights__the_frame_of_whole_checkpoints_is_that_of_torch_and_safetensors(tmp_path, zipped):
    state = {"weight": torch.ones(3)}
    torch.save(state, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    safetensors.save_file(state, tmp_path / "a.safetensors")
    check_frame(tmp_path / "a.pt")
    check_frame(tmp_path / "a.safetensors")
