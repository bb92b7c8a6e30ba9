"""Opens image files of strangers: six formats, one frame, three channels of 8 bits, upright, on white.

Whatever is wrong with a file is BadImage, in words for whoever sent it.
"""

from __future__ import annotations

import io
import warnings

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from millstream_worker.images.messages import BadImage

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")  # others' readers are larger than their use
_ONE_FRAME = ("MPO",)  # a JPEG with previews behind it, as telephones write it
_LONGEST_REASON = 120  # characters
Image.MAX_IMAGE_PIXELS = None  # Pillow's own bound only warns; ours is checked before anything is decoded


def opened(data: bytes, most_pixels: int) -> Image.Image:
    """Returns the image, as RGB. Raises BadImage."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of damaged metadata
            return _opened(data, most_pixels)
    except BadImage:
        raise
    except UnidentifiedImageError:
        raise _not_whole("it begins as none of them") from None
    except MemoryError:
        raise _not_whole("decoding it takes too much memory") from None
    except Exception as error:  # noqa: BLE001 - decoders raise whatever a damaged file leads them to
        raise _not_whole(str(error)[:_LONGEST_REASON] or type(error).__name__) from None


def _opened(data: bytes, most_pixels: int) -> Image.Image:
    image: Image.Image
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        if image.width * image.height > most_pixels:
            raise BadImage(
                "pixels",
                f"has {image.width:,} x {image.height:,} pixels and may have {most_pixels:,}; scale it down",
            )
        frames = 1 if image.format in _ONE_FRAME else getattr(image, "n_frames", 1)
        if frames > 1:
            raise BadImage("frames", f"has {frames:,} pages or frames; send one image for each")
        image.load()
        shown = _of_8_bits(image)
        ImageOps.exif_transpose(shown, in_place=True)
        return _on_white(shown)


def _of_8_bits(image: Image.Image) -> Image.Image:
    """Pillow would cut numbers above 255 off, and not scale them."""
    if image.mode == "F":
        raise BadImage("depth", "has floating-point pixels; save it with 8 bits a channel")
    if not image.mode.startswith("I"):
        return image
    pixels = np.asarray(image)
    if pixels.min() < 0 or pixels.max() > 0xFFFF:
        raise BadImage("depth", "has pixels of 32 bits; save it with 8 bits a channel")
    scaled = Image.fromarray((pixels >> 8).astype(np.uint8))
    scaled.info = {"exif": image.info["exif"]} if "exif" in image.info else {}
    return scaled


def _on_white(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    shown = image.convert("RGBA")
    white = Image.new("RGBA", shown.size, "white")
    white.alpha_composite(shown)
    return white.convert("RGB")


def _not_whole(reason: str) -> BadImage:
    return BadImage(
        "damaged", f"is no whole PNG, JPEG, WebP, GIF, BMP or TIFF image ({reason}); save it again"
    )
