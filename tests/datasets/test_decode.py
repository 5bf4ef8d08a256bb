"""Images as people have them: deep, odd, damaged, foreign. Each is read as it is meant, or refused in words."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pytest

pytest.importorskip("PIL")

from PIL import EpsImagePlugin, Image, JpegImagePlugin

from nescio.datasets.decode import check_head, label_map, rgb
from nescio.errors import BadInput

GREY = np.linspace(0, 1, 48, dtype=np.float32).reshape(6, 8)
COLOURS = Image.fromarray((np.stack([GREY, GREY[::-1], 1 - GREY], -1) * 255).astype(np.uint8))


def written(image, kind, **how):
    file = io.BytesIO()
    image.save(file, kind, **how)
    return file.getvalue()


@pytest.mark.parametrize("values", [GREY, GREY * 255, (GREY * 2e9).astype(np.int32), (GREY * -9).astype(np.int32)])
def test_rgb__numbers_of_unknown_scale_are_not_black_or_white(values):
    with pytest.raises(BadInput, match="numbers of 32 bits"):
        rgb(written(Image.fromarray(values), "TIFF"))


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_rgb__sixteen_bits_become_eight(kind):
    deep = (GREY * 65535).astype(np.uint16)
    np.testing.assert_array_equal(np.asarray(rgb(written(Image.fromarray(deep), kind)))[..., 1], deep // 257)


def test_rgb__the_first_picture_of_several_and_colours_of_print():
    def near(data):
        return np.abs(np.asarray(rgb(data)).astype(int) - np.asarray(COLOURS)).max() <= 6

    others = {"save_all": True, "append_images": [Image.eval(COLOURS, lambda x: 255 - x)]}
    assert near(written(COLOURS, "WEBP", lossless=True, **others)) and near(written(COLOURS, "TIFF", **others))
    assert near(written(COLOURS.convert("CMYK"), "JPEG", quality=100, subsampling=0))
    assert near(written(COLOURS.quantize(48), "PNG")) and near(written(COLOURS.quantize(48), "GIF", **others))


def test_rgb__other_kinds_of_files_are_neither_opened_nor_run(monkeypatch):
    ran = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: ran.append(1))
    texture = bytearray(written(COLOURS, "DDS"))
    texture[80:84] = b"\0\0@\0"  # flags that Pillow does not know
    for data in (written(COLOURS, "EPS"), bytes(texture)):
        with pytest.raises(BadInput, match="damaged, cut short, or no image"):
            rgb(data)
    assert not ran


def test_rgb__a_tag_of_another_type_is_a_sentence():
    data = written(COLOURS, "TIFF")
    strips = data.index(b"\x11\x01\x04\x00\x01\x00\x00\x00")  # StripOffsets, a whole number …
    with pytest.raises(BadInput, match="damaged, cut short, or no image"):
        rgb(data[: strips + 2] + b"\x0b" + data[strips + 3 :])  # … is now a fraction


def test_rgb__a_damaged_tiff_is_a_sentence_and_not_wrong_pixels(capfd):
    """libtiff prints “Fax4Decode: Bad code word” itself, and goes on with pixels that are not the image's."""
    noise = np.random.default_rng(0).integers(0, 2, (64, 64)).astype(bool)
    for compression in ("group4", "tiff_lzw"):
        whole = written(Image.fromarray(noise), "TIFF", compression=compression)
        damaged = bytearray(whole)
        damaged[100:400:20] = bytes(byte ^ 0x55 for byte in whole[100:400:20])
        with pytest.raises(BadInput, match="damaged, cut short, or no image"):
            rgb(bytes(damaged))
        np.testing.assert_array_equal(np.asarray(rgb(whole))[..., 0] > 0, noise)  # the next one is read
    assert capfd.readouterr().err == ""


def test_rgb__what_can_be_read_is_read_without_a_warning():
    palette = written(COLOURS.quantize(9), "PNG", transparency=bytes([0, 128, 255]))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert rgb(palette).size == (8, 6)
    assert not said


def test_label_map__a_label_map_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    path = str(tmp_path / "map.png")
    Image.fromarray(np.zeros((6, 8), np.uint8)).save(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(BadInput, match=r"map\.png is too"):
        label_map(path, (6, 8), (6, 8), np.zeros(256, int))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "PPM", "TIFF", "WEBP", "GIF"])
def test_check_head__a_file_that_is_cut_short_is_seen_without_reading_whole_jpegs(tmp_path, monkeypatch, kind):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8))
    whole, path = written(noise, kind), tmp_path / f"image.{kind.lower()}"
    for length in (len(whole) // 2, len(whole) * 9 // 10):
        path.write_bytes(whole[:length])
        with pytest.raises(BadInput, match="cut short"):
            check_head(str(path), (40, 60))
    path.write_bytes(whole + b"\0" * 9)  # as some cameras write them
    check_head(str(path), (40, 60))
    monkeypatch.setattr(JpegImagePlugin.JpegImageFile, "load", lambda self: pytest.fail("decoded"))
    path.write_bytes(whole)
    check_head(str(path), (40, 60))
