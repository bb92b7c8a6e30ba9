"""The errors of fields that are refused by their names."""

from __future__ import annotations

from typing import Any, ClassVar

from millstream.errors import InvalidRequest


class UnsupportedField(InvalidRequest):
    """A server of the API has the field, and it is refused here. `code` is OpenAI's."""

    code: ClassVar[str] = "unsupported_parameter"

    def __init__(self, field: str, value: Any, problem: str = "not supported here; leave it out") -> None:
        super().__init__(field, value, problem)


class ImagesNotSupported(UnsupportedField):
    """No living worker of the queue reads images. `code` is for clients that can send the text instead."""

    code: ClassVar[str] = "images_not_supported"

    def __init__(self, images: int, model: str) -> None:
        problem = (
            f"this queue's model, {model:.200}, reads text only; send the page's text, or a queue with a "
            "vision model"
        )
        super().__init__("messages", f"{images} image{'' if images == 1 else 's'}", problem)


class UnknownField(UnsupportedField):
    """No server has the field: it is misspelt, or stands in a wrong place."""

    code: ClassVar[str] = "unknown_parameter"
