"""The error of a request that has more tokens than the model's context, in OpenAI's words: clients such as
litellm know it by them, and cut the conversation or go to another model.
"""

from __future__ import annotations

from typing import Self

from millstream.errors import InvalidRequest
from millstream_worker.engine.protocol.config import EngineInfo


class ContextExceeded(InvalidRequest):
    code = "context_length_exceeded"

    @classmethod
    def by_input(cls, field: str, size: str, info: EngineInfo) -> Self:
        """`size`: of the input, as far as it is known."""
        problem = f"your {field} resulted in {size}. Please reduce the length of the {field}."
        return cls(field, size, f"{_bound(info)} However, {problem}")

    @classmethod
    def by_output(cls, asked: int, field: str, input_tokens: int, info: EngineInfo) -> Self:
        """`asked`: max_tokens; `field`: that of the input."""
        problem = (
            f"you requested {input_tokens + asked} tokens ({input_tokens} in the {field}, {asked} in the "
            f"completion). Please reduce the length of the {field} or completion, or leave max_tokens out."
        )
        return cls("sampling.max_tokens", asked, f"{_bound(info)} However, {problem}")


def _bound(info: EngineInfo) -> str:
    is_whole = info.longest_row == info.context_length
    more = "" if is_whole else " here, as the worker's KV cache holds no more"
    return f"This model's maximum context length is {info.longest_row} tokens{more}."
