"""Keeps the images that the engine holds: their arrays until all units are encoded, and their features."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import ImagePiece
from millstream_worker.engine.brain.images.held_image import ImageKey, PlacedImage, RopePositions
from millstream_worker.engine.runner.vision.tower import Arrays, Tower
from millstream_worker.images.messages import PackedArray


@dataclass(slots=True, eq=False)
class _Image:
    arrays: Arrays  # without pixels once all is encoded
    features: Tensor  # [1 + layers, F, size]
    left: set[int]  # units without features


class ImageFeatures:
    """Which of the images are encoded, and when their features go, the brain says."""

    def __init__(self, tower: Tower) -> None:
        self.tower = tower
        self._images: dict[ImageKey, _Image] = {}

    def hold(self, key: ImageKey, features: int, arrays: Sequence[PackedArray]) -> int:
        """Take an image, and return the number of its units. One whose features are still here keeps them."""
        given = {one.name: np.frombuffer(one.data, np.dtype(one.dtype)).reshape(one.shape) for one in arrays}
        units = self.tower.units(given)
        if key not in self._images:
            shell = self.tower.shell
            shape = 1 + self.tower.layers, features, self.tower.size
            room = torch.empty(shape, dtype=shell.dtype, device=shell.device)
            self._images[key] = _Image(given, room, set(range(units)))
        return units

    def forget(self, keys: Iterable[ImageKey]) -> None:
        """Drop these images with their features."""
        for key in keys:
            del self._images[key]

    def encode(self, units: Iterable[tuple[ImageKey, int]]) -> float:
        """Compute the features of these units; returns the seconds that it took. Raises RuntimeError where a
        unit has other features than its share of the prompt's tokens."""
        self._wait()  # for the step before it
        begun = time.monotonic()
        for key, unit in units:
            self._encode(self._images[key], unit)
        self._wait()
        return time.monotonic() - begun

    def _wait(self) -> None:
        if self.tower.shell.device.type == "cuda":
            torch.cuda.synchronize(self.tower.shell.device)

    def put_into(self, embeddings: Tensor, pieces: Iterable[ImagePiece]) -> Tensor:
        """Returns the embeddings [T, size] of a step's tokens, with the features of its images, which are
        encoded, in their places."""
        for piece in pieces:
            embeddings[piece.place : piece.place + piece.count] = self._of(piece, 0)
        return embeddings

    def add_to(self, states: Tensor, pieces: Iterable[ImagePiece], layer: int) -> None:
        """Add to the states [1, T, size] behind a text layer what the images have for it."""
        for piece in pieces:
            states[0, piece.place : piece.place + piece.count] += self._of(piece, 1 + layer)

    def rope_positions(self, prompt: NDArray[np.int32], images: Sequence[PlacedImage]) -> RopePositions:
        """Returns the positions of a prompt with these images; of a model whose RoPE has several axes."""
        given = [(self._images[placed.image.key].arrays, placed.runs) for placed in images]
        return self.tower.rope_positions(prompt, given)

    def _of(self, piece: ImagePiece, level: int) -> Tensor:
        return self._images[piece.key].features[level, piece.feature : piece.feature + piece.count]

    def _encode(self, image: _Image, unit: int) -> None:
        if unit not in image.left:
            return
        found = self.tower.encode(image.arrays, unit)
        total, units = image.features.shape[1], self.tower.units(image.arrays)
        share = slice(-(-unit * total // units), -(-(unit + 1) * total // units))
        if found.shape != image.features[:, share].shape:
            raise RuntimeError(
                f"the vision tower gave {found.shape[1]} features of a unit at {len(found)} layers, and "
                f"{share.stop - share.start} tokens stand for it, at {len(image.features)} layers"
            )
        image.features[:, share] = found
        image.left.remove(unit)
        if not image.left:
            image.arrays = {name: value for name, value in image.arrays.items() if name != "pixel_values"}
