"""Time of fifteen corruptions at five severities on 10,000 images of 32 × 32 pixels, compared with one image at a time.

The peers follow the published definitions with NumPy, scikit-image, OpenCV and Pillow. Work shared by all images of a
setting, such as a kernel, is done before timing. A peer processes a sample, and its time is scaled. Wall and
processor time are recorded; on a busy machine only the latter is meaningful.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from _table import show

from nescio.datasets.corruptions import CONSTANTS, SEVERITIES, Corruption

N, SAMPLE, SIZE, ROUNDS = 10_000, 100, 32, 3
FIVE_TIMES = (
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur",
    "brightness", "contrast",
)  # fmt: skip
Peer = Callable[[Any], Any]  # image (h, w, 3) from 0 to 1 → corrupted image before clipping


def images(n: int) -> Any:
    """Smooth colour fields with fine detail, like photographs."""
    import cv2

    rng = np.random.default_rng(0)
    coarse = rng.uniform(0, 255, (n, 5, 5, 3)).astype(np.float32)
    fine = rng.normal(0, 12, (n, SIZE, SIZE, 3))
    smooth = np.stack([cv2.resize(image, (SIZE, SIZE), interpolation=cv2.INTER_CUBIC) for image in coarse])
    return np.clip(smooth + fine, 0, 255).astype(np.uint8)


# ---- peers: (generator, constants) → function of one image


def gaussian_noise(rng: Any, sigma: float) -> Peer:
    return lambda x: x + rng.normal(size=x.shape, scale=sigma)


def shot_noise(rng: Any, rate: float) -> Peer:
    return lambda x: rng.poisson(x * rate) / rate


def impulse_noise(rng: Any, share: float) -> Peer:
    from skimage.util import random_noise

    return lambda x: random_noise(x, mode="s&p", amount=share, rng=rng)


def defocus_blur(rng: Any, constants: tuple[float, float]) -> Peer:
    import cv2

    radius, blur = constants
    at = np.arange(-8, 9)
    disk = (at[:, None] ** 2 + at**2 <= radius**2).astype(np.float64)
    kernel = cv2.GaussianBlur(disk / disk.sum(), (3, 3), blur)
    return lambda x: cv2.filter2D(x, -1, kernel)


def glass_blur(rng: Any, constants: tuple[float, int, int]) -> Peer:
    from skimage.filters import gaussian

    sigma, distance, rounds = constants

    def work(x: Any) -> Any:
        x = gaussian(x, sigma=sigma, channel_axis=-1)
        for _ in range(rounds):
            for h in range(SIZE - distance, distance, -1):
                for w in range(SIZE - distance, distance, -1):
                    dx, dy = rng.integers(-distance, distance, size=2)
                    x[h % SIZE, w % SIZE] = x[min(h + dy, SIZE - 1), min(w + dx, SIZE - 1)]
        return gaussian(x, sigma=sigma, channel_axis=-1)

    return work


def _line(radius: int, sigma: float, angle: float) -> Any:
    """A kernel of one-sided Gaussian weights along a line."""
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    kernel = np.zeros((4 * radius + 1,) * 2)
    rows = np.rint(steps * math.sin(angle)).astype(int) + 2 * radius
    np.add.at(kernel, (rows, np.rint(steps * math.cos(angle)).astype(int) + 2 * radius), weights)
    return kernel / kernel.sum()


def motion_blur(rng: Any, constants: tuple[int, float]) -> Peer:
    import cv2

    def work(x: Any) -> Any:
        kernel = _line(*constants, rng.uniform(-math.pi / 4, math.pi / 4))
        return cv2.filter2D(x, -1, kernel, borderType=cv2.BORDER_REPLICATE)

    return work


def _zoom(x: Any, factor: float) -> Any:
    import cv2

    crop_size = math.ceil(SIZE / factor)
    top = (SIZE - crop_size) // 2
    zoomed_size = round(crop_size * factor)
    zoomed = cv2.resize(
        x[top : top + crop_size, top : top + crop_size], (zoomed_size, zoomed_size), interpolation=cv2.INTER_LINEAR
    )
    trim = (zoomed_size - SIZE) // 2
    return zoomed[trim : trim + SIZE, trim : trim + SIZE]


def zoom_blur(rng: Any, constants: tuple[float, float]) -> Peer:
    factors = np.arange(1, *constants)
    return lambda x: (x + sum(_zoom(x, factor) for factor in factors)) / (len(factors) + 1)


def snow(rng: Any, constants: tuple[float, ...]) -> Peer:
    import cv2

    mean, deviation, zoom, threshold, radius, sigma, weight = constants

    def work(x: Any) -> Any:
        flakes = _zoom(rng.normal(mean, deviation, x.shape[:2]), zoom)
        flakes[flakes < threshold] = 0
        kernel = _line(int(radius), sigma, rng.uniform(-0.75 * math.pi, -0.25 * math.pi))
        flakes = cv2.filter2D(flakes.clip(0, 1), -1, kernel, borderType=cv2.BORDER_REPLICATE)[..., None]
        grey = cv2.cvtColor(x.astype(np.float32), cv2.COLOR_RGB2GRAY)[..., None]
        x = weight * x + (1 - weight) * np.maximum(x, grey * 1.5 + 0.5)
        return x + flakes + np.rot90(flakes, 2)

    return work


def frost(rng: Any, constants: tuple[float, float]) -> Peer:
    image_share, ice = constants
    pictures = rng.uniform(0, 1, (6, 200, 200, 3))  # random images, because the time does not depend on the content

    def work(x: Any) -> Any:
        top, left = rng.integers(200 - SIZE, size=2)
        return image_share * x + ice * pictures[rng.integers(6), top : top + SIZE, left : left + SIZE]

    return work


def fog(rng: Any, constants: tuple[float, float]) -> Peer:
    strength, decay = constants

    def plasma() -> Any:
        cloud, step, wobble = np.zeros((SIZE, SIZE)), SIZE, 100.0

        def moved(mean: Any) -> Any:
            return mean / 4 + wobble * rng.uniform(-wobble, wobble, mean.shape)

        while step >= 2:
            half_step = step // 2
            corners = cloud[::step, ::step]
            sides = corners + np.roll(corners, -1, 0)
            cloud[half_step::step, half_step::step] = moved(sides + np.roll(sides, -1, 1))
            middles = cloud[half_step::step, half_step::step]
            cloud[::step, half_step::step] = moved(middles + np.roll(middles, 1, 0) + corners + np.roll(corners, -1, 1))
            cloud[half_step::step, ::step] = moved(middles + np.roll(middles, 1, 1) + corners + np.roll(corners, -1, 0))
            step, wobble = half_step, wobble / decay
        cloud -= cloud.min()
        return cloud / cloud.max()

    def work(x: Any) -> Any:
        peak = x.max()
        return (x + strength * plasma()[..., None]) * peak / (peak + strength)

    return work


def brightness(rng: Any, increase: float) -> Peer:
    from skimage.color import hsv2rgb, rgb2hsv

    def work(x: Any) -> Any:
        hsv = rgb2hsv(x)
        hsv[..., 2] = np.clip(hsv[..., 2] + increase, 0, 1)
        return hsv2rgb(hsv)

    return work


def contrast(rng: Any, factor: float) -> Peer:
    def work(x: Any) -> Any:
        mean = x.mean((0, 1), keepdims=True)
        return (x - mean) * factor + mean

    return work


def elastic_transform(rng: Any, constants: tuple[float, float, float]) -> Peer:
    import cv2
    from scipy.ndimage import map_coordinates
    from skimage.filters import gaussian

    strength, smooth, corner = (constant * SIZE for constant in constants)
    third, centre = SIZE // 3, np.float32([SIZE / 2, SIZE / 2])
    points = np.float32([centre + third, [centre[0] + third, centre[1] - third], centre - third])
    grid = np.meshgrid(np.arange(SIZE), np.arange(SIZE), np.arange(3), indexing="ij")

    def work(x: Any) -> Any:
        moved_points = points + rng.uniform(-corner, corner, points.shape).astype(np.float32)
        x = cv2.warpAffine(
            x, cv2.getAffineTransform(points, moved_points), (SIZE, SIZE), borderMode=cv2.BORDER_REFLECT_101
        )
        row_shift, column_shift = (
            gaussian(rng.uniform(-1, 1, (SIZE, SIZE)), smooth, mode="reflect") * strength for _ in "12"
        )
        coordinates = grid[0] + row_shift[..., None], grid[1] + column_shift[..., None], grid[2]
        return map_coordinates(x, [axis.reshape(-1) for axis in coordinates], order=1, mode="reflect").reshape(x.shape)

    return work


def pixelate(rng: Any, share: float) -> Peer:
    from PIL import Image

    small_size = (int(SIZE * share),) * 2
    return lambda image: np.asarray(
        Image.fromarray(image).resize(small_size, Image.Resampling.BOX).resize((SIZE, SIZE), Image.Resampling.BOX)
    )


def jpeg_compression(rng: Any, quality: int) -> Peer:
    from PIL import Image

    def work(image: Any) -> Any:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=quality)
        return np.asarray(Image.open(file))

    return work


AS_BYTES = (pixelate, jpeg_compression)  # functions of uint8 images
PEERS = (
    gaussian_noise, shot_noise, impulse_noise, defocus_blur, glass_blur, motion_blur, zoom_blur, snow, frost, fog,
    brightness, contrast, elastic_transform, pixelate, jpeg_compression,
)  # fmt: skip


def timed(work: Callable[[], Any]) -> Any:
    """Wall seconds, and processor seconds of all cores."""
    clock, cores = time.perf_counter(), time.process_time()
    work()
    return np.array([time.perf_counter() - clock, time.process_time() - cores])


def by_image(work: Peer, as_bytes: bool, x: Any) -> Any:
    out = [work(image) if as_bytes else np.clip(work(image / 255.0), 0, 1) * 255 for image in x]
    return np.stack(out).astype(np.uint8)


def run() -> list[dict[str, Any]]:
    import torch

    x = images(N)
    pixels, index = torch.from_numpy(x), torch.arange(N)
    rows = []
    for make in PEERS:
        name, peer_times, our_times = make.__name__, np.zeros(2), np.zeros(2)
        for severity in SEVERITIES:
            work = make(np.random.default_rng(0), CONSTANTS[name][0][severity - 1])
            peer = partial(by_image, work, make in AS_BYTES, x[:SAMPLE])
            batched = partial(Corruption(name, severity).apply, pixels, index)
            batched()
            # in alternation, so that other load on the machine slows both
            pairs = np.array([(timed(peer), timed(batched)) for _ in range(ROUNDS)]).min(0)
            peer_times += pairs[0] * N / SAMPLE
            our_times += pairs[1]
        scale = 1e6 / (N * len(SEVERITIES))
        rows.append(
            {
                "work": f"{name}, {N:,} images × {len(SEVERITIES)} severities",
                "peer": f"image by image ({SAMPLE} images, scaled)",
                "peer_s": peer_times[0],
                "ours_s": our_times[0],
                "ratio": peer_times[0] / our_times[0],
                "target": 5.0 if name in FIVE_TIMES else 1.0,
                "note": f"{1e6 / scale / peer_times[0]:,.0f} and {1e6 / scale / our_times[0]:,.0f} images/s; of a core "
                f"{peer_times[1] * scale:.0f} and {our_times[1] * scale:.0f} µs an image",
            }
        )
    return rows


if __name__ == "__main__":
    show(run())
