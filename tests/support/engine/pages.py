"""Conversations about pages, as requests to an engine and as transformers' own model answers them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import torch
from PIL import Image

from millstream_worker.engine.engine import Engine
from millstream_worker.engine.protocol.frames import DropImage, HoldImage
from millstream_worker.engine.protocol.request import EngineRequest, ImageSpan, SamplingSpec
from millstream_worker.images.processor import ImageProcessor, PreparedImage
from support.models.vision_checkpoints import VisionCheckpoint, picture

TOKENS = 12
GREEDY = SamplingSpec(temperature=0.0)


@dataclass(frozen=True, eq=False)
class Page:
    """A prompt with images in it, and what `generate` continues it with."""

    name: str
    ids: tuple[int, ...]
    images: tuple[tuple[ImageSpan, PreparedImage], ...]
    given: Any  # of transformers

    def request(self, handle: int, tokens: int, **fields: Any) -> EngineRequest:
        spans = tuple(span for span, _ in self.images)
        return replace(EngineRequest(handle, self.ids, tokens, GREEDY, images=spans), **fields)

    def held(self, salt: str = "") -> dict[bytes, HoldImage]:
        """Returns its images as the front sends them, by digest."""
        return {
            span.digest: HoldImage(salt, span.digest, prepared.tokens.features, prepared.packed())
            for span, prepared in self.images
        }


class AnsweredPages:
    """A checkpoint, pages, and what transformers' own generation continues each with."""

    def __init__(self, checkpoint: VisionCheckpoint) -> None:
        self.checkpoint = checkpoint
        self.pages = pages(checkpoint)
        self.expected = [checkpoint.generate(one.given, TOKENS) for one in self.pages]


def pages(checkpoint: VisionCheckpoint) -> list[Page]:
    """Returns conversations of text and images in several orders; two have the same page."""
    first, second, third = picture(1, 60, 90), picture(2, 95, 40), picture(3, 33, 33)
    processor = ImageProcessor.load(checkpoint.folder)
    cases: list[tuple[str, list[str | Image.Image]]] = [
        ("text", ["How far is the mill, and who grinds there today?"]),
        ("image first", [first, "What is the total of this page?"]),
        ("same image", [first, "Who has signed it?"]),
        ("two images", ["First ", second, " then ", first, " compare them."]),
        ("image last", ["A long instruction that comes before the page. " * 3, third]),
        ("one twice", [third, "and", third, "are they equal?"]),
    ]
    return [page(checkpoint, processor, name, parts) for name, parts in cases]


def page(
    checkpoint: VisionCheckpoint, processor: ImageProcessor, name: str, parts: Sequence[str | Image.Image]
) -> Page:
    """Returns the conversation of one message with these parts."""
    content = [{"type": "text", "text": one} if isinstance(one, str) else {"type": "image"} for one in parts]
    images = [one for one in parts if not isinstance(one, str)]
    given = checkpoint.inputs([{"role": "user", "content": content}], images)
    ids = given["input_ids"][0].tolist()
    places = [place for place, token in enumerate(ids) if token == checkpoint.placeholder]
    spans = []
    for image in images:
        prepared = processor.prepare(image)
        own, places = places[: prepared.tokens.features], places[prepared.tokens.features :]
        digest = sha256(image.tobytes() + repr(image.size).encode()).digest()
        spans.append((ImageSpan(digest, _runs(own)), prepared))
    assert not places, "every placeholder belongs to an image"
    return Page(name, tuple(ids), tuple(spans), given)


def hold(engine: Engine[Any], some: Sequence[Page], salt: str = "") -> None:
    """Have the engine hold all images of the pages."""
    for image in _images(some, salt).values():
        engine.hold_image(image)


def drop(engine: Engine[Any], some: Sequence[Page], salt: str = "") -> None:
    for digest in _images(some, salt):
        engine.drop_image(DropImage(salt, digest))


def likeliest(checkpoint: VisionCheckpoint, one: Page, count: int) -> torch.Tensor:
    """Returns the largest log-probabilities behind the prompt, by transformers' own model."""
    with torch.inference_mode():
        logits = checkpoint.model(**one.given).logits[0, -1].double()
    return logits.log_softmax(-1).topk(count).values


def _images(some: Sequence[Page], salt: str) -> dict[bytes, HoldImage]:
    return {digest: image for one in some for digest, image in one.held(salt).items()}


def _runs(places: Sequence[int]) -> tuple[tuple[int, int], ...]:
    runs: list[tuple[int, int]] = []
    for place in places:
        if runs and sum(runs[-1]) == place:
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        else:
            runs.append((place, 1))
    return tuple(runs)
