"""The forms of values that clients of other servers write: whole numbers as 5.0, and limits that are off as
theirs are. Shared by bodies and by the arguments of our clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar, get_args

from pydantic import BaseModel

from millstream.errors import InvalidRequest
from millstream.openai.unsupported_field import UnsupportedField
from millstream.wire.messages.job_messages import ReasoningEffort
from millstream.wire.messages.sampling import SamplingParams

E = TypeVar("E", bound=StrEnum)
TOP_TOKEN_ONLY = 1e-9  # a top_p; no token but the first has less before it
_OFF = {"stop": "", "thinking_token_budget": -1}  # as if the field was absent
_SWITCHES = ("continue_final_message", "add_generation_prompt", "return_token_ids")
TURN_FIELDS = (*_SWITCHES, "reasoning_effort")


def sampling_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling parameters, as the strict model takes them. Raises InvalidRequest."""
    made = {
        name: whole(value) if name in whole_numbers(SamplingParams) else value
        for name, value in given.items()
        if name not in _OFF or value != _OFF[name]
    }
    if made.get("top_k") == -1:
        made["top_k"] = 0
    if made.get("top_p") == 0 and not isinstance(made["top_p"], bool):
        made["top_p"] = TOP_TOKEN_ONLY
    if made.get("truncate_prompt_tokens") == -1:
        problem = "the model's context is no number that is known here; give a number of tokens"
        raise UnsupportedField("truncate_prompt_tokens", -1, problem)
    return made


def turn_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request about the turn that is asked for, of those that are given. Raises
    InvalidRequest.
    """
    made = {name: given[name] for name in TURN_FIELDS if given.get(name) is not None}
    for name in _SWITCHES:
        if not isinstance(made.get(name, False), bool):
            raise InvalidRequest(name, made[name], "must be true or false")
    if made.get("continue_final_message"):
        made.setdefault("add_generation_prompt", False)  # the default would contradict it
    if "reasoning_effort" in made:
        made["reasoning_effort"] = one_of(ReasoningEffort, "reasoning_effort", made["reasoning_effort"])
    return made


def whole(value: Any) -> Any:
    """5 for 5.0, also in a list; all else as it is."""
    if isinstance(value, list | tuple):
        return type(value)(map(whole, value))
    return int(value) if isinstance(value, float) and value.is_integer() else value


@cache
def whole_numbers(kind: type[BaseModel]) -> frozenset[str]:
    """The names of the fields that are whole numbers, or lists of them."""
    found = {name: set(_types(field.annotation)) for name, field in kind.model_fields.items()}
    return frozenset(name for name, types in found.items() if int in types and float not in types)


def _types(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        yield from _types(part)


def one_of(kind: type[E], field: str, given: Any) -> E:
    """The member of this name. Raises InvalidRequest."""
    if isinstance(given, str) and given in list(kind):  # Enum's own error shows all of anything, however deep
        return kind(given)
    raise InvalidRequest(field, given, f"must be one of {', '.join(kind)}")
