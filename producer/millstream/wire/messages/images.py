"""Defines the images of a request, and the parts of a message between whose texts they stand."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Strict, model_validator

from millstream.wire.messages.codec import LongText, Message
from millstream.wire.messages.validation_errors import WrongField

MAX_IMAGES = 64  # of a request


class Image(Message):
    """An image file as it is: PNG, JPEG, WebP, GIF, BMP or TIFF. Its pixels are a worker's to read."""

    data: Annotated[bytes, Strict(), Field(min_length=1, repr=False)]


class MessagePart(Message):
    """A text, or the place of an image in the request's `images`: one of both."""

    text: LongText | None = None
    image: Annotated[int, Field(ge=0, lt=MAX_IMAGES)] | None = None

    @model_validator(mode="after")
    def _one(self) -> MessagePart:
        if (self.text is None) == (self.image is None):
            raise WrongField("text", self.text, "give one of text and image")
        return self
