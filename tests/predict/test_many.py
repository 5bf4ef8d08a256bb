"""Many networks on many image sets: the numbers are timm's, work is done once, and a failure stops no other."""

import io
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from nescio.datasets import pixel_cache
from nescio.predictions.model_predictions import list_stored_predictions
from nescio.work.store import Store
from tests.support.zoo_help import N, answers, checkpoint, folder, images_at, pack

torch = pytest.importorskip("torch")
timm = pytest.importorskip("timm")

from nescio.checkpoints import read_weights  # noqa: E402
from nescio.datasets.image_set import ImageSet  # noqa: E402
from nescio.datasets.names import absolute_name  # noqa: E402
from nescio.datasets.view import View  # noqa: E402
from nescio.methods.base import Output  # noqa: E402
from nescio.networks.models import find_network, with_weights  # noqa: E402
from nescio.networks.network import Network  # noqa: E402
from nescio.predict import OutputSpec, outputs, predict_step, steps  # noqa: E402
from nescio.runtime import runtime_for  # noqa: E402

pytest_plugins = ("tests.support.zoo_fixtures",)
pytestmark = pytest.mark.usefixtures("offline")


def by_timm(place, name, source, **options):
    """The logits of one image by timm's own transform and loop."""
    from PIL import Image
    from timm.data import create_transform, resolve_model_data_config

    network = timm.create_model(name, **options).eval()
    network.load_state_dict(read_weights(place / "w" / f"{name}.safetensors"))
    transform = create_transform(**resolve_model_data_config(network, use_test_size=True))
    image = Image.open(io.BytesIO(source)).convert("RGB")
    with torch.inference_mode():
        return network(transform(image)[None])[0].numpy()


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_efficientnet"])
def test_many__the_logits_are_those_of_timm(place, tmp_path, name):
    (found,), failures = answers(place, Store(tmp_path), name)
    assert not failures
    dump, images = found.load(), images_at(place).load()
    assert dump.logits.dtype == np.float16 and dump.logits.shape == (N, 1, 1000)
    assert dump.in_distribution is None or dump.in_distribution.all()
    assert np.array_equal(dump.labels, images.labels) and np.array_equal(dump.index, images.index)
    for row in (0, 5, N - 1):
        np.testing.assert_allclose(dump.logits[row, 0], by_timm(place, name, images.source(row)), rtol=2e-3, atol=2e-3)


def test_many__facts_of_a_model(place, tmp_path):
    (found,), _ = answers(place, Store(tmp_path), "test_resnet")
    module = timm.create_model("test_resnet")
    assert found.facts["params"] == sum(each.numel() for each in module.parameters())
    assert (found.facts["input_size"], found.facts["classes"], found.facts["rows"]) == (160, 1000, N)
    assert found.facts["embedding_size"] == module.fc.in_features and found.facts["dropout"] is False
    right = (found.load().logits[:, 0].argmax(1) == found.load().labels).mean()
    assert found.facts["accuracy"] == pytest.approx(right)
    assert found.data == f"npz:{(place / 'val.npz').resolve()}"


def test_many__embeddings_are_what_the_last_layer_is_given(place, tmp_path):
    keep = {"fields": ("logits", "embeddings"), "dropout": 0.5, "mc_samples": 2}
    (found,), _ = answers(place, Store(tmp_path), "test_resnet", **keep)
    dump = found.load()
    module = timm.create_model("test_resnet")
    module.load_state_dict(read_weights(place / "w/test_resnet.safetensors"))
    again = dump.embeddings.astype(np.float32) @ module.fc.weight.detach().numpy().T + module.fc.bias.detach().numpy()
    np.testing.assert_allclose(again, dump.logits[:, 0], atol=1e-2)
    (plain,), _ = answers(place, Store(tmp_path), "test_resnet")
    assert plain.load().embeddings is None


def test_many__batches_do_not_change_the_answers(place, tmp_path):
    (one,), _ = answers(place, Store(tmp_path / "a"), "test_resnet", batch=1)
    (many,), _ = answers(place, Store(tmp_path / "b"), "test_resnet", batch=7)
    np.testing.assert_allclose(one.load().logits, many.load().logits, atol=2e-3)


# ---- memory


def test_many__too_large_a_batch_is_halved(place, tmp_path, monkeypatch):
    seen = []
    real = outputs._outputs

    def tight(*args):
        seen.append(args[-1])
        if args[-1] > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(*args)

    monkeypatch.setattr(outputs, "_outputs", tight)
    _, failures = answers(place, Store(tmp_path), "test_resnet", batch=12)
    assert not failures
    assert seen == [12, 6, 3]


def test_many__numbers_that_are_not_finite_are_a_failure_with_a_sentence(place, tmp_path):
    state = read_weights(place / "w/test_resnet.safetensors")
    state["fc.bias"] = state["fc.bias"].clone()
    state["fc.bias"][3] = float("nan")
    (tmp_path / "w").mkdir()
    torch.save(state, tmp_path / "w/test_resnet.pth")
    _, (failure,) = answers(place, Store(tmp_path / "store"), "test_resnet", weights=tmp_path / "w")
    assert f"not finite for {N} of {N} images" in failure.reason


def test_predict_images__memory_does_not_grow_with_the_images(tmp_path):
    """20,000 × 1,000 logits are 80 MB in float32; what is held beside the files is a few batches."""
    rows, classes = 20_000, 1000
    pixels = np.random.default_rng(0).integers(0, 256, (rows, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "set.npz", x_test=pixels, y_test=np.arange(rows) % classes)
    del pixels
    wanted = Network("small", View(8, 8, "trained"), (0.5,) * 3, (0.5,) * 3, classes)
    layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, classes)).eval()
    shown = ImageSet(f"npz:{tmp_path / 'set.npz'}", split="test_or_all", view=wanted.view).load()
    store, seen = Store(tmp_path / "store"), []
    pixel_cache.cache_pixels(shown, wanted.view, store)

    def own():
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1000

    class Watched(torch.nn.Module):
        normalized = False

        def forward(self, x):
            seen.append(own())
            return Output(layers(x)[:, None])

    here, output_spec = runtime_for("cpu"), OutputSpec(("logits",), "float16")
    dump = outputs.predict_images(
        Watched(), wanted, shown, store, here, output_spec, 0, outputs.arrays_on_disk(tmp_path), 500
    )
    assert dump.logits.shape == (rows, 1, classes) and dump.logits.dtype == np.float16
    before = own()
    dump.save(tmp_path / "dump")
    assert max(seen[4:]) - seen[4] < 25 and own() - before < 25, "MB"


@pytest.mark.gpu
def test_stored_predictions__a_gpu_says_the_same(place, tmp_path):
    from nescio.work.steps import Context

    store = Store(tmp_path)
    wanted = with_weights(find_network("test_resnet", store), place / "w")
    output_spec = OutputSpec(("logits", "embeddings"), "float16", mc_samples=30, dropout=0.2)
    ours = steps.stored_predictions(wanted, images_at(place), Context(store, device="cuda"), output_spec)
    (theirs,), _ = answers(place, store, "test_resnet")
    np.testing.assert_allclose(ours.logits, theirs.load().logits, atol=0.05)
    assert ours.variants["mc-dropout"].shape == (N, 1000) and len(ours.embeddings) == N


# ---- the store


def test_predict_step__a_second_run_does_nothing_and_a_change_of_anything_is_other_work(place, tmp_path, monkeypatch):
    store = Store(tmp_path)
    (first,), _ = answers(place, store, "test_resnet")
    monkeypatch.setattr(steps, "predict_images", None)
    (again,), _ = answers(place, store, "test_resnet", batch=5)
    assert (again.key, again.path) == (first.key, first.path)
    monkeypatch.undo()
    base, images = with_weights(find_network("test_resnet", store), place / "w"), images_at(place)

    def key(wanted=base, shown=images, **how):
        kept = {"fields": ("logits",), "dtype": "float16", "mc_samples": 30, "compared": True}
        return predict_step(wanted, shown, output_spec=OutputSpec(**(kept | how))).key

    assert key() == first.key
    other = checkpoint(tmp_path / "other.safetensors", "test_resnet", seed=1)
    pack(tmp_path / "val.npz", n=N, seed=1)
    keys = {
        key(),
        key(mc_samples=29),
        key(dropout=0.1),
        key(fields=("logits", "embeddings")),
        key(precision="bf16"),
        key(shown=images_at(place, limit=5)),
        key(shown=images_at(tmp_path)),
        key(with_weights(find_network("test_resnet", store), other)),
        key(with_weights(find_network("test_resnet.r160_in1k", store), place / "w")),
    }
    assert len(keys) == 9


def test_many__images_are_decoded_once_for_all_models_that_see_them_alike(place, tmp_path, monkeypatch):
    seen = []
    real = pixel_cache.decode_pixels
    monkeypatch.setattr(pixel_cache, "decode_pixels", lambda source, view: (seen.append(view), real(source, view))[1])
    store = Store(tmp_path)
    found, failures = answers(place, store, "test_vit", "test_resnet", "test_efficientnet")
    assert len(found) == 3 and not failures
    assert len({each.interpolation for each in seen}) == 2, "the ResNet is tested with another interpolation"
    assert len(seen) == 2 * N
    assert [each.model for each in found] == ["test_vit", "test_resnet", "test_efficientnet"]
    assert [each.model for each in list_stored_predictions(store)] == ["test_efficientnet", "test_resnet", "test_vit"]


def test_many__a_failing_model_never_stops_the_others(place, tmp_path):
    (tmp_path / "w").mkdir()
    for name in ("test_resnet", "test_efficientnet"):
        os.link(place / "w" / f"{name}.safetensors", tmp_path / "w" / f"{name}.safetensors")
    checkpoint(tmp_path / "w/test_vit.safetensors", "test_resnet")
    store = Store(tmp_path / "store")
    names = ("test_vit", "test_resnet", "test_byobnet", "test_efficientnet")
    found, failures = answers(place, store, *names, weights=tmp_path / "w")
    assert [each.model for each in found] == ["test_resnet", "test_efficientnet"]
    reasons = {failure.name: failure.reason for failure in failures}
    kinds = {failure.name: failure.kind for failure in failures}
    assert "does not fit test_vit" in reasons["test_vit on val"]
    assert "test_byobnet" in reasons["test_byobnet on val"]
    assert kinds == {"test_vit on val": "BadInput", "test_byobnet on val": "WeightsNotFound"}
    noted = [run for run in store.runs() if run.state == "failed"]
    assert [(run.stage, run.config["model"]) for run in noted] == [("predict", "test_vit")]
    assert "does not fit" in noted[0].reason
    checkpoint(tmp_path / "w/test_vit.safetensors", "test_vit")
    found, _ = answers(place, store, *names, weights=tmp_path / "w")
    assert len(found) == 3


def test_image_set__an_unreadable_image_costs_the_set_and_nothing_that_is_finished(place, tmp_path):
    names = tuple(f"{n:04}" for n in range(1000))
    store = Store(tmp_path / "store")
    assert len(answers(place, store, "test_resnet")[0]) == 1
    bad = folder(tmp_path / "set", names[:5], each=1)
    (bad / "0002/0.jpg").write_bytes(b"none")
    images = ImageSet(absolute_name(f"folder:{bad}"), split="all_ood")
    found, failures = answers(place, store, "test_resnet", "test_vit", images=[images, images_at(place)])
    assert [each.model for each in found] == ["test_resnet", "test_vit"]
    assert len(failures) == 2
    assert all("0002/0.jpg" in failure.reason for failure in failures)


def killed(place, store, number):
    """Asks two models in a process of its own, which kills itself when it reaches a batch; how it ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        torch.set_num_threads(1)  # the parent's threads are not here
        real = outputs.input_batches

        def feed(*args):
            for at, batch in enumerate(real(*args)):
                if at == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield batch

        outputs.input_batches = feed
        _, failures = answers(place, store, "test_resnet", "test_efficientnet", batch=4)
        os._exit(len(failures))
    finally:
        os._exit(77)


def test_many__a_killed_run_goes_on(place, tmp_path):
    store = Store(tmp_path)
    assert killed(place, store, 2) == -signal.SIGKILL and list_stored_predictions(store) == []
    kept = {path.name for path in (tmp_path / "pixels").glob("*")}
    assert len(kept) == 1, "the decoded images stay"
    assert not answers(place, store, "test_resnet", "test_efficientnet", batch=4)[1]
    expected, _ = answers(place, Store(tmp_path / "other"), "test_resnet", "test_efficientnet", batch=4)
    for ours, theirs in zip(
        sorted(list_stored_predictions(store), key=lambda each: each.model, reverse=True), expected, strict=True
    ):
        assert ours.model == theirs.model and ours.key == theirs.key
        np.testing.assert_array_equal(ours.load().logits, theirs.load().logits)
        store.verify("predict", ours.key)


def test_many__two_processes_share_the_work(place, tmp_path):
    others = []
    for _ in range(2):
        child = os.fork()
        if not child:
            os._exit(killed(place, Store(tmp_path), 99))
        others.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in others] == [0, 0]
    found = list_stored_predictions(Store(tmp_path))
    assert [each.model for each in found] == ["test_efficientnet", "test_resnet"]
    assert len(list((tmp_path / "pixels").glob("*"))) == 2


# ---- real weights

REAL, FILES = os.environ.get("NESCIO_DATA", ""), os.environ.get("NESCIO_WEIGHTS", "")


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.skipif(not (Path(REAL) / "imagenet_val_2k.npz").is_file(), reason="NESCIO_DATA has no imagenet_val_2k.npz")
def test_many__the_larger_ones_are_as_sure_as_they_were_trained_to_be(tmp_path, monkeypatch, number):
    """With timm's padding they are right as often, and half as sure."""
    if not list(Path(FILES or ".").glob(f"efficientnet-lite{number}*.pth")):
        pytest.skip(f"NESCIO_WEIGHTS has no Lite{number}")
    images = ImageSet(f"npz:{Path(REAL) / 'imagenet_val_2k.npz'}", split="test_or_all", limit=200)
    name = f"tf_efficientnet_lite{number}"
    (found,), _ = answers(tmp_path, Store(tmp_path), name, images=images, weights=Path(FILES))
    logits = found.load().logits[:, 0].astype(np.float64)
    sure = (np.exp(logits) / np.exp(logits).sum(1, keepdims=True)).max(1).mean()
    assert found.facts["accuracy"] == pytest.approx(0.75, abs=0.09) and 0.6 < sure < 0.76
