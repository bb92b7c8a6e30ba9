"""Keeps the images that the engine holds: their arrays until all units are encoded, and their features."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import ImagePiece
from millstream_worker.engine.brain.images.held_image import ImageKey
from millstream_worker.engine.protocol.frames import Array
from millstream_worker.engine.runner.vision.tower import Arrays, Tower


@dataclass(slots=True, eq=False)
class _Image:
    arrays: Arrays | None  # None: all is encoded
    features: Tensor  # [F, size]
    left: set[int]  # units without features


class ImageFeatures:
    """Which of the images are encoded, and when their features go, the brain says."""

    def __init__(self, tower: Tower) -> None:
        self.tower = tower
        self._images: dict[ImageKey, _Image] = {}

    def hold(self, key: ImageKey, features: int, arrays: Sequence[Array]) -> int:
        """Take an image, and return the number of its units. One whose features are still here keeps them."""
        given = {one.name: np.frombuffer(one.data, np.dtype(one.dtype)).reshape(one.shape) for one in arrays}
        units = self.tower.units(given)
        if key not in self._images:
            shell = self.tower.shell
            room = torch.empty(features, self.tower.size, dtype=shell.dtype, device=shell.device)
            self._images[key] = _Image(given, room, set(range(units)))
        return units

    def forget(self, keys: Iterable[ImageKey]) -> None:
        """Drop these images with their features."""
        for key in keys:
            del self._images[key]

    def encode(self, units: Iterable[tuple[ImageKey, int]]) -> float:
        """Compute the features of these units; returns the seconds that it took. Raises RuntimeError where a
        unit has other features than its share of the prompt's tokens."""
        begun = time.monotonic()
        for key, unit in units:
            self._encode(self._images[key], unit)
        if self.tower.shell.device.type == "cuda":
            torch.cuda.synchronize(self.tower.shell.device)
        return time.monotonic() - begun

    def put_into(self, embeddings: Tensor, pieces: Iterable[ImagePiece]) -> Tensor:
        """Returns the embeddings [T, size] of a step's tokens, with the features of its images, which are
        encoded, in their places."""
        for piece in pieces:
            found = self._images[piece.key].features[piece.feature : piece.feature + piece.count]
            embeddings[piece.place : piece.place + piece.count] = found
        return embeddings

    def _encode(self, image: _Image, unit: int) -> None:
        if unit not in image.left:
            return
        assert image.arrays is not None, "arrays are kept while units are left"
        found = self.tower.encode(image.arrays, unit)
        total, units = len(image.features), self.tower.units(image.arrays)
        share = slice(-(-unit * total // units), -(-(unit + 1) * total // units))
        if len(found) != share.stop - share.start:
            raise RuntimeError(
                f"the vision tower gave {len(found)} features of a unit, and {share.stop - share.start} "
                "tokens stand for it"
            )
        image.features[share] = found
        image.left.remove(unit)
        if not image.left:
            image.arrays = None
