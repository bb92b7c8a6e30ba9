"""Image files: of each format, changed and cut; they are opened as the worker's children open them."""

from __future__ import annotations

import io
import warnings
from functools import cache
from random import Random

from PIL import Image

from fuzz.mutation import damage
from fuzz.target import Target, check
from fuzz.values import blob
from millstream_worker.images.messages import BadImage
from millstream_worker.images.opening import FORMATS, opened

MOST_PIXELS = 1_000_000
_MODES = ("RGB", "L", "P", "1", "RGBA", "CMYK", "I;16")


@cache
def files() -> tuple[bytes, ...]:
    """One for each format and mode that it knows."""
    base = Image.linear_gradient("L").resize((24, 18))
    made = []
    for form in FORMATS:
        for mode in _MODES:
            out = io.BytesIO()
            try:
                base.convert(mode).save(out, form)
            except (OSError, ValueError):
                continue
            made.append(out.getvalue())
    return tuple(made)


def _file(chance: Random) -> bytes:
    if chance.random() < 0.02:
        return blob(chance)
    data = chance.choice(files())
    if chance.random() < 0.1:
        return data
    if chance.random() < 0.1:
        return data[: chance.randrange(len(data))]
    return damage(chance, data)


def _open(data: bytes) -> None:
    with warnings.catch_warnings(action="ignore"):
        image = opened(data, MOST_PIXELS)
    check(image.mode == "RGB", "it has other channels")
    check(0 < image.width * image.height <= MOST_PIXELS, "it has more pixels than it may")


TARGETS = (Target("image-files", _file, _open, (BadImage,), share=1.0, hang_s=10.0),)
