"""Images of the model that counts: a feature is a number beyond the vocabulary, of the image's own bytes and
of its place, so that a lost, swapped or stale one is seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from zlib import crc32

import numpy as np

from millstream_worker.engine.brain.images.held_image import ImageKey
from millstream_worker.engine.protocol.frames import HoldImage
from millstream_worker.engine.protocol.request import EngineRequest, ImageSpan
from millstream_worker.images.messages import PackedArray

_FIRST = 2000  # of the numbers: no token


def feature(content: bytes, place: int) -> int:
    return _FIRST + crc32(place.to_bytes(4, "little"), crc32(content)) % 1000


def shown(tokens: Iterable[int]) -> int:
    """Returns all features among the tokens as one number, in which their order counts; 0: there are none."""
    found = [token for token in tokens if token >= _FIRST]
    return crc32(np.array(found, "<i4").tobytes()) if found else 0


@dataclass
class _Image:
    content: bytes
    features: int
    units: int
    encoded: set[int] = field(default_factory=set)


class CountingImages:
    """What holds and encodes them; a feature that is asked for before its unit was encoded is an error."""

    def __init__(self) -> None:
        self._images: dict[ImageKey, _Image] = {}
        self.encoded: list[tuple[ImageKey, int]] = []

    def hold(self, key: ImageKey, features: int, arrays: Sequence[PackedArray]) -> int:
        pixels = next(one for one in arrays if one.name == "pixel_values")
        units = pixels.shape[:2][-1]  # tiles, behind an axis of images where a processor made them
        self._images.setdefault(key, _Image(pixels.data, features, units))
        return units

    def forget(self, keys: Iterable[ImageKey]) -> None:
        for key in keys:
            del self._images[key]

    def encode(self, units: Iterable[tuple[ImageKey, int]]) -> None:
        for key, unit in units:
            assert unit not in self._images[key].encoded, "a unit is encoded twice"
            self._images[key].encoded.add(unit)
            self.encoded.append((key, unit))

    def of(self, key: ImageKey, place: int) -> int:
        image = self._images[key]
        assert place * image.units // image.features in image.encoded, "a feature that was not encoded"
        return feature(image.content, place)

    def in_prompt(self, tokens: Sequence[int], salt: str, spans: Iterable[ImageSpan]) -> list[int]:
        """Returns a row's tokens with the features of its images in their places."""
        found = list(tokens)
        for span in spans:
            content, place = self._images[salt, span.digest].content, 0
            for first, count in span.runs:
                for at in range(first, first + count):
                    found[at] = feature(content, place)
                    place += 1
        return found


def holding(request: EngineRequest, units: dict[bytes, int]) -> list[HoldImage]:
    """Returns the frames for the images of a request, each once, whose bytes are their digests."""
    found = {}
    for span in request.images:
        total = sum(count for _, count in span.runs)
        pixels = PackedArray("pixel_values", "uint8", (units[span.digest],), span.digest)
        found[span.digest] = HoldImage(request.salt, span.digest, total, (pixels,))
    return list(found.values())
