"""Corruptions: functions of (image, key, name, severity, seed) alone, each doing what it is called."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import zoom

from nescio.datasets import corruption_filters, corruptions
from nescio.datasets.changes import Crop, Rotation, bits, normals, uniforms
from nescio.datasets.corruptions import CONSTANTS, CORRUPTIONS, SEVERITIES, Corruption
from nescio.errors import BadInput
from nescio.identity import to_json
from nescio.runtime import runtime_for


def pictures(n=24, h=32, w=32, channels=3, seed=0):
    """Smooth colour fields with edges: blurring, shifting and noise all move them."""
    rng = np.random.default_rng(seed)
    down, across = np.mgrid[0:h, 0:w] / max(h, w)
    images = np.empty((n, h, w, channels), np.uint8)
    for row in range(n):
        for channel in range(channels):
            a, b, c, d = rng.uniform(1, 6, 4)
            wave = np.sin(a * down * 3 + b) * np.cos(c * across * 3 + d) * 70 + 128
            images[row, ..., channel] = np.clip(wave + 60 * (across * 4 % 1 > 0.5), 0, 255)
    return torch.from_numpy(images)


X, KEYS = pictures(), torch.arange(24) * 7 + 3


def apply(name, severity=3, x=X, keys=KEYS, seed=0):
    return Corruption(name, severity, seed).apply(x, keys)


def moved(name, severity, x=X):
    return float((apply(name, severity, x, KEYS[: len(x)]).float() - x.float()).abs().mean())


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruption__an_image_does_not_depend_on_who_else_is_in_its_batch(name):
    whole = apply(name)
    assert whole.shape == X.shape and whole.dtype == torch.uint8
    alone = torch.cat([apply(name, x=X[i : i + 1], keys=KEYS[i : i + 1]) for i in (0, 5, 23)])
    assert torch.equal(alone, whole[[0, 5, 23]])
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    assert torch.equal(apply(name, x=X[order], keys=KEYS[order]), whole[order])
    torch.set_num_threads(1)
    one = apply(name)
    torch.set_num_threads(2)
    assert torch.equal(one, apply(name))


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruptions__it_moves_pixels_and_the_last_severity_more_than_the_first(name):
    changes = [moved(name, severity) for severity in SEVERITIES]
    assert min(changes) > 0.2
    if name != "elastic_transform":  # its published constants trade displacement for smoothness
        assert changes[-1] > changes[0]


DRAWN = [name for name in CORRUPTIONS if name not in
         ("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression")]  # fmt: skip


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruption__what_draws_follows_the_key_and_the_seed(name):
    same = X[:1].expand(2, -1, -1, -1).contiguous()
    first, second = apply(name, x=same, keys=torch.tensor([1, 2]))
    other = apply(name, x=same[:1], keys=torch.tensor([1]), seed=1)[0]
    assert torch.equal(first, second) is (name not in DRAWN)
    assert torch.equal(first, other) is (name not in DRAWN)


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize(("h", "w", "channels"), [(28, 28, 1), (40, 24, 3), (120, 160, 3)])
def test_corruption__any_size_and_grey_images(name, h, w, channels):
    x = pictures(2, h, w, channels)
    changed = apply(name, 2, x, KEYS[:2])
    assert changed.shape == x.shape and not torch.equal(changed, x)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruption__thin_images_and_single_pixels(name):
    """Edges are mirrored as often as a kernel needs."""
    for h, w in ((1, 1), (1, 2), (2, 2), (1, 128), (4, 200), (150, 9)):
        for severity in (1, 5):
            x = pictures(2, h, w, 3)
            assert apply(name, severity, x, KEYS[:2]).shape == x.shape


def test_corruption__noise_has_the_published_strength():
    grey = torch.full((40, 32, 32, 3), 128, dtype=torch.uint8)
    keys = torch.arange(40)
    for severity, sigma in enumerate(CONSTANTS["gaussian_noise"][0], 1):
        noise = (apply("gaussian_noise", severity, grey, keys).float() - 127.5) / 255
        assert float(noise.std()) == pytest.approx(sigma, rel=0.03)
        assert abs(float(noise.mean())) < 0.003
    for severity, rate in enumerate(CONSTANTS["shot_noise"][0], 1):
        shots = apply("shot_noise", severity, grey, keys).float() / 255
        assert float(shots.std()) == pytest.approx(np.sqrt(128 / 255 / rate), rel=0.05)
    for severity, share in enumerate(CONSTANTS["impulse_noise"][0], 1):
        salted = apply("impulse_noise", severity, grey, keys)
        assert float((salted == 255).float().mean()) == pytest.approx(share / 2, rel=0.1)
        assert float((salted == 0).float().mean()) == pytest.approx(share / 2, rel=0.1)


def test_corruption__shot_noise_is_a_poisson_draw():
    from scipy.stats import poisson

    rate = CONSTANTS["shot_noise"][1][2]  # 12 at 224 pixels: few enough to tell counts apart
    grey = torch.full((2, 120, 120, 1), 200, dtype=torch.uint8)
    counts = (apply("shot_noise", 3, grey, KEYS[:2]).double() / 255 * rate).round().flatten().numpy()
    below = counts[counts < rate]  # above that a pixel is white, whatever the count
    law = poisson(200 / 255 * rate)
    shares = np.array([np.mean(counts == k) for k in range(rate)])
    assert len(below) > 10_000
    np.testing.assert_allclose(shares, law.pmf(np.arange(rate)), atol=0.01)


def test_corruption__colour_changes_by_their_formulas():
    import colorsys

    bright = apply("brightness", 4)[0, 3, 5].tolist()
    h, s, v = colorsys.rgb_to_hsv(*(X[0, 3, 5].numpy() / 255))
    expected = np.array(colorsys.hsv_to_rgb(h, s, min(1, v + 0.2))) * 255
    np.testing.assert_allclose(bright, expected, atol=1.01)
    black = torch.zeros(1, 32, 32, 3, dtype=torch.uint8)
    assert apply("brightness", 1, black, KEYS[:1]).unique().tolist() == [int(0.05 * 255)]
    x = X[:1].float() / 255
    mean = x.mean((1, 2), keepdim=True)
    wanted = ((x - mean) * 0.4 + mean).clamp(0, 1) * 255
    assert float((apply("contrast", 3, X[:1], KEYS[:1]).float() - wanted).abs().max()) <= 1.01


def test_corruption__pixelate_and_jpeg_are_pillows():
    image = Image.fromarray(X[2].numpy())
    small = image.resize((int(32 * 0.75),) * 2, Image.Resampling.BOX).resize((32, 32), Image.Resampling.BOX)
    np.testing.assert_array_equal(apply("pixelate", 4)[2].numpy(), np.asarray(small))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=58)
    np.testing.assert_array_equal(apply("jpeg_compression", 3)[2].numpy(), np.asarray(Image.open(file)))


def test_corruption__blurs_keep_flat_images_and_smooth_edges():
    flat = torch.full((2, 32, 32, 3), 90, dtype=torch.uint8)
    for name in ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "elastic_transform"):
        assert int((apply(name, 5, flat, KEYS[:2]).int() - 90).abs().max()) <= 1, name
    edge = torch.zeros(1, 32, 32, 3, dtype=torch.uint8)
    edge[:, :, 24:] = 200
    for name in ("defocus_blur", "motion_blur", "zoom_blur"):
        steps = (apply(name, 5, edge, KEYS[:1])[0, 16, :, 0].int().diff()).abs()
        assert int(steps.max()) < 150, name


def test_corruption__snow_and_frost_brighten_and_fog_hides():
    dark = (X.float() * 0.3).byte()
    for name in ("snow", "frost"):
        assert float(apply(name, 4, dark).float().mean()) > float(dark.float().mean()) + 5, name

    def seen(severity):
        foggy = apply("fog", severity).float().flatten(1)
        pairs = zip(foggy, X.float().flatten(1), strict=True)
        return float(torch.stack([torch.corrcoef(torch.stack(pair))[0, 1] for pair in pairs]).mean())

    visible = [seen(severity) for severity in SEVERITIES]
    assert visible == sorted(visible, reverse=True) and visible[0] > 0.9 and visible[-1] < 0.7


def test_corruption__the_constants_of_the_larger_version_hold_from_100_pixels_on():
    small, large = pictures(1, 96, 96), pictures(1, 104, 104)
    keys = torch.tensor([5])
    for x, sigma in ((small, 0.04), (large, 0.08)):
        grey = torch.full_like(x, 128)
        noise = (apply("gaussian_noise", 1, grey, keys).float() - 127.5) / 255
        assert float(noise.std()) == pytest.approx(sigma, rel=0.05)


def test_uniforms__random_numbers_are_uniform_normal_and_independent_of_each_other():
    keys = torch.arange(3000)
    u = uniforms(keys, 8, 5).numpy()
    assert u.min() > 0 and u.max() < 1
    np.testing.assert_allclose(np.histogram(u, 16, (0, 1))[0] / u.size, 1 / 16, atol=0.004)
    assert np.abs(np.corrcoef(u.T) - np.eye(8)).max() < 0.06
    assert abs(np.corrcoef(u[:-1, 0], u[1:, 0])[0, 1]) < 0.06
    z = normals(keys, 7, 5).numpy()
    assert abs(z.mean()) < 0.02 and z.std() == pytest.approx(1, abs=0.02)
    assert not np.allclose(uniforms(keys, 8, 6).numpy(), u)


def test_corruption__names_severities_and_keys():
    with pytest.raises(BadInput, match="no corruption named 'rain'"):
        Corruption("rain", 1)
    with pytest.raises(BadInput, match="from 1 to 5"):
        Corruption("fog", 6)
    assert len({to_json(Corruption(name, severity)) for name in CORRUPTIONS for severity in SEVERITIES}) == 75
    assert (Corruption("fog", 3).condition, Corruption("fog", 3).level) == ("fog", 3.0)


def test_rotation__rotations():
    x = pictures(3, 20, 12)
    keys = KEYS[:3]
    assert torch.equal(Rotation(0).apply(x, keys), x) and torch.equal(Rotation(360).apply(x, keys), x)
    square = pictures(2, 16, 16)
    assert torch.equal(Rotation(90).apply(square, keys[:2]), square.rot90(1, (1, 2)))
    assert torch.equal(Rotation(180).apply(x, keys), x.rot90(2, (1, 2)))
    turned = Rotation(40).apply(square, keys[:2])
    wanted = np.asarray(Image.fromarray(square[0].numpy()).rotate(40, Image.Resampling.BILINEAR))
    inner = slice(4, 12)
    assert np.abs(turned[0].numpy()[inner, inner].astype(int) - wanted[inner, inner].astype(int)).mean() < 3


def test_crop__crops_show_a_part_of_the_image_and_follow_the_key():
    ramp = torch.arange(64, dtype=torch.uint8).repeat(64, 1)[None, :, :, None].expand(50, 64, 64, 1).contiguous()
    shown = Crop(0.25, 0.5).apply(ramp, torch.arange(50)).float()
    widths = shown[:, 32, -1, 0] - shown[:, 32, 0, 0]
    assert float(widths.min()) >= 14 and float(widths.max()) <= 33 and float(widths.std()) > 2
    again = Crop(0.25, 0.5).apply(ramp[:7], torch.arange(7)).float()
    assert torch.equal(again, shown[:7])
    assert not torch.equal(Crop(0.25, 0.5, seed=1).apply(ramp, torch.arange(50)).float(), shown)
    with pytest.raises(BadInput, match="Crop keeps"):
        Crop(0.5, 0.2)


@pytest.mark.parametrize("count", [7, 3000, 9000])
def test_bits_are_alike_independent_and_functions_of_key_place_and_seed(count):
    keys = torch.arange(400) * 31
    found = bits(keys, count, 5)
    assert found.shape == (400, count) and found.dtype == torch.int16
    assert torch.equal(bits(keys[[3, 90]], count, 5), found[[3, 90]])
    assert not torch.equal(bits(keys, count, 6), found)
    some = found[:, torch.linspace(0, count - 1, 7).long()].double()
    assert float((torch.corrcoef(some.T) - torch.eye(7)).abs().max()) < 0.25
    assert float(torch.corrcoef(found[:5].double())[0, 1:].abs().max()) < (0.99 if count == 7 else 0.1)
    for bit in range(16):  # every bit is as often 0 as 1
        assert float((found >> bit & 1).double().mean()) == pytest.approx(0.5, abs=0.04)


def test_corruption__shot_noise_of_black_is_black_and_noise_is_clipped():
    black, white = (torch.full((3, 32, 32, 3), level, dtype=torch.uint8) for level in (0, 255))
    assert int(apply("shot_noise", 5, black, KEYS[:3]).max()) == 0
    noisy = apply("gaussian_noise", 5, white, KEYS[:3])
    assert 0.4 < float((noisy == 255).float().mean()) < 0.6


def test_blur_along_angle__a_blur_along_a_line_is_the_sum_over_its_steps():
    x, angle = X[:6].float(), torch.tensor([0.7, -0.3, 0.1, 0.7, -0.75, 0.0])
    found = corruption_filters._blur_along_angle(x, 4, 2.0, angle)
    weights = torch.exp(-(torch.arange(9.0) ** 2) / 8)
    for row in range(6):
        total = torch.zeros(32, 32, 3)
        for step, weight in enumerate(weights / weights.sum()):
            down, across = (step * angle[row].sin()).round().int(), (step * angle[row].cos()).round().int()
            lines, columns = ((torch.arange(32) + move).clamp(0, 31) for move in (down, across))
            total += weight * x[row][lines][:, columns]
        assert torch.allclose(found[row], total, atol=0.02)


def enlarged(image, factor):
    """The published way: whole pixels of the middle, SciPy's zoom, and what is too much cut off on both sides."""
    for axis, size in enumerate(image.shape[:2]):
        kept = int(np.ceil(size / factor))
        middle = np.take(image, np.arange((size - kept) // 2, (size - kept) // 2 + kept), axis)
        grown = zoom(middle, [factor if each == axis else 1 for each in range(image.ndim)], order=1)
        extra = (grown.shape[axis] - size) // 2
        image = np.take(grown, np.arange(extra, extra + size), axis)
    return image


@pytest.mark.parametrize("size", [32, 104])
def test_corruption__a_zoom_blur_is_the_mean_of_its_zooms(size):
    shown = pictures(2, size, size - 4)
    for severity in (1, 2, 5):
        factors = np.arange(1, *CONSTANTS["zoom_blur"][size > 100][severity - 1]).tolist()
        for before, after in zip(shown, apply("zoom_blur", severity, shown, KEYS[:2]), strict=True):
            x = before.numpy().astype(float)
            wanted = (x + sum(enlarged(x, factor) for factor in factors)) / (len(factors) + 1)
            assert np.abs(after.numpy() + 0.5 - wanted).max() <= 0.51


@pytest.mark.parametrize("factor", [1.0, 1.25, 1.75, 2.5, 4.0, 4.5])
@pytest.mark.parametrize(("h", "w"), [(32, 32), (33, 21), (1, 9), (3, 2)])
def test_zoomed__flakes_of_snow_are_enlarged_as_published(h, w, factor):
    flakes = torch.rand(h, w, 2)
    assert np.allclose(corruption_filters._zoomed(flakes, factor), enlarged(flakes.numpy(), factor), atol=1e-5)


def test_final_sources__glass_copies_one_pixel_after_the_other():
    places = torch.randint(0, 300, (300,))
    values = torch.rand(300)
    in_turn = values.clone()
    for number in range(299, -1, -1):
        in_turn[number] = in_turn[places[number]]
    assert torch.equal(values[corruption_filters._final_sources(places)], in_turn)


def test_corruptions__pixels_travel_further_through_glass_where_copies_are_copied(monkeypatch):
    shown = torch.randint(0, 256, (4, 120, 120, 3), dtype=torch.uint8)
    shown = torch.from_numpy(zoom(shown.numpy()[:, ::6, ::6].astype(float), (1, 6, 6, 1), order=1)).byte()
    in_turn = moved("glass_blur", 3, shown)
    monkeypatch.setattr(corruption_filters, "_final_sources", lambda places: places)  # all at once
    assert in_turn > 1.05 * moved("glass_blur", 3, shown)


@pytest.mark.parametrize("decay", [3.0, 2.0, 1.4])
def test_plasma__octaves_of_fog_fall_by_the_square_of_the_decay(decay):
    """Published: the wobble is drawn between plus and minus a wobble, and multiplied by it."""
    clouds = corruption_filters._plasma(torch.arange(64), 64, decay, 0)

    def wobble(step):
        """Deviation of the middles of squares from the mean of their corners."""
        corners = clouds[:, ::step, ::step]
        mean = (corners + corners.roll(-1, 1) + corners.roll(-1, 2) + corners.roll((-1, -1), (1, 2))) / 4
        return float((clouds[:, step // 2 :: step, step // 2 :: step] - mean).std())

    assert wobble(8) / wobble(4) == pytest.approx(decay**2, rel=0.05)
    assert wobble(4) / wobble(2) == pytest.approx(decay**2, rel=0.05)


@pytest.mark.parametrize("size", [32, 104])
def test_corruption__motion_leaves_flat_images_as_they_are(size):
    flat = torch.full((4, size, size, 3), 200, dtype=torch.uint8)
    flat[1] = 255
    for severity in SEVERITIES:
        assert torch.equal(apply("motion_blur", severity, flat, KEYS[:4]), flat)


def test_ice_is_as_bright_and_as_rough_as_the_photographs():
    """Measured on the published photographs: mean 165, neighbours 19 apart at a fifth of their size and 12 in full."""
    for size, rough in ((32, 19.1), (224, 12.0)):
        ice = corruption_filters._ice(size, size, 0, torch.device("cpu"))
        assert float(ice.mean()) * 0.933 == pytest.approx(165, rel=0.03)  # the mean of its tint
        assert float(ice.diff(dim=1).abs().mean()) == pytest.approx(rough, rel=0.1)


def test_corruption__rounds_of_glass_draw_anew(monkeypatch):
    seen = []
    monkeypatch.setattr(
        corruption_filters, "bits", lambda index, count, seed: seen.append(seed) or bits(index, count, seed)
    )
    apply("glass_blur", 5, X[:2], KEYS[:2])
    assert len(set(seen)) == 2 and abs(seen[0] - seen[1]) > len(X)  # a seed next to it is that of the next image


@pytest.mark.parametrize(
    ("pixels", "keys", "words"),
    [
        (X[:3], KEYS[:2], "3 images need as many keys, and there are 2"),
        (X[:2].int(), KEYS[:2], "uint8 images"),
        (X[:2, ..., :2], KEYS[:2], "one or three channels"),
        (X[:2].repeat(1, 1, 1, 2), KEYS[:2], "one or three channels"),
        (X[0], KEYS[:1], "uint8 images"),
    ],
)
def test_corruption__what_is_no_image_is_refused(pixels, keys, words):
    for name in CORRUPTIONS:
        with pytest.raises(BadInput, match=words):
            apply(name, 1, pixels, keys)


def test_corruption__threads_of_torch_are_as_before(monkeypatch):
    monkeypatch.setitem(corruptions.CHUNK, "cpu", X[0].numel() * 5)
    torch.set_num_threads(2)
    halves = [apply("fog", x=X[rows], keys=KEYS[rows]) for rows in (slice(12), slice(12, 24))]
    assert torch.equal(apply("fog"), torch.cat(halves))
    assert torch.get_num_threads() == 2
    with torch.inference_mode():
        apply("fog")
    apply("fog")


@pytest.mark.gpu
@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("severity", [1, 5])
def test_corruption__a_gpu_shows_what_a_cpu_shows(name, severity):
    runtime_for("cuda")  # with the products of training, which may be rounded
    here = apply(name, severity).int()
    there = apply(name, severity, X.cuda(), KEYS.cuda()).cpu().int()
    apart = (here - there).abs()
    assert int(apart.max()) <= 1 and float((apart > 0).float().mean()) < 0.001
