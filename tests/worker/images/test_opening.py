"""Image files of strangers: what they look like when they are opened, and in which words they are refused."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.models.vision_checkpoints import picture

from millstream_worker.images.messages import BadImage
from millstream_worker.images.opening import FORMATS, opened

MOST = 100_000_000


def written(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def refusal(data: bytes, most: int = MOST) -> str:
    with pytest.raises(BadImage) as raised:
        opened(data, most)
    return raised.value.problem


def header_only(width: int, height: int) -> bytes:
    """A PNG whose header tells of more pixels than there are."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    head = struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return (
        b"\x89PNG\r\n\x1a\n" + head + struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))
    )


@pytest.mark.parametrize("form", FORMATS)
def test_each_format_is_opened(form: str) -> None:
    image = picture(1, 30, 20)
    shown = opened(written(image, form), MOST)
    assert (shown.mode, shown.size) == ("RGB", (30, 20))
    if form in ("PNG", "BMP", "TIFF"):
        assert shown.tobytes() == image.tobytes()


@pytest.mark.parametrize("form", ["EPS", "PPM", "ICO", "PCX", "TGA"])
def test_other_formats_are_not(form: str) -> None:
    assert "it begins as none of them" in refusal(written(picture(1, 16, 16), form))


def test_what_is_transparent_is_white() -> None:
    clear = Image.new("RGBA", (4, 4), (200, 0, 0, 0))
    assert opened(written(clear), MOST).getpixel((0, 0)) == (255, 255, 255)
    half = Image.new("LA", (4, 4), (0, 128))
    assert opened(written(half), MOST).getpixel((0, 0)) == (127, 127, 127)
    palette = picture(1, 8, 8).convert("P")
    assert (
        opened(written(palette, transparency=palette.getpixel((0, 0))), MOST).getpixel((0, 0)) == (255,) * 3
    )


def test_16_bits_are_scaled_and_not_cut() -> None:
    ramp = np.arange(256, dtype=np.uint16).reshape(16, 16) * 257
    shown = np.asarray(opened(written(Image.fromarray(ramp)), MOST))
    assert shown[..., 0].tolist() == (ramp >> 8).tolist()
    assert (shown[..., 0] == shown[..., 2]).all()


@pytest.mark.parametrize("mode", ["F", "I"])
def test_pixels_of_32_bits_are_refused(mode: str) -> None:
    deep = Image.fromarray(np.full((4, 4), 70_000, np.float32 if mode == "F" else np.int32))
    assert refusal(written(deep, "TIFF")).endswith("save it with 8 bits a channel")


def test_images_stand_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # it lies on its side
    assert opened(written(picture(1, 30, 20), "JPEG", exif=exif), MOST).size == (20, 30)


@pytest.mark.parametrize("form", ["GIF", "TIFF", "WEBP", "PNG"])
def test_several_frames_are_refused(form: str) -> None:
    frames = [picture(seed, 16, 16) for seed in range(3)]
    data = written(frames[0], form, save_all=True, append_images=frames[1:])
    assert refusal(data) == "has 3 pages or frames; send one image for each"


@pytest.mark.parametrize("size", [(10_000, 10_001), (2**31 - 1, 1), (60_000, 60_000)])
def test_pixels_are_counted_before_they_are_decoded(size: tuple[int, int]) -> None:
    problem = refusal(header_only(*size))
    assert problem == f"has {size[0]:,} x {size[1]:,} pixels and may have 100,000,000; scale it down"


def test_a_header_that_lies_is_no_whole_image() -> None:
    assert refusal(header_only(1000, 1000)).startswith(
        "is no whole PNG, JPEG, WebP, GIF, BMP or TIFF image ("
    )


@pytest.mark.parametrize("form", FORMATS)
def test_a_cut_file_is_no_whole_image(form: str) -> None:
    data = written(picture(1, 200, 200), form)
    for end in (0, 1, 12, len(data) // 2, len(data) - 40):
        assert refusal(data[:end]).endswith("; save it again")
