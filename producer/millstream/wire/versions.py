"""The versions of the protocol's messages: those that this build writes, and those that it reads.

A new version is for a change that an older reader must not ignore. A change that it may ignore is a new
field, under the same version: every reader ignores fields that it does not know. A client writes the lowest
version that has all fields of a request.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

FIRST_VERSION = 1  # the version of a message without one
WIRE_VERSION = 7  # the newest that clients of this build write
# Fields of a request, by the version that introduced them; all others are of the first.
ADDED = {
    "chat_template_kwargs": 2,
    "response_format": 3,
    "tools": 3,
    "tool_choice": 3,
    "parallel_tool_calls": 3,
    "messages.tool_calls": 3,
    "messages.tool_call_id": 3,
    "kind": 4,
    "continue_final_message": 5,
    "add_generation_prompt": 5,
    "reasoning_effort": 5,
    "return_token_ids": 5,
    "tools.name": 5,  # of more than 64 characters, or with others than letters, digits, _ and -
    "messages.name": 5,
    "messages.reasoning_content": 5,
    "sampling.bad_words": 5,
    "sampling.allowed_token_ids": 5,
    "sampling.include_stop_str_in_output": 5,
    "sampling.skip_special_tokens": 5,
    "sampling.truncate_prompt_tokens": 5,
    "sampling.thinking_token_budget": 5,
    "sampling.wider_bounds": 5,  # no field, but values that the earlier versions do not take
    "tools.response_format": 6,  # both: calls, or an answer of the format
    "images": 7,
    "messages.parts": 7,
}


@dataclass(frozen=True, slots=True)
class Versions:
    """A window of versions, both ends included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not FIRST_VERSION <= self.low <= self.high:
            raise ValueError(f"no window of versions: {self.low} to {self.high}")

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high

    def covers(self, other: Versions) -> bool:
        return other.low in self and other.high in self

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low} to {self.high}"


def lowest_version(fields: Iterable[str]) -> int:
    """The lowest version that has all these fields of a request."""
    return max((ADDED.get(field, FIRST_VERSION) for field in fields), default=FIRST_VERSION)


TAKEN = Versions(FIRST_VERSION, WIRE_VERSION)  # versions that this build writes and reads
