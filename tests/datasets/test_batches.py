"""What a batch shows: a function of the seed, the same on every road, and every augmentation acts, image by image."""

import io
import itertools

import numpy as np
import pytest
import torch
from PIL import Image

from nescio.datasets import AUGMENTATIONS, Batches, batches, builders, decode, readers, split_dataset
from nescio.datasets.images import EncodedImages, Pixels
from nescio.errors import BadInput

torch.set_num_threads(1)
CPU = torch.device("cpu")
DEVICES = [
    pytest.param("cpu"),
    pytest.param("cuda", marks=pytest.mark.gpu),
]


def pictures(n, size, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, size, size, channels), np.uint8)


def toy(n=40, size=16, channels=3, pixels=None):
    pixels = pictures(n, size, channels) if pixels is None else pixels
    labels = np.arange(len(pixels)) % 4
    return builders.dataset_from_arrays("toy", (pixels, labels), (pixels[:8], labels[:8]))


def show(data, device=CPU, images=None, **options):
    """All batches of an epoch."""
    return list(Batches(data.train if images is None else images, data, torch.device(device), **options))


def plain(x, data):
    """Normalisation undone: pixels from 0 to 1."""
    mean, std = (torch.tensor(v, device=x.device).view(-1, 1, 1) for v in (data.mean, data.std))
    return x * std + mean


def equal(one, other):
    assert len(one) == len(other)
    for each, twin in zip(one, other, strict=True):
        for a, b in zip(each, twin, strict=True):
            assert torch.equal(a, b)


def differ(one, other):
    return any(not torch.equal(a, b) for (a, *_), (b, *_) in zip(one, other, strict=True))


# ---- order and rows


@pytest.mark.parametrize("device", DEVICES)
def test_split_dataset__none_shows_the_pixels_exactly_and_every_row_once(device):
    data = toy(n=37)
    images = split_dataset(data, (2, 0, 1), 0).train
    found = show(data, device, images, batch=8)
    assert [len(y) for _, y, _ in found] == [8] * (len(images) // 8) + ([len(images) % 8] if len(images) % 8 else [])
    x, y, index = (torch.cat(parts).cpu() for parts in zip(*found, strict=True))
    assert torch.equal(y, torch.from_numpy(images.labels)) and torch.equal(index, torch.from_numpy(images.index))
    pixels = images.pixels.astype(np.float64) / 255
    expected = ((pixels - data.mean) / data.std).transpose(0, 3, 1, 2)
    assert x.dtype == torch.float32 and np.abs(x.numpy() - expected).max() < 1e-5
    shown = [np.rint(plain(each, data).numpy() * 255).astype(np.uint8) for each in x]
    assert np.array_equal(np.stack(shown).transpose(0, 2, 3, 1), images.pixels)


def test_dataset_from_arrays__shuffling_moves_rows_with_their_labels_and_loses_none():
    data = toy(n=40)
    found = show(data, batch=16, shuffle=True, seed=3)
    x, y, index = (torch.cat(parts) for parts in zip(*found, strict=True))
    assert sorted(index.tolist()) == list(range(40)) and index.tolist() != list(range(40))
    assert torch.equal(y, index % 4)
    whole, _, _ = show(data, batch=40)[0]
    assert torch.allclose(x, whole[index], atol=1e-6)
    dropped = show(data, batch=16, shuffle=True, seed=3, drop_last=True)
    equal(dropped, found[:2])
    assert len(Batches(data.train, data, CPU, batch=16)) == 3
    equal(show(data, batch=16, shuffle=True, seed=3, stop=1), found[:1])


@pytest.mark.parametrize("augment", AUGMENTATIONS)
def test_dataset_from_arrays__the_seed_decides_what_is_shown(augment):
    data = toy()
    options = {"batch": 16, "augment": augment, "shuffle": True}
    first = show(data, seed=5, **options)
    torch.rand(3)  # the global generator has no part in it
    np.random.rand(3)
    equal(first, show(data, seed=5, **options))
    assert differ(first, show(data, seed=6, **options))
    state = torch.get_rng_state()
    show(data, seed=5, **options)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("augment", AUGMENTATIONS)
def test_dataset_from_arrays__a_later_start_shows_the_same_rest(augment):
    data = toy()
    options = {"batch": 8, "augment": augment, "shuffle": True, "seed": 1}
    equal(show(data, start=2, **options), show(data, **options)[2:])
    assert show(data, start=5, **options) == []


@pytest.mark.parametrize("augment", AUGMENTATIONS)
@pytest.mark.parametrize("world", [2, 3])
def test_dataset_from_arrays__several_processes_share_the_batch_of_one(augment, world):
    data = toy(n=38)
    options = {"batch": 16, "augment": augment, "shuffle": True, "seed": 1, "views": 2}
    parts = [show(data, rank=rank, world=world, **options) for rank in range(world)]
    for whole, *shares in zip(show(data, **options), *parts, strict=True):
        for position, dimension in ((0, 1), (1, 0), (2, 0)):
            joined = torch.cat([share[position] for share in shares], dimension)
            assert torch.allclose(joined, whole[position], atol=1e-6)


def test_dataset_from_arrays__two_views_of_an_image_are_two_draws():
    data = toy()
    ((x, y, _),) = show(data, batch=40, augment="full", views=2, seed=1)
    assert x.shape == (2, 40, 3, 16, 16) and len(y) == 40
    assert (x[0] != x[1]).flatten(1).any(1).all()
    ((same, _, _),) = show(data, batch=40, augment="none", views=2)
    assert torch.equal(same[0], same[1])


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("augment", AUGMENTATIONS)
def test_dataset_from_arrays__the_memory_is_laid_out_as_asked(augment, channels_last):
    data = toy()
    form = torch.channels_last if channels_last else torch.contiguous_format
    for x, _, _ in show(data, augment=augment, channels_last=channels_last):
        assert x.is_contiguous(memory_format=form)


def test_split_dataset__subsets_share_one_copy_on_a_device_and_prediction_does_not_spoil_it():
    data = toy()
    parts = split_dataset(data, (0, 1))
    with torch.inference_mode():
        show(data, images=parts.val)
    held = parts.train.backing.on(CPU)
    assert held is parts.val.backing.on(CPU) and not held.is_inference()
    assert held.data_ptr() == data.train.backing.array.ctypes.data  # on the CPU not even a copy
    ((x, _, _),) = show(data, images=parts.train)
    x.requires_grad_(True).sum().backward()


@pytest.mark.filterwarnings("error")
def test_dataset_from_arrays__bytes_of_a_file_can_be_shown():
    """They may not be written to, which torch does not take."""
    pixels = np.frombuffer(pictures(8, 8).tobytes(), np.uint8).reshape(8, 8, 8, 3)
    data = builders.dataset_from_arrays("toy", (pixels, np.arange(8)), (pixels, np.arange(8)))
    assert len(show(data)) == 1


def test_dataset_from_arrays__bfloat16_around_it_does_not_coarsen_the_images():
    data = toy()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = show(data, augment="full")
    equal(inside, show(data, augment="full"))


def test_dataset_from_arrays__what_cannot_be_batched_is_refused():
    with pytest.raises(BadInput, match=r"no augmentation named 'flip'\. There are: none, shift, crop-flip, full"):
        Batches(toy().train, toy(), CPU, augment="flip")
    with pytest.raises(BadInput, match="at least 1 image"):
        Batches(toy().train, toy(), CPU, batch=0)


# ---- augmentation as a whole


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [8, 16, 80])
@pytest.mark.parametrize("augment", ["shift", "crop-flip", "full"])
def test_dataset_from_arrays__equal_images_in_a_batch_become_different_ones_within_range(
    augment, size, channels, device
):
    data = toy(pixels=np.repeat(pictures(1, size, channels), 16, 0))
    ((x, _, _),) = show(data, device, augment=augment, seed=2)
    seen = plain(x, data).cpu()
    assert seen.min() > -1e-5 and seen.max() < 1 + 1e-5
    assert len({image.numpy().tobytes() for image in seen}) > 4  # 8 pixels can be moved to nine places only
    first, second = show(data, device, augment=augment, seed=2, batch=8)
    assert not torch.equal(first[0], second[0])  # nor are the draws of two batches the same
    ((x, _, _),) = show(data, device, augment="none", seed=2)
    assert len({image.numpy().tobytes() for image in x.cpu()}) == 1  # switched off, the evidence is gone


@pytest.mark.gpu
@pytest.mark.parametrize("augment", AUGMENTATIONS)
def test_dataset_from_arrays__every_device_shows_the_same(augment):
    data = toy(size=80)
    options = {"augment": augment, "shuffle": True, "seed": 1, "batch": 16}
    for (x, y, _), (other, labels, _) in zip(show(data, **options), show(data, "cuda", **options), strict=True):
        assert torch.equal(y, labels.cpu()) and torch.allclose(x, other.cpu(), atol=1e-3)


def coloured(n=400, size=16):
    return torch.from_numpy(pictures(n, size)).permute(0, 3, 1, 2) / 255


def draws(n, width, seed=0):
    return torch.rand(n, width, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def acts(monkeypatch):
    """Runs `full` on equal images with one step switched off or alone, and gives the images from 0 to 1."""

    def run(pixels, augment="full", off=(), only=None):
        steps = {
            "shift": lambda x, *_: x,
            "zoom": lambda x, *_: x,
            "mirror": lambda x, *_: x,
            "recolour": lambda x, *_: x,
            "grey": lambda x, *_: x,
            "blur": lambda x, *_: x,
        }
        with monkeypatch.context() as patch:
            for name, nothing in steps.items():
                if name in off or (only is not None and name != only):
                    patch.setattr(batches, name, nothing)
            data = toy(pixels=pixels)
            ((x, _, _),) = show(data, batch=len(pixels), augment=augment, seed=4)
        return plain(x, data)

    return run


def share_of(hit):
    return hit.double().mean().item()


def is_grey(x):
    return (x.amax(1) - x.amin(1)).flatten(1).amax(1) < 1e-5


def test_grey__a_fifth_is_greyed(acts):
    pixels = np.repeat(pictures(1, 16), 600, 0)
    assert abs(share_of(is_grey(acts(pixels))) - 0.2) < 0.05
    assert share_of(is_grey(acts(pixels, off=("grey",)))) == 0
    x, draw = coloured(), draws(400, 1)[:, 0]
    seen = batches.grey(x, draw)
    weights = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
    assert torch.allclose(seen[draw < 0.2], (x * weights).sum(1, keepdim=True)[draw < 0.2].expand(-1, 3, -1, -1))
    assert torch.equal(seen[draw >= 0.2], x[draw >= 0.2])


def roughness(x):
    """Power of the differences between neighbours: what a blur takes away."""
    return (x.diff(dim=3).square().mean((1, 2, 3)) + x.diff(dim=2).square().mean((1, 2, 3))).sqrt()


def test_blur__half_are_blurred(acts):
    pixels = np.repeat(pictures(1, 64), 60, 0)
    before = roughness(torch.from_numpy(pixels[:1]).permute(0, 3, 1, 2) / 255)
    seen = roughness(acts(pixels, only="blur"))
    assert abs(share_of(seen < 0.5 * before) - 0.5 * 0.8) < 0.2  # σ is too small to see below about 0.5 pixels
    assert share_of(seen < 0.9 * before) < 0.65 and share_of(torch.isclose(seen, before)) > 0.3
    assert torch.allclose(roughness(acts(pixels, only="nothing")), before)
    x = coloured(20, 64)
    assert torch.equal(batches.blur(x, torch.full((20, 2), 0.9)), x)
    # The more σ, the smoother; the mean stays, and so does an even image.
    smoother = [roughness(batches.blur(x, torch.tensor([[level, 0.0]]).expand(20, 2))).mean() for level in (0, 0.5, 1)]
    assert smoother[0] > 2 * smoother[1] > 3 * smoother[2]
    assert (batches.blur(x, torch.zeros(20, 2)).mean() - x.mean()).abs() < 1e-3
    even = torch.full((4, 3, 64, 64), 0.3)
    assert torch.allclose(batches.blur(even, draws(4, 2) * 0.4), even)
    # A point becomes a Gaussian of the σ that was drawn: 0.1 + 1.9 / 2.
    point = torch.zeros(1, 1, 64, 64)
    point[0, 0, 32, 32] = 1
    line = batches.blur(point, torch.tensor([[0.5, 0.0]]))[0, 0].sum(0)
    spread = (line * (torch.arange(64) - 32.0).square()).sum().sqrt()
    assert abs(spread - 1.05) < 0.02


def test_mirror__half_are_mirrored(acts):
    x, draw = coloured(), draws(400, 1)[:, 0]
    seen = batches.mirror(x, draw)
    turned = (seen == x.flip(3)).flatten(1).all(1)
    assert torch.equal(turned, draw < 0.5) and torch.equal(seen[~turned], x[~turned])
    pixels = np.zeros((400, 16, 16, 3), np.uint8)
    pixels[:, 4:12, 4:7] = 200  # on the left
    for off, expected in (((), 0.5), (("mirror",), 0.0)):
        seen = acts(pixels, "crop-flip", off=("shift", *off))
        assert abs(share_of(seen[:, 0, 8, 10] > 0.5) - expected) < 0.08


def test_shift__images_are_moved_by_up_to_an_eighth(acts):
    pixels = np.zeros((600, 16, 16, 3), np.uint8)
    pixels[:, 8, 8] = 255
    at = (acts(pixels, "shift")[:, 0] > 0.5).nonzero()[:, 1:] - 8
    assert len(at) == 600
    found = {tuple(each.tolist()) for each in at}
    assert found == set(itertools.product(range(-2, 3), range(-2, 3)))
    counts = torch.bincount((at[:, 0] + 2) * 5 + at[:, 1] + 2)
    assert counts.min() > 8 and counts.max() < 45  # 24 each
    assert {
        tuple(each.tolist()) for each in (acts(pixels, "shift", off=("shift",))[:, 0] > 0.5).nonzero()[:, 1:] - 8
    } == {(0, 0)}
    # What comes in is black, what is seen is a piece of the image.
    bright = torch.full((50, 1, 8, 8), 9, dtype=torch.uint8)
    moved = batches.shift(bright, draws(50, 2), 2)
    assert set(moved.unique().tolist()) == {0, 9} and (moved[:, :, 2:6, 2:6] == 9).all()


def test_shift__reflected_borders_mirror_the_image_at_its_edge():
    x = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8).expand(50, 1, 8, 8)
    draw = draws(50, 2)
    moved = batches.shift(x, draw, 2, "reflect")
    padded = torch.nn.functional.pad(x.float(), (2,) * 4, mode="reflect")
    for row, (top, left) in enumerate((draw * 5).long().tolist()):
        assert torch.equal(moved[row].float(), padded[row, :, top : top + 8, left : left + 8])
    assert not torch.equal(moved, batches.shift(x, draw, 2))


def test_random_box__a_random_part_is_cut_out(acts):
    boxes = batches.random_box(draws(4000, 4), 0.2)
    left, top, right, bottom = boxes.unbind(1)
    w, h = right - left, bottom - top
    assert boxes.min() >= 0 and boxes.max() <= 1 + 1e-6
    assert (w * h).min() > 0.14 and (w * h).max() <= 1 + 1e-6 and abs((w * h).mean() - 0.6) < 0.03
    assert (w / h).min() > 0.74 and (w / h).max() < 1.35
    for side, room in ((left, 1 - w), (top, 1 - h)):
        place = (side / room)[room > 0.1]  # anywhere in the image: uniform
        assert abs(place.mean() - 0.5) < 0.02 and abs(place.std() - 12**-0.5) < 0.01
    # A ramp shows where it was cut: its ends are the ends of the box.
    ramp = ((torch.arange(32) + 0.5) / 32).expand(20, 1, 32, 32)
    draw = draws(20, 4, seed=1)
    left, _, right, _ = batches.random_box(draw, 0.2).unbind(1)
    seen = batches.zoom(ramp, draw, 0.2)[:, 0, 16]
    inner = left[:, None] + (right - left)[:, None] * (torch.arange(32) + 0.5) / 32
    inside = (inner > 1 / 64) & (inner < 1 - 1 / 64)
    assert torch.allclose(seen[inside], inner[inside], atol=1e-4)
    even = torch.full((8, 3, 16, 16), 0.3)
    assert torch.allclose(batches.zoom(even, draws(8, 4), 0.08), even)
    # It is what `full` does at every size and `crop-flip` above 64 pixels; below, images are moved.
    for augment, size, step in (("full", 16, "zoom"), ("crop-flip", 80, "zoom"), ("crop-flip", 64, "shift")):
        pixels = np.repeat(pictures(1, size), 4, 0)
        assert len({each.numpy().tobytes() for each in acts(pixels, augment, only=step)}) == 4
        assert len({each.numpy().tobytes() for each in acts(pixels, augment, only="nothing")}) == 1


def test_batches__four_fifths_are_recoloured(acts):
    even = np.full((600, 8, 8, 3), (180, 90, 40), np.uint8)
    original = torch.tensor([180, 90, 40]) / 255
    changed = (acts(even, off=("grey",))[:, :, 4, 4] - original).abs().amax(1) > 1e-3
    assert abs(share_of(changed) - 0.8) < 0.05
    assert share_of((acts(even, off=("grey", "recolour"))[:, :, 4, 4] - original).abs().amax(1) > 1e-3) == 0


def test_turn_hue__each_dial_of_the_colours_turns_what_it_says():
    x = 0.3 + 0.4 * coloured(8)

    def dial(position, value):
        draw = torch.full((8, 5), 0.5)
        draw[:, position], draw[:, 4] = value, 0.0
        return batches.recolour(x, draw)

    light, contrast = x.mean((1, 2, 3)), x.std((1, 2, 3))
    assert torch.allclose(dial(0, 0.5), x, atol=1e-5)  # all dials in the middle
    assert torch.allclose(dial(0, 0.75).mean((1, 2, 3)), 1.2 * light, atol=2e-3)  # brightness
    seen = dial(1, 0.0)
    assert torch.allclose(seen.mean((1, 2, 3)), light, atol=1e-5)
    assert torch.allclose(seen.std((1, 2, 3)), 0.6 * contrast, atol=1e-4)
    faded = dial(2, 0.0)
    assert torch.allclose(batches.luma(faded), batches.luma(x), atol=1e-4)
    assert torch.allclose(faded - batches.luma(x), 0.6 * (x - batches.luma(x)), atol=1e-4)
    turned = dial(3, 1.0)
    assert torch.allclose(batches.luma(turned), batches.luma(x), atol=1e-2) and (turned - x).abs().mean() > 0.02
    greys = 0.5 * torch.ones(8, 3, 4, 4)
    assert torch.allclose(batches.turn_hue(greys, torch.linspace(-3, 3, 8)), greys, atol=1e-5)
    assert torch.allclose(batches.turn_hue(x, torch.full((8,), 2 * torch.pi)), x, atol=1e-4)
    assert not torch.equal(batches.turn_hue(x, torch.full((8,), 1.0)), x)


# ---- from the disk


def write_images(place, size, n=12):
    for row in range(n):
        x, y = np.meshgrid(np.linspace(0, 1, size + 8), np.linspace(0, 1, size))
        picture = np.stack([100 + 100 * x, 200 - 100 * y, np.full_like(x, 10 * row)], 2).astype(np.uint8)
        path = place / f"c{row % 2}" / f"{row:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(path)


@pytest.fixture
def both(tmp_path, monkeypatch):
    """The same files, held in memory and streamed, with the same normalisation."""

    def make(size, shown):
        write_images(tmp_path / "p", size)
        monkeypatch.setenv("NESCIO_THREADS", "2")
        found = []
        for limit in (1 << 30, 0):
            monkeypatch.setattr(decode, "RESIDENT_BYTES", limit)
            readers._load.cache_clear()
            found.append(readers.load(f"folder:{tmp_path}/p@{shown}"))
        monkeypatch.setattr(Pixels, "moments", EncodedImages.moments)
        return found

    return make


@pytest.mark.parametrize("augment", ["none", "shift", "crop-flip"])
def test_load__streamed_images_are_those_of_memory(both, augment):
    held, streamed = both(40, 32)
    assert isinstance(streamed.train.backing, EncodedImages) and isinstance(held.train.backing, Pixels)
    options = {"batch": 4, "augment": augment, "shuffle": True, "seed": 1, "start": 1}
    for one, other in zip(show(held, **options), show(streamed, **options), strict=True):
        assert torch.equal(one[1], other[1])
        assert torch.equal(one[0], other[0])
    again = show(streamed, **options, views=2)
    assert torch.equal(again[0][0][0], again[0][0][1]) == (augment == "none")


@pytest.mark.parametrize(("augment", "size"), [("crop-flip", 96), ("full", 32)])
def test_load__streamed_parts_are_those_of_memory_at_the_detail_of_the_file(both, augment, size):
    held, streamed = both(size + 32, size)
    options = {"batch": 4, "augment": augment, "shuffle": True, "seed": 1, "views": 2}
    first = show(streamed, **options)
    equal(first, show(streamed, **options))
    assert differ(first, show(streamed, **{**options, "seed": 2}))
    equal(show(streamed, start=1, **options), first[1:])
    for (x, y, _), (other, labels, _) in zip(first, show(held, **options), strict=True):
        assert torch.equal(y, labels)
        assert (plain(x, streamed) - plain(other, streamed)).abs().mean() < 0.01
        assert (x[0] != x[1]).flatten(1).any(1).all()
    parts = [show(streamed, rank=rank, world=2, **options) for rank in range(2)]
    for whole, *shares in zip(first, *parts, strict=True):
        assert torch.allclose(torch.cat([share[0] for share in shares], 1), whole[0], atol=1e-5)


def test_load__streaming_leaves_the_global_generator_alone(both):
    """A restart in the middle of an epoch begins to stream once more: that must not move the method's draws."""
    _, streamed = both(40, 32)
    state = torch.get_rng_state()
    show(streamed, batch=4)
    assert torch.equal(state, torch.get_rng_state())


def test_load__a_damaged_file_in_a_worker_is_one_sentence(both, tmp_path):
    _, streamed = both(40, 32)
    bad = streamed.train.backing.source(3)
    with open(bad, "r+b") as file:
        file.truncate(60)
    with pytest.raises(BadInput) as no:
        show(streamed, batch=4)
    assert str(no.value) == f"{bad} cannot be read: it is damaged, cut short, or no image."


def test_load__packs_stream_too(tmp_path, monkeypatch):
    pixels, data = pictures(12, 16), []
    for each in pixels:
        out = io.BytesIO()
        Image.fromarray(each).save(out, "PNG")
        data.append(out.getvalue())
    np.savez(
        tmp_path / "toy.npz",
        blob=np.frombuffer(b"".join(data), np.uint8),
        offsets=np.cumsum([0, *map(len, data)]),
        y=np.arange(12) % 2,
        split=np.array(["train"] * 8 + ["test"] * 4),
    )
    monkeypatch.setattr(decode, "RESIDENT_BYTES", 0)
    found = readers.load("npz:toy.npz", tmp_path)
    ((x, _, _),) = show(found)
    assert torch.equal((plain(x, found) * 255).round().byte(), torch.from_numpy(pixels[:8]).permute(0, 3, 1, 2))
