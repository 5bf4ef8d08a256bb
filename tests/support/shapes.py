"""A small set of images with label maps: two rectangles on a ground, and a corner that is void."""

import struct
import zlib

import numpy as np
from PIL import Image

VOID = 255
COLOURS = np.array([[60, 60, 60], [200, 80, 60], [60, 190, 90]])


def write_shapes(path, train=40, test=8, shape=(24, 40)):
    """npz:PATH of images whose pixels are of three classes."""
    rng, arrays = np.random.default_rng(0), {"void": np.array(VOID)}
    for part, n in (("train", train), ("test", test)):
        labels = np.zeros((n, *shape), np.uint8)
        for image in labels:
            for label in (1, 2):
                top, left = rng.integers(0, shape[0] - 12), rng.integers(0, shape[1] - 16)
                image[top : top + 12, left : left + 16] = label
        pixels = (COLOURS[labels] + rng.normal(0, 25, (*labels.shape, 3))).clip(0, 255).astype(np.uint8)
        labels[:, :6, :9] = VOID
        arrays |= {f"x_{part}": pixels, f"y_{part}": labels}
    np.savez(path, **arrays)
    return f"npz:{path}"


def write_folders(place, *shifts):
    """maps:PATH of small images, the ground dark and the sky bright, with folders of shifts such as shift/rain/1."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(2, dtype=np.uint8), 12)[:, None].repeat(32, 1)
    for folder, count in [("train", 12), ("test", 2), *((shift, 2) for shift in shifts)]:
        for kind in ("images", "labels"):
            (place / folder / kind).mkdir(parents=True)
        for number in range(count):
            image = (labels[..., None] * 150 + rng.integers(0, 90, (24, 32, 3))).astype(np.uint8)
            for kind, array in (("images", image), ("labels", labels)):
                Image.fromarray(array).save(place / folder / kind / f"{number}.png")
    (place / "classes.txt").write_text("road\nsky\n")
    return f"maps:{place}"


def grey_png(labels, bits):
    """A grey PNG of so many bits per pixel, which Pillow reads and does not write."""
    lines = np.unpackbits(labels.astype(np.uint8)[..., None], axis=2)[..., -bits:].reshape(len(labels), -1)
    data = b"".join(b"\0" + np.packbits(line).tobytes() for line in lines)
    head = struct.pack(">IIBBBBB", *labels.shape[::-1], bits, 0, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(data)), (b"IEND", b""))
    parts = (struct.pack(">I", len(d)) + name + d + struct.pack(">I", zlib.crc32(name + d)) for name, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
