"""A request's guess of its answer: it saves time where it is right, and changes no token of the answer."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, StringConstraints
from pydantic_core import PydanticCustomError

MAX_BYTES = 256 * 1024  # in UTF-8


def _checked(text: str) -> str | None:
    """An empty one guesses nothing."""
    if (size := len(text.encode())) > MAX_BYTES:
        problem = f"takes {size} bytes and may take {MAX_BYTES}; shorten it, or leave it out"
        raise PydanticCustomError("prediction", "{problem}", {"problem": problem})
    return text or None


PredictedText = Annotated[str, StringConstraints(max_length=MAX_BYTES), AfterValidator(_checked)]
