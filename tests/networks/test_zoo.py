"""Models asked about images: the numbers are timm's, work is done once, and a failure costs one model only."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from nescio.cli import main
from nescio.datasets import views as pixels
from nescio.errors import BadInput
from nescio.networks import weights
from nescio.networks.published import disagreement, published_of, read_published
from nescio.predictions import Predictions
from nescio.predictions.entries import Entry, entries, entry_of_file
from nescio.work.store import Store
from zoo_help import checkpoint, folder, pack

torch = pytest.importorskip("torch")
timm = pytest.importorskip("timm")

from nescio.datasets.classes import chosen, labelled  # noqa: E402
from nescio.datasets.views import View  # noqa: E402
from nescio.networks import forward  # noqa: E402
from nescio.networks.ask import Settings, ask_all, question  # noqa: E402
from nescio.networks.models import Model, build, heads, model  # noqa: E402
from nescio.runtime import runtime  # noqa: E402

HERE = runtime("cpu")
N = 12


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    import huggingface_hub.constants

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.file_download.HF_HUB_CACHE", str(tmp_path / "hub"), raising=False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.delenv("NESCIO_WEIGHTS", raising=False)
    weights.index.cache_clear()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Three small models' random weights and a set of encoded images."""
    root = tmp_path_factory.mktemp("zoo")
    for name in ("test_resnet", "test_vit", "test_efficientnet"):
        checkpoint(root / "w" / f"{name}.safetensors", name)
    pack(root / "val.npz", n=N)
    return root


def answers(place, store, *names, spec=None, **settings):
    images = labelled(spec or f"npz:{place / 'val.npz'}")
    asked = [(model(name, store), images) for name in names]
    return ask_all(asked, store, HERE, Settings(weights=place / "w", **settings))


def by_timm(place, name, source, **options):
    """The logits of one image by timm's own transform and loop."""
    import io

    from PIL import Image
    from timm.data import create_transform, resolve_model_data_config

    network = timm.create_model(name, **options).eval()
    network.load_state_dict(weights.read(place / "w" / f"{name}.safetensors"))
    transform = create_transform(**resolve_model_data_config(network, use_test_size=True))
    image = Image.open(io.BytesIO(source)).convert("RGB")
    with torch.inference_mode():
        return network(transform(image)[None])[0].numpy()


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_efficientnet"])
def test_the_logits_are_those_of_timm(place, tmp_path, name):
    found = answers(place, Store(tmp_path), name)
    assert not found.failures
    dump, images = found.entries[0].dump(), labelled(f"npz:{place / 'val.npz'}")
    assert dump.logits.dtype == np.float16 and dump.logits.shape == (N, 1, 1000)
    assert dump.taught.all() and np.array_equal(dump.labels, images.labels) and np.array_equal(dump.index, images.index)
    for row in (0, 5, N - 1):
        np.testing.assert_allclose(dump.logits[row, 0], by_timm(place, name, images.source(row)), rtol=2e-3, atol=2e-3)


def test_facts_of_a_model(place, tmp_path):
    found = answers(place, Store(tmp_path), "test_resnet").entries[0]
    network = timm.create_model("test_resnet")
    assert found.facts["params"] == sum(each.numel() for each in network.parameters())
    assert (found.facts["input_size"], found.facts["classes"], found.facts["rows"]) == (160, 1000, N)
    assert found.facts["embedding_size"] == network.fc.in_features and found.facts["dropout"] is False
    right = (found.dump().logits[:, 0].argmax(1) == found.dump().labels).mean()
    assert found.facts["accuracy"] == pytest.approx(right)
    assert found.data == f"npz:{(place / 'val.npz').resolve()}"


def test_embeddings_are_what_the_last_layer_is_given(place, tmp_path):
    dump = answers(place, Store(tmp_path), "test_resnet", embeddings=True, drop=0.5, passes=2).entries[0].dump()
    network = timm.create_model("test_resnet")
    network.load_state_dict(weights.read(place / "w/test_resnet.safetensors"))
    again = dump.embeddings.astype(np.float32) @ network.fc.weight.detach().numpy().T + network.fc.bias.detach().numpy()
    np.testing.assert_allclose(again, dump.logits[:, 0], atol=1e-2)
    assert answers(place, Store(tmp_path), "test_resnet").entries[0].dump().embeddings is None


def test_the_last_layer_is_found():
    deit = timm.create_model("deit_tiny_distilled_patch16_224")
    assert heads(deit, 1000) == [deit.head, deit.head_dist]
    resnet = timm.create_model("test_resnet", num_classes=32)
    assert heads(resnet, 32) == [resnet.fc], "other layers give 32 numbers as well"
    plain = torch.nn.Sequential(torch.nn.Linear(8, 10), torch.nn.Linear(10, 10))
    assert heads(plain, 10) == [plain[1]] and heads(plain, 11) == []


def test_batches_do_not_change_the_answers(place, tmp_path):
    one = answers(place, Store(tmp_path / "a"), "test_resnet", batch=1).entries[0].dump()
    many = answers(place, Store(tmp_path / "b"), "test_resnet", batch=7).entries[0].dump()
    np.testing.assert_allclose(one.logits, many.logits, atol=2e-3)


# ---- dropout


def dropout_answers(place, tmp_path, name="test_resnet", **settings):
    return answers(place, Store(tmp_path), name, **settings).entries[0].dump()


def test_a_model_without_dropout_has_no_such_variant(place, tmp_path):
    assert dict(dropout_answers(place, tmp_path).variants) == {}
    assert dict(dropout_answers(place, tmp_path, drop=0.0).variants) == {}
    assert dict(dropout_answers(place, tmp_path, drop=0.5, passes=0).variants) == {}


def test_dropout_gives_the_log_of_the_mean_of_softmaxes(place, tmp_path):
    dump = dropout_answers(place, tmp_path, drop=0.5)
    logs = dump.variants["mc-dropout"].astype(np.float64)
    np.testing.assert_allclose(np.exp(logs).sum(1), 1, atol=5e-3)
    plain = dump.logits[:, 0].astype(np.float64)
    plain -= np.log(np.exp(plain).sum(1, keepdims=True))
    assert np.abs(logs - plain).max() > 0.01, "dropout was on"
    np.testing.assert_allclose(dump.logits, dropout_answers(place, tmp_path / "plain").logits, atol=1e-3)


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_efficientnet"])
def test_passes_by_hand(place, tmp_path, name):
    """The same seeds and the whole network in every pass: as the split into features and head gives."""
    asked = question(
        model(name, Store(tmp_path)),
        labelled(f"npz:{place / 'val.npz'}"),
        Store(tmp_path),
        HERE,
        Settings(weights=place / "w"),
    )
    network, _ = build(asked.model, asked.file, Store(tmp_path), HERE, drop=0.3)
    layers, x = forward.dropouts(network), torch.rand(3, 3, 160, 160)
    assert layers
    with torch.inference_mode():
        torch.manual_seed(0)
        ask = forward.Ask(network, layers, 4)
        ask.parts = forward._same, network
        whole = ask(x)["mc-dropout"]
        parts = forward._divided(network, layers, x)
        assert parts[1] != network, "all dropout of these models is in the head"
        torch.manual_seed(0)
        split = forward.Ask(network, layers, 4)
        split.parts = parts
        torch.testing.assert_close(split(x)["mc-dropout"], whole)
        with forward.dropping(layers):
            torch.manual_seed(0)
            mean = torch.stack([network(x).softmax(-1) for _ in range(4)]).mean(0)
    torch.testing.assert_close(whole.exp(), mean)


def test_dropout_inside_the_features_is_left_on_there():
    torch.manual_seed(0)
    network = timm.create_model("test_vit", proj_drop_rate=0.2, attn_drop_rate=0.3).eval()
    layers, x = forward.dropouts(network), torch.rand(2, 3, 160, 160)
    kinds = {type(layer).__name__ for layer in layers}
    assert "Attention" in kinds and "Dropout" in kinds, "fused attention asks the flag of the module around it"
    with torch.inference_mode():
        body, head = forward._divided(network, layers, x)
        assert head is network and body is forward._same
        mean = forward.Ask(network, layers, 3)(x)["mc-dropout"]
        assert (mean - network(x).log_softmax(-1)).abs().max() > 1e-3


def test_only_dropout_is_switched_on():
    network = timm.create_model("test_resnet", drop_rate=0.5).eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    layers = forward.dropouts(network)
    with forward.dropping(layers), torch.inference_mode():
        assert not any(m.training for m in network.modules() if isinstance(m, torch.nn.BatchNorm2d))
        network(torch.rand(4, 3, 64, 64))
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert not any(module.training for module in network.modules())


@pytest.mark.parametrize("arch", ["mobilenet_v3_small", "squeezenet1_1", "alexnet"])
def test_torchvisions_dropout_is_found(arch):
    """Those whose dropout lies in the last child are asked for features once; the mean stays the same."""
    import torchvision

    torch.manual_seed(0)
    network = torchvision.models.get_model(arch, weights=None).eval()
    layers, x = forward.dropouts(network), torch.rand(2, 3, 64, 64)
    assert layers and all(isinstance(layer, torch.nn.Dropout) for layer in layers)
    with torch.inference_mode():
        torch.manual_seed(1)
        ask = forward.Ask(network, layers, 3)
        ask.parts = forward._same, network
        whole = ask(x)
        parts = forward._divided(network, layers, x)
        assert (parts[1] is network) == (arch == "squeezenet1_1")
        torch.manual_seed(1)
        split = forward.Ask(network, layers, 3)
        split.parts = parts
        torch.testing.assert_close(split(x), whole)


def test_the_same_weights_give_the_same_dropout(place, tmp_path):
    one, two = (dropout_answers(place, tmp_path / word, drop=0.5) for word in "ab")
    np.testing.assert_array_equal(one.variants["mc-dropout"], two.variants["mc-dropout"])


# ---- precision and memory


def test_the_last_layer_keeps_its_digits_in_bf16():
    torch.manual_seed(0)
    head = torch.nn.Linear(64, 100)
    x = torch.randn(8, 64).bfloat16()
    expected = x.float() @ head.weight.T + head.bias
    forward._exact(head)
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        made = head(x)
    assert made.dtype == torch.float32
    torch.testing.assert_close(made, expected)
    assert len(torch.unique(made)) > len(torch.unique(made.bfloat16())), "bf16 would tie some"


def test_too_large_a_batch_is_halved(place, tmp_path, monkeypatch):
    seen = []
    real = forward._answer

    def tight(*args):
        seen.append(args[-2])
        if args[-2] > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(*args)

    monkeypatch.setattr(forward, "_answer", tight)
    assert not answers(place, Store(tmp_path), "test_resnet", batch=12).failures
    assert seen == [12, 6, 3]


def test_numbers_that_are_not_finite_are_a_failure_with_a_sentence(place, tmp_path):
    state = weights.read(place / "w/test_resnet.safetensors")
    state["fc.bias"] = state["fc.bias"].clone()
    state["fc.bias"][3] = float("nan")
    (tmp_path / "w").mkdir()
    torch.save(state, tmp_path / "w/test_resnet.pth")
    images = labelled(f"npz:{place / 'val.npz'}")
    store = Store(tmp_path / "store")
    found = ask_all([(model("test_resnet", store), images)], store, HERE, Settings(weights=tmp_path / "w"))
    assert f"not finite for {N} of {N} images" in found.failures[0].reason


def test_memory_does_not_grow_with_the_images(tmp_path):
    """20,000 × 1,000 logits are 80 MB in float32; what is held beside the files is a few batches."""
    rows, classes = 20_000, 1000
    np.save(tmp_path / "pixels.npy", np.random.default_rng(0).integers(0, 256, (rows, 8, 8, 3), dtype=np.uint8))
    asked = Model("small", View(8, 8), (0.5,) * 3, (0.5,) * 3, classes)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, classes)).eval()
    spec = tmp_path / "set.npz"
    np.savez(spec, x_test=np.zeros((rows, 1, 1), np.uint8), y_test=np.arange(rows) % classes)
    images, seen = labelled(f"npz:{spec}"), []

    def own():
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1000

    class Watched(torch.nn.Module):
        def forward(self, x):
            seen.append(own())
            return network(x)

    found = forward.answer(Watched(), asked, tmp_path / "pixels.npy", images, HERE, tmp_path, batch=500)
    assert found.dump.logits.shape == (rows, 1, classes) and found.dump.logits.dtype == np.float16
    before = own()
    found.dump.save(tmp_path / "dump")
    assert max(seen[4:]) - seen[4] < 25 and own() - before < 25, "MB"


class Late:
    """Copies that are made only when someone waits for them, as a busy GPU makes them."""

    def __init__(self):
        self.waiting = []

    def room(self, *shape):
        return torch.zeros(shape, dtype=torch.uint8)

    def send(self, buffer):
        copy = torch.zeros_like(buffer)
        done = []

        class Copied:
            def synchronize(self):
                if not done:
                    copy.copy_(buffer)
                    done.append(True)

        copied = Copied()
        self.waiting.append(copied)
        return copy, copied


@pytest.mark.parametrize(("rows", "batch"), [(1, 4), (4, 4), (23, 4), (24, 4), (7, 100)])
def test_reading_ahead_shows_every_image_once_in_order(tmp_path, rows, batch):
    pixels = np.random.default_rng(0).integers(0, 256, (rows, 9, 9, 3), dtype=np.uint8)
    np.save(tmp_path / "pixels.npy", pixels)
    late = Late()
    shown = list(forward._ahead(tmp_path / "pixels.npy", np.load(tmp_path / "pixels.npy", mmap_mode="r"), batch, late))
    for copied in late.waiting:
        copied.synchronize()
    assert all(len(raw) == batch for raw, _ in shown), "one size: a GPU looks for kernels again when it changes"
    np.testing.assert_array_equal(np.concatenate([raw[:count].numpy() for raw, count in shown]), pixels)
    plain = list(forward.feed(tmp_path / "pixels.npy", batch, torch.device("cpu")))
    np.testing.assert_array_equal(np.concatenate([raw[:count].numpy() for raw, count in plain]), pixels)


def test_reading_ahead_ends_with_its_reader(tmp_path):
    np.save(tmp_path / "pixels.npy", np.zeros((40, 8, 8, 3), np.uint8))
    held = np.load(tmp_path / "pixels.npy", mmap_mode="r")
    before = threading.active_count()
    some = forward._ahead(tmp_path / "pixels.npy", held, 4, Late())
    next(some)
    some.close()
    assert threading.active_count() == before
    (tmp_path / "pixels.npy").write_bytes((tmp_path / "pixels.npy").read_bytes()[:-900])
    with pytest.raises(BadInput, match="cut short"):
        list(forward._ahead(tmp_path / "pixels.npy", held, 4, Late()))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_says_the_same(place, tmp_path):
    store = Store(tmp_path)
    images = labelled(f"npz:{place / 'val.npz'}")
    settings = Settings(weights=place / "w", drop=0.2, embeddings=True, batch=5)
    gpu = ask_all([(model("test_resnet", store), images)], store, runtime("cuda"), settings)
    assert not gpu.failures
    ours, theirs = gpu.entries[0].dump(), answers(place, store, "test_resnet").entries[0].dump()
    np.testing.assert_allclose(ours.logits, theirs.logits, atol=0.05)
    assert ours.variants["mc-dropout"].shape == (N, 1000) and len(ours.embeddings) == N


# ---- the store


def test_a_second_run_does_nothing_and_a_change_of_anything_is_other_work(place, tmp_path, monkeypatch):
    store = Store(tmp_path)
    first = answers(place, store, "test_resnet").entries[0]
    monkeypatch.setattr("nescio.networks.ask.answer", None)
    again = answers(place, store, "test_resnet").entries[0]
    assert (again.key, again.place) == (first.key, first.place)
    monkeypatch.undo()
    images = labelled(f"npz:{place / 'val.npz'}")
    base = model("test_resnet", store)

    def key(asked=base, shown=images, here=HERE, **settings):
        return question(asked, shown, store, here, Settings(weights=place / "w", **settings)).key(store)

    assert key() == first.key
    other = checkpoint(tmp_path / "other.safetensors", "test_resnet", seed=1)
    keys = {
        key(),
        key(passes=29),
        key(drop=0.1),
        key(embeddings=True),
        key(here=HERE.at("bf16")),
        key(shown=images.take(np.arange(5))),
        key(shown=labelled(f"npz:{pack(tmp_path / 'val.npz', n=N, seed=1)}")),
        question(base, images, store, HERE, Settings(weights=other)).key(store),
        key(asked=model("test_resnet.r160_in1k", store)),
    }
    assert len(keys) == 9
    assert key(batch=5) == first.key


def test_images_are_decoded_once_for_all_models_that_see_them_alike(place, tmp_path, monkeypatch):
    seen = []
    real = pixels.pixels_of
    monkeypatch.setattr(pixels, "pixels_of", lambda source, view: (seen.append(view), real(source, view))[1])
    store = Store(tmp_path)
    found = answers(place, store, "test_vit", "test_resnet", "test_efficientnet")
    assert len(found.entries) == 3 and not found.failures
    assert len({each.interpolation for each in seen}) == 2, "the ResNet is tested with another interpolation"
    assert len(seen) == 2 * N
    assert [each.model for each in found.entries] == ["test_vit", "test_resnet", "test_efficientnet"]
    assert [each.model for each in entries(store)] == ["test_efficientnet", "test_resnet", "test_vit"]


def test_a_failing_model_never_stops_the_others(place, tmp_path):
    (tmp_path / "w").mkdir()
    for name in ("test_resnet", "test_efficientnet"):
        os.link(place / "w" / f"{name}.safetensors", tmp_path / "w" / f"{name}.safetensors")
    checkpoint(tmp_path / "w/test_vit.safetensors", "test_resnet")
    store, images = Store(tmp_path / "store"), labelled(f"npz:{place / 'val.npz'}")
    names = ("test_vit", "test_resnet", "test_byobnet", "test_efficientnet")
    found = ask_all([(model(n, store), images) for n in names], store, HERE, Settings(weights=tmp_path / "w"))
    assert [each.model for each in found.entries] == ["test_resnet", "test_efficientnet"]
    reasons = {failure.task.name: failure.reason for failure in found.failures}
    assert "does not fit test_vit" in reasons["test_vit on val"]
    assert "weights of test_byobnet are not on this machine" in reasons["test_byobnet on val"]
    noted = [run for run in store.runs() if run.state == "failed"]
    assert [(run.stage, run.recipe["model"]) for run in noted] == [("zoo", "test_vit")]
    assert "does not fit" in noted[0].reason
    checkpoint(tmp_path / "w/test_vit.safetensors", "test_vit")
    found = ask_all([(model(n, store), images) for n in names], store, HERE, Settings(weights=tmp_path / "w"))
    assert len(found.entries) == 3


def test_an_unreadable_image_costs_the_set_and_nothing_that_is_finished(place, tmp_path):
    names = tuple(f"{n:04}" for n in range(1000))
    store = Store(tmp_path / "store")
    assert len(answers(place, store, "test_resnet").entries) == 1
    bad = folder(tmp_path / "set", names[:5], each=1)
    (bad / "0002/0.jpg").write_bytes(b"none")
    images = labelled(f"folder:{bad}", outside=True)
    good = labelled(f"npz:{place / 'val.npz'}")
    asked = [(model(n, store), each) for n in ("test_resnet", "test_vit") for each in (images, good)]
    found = ask_all(asked, store, HERE, Settings(weights=place / "w"))
    assert [each.model for each in found.entries] == ["test_resnet", "test_vit"]
    assert len(found.failures) == 2
    assert all("0002/0.jpg cannot be read" in failure.reason for failure in found.failures)


def killed(place, store, number):
    """Asks two models in a process of its own, which kills itself when it reaches a batch; how it ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        torch.set_num_threads(1)  # the parent's threads are not here
        real = forward.feed

        def feed(*args):
            for at, batch in enumerate(real(*args)):
                if at == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield batch

        forward.feed = feed
        found = answers(place, store, "test_resnet", "test_efficientnet", batch=4)
        os._exit(len(found.failures))
    finally:
        os._exit(77)


def test_a_killed_run_goes_on(place, tmp_path):
    store = Store(tmp_path)
    assert killed(place, store, 2) == -signal.SIGKILL and entries(store) == []
    kept = {path.name for path in (tmp_path / "pixels").glob("*")}
    assert len(kept) == 1, "the decoded images stay"
    assert not answers(place, store, "test_resnet", "test_efficientnet", batch=4).failures
    expected = answers(place, Store(tmp_path / "other"), "test_resnet", "test_efficientnet", batch=4).entries
    for ours, theirs in zip(sorted(entries(store), key=lambda each: each.model, reverse=True), expected, strict=True):
        assert ours.model == theirs.model and ours.key == theirs.key
        np.testing.assert_array_equal(ours.dump().logits, theirs.dump().logits)
        store.verify("zoo", ours.key)


def test_two_processes_share_the_work(place, tmp_path):
    others = []
    for _ in range(2):
        child = os.fork()
        if not child:
            os._exit(killed(place, Store(tmp_path), 99))
        others.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in others] == [0, 0]
    found = entries(Store(tmp_path))
    assert [each.model for each in found] == ["test_efficientnet", "test_resnet"]
    assert len(list((tmp_path / "pixels").glob("*"))) == 2


# ---- entries


def test_of_one_model_the_answer_to_most_rows_is_taken(place, tmp_path):
    store = Store(tmp_path)
    whole = labelled(f"npz:{place / 'val.npz'}")
    for images in (whole, whole.take(np.arange(4))):
        ask_all([(model("test_resnet", store), images)], store, HERE, Settings(weights=place / "w"))
        time.sleep(0.01)
    assert len(list((tmp_path / "zoo").glob("*"))) == 2
    (found,) = entries(store, f"npz:{place / 'val.npz'}")
    assert found.facts["rows"] == N
    assert entries(store, "npz:other.npz") == [] and entries(store, outside=True) == []


def test_sets_outside_are_marked(place, tmp_path):
    store = Store(tmp_path / "store")
    other = folder(tmp_path / "animals", ("ant", "bee"), each=3)
    images = labelled(f"folder:{other}", outside=True)
    (found,) = ask_all([(model("test_resnet", store), images)], store, HERE, Settings(weights=place / "w")).entries
    dump = found.dump()
    assert not dump.taught.any() and dump.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.facts["outside"] is True and "accuracy" not in found.facts
    assert [each.key for each in entries(store, outside=True)] == [found.key] and entries(store, outside=False) == []


def test_a_persons_own_file_is_an_entry(tmp_path):
    rng = np.random.default_rng(0)
    dump = Predictions(logits=rng.normal(size=(5, 3)), labels=[0, 1, 2, 0, 1])
    dump.save(tmp_path / "mine.npz")
    dump.save(tmp_path / "theirs")
    file, other = entry_of_file(tmp_path / "mine.npz"), entry_of_file(tmp_path / "theirs", "net", "digits")
    assert (file.model, file.data, other.model, other.data) == ("mine", "predictions", "net", "digits")
    np.testing.assert_array_equal(file.dump().labels, dump.labels)
    dump.replace(labels=[0, 0, 0, 0, 0]).save(tmp_path / "mine.npz")
    assert entry_of_file(tmp_path / "mine.npz").key != file.key
    hash(file)
    with pytest.raises(BadInput, match="There is no file or folder of predictions"):
        entry_of_file(tmp_path / "nothing.npz")


def test_a_damaged_entry_is_named(place, tmp_path):
    found = answers(place, Store(tmp_path), "test_resnet").entries[0]
    (found.place.parent / "facts.json").write_text("{")
    with pytest.raises(BadInput, match=f"{found.key} is damaged"):
        entries(Store(tmp_path))


# ---- published tables


def told(accuracy, rows=50_000, **facts):
    return Entry("net", "imagenet", {"accuracy": accuracy, "rows": rows, **facts}, Path("."), "k")


def test_a_published_accuracy_warns_beyond_chance(tmp_path):
    table = tmp_path / "results.csv"
    table.write_text("model,top1,top1_err,img_size\nnet,80.0,20.0,224\nnet,81.0,19.0,288\nother,50.0,50,224\n")
    held = read_published(table)
    at = published_of(told(0.8, input_size=288), held)
    assert (at.accuracy, at.size) == (0.81, 288) and published_of(told(0.8, input_size=160), held).accuracy == 0.80
    line = published_of(told(0.8, input_size=224), held)
    error = np.sqrt(0.8 * 0.2 / 50_000)
    for off, warned in ((0.003 + 2.9 * error, False), (0.003 + 3.1 * error, True)):
        for sign in (1, -1):
            assert bool(disagreement(told(0.8 + sign * off), line)) is warned
    assert "has top-1 75.00% on 2,000 images and 80.00% is published" in disagreement(told(0.75, 2000), line)
    assert disagreement(told(0.78, 2000), line) is None, "few images say little"
    assert "published at 224 pixels, and asked at 160" in disagreement(told(0.5, input_size=160), line)


def test_a_name_without_a_tag_finds_its_line(tmp_path):
    (tmp_path / "results.csv").write_text("model,top1\nresnet50.a1_in1k,80.2\nvgg16,71.6\n")
    held = read_published(tmp_path / "results.csv")
    for name, expected in (("resnet50", 0.802), ("resnet50.a1_in1k", 0.802), ("torchvision:vgg16", 0.716)):
        assert published_of(Entry(name, "d", {}, Path("."), "k"), held).accuracy == pytest.approx(expected)
    assert published_of(Entry("resnet50.a2_in1k", "d", {}, Path("."), "k"), held) is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name,top1\na,1\n", "no columns model and top1"),
        ("model,top1\na,x\n", "line 2: top1 is 'x'"),
        ("model,top1\na,0.5\nb,700\n", "line 3: top1 is 700"),
        ("", "no columns"),
    ],
)
def test_bad_tables(tmp_path, text, sentence):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(BadInput, match=sentence):
        read_published(tmp_path / "t.csv")
    with pytest.raises(BadInput, match="cannot be read"):
        read_published(tmp_path / "none.csv")


# ---- the command


def run(*words):
    return main(["zoo", *map(str, words), "--device", "cpu"])


def test_the_command_compares_models_and_writes_a_page(place, tmp_path, capsys):
    table = tmp_path / "results.csv"
    table.write_text("model,top1,img_size\ntest_resnet.r160_in1k,80.0,160\ntest_vit.r160_in1k,0.1,160\n")
    words = ["test_resnet", "test_vit", "--data", f"npz:{place / 'val.npz'}", "--weights", place / "w"]
    words += ["--store", tmp_path / "store", "--published", table]
    assert run(*words, "--report", tmp_path / "page") == 0
    out, err = capsys.readouterr()
    assert "test_resnet" in out and "test_vit" in out and (tmp_path / "page/index.html").is_file()
    assert "note: test_resnet has top-1 0.00% on 12 images and 80.00% is published" in err
    assert "test_vit has top-1" not in err.split("note:", 1)[1]
    assert run(*words, "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    accuracy = {row["backbone"]: row["value"] for row in rows if row["metric"] == "accuracy" and not row["calibrated"]}
    assert accuracy.keys() == {"test_resnet", "test_vit"}
    published = {row["backbone"]: row["value"] for row in rows if row["metric"] == "published_accuracy"}
    assert published == {"test_resnet": pytest.approx(0.8), "test_vit": pytest.approx(0.001)}


def test_the_command_goes_on_after_a_failure_and_ends_with_one(place, tmp_path, capsys):
    words = ["test_resnet", "test_byobnet", "--data", f"npz:{place / 'val.npz'}", "--weights", place / "w"]
    assert run(*words, "--store", tmp_path / "store", "--json") == 1
    out, err = capsys.readouterr()
    assert {row["backbone"] for row in json.loads(out)} == {"test_resnet"}
    assert "failed: test_byobnet on val: The weights of test_byobnet are not on this machine" in err


def test_nothing_but_failures(place, tmp_path, capsys):
    assert run("test_byobnet", "--data", f"npz:{place / 'val.npz'}", "--store", tmp_path, "--json") == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == [] and "failed: test_byobnet" in err


def test_all_means_the_models_whose_weights_are_there(place, tmp_path, capsys):
    words = ["--all", "--data", f"npz:{place / 'val.npz'}", "--weights", place / "w", "--store", tmp_path, "--json"]
    assert run(*words, "--forget") == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["backbone"] for row in rows} == {"test_resnet", "test_vit", "test_efficientnet"}
    assert not list((tmp_path / "pixels").glob("[0-9a-f]*")), "forgotten when the last model was done"


def test_damaged_images_are_skipped_when_asked_for(place, tmp_path, capsys):
    images = dict(np.load(place / "val.npz"))
    images["blob"] = images["blob"].copy()
    images["blob"][images["offsets"][4] : images["offsets"][5]] = 0
    np.savez(tmp_path / "val.npz", **images)
    words = ["test_resnet", "test_vit", "--data", f"npz:{tmp_path / 'val.npz'}", "--weights", place / "w"]
    words += ["--store", tmp_path / "store", "--json"]
    assert run(*words) == 1
    assert "Image 4 of val cannot be read" in (err := capsys.readouterr().err) and "With --skip-damaged such" in err
    for _ in range(2):
        assert run(*words, "--skip-damaged") == 0
        out, err = capsys.readouterr()
        assert f"note: 1 of {N} images of val cannot be read and are left out: image 4." in err
        assert {row["n"] for row in json.loads(out) if row["metric"] == "accuracy"} == {N - 1}
    assert "decoded" not in err and "images/s" not in err, "the second run finds all done"
    found = entries(Store(tmp_path / "store"))
    assert [each.dump().index.tolist() for each in found] == 2 * [[row for row in range(N) if row != 4]]
    sound, whole = found[0].dump(), answers(place, Store(tmp_path / "whole"), "test_resnet").entries[0].dump()
    np.testing.assert_array_equal(sound.labels, np.delete(whole.labels, 4))
    np.testing.assert_allclose(sound.logits, np.delete(whole.logits, 4, 0), rtol=2e-3, atol=2e-3)


def test_all_without_any_weights_names_the_folder(place, tmp_path, capsys):
    (tmp_path / "none").mkdir()
    assert run("--all", "--weights", tmp_path / "none", "--data", f"npz:{place / 'val.npz'}", "--store", tmp_path) == 2
    assert "No pretrained model has its weights in" in capsys.readouterr().err


def test_many_models_without_weights_are_one_line(place, tmp_path, capsys):
    assert run("test_*", "--data", f"npz:{place / 'val.npz'}", "--store", tmp_path, "--json") == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("failed")]
    assert len(lines) == 1 and "answers that need weights: The weights of test_" in lines[0]


def test_graded_detection_of_other_classes(place, tmp_path, capsys):
    other = folder(tmp_path / "animals", tuple("abcdefgh"), each=6)
    fixed = folder(tmp_path / "fixed", ("x", "y"), each=3)
    words = ["test_resnet", "--data", f"npz:{place / 'val.npz'}", "--weights", place / "w", "--store", tmp_path / "s"]
    words += ["--out", f"folder:{other}", "--also", f"hard=folder:{fixed}", "--estimation", 4, "--test", 2, "--json"]
    assert run(*words) == 0
    rows = json.loads(capsys.readouterr().out)
    graded = {row["group"] for row in rows if row["protocol"] == "cood" and row["metric"] == "auroc"}
    assert {"severity 0", "severity 10", "hard"} <= graded


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--published", "nofile.csv"], "nofile.csv cannot be read as a table"),
        (["--out", "OTHER", "--estimation", 0], "--estimation must be at least 1"),
        (["--out", "OTHER", "--hierarchy", "nofile.txt"], "nofile.txt cannot be read"),
        (["--out", "OTHER", "--hierarchy", "TREE"], "no names: name them with --in-names and --out-names"),
        (["--out", "OTHER", "--hierarchy", "TREE", "--in-names", "IN"], "The hierarchy knows none of the in-classes"),
        (["--out", "OTHER", "--in-names", "FEW"], "few.txt has 3 names and"),
        (["--out", "OTHER", "--in-names", "IN", "--out-names", "FEW"], "has 8 classes: name every class"),
    ],
)
def test_options_are_checked_before_any_model_is_asked(place, tmp_path, capsys, monkeypatch, words, sentence):
    monkeypatch.chdir(tmp_path)
    other = folder(tmp_path / "animals", tuple("abcdefgh"), each=2)
    (tmp_path / "tree.txt").write_text("a b\n")
    (tmp_path / "few.txt").write_text("x\ny\nz\n")
    (tmp_path / "in.txt").write_text("".join(f"n{y}\n" for y in range(1000)))
    names = {"OTHER": f"folder:{other}", "TREE": "tree.txt", "FEW": "few.txt", "IN": "in.txt"}
    monkeypatch.setattr("nescio.commands.zoo.asked", lambda *_: pytest.fail("a model was asked"))
    data = ["test_resnet", "--data", f"npz:{place / 'val.npz'}", "--weights", place / "w", "--store", tmp_path / "s"]
    assert run(*data, *(names.get(word, word) for word in words)) == 2
    assert sentence in capsys.readouterr().err


def test_grading_that_fails_has_no_page_and_no_link_to_one(place, tmp_path, capsys):
    other = folder(tmp_path / "animals", tuple("abcdefgh"), each=6)
    words = ["test_resnet", "--data", f"npz:{place / 'val.npz'}", "--weights", place / "w", "--store", tmp_path / "s"]
    assert run(*words, "--out", f"folder:{other}", "--estimation", 8, "--test", 2) == 1
    told = capsys.readouterr()
    assert "No out-class has 10 images" in told.err and told.err.count("failed: ") == 1
    assert "nothing to show" not in told.out
    report = tmp_path / "s" / "report"
    assert not (report / "cood").exists() and "cood/index.html" not in (report / "index.html").read_text()


def test_classes_above_or_below_are_left_out_by_names_of_ones_own(place, tmp_path, capsys):
    other = folder(tmp_path / "animals", tuple("abcdefgh"), each=6)
    (tmp_path / "tree.txt").write_text("n0 a\nn1 n2\n")
    (tmp_path / "in.txt").write_text("".join(f"n{y}\n" for y in range(1000)))
    words = ["test_resnet", "--data", f"npz:{place / 'val.npz'}", "--weights", place / "w", "--store", tmp_path / "s"]
    words += ["--out", f"folder:{other}", "--estimation", 4, "--test", 2]
    words += ["--hierarchy", tmp_path / "tree.txt", "--in-names", tmp_path / "in.txt"]
    assert run(*words) == 0
    assert "1 of 8 out-classes are in-classes, or above or below" in " ".join(capsys.readouterr().out.split())
    known, new = (tmp_path / "s" / "report" / name / "index.html" for name in ("", "cood"))
    assert 'href="cood/index.html"' in known.read_text() and 'href="../index.html"' in new.read_text()
    assert main(["report", str(tmp_path / "s"), "--only", "models,fig6", "--to", str(tmp_path / "f")]) == 0


def test_a_look_at_a_few(place, tmp_path, capsys):
    words = ["test_resnet", "--data", f"npz:{place / 'val.npz'}", "--weights", place / "w", "--json"]
    assert run(*words, "--store", tmp_path, "--limit", 5) == 0
    rows = json.loads(capsys.readouterr().out)
    assert max(row["n"] for row in rows) == 5
    labels = labelled(f"npz:{place / 'val.npz'}").labels
    assert run(*words, "--store", tmp_path, "--classes", f"{labels[0]},{labels[3]},{labels[7]}") == 0
    (found,) = [each for each in entries(Store(tmp_path)) if each.facts["rows"] == 3] or [None]
    rows = json.loads(capsys.readouterr().out)
    assert max(row["n"] for row in rows) == 3 and found is None, "most rows count in the store's list"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["test_resnet"], "the following arguments are required: --data"),
        (["--data", "VAL"], "There is no model to ask"),
        (["resnet51", "--data", "VAL"], "Did you mean"),
        (["test_resnet", "--data", "npz:nowhere.npz"], "There is nothing at"),
        (["test_resnet", "--data", "VAL", "--limit", "0"], "--limit is a number of images from 1 on"),
        (["test_resnet", "--data", "VAL", "--passes", "-1"], "--passes is a number of passes from 0 on"),
        (["test_resnet", "--data", "VAL", "--drop", "1"], "--drop is a share from 0 to below 1"),
        (["test_resnet", "--data", "VAL", "--batch", "0"], "--batch is a number of images from 1 on"),
        (["test_resnet", "--data", "VAL", "--also", "x=digits"], "--also names further sets beside --out"),
        (["test_resnet", "--data", "VAL", "--out", "digits", "--also", "x"], "write NAME=SET"),
        (["test_resnet", "--data", "VAL", "--weights", "nowhere"], "no folder and no file of weights at nowhere"),
        (["test_resnet", "test_vit", "--data", "VAL", "--weights", "FILE"], "is one checkpoint and 2 models are named"),
        (["test_*", "--data", "digits"], "digits has 10 classes and the model 1000"),
        (["test_resnet", "--data", "VAL", "--classes", "x"], "is not a list of class numbers"),
    ],
)
def test_bad_words(place, tmp_path, capsys, monkeypatch, words, sentence):
    monkeypatch.chdir(tmp_path)
    names = {"VAL": f"npz:{place / 'val.npz'}", "FILE": str(place / "w/test_resnet.safetensors")}
    try:
        end = run(*(names.get(word, word) for word in words), "--store", tmp_path)
    except SystemExit as no:
        end = no.code
    err = " ".join(capsys.readouterr().err.split())
    assert end == 2 and sentence.lower() in err.lower()


def test_a_set_of_other_classes_is_a_failure_of_a_named_model(place, tmp_path, capsys):
    words = ["test_resnet", "--data", "digits", "--weights", place / "w", "--store", tmp_path, "--json"]
    assert run(*words) == 1
    assert "digits has 10 classes and the model 1000" in capsys.readouterr().err


@pytest.mark.slow
def test_a_network_of_ones_own(tmp_path, capsys):
    """store:KEY: the same answers as `nescio predict` gives, from its own size, mean and deviation."""
    store = tmp_path / "store"
    assert main(["train", "--method", "erm", "--epochs", "1", "--store", str(store), "--device", "cpu"]) == 0
    key = capsys.readouterr().out.split()[0]
    to = tmp_path / "test.npz"
    assert main(["predict", key, "--to", str(to), "--store", str(store), "--device", "cpu"]) == 0
    assert run(f"store:{key[:6]}", "--data", "digits", "--store", store, "--json") == 0
    (found,) = entries(Store(store), "digits")
    ours, theirs = found.dump(), Predictions.load(to)
    assert found.model == f"store:{key}"
    np.testing.assert_array_equal(ours.labels, theirs.labels)
    np.testing.assert_allclose(ours.logits, theirs.logits, atol=5e-3, rtol=2e-3)


REAL, FILES = os.environ.get("NESCIO_DATA", ""), os.environ.get("NESCIO_WEIGHTS", "")


@pytest.mark.slow
@pytest.mark.skipif(not (Path(REAL) / "imagenet_val_2k.npz").is_file(), reason="NESCIO_DATA has no imagenet_val_2k.npz")
@pytest.mark.skipif(not list(Path(FILES or ".").glob("efficientnet-lite0*.pth")), reason="NESCIO_WEIGHTS has no Lite0")
def test_efficientnet_lite0_is_right_about_three_of_four_images(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NESCIO_WEIGHTS", FILES)
    data = f"npz:{Path(REAL) / 'imagenet_val_2k.npz'}"
    assert run("tf_efficientnet_lite0", "--data", data, "--store", tmp_path, "--json") == 0
    (found,) = entries(Store(tmp_path))
    assert found.facts["accuracy"] == pytest.approx(0.75, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.skipif(not (Path(REAL) / "imagenet_val_2k.npz").is_file(), reason="NESCIO_DATA has no imagenet_val_2k.npz")
def test_the_larger_ones_are_as_sure_as_they_were_trained_to_be(tmp_path, monkeypatch, number):
    """With timm's padding they are right as often, and half as sure."""
    if not list(Path(FILES or ".").glob(f"efficientnet-lite{number}*.pth")):
        pytest.skip(f"NESCIO_WEIGHTS has no Lite{number}")
    images = chosen(labelled(f"npz:{Path(REAL) / 'imagenet_val_2k.npz'}"), limit=200)
    store = Store(tmp_path)
    asked = model(f"tf_efficientnet_lite{number}", store)
    (found,) = ask_all([(asked, images)], store, HERE, Settings(weights=Path(FILES))).entries
    logits = found.dump().logits[:, 0].astype(np.float64)
    sure = (np.exp(logits) / np.exp(logits).sum(1, keepdims=True)).max(1).mean()
    assert found.facts["accuracy"] == pytest.approx(0.75, abs=0.09) and 0.6 < sure < 0.76
