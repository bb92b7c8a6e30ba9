"""Chooses the units of images that are encoded before a step: those whose features the step's chunks need, up
to a number. A chunk ends before the first feature that the step can neither find nor encode."""

from __future__ import annotations

from collections.abc import Sequence

from millstream_worker.engine.brain.images.held_image import HeldImage, PlacedImage


class EncodeChoice:
    """`allowance`: units that may still be encoded."""

    def __init__(self, allowance: int = 0) -> None:
        self._allowance = allowance
        self.chosen: dict[tuple[HeldImage, int], None] = {}  # images and units, in this order

    def fitting(self, images: Sequence[PlacedImage], begin: int, tokens: int) -> int:
        """Returns how many of the tokens from place `begin` on the step can compute, and chooses the units
        that they need."""
        end = begin + tokens
        for placed in images:
            for unit, place in placed.units(begin, end):
                if not self._is_there(placed.image, unit):
                    if not self._allowance:
                        return place - begin
                    self._allowance -= 1
                    self.chosen[placed.image, unit] = None
        return tokens

    def grant(self) -> None:
        """Allow one unit more."""
        self._allowance += 1

    def may_begin(self, images: Sequence[PlacedImage], begin: int) -> bool:
        """True if the step can compute the token at place `begin`."""
        if self._allowance:
            return True
        return all(
            self._is_there(placed.image, unit)
            for placed in images
            for unit, _ in placed.units(begin, begin + 1)
        )

    def incomplete(self, images: Sequence[PlacedImage], begin: int) -> set[HeldImage]:
        """Returns the images with features behind place `begin` that not all are there after the step."""
        ahead = {placed.image for placed in images if placed.end > begin}
        return {image for image in ahead if not all(self._is_there(image, n) for n in range(image.units))}

    def _is_there(self, image: HeldImage, unit: int) -> bool:
        return unit in image.encoded or (image, unit) in self.chosen
