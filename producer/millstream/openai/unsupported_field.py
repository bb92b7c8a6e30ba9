"""The errors of fields that are refused by their names."""

from __future__ import annotations

from typing import Any, ClassVar

from millstream.errors import InvalidRequest


class UnsupportedField(InvalidRequest):
    """A server of the API has the field, and it is refused here. `code` is OpenAI's."""

    code: ClassVar[str] = "unsupported_parameter"

    def __init__(self, field: str, value: Any, problem: str = "not supported here; leave it out") -> None:
        super().__init__(field, value, problem)


class UnknownField(UnsupportedField):
    """No server has the field: it is misspelt, or stands in a wrong place."""

    code: ClassVar[str] = "unknown_parameter"
