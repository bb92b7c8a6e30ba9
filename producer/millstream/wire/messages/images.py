"""Defines the images of a request, and the parts of a message between whose texts they stand. What an image
shows is in no error, digest or printed form of a request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import ConfigDict, Field, Strict, model_validator

from millstream.wire.messages.codec import LongText, Message
from millstream.wire.messages.validation_errors import WrongField

if TYPE_CHECKING:
    from millstream.wire.messages.job_messages import ChatMessage

MAX_IMAGES = 64  # of a request
ROLES = ("user", "tool")  # of messages that may have images
_BEGINNINGS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"BM", b"II*\0", b"MM\0*")


def problem_of_image(data: bytes) -> str | None:
    """Why these bytes are no image file, by their beginning; None: they may be one."""
    is_webp = data[:4] == b"RIFF" and data[8:12] == b"WEBP"
    if data.startswith(_BEGINNINGS) or is_webp:
        return None
    reason = "it begins as none of these" if data else "it is empty"
    return f"is no whole PNG, JPEG, WebP, GIF, BMP or TIFF image ({reason}); save it again"


class Image(Message):
    """An image file as it is: PNG, JPEG, WebP, GIF, BMP or TIFF. Its pixels are a worker's to read."""

    model_config = ConfigDict(ser_json_bytes="base64")  # JSON has no bytes

    data: Annotated[bytes, Strict(), Field(repr=False)]

    @model_validator(mode="after")
    def _is_an_image(self) -> Image:
        if problem := problem_of_image(self.data):
            raise WrongField("data", f"{len(self.data)} bytes", problem)
        return self


class MessagePart(Message):
    """A text, or the place of an image in the request's `images`: one of both."""

    text: LongText | None = None
    image: Annotated[int, Field(ge=0, lt=MAX_IMAGES)] | None = None

    @model_validator(mode="after")
    def _one(self) -> MessagePart:
        if (self.text is None) == (self.image is None):
            raise WrongField("text", self.text, "give one of text and image")
        return self


def check_images(messages: Sequence[ChatMessage] | None, images: Sequence[Image]) -> None:
    """Raises WrongField, for the request that has them, unless each image stands in a message that may have
    it, and each part with an image names one.
    """
    if messages is None:
        if images:
            problem = "need messages, whose parts name their places; leave them out"
            raise WrongField("images", _count(len(images)), problem)
        return
    named = set()
    for where, role, place in _places(messages):
        if place >= len(images):
            problem = f"names image {place} of a request with {_count(len(images))}; images count from 0"
            raise WrongField(where, place, problem)
        if role not in ROLES:
            problem = f"is in a message of role {role:.64}; only {' and '.join(ROLES)} messages have images"
            raise WrongField(where, place, problem)
        named.add(place)
    if unnamed := set(range(len(images))) - named:
        raise WrongField(f"images[{min(unnamed)}]", _count(len(images)), "is in no message; leave it out")


def _places(messages: Sequence[ChatMessage]) -> Iterator[tuple[str, str, int]]:
    """Yields each part's path, its message's role and the place of its image."""
    for number, message in enumerate(messages):
        for place, part in enumerate(message.parts):
            if part.image is not None:
                yield f"messages[{number}].parts[{place}].image", message.role, part.image


def _count(images: int) -> str:
    return f"{images} image{'' if images == 1 else 's'}"
