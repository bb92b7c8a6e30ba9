"""Keeps account of the images that the engine holds: which of their features are there, and how many units a
step may encode, so that rows that decode beside them get their tokens in time.

An image is held until the front drops it. Behind that its features stay while there is room, the images that
were dropped last the longest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from millstream_worker.engine.brain.images.encode_choice import EncodeChoice
from millstream_worker.engine.brain.images.held_image import HeldImage, ImageKey, PlacedImage
from millstream_worker.engine.protocol.request import ImageSpan

_WEIGHT = 0.3  # of the newest seconds of a unit
_ENCODE_S = 1.0  # of a step beside which nobody waits for tokens


class FeaturePool:
    """`most_bytes`: of features; `feature_bytes`: of one; `target_s`: of a step in which somebody waits for
    tokens; 0: any."""

    def __init__(self, most_bytes: int, feature_bytes: int, target_s: float) -> None:
        self._most = most_bytes // feature_bytes  # features
        self._feature_bytes = feature_bytes
        self._target_s = target_s
        self._held: dict[ImageKey, HeldImage] = {}
        self._kept: dict[ImageKey, HeldImage] = {}  # dropped, in the order of that; all is encoded
        self._features = 0  # of all of them
        self._allowance = 1
        self._unit_s = 0.0
        self._owed_s = 0.0  # to rows that somebody waits for: of encoding, beyond what they had since
        self._launched: deque[tuple[int, bool]] = deque()  # units of a step, and if somebody waits for tokens
        self.encoded = 0  # units, since the start
        self.encode_s = 0.0
        self._waited_for = False

    @property
    def bytes_held(self) -> int:
        """Returns the bytes of the features of all images, once they are encoded."""
        return self._features * self._feature_bytes

    def make_room(self, key: ImageKey, features: int) -> list[ImageKey]:
        """Returns the images that have to go before this one is held: of those that are only kept."""
        return [] if key in self._kept else self._evicted(self._features + features)

    def hold(self, key: ImageKey, features: int, units: int) -> None:
        """Take an image that is not held. If its features are still there, they are found."""
        assert key not in self._held, "an image is held once"
        image = self._kept.pop(key, None)
        if image is None:
            image = HeldImage(key, features, units)
            self._features += features
        self._held[key] = image

    def drop(self, key: ImageKey) -> list[ImageKey]:
        """No prompt needs the image any more. Returns the images that have to go."""
        image = self._held.pop(key)
        if image.whole:
            self._kept[key] = image
            return self._evicted(self._features)
        self._features -= image.features
        return [key, *self._evicted(self._features)]

    def _evicted(self, features: int) -> list[ImageKey]:
        """Forget as many of the kept images, the oldest first, as are too many beside so many features."""
        gone = []
        while self._kept and features > self._most:
            key = next(iter(self._kept))
            size = self._kept.pop(key).features
            self._features -= size
            features -= size
            gone.append(key)
        return gone

    def missing(self, salt: str, spans: Sequence[ImageSpan]) -> bool:
        """True if one of the images is not held."""
        return any((salt, span.digest) not in self._held for span in spans)

    def placed(self, salt: str, spans: Sequence[ImageSpan]) -> tuple[PlacedImage, ...]:
        """Returns the images of a prompt, which are held."""
        return tuple(PlacedImage(self._held[salt, span.digest], span.runs) for span in spans)

    def begin_plan(self, *, waited_for: bool) -> None:
        """Fix the number of units that the next step may encode. `waited_for`: somebody waits for tokens of
        rows that decode in it. They lose as much time to images as they have for themselves, at most."""
        if waited_for and self._target_s:
            some = max(1, int(self._target_s / self._unit_s)) if self._unit_s else 1
            self._allowance = 0 if self._owed_s > 0 else some
        else:
            self._owed_s = 0.0
            self._allowance = max(1, int(_ENCODE_S / self._unit_s)) if self._unit_s else 1
        self._waited_for = waited_for

    def choice(self) -> EncodeChoice:
        """Returns a choice for the step that was begun; a later one takes its place."""
        return EncodeChoice(self._allowance)

    def launched(self, choice: EncodeChoice) -> None:
        """The step encodes these units first."""
        for image, unit in choice.chosen:
            image.encoded.add(unit)
        self._launched.append((len(choice.chosen), self._waited_for))

    def settled(self, step_s: float, encode_s: float) -> None:
        """The oldest launched step has taken so long, and its units so much of that."""
        units, waited_for = self._launched.popleft()
        if units:
            each = encode_s / units
            self._unit_s += (_WEIGHT if self._unit_s else 1.0) * (each - self._unit_s)
            self.encoded += units
            self.encode_s += encode_s
        if waited_for:
            self._owed_s = max(0.0, self._owed_s + encode_s - max(0.0, step_s - encode_s))
