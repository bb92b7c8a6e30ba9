"""The error of a field that the OpenAI API has and Millstream does not support."""

from __future__ import annotations

from typing import Any

from millstream.errors import InvalidRequest


class UnsupportedField(InvalidRequest):
    """It is valid in the API, and is refused here."""

    def __init__(self, field: str, value: Any, problem: str = "not supported here; leave it out") -> None:
        super().__init__(field, value, problem)
