"""Validates `chat_template_kwargs` of a request, which the worker passes to the model's chat template."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from millstream.errors import ProtocolError
from millstream.wire.messages.bounds.depth import MAX_DEPTH, is_deeper
from millstream.wire.messages.codec import pack, unpack

_JSON = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))
MAX_BYTES = 4096  # as compact JSON in UTF-8
_TOO_DEEP = f"is nested more than {MAX_DEPTH} deep; use fewer lists and maps inside of each other"
# Arguments of transformers' apply_chat_template and its renderer, and names that they pass to a template.
RESERVED = frozenset({
    "add_generation_prompt", "chat_template", "continue_final_message", "conversation", "conversations",
    "documents", "max_length", "messages", "padding", "return_assistant_tokens_mask", "return_dict",
    "return_tensors", "sanitize_control_tokens", "self", "tokenize", "tokenizer_kwargs", "tools",
    "truncation",
})  # fmt: skip


def _checked(given: dict[str, Any] | None) -> dict[str, Any] | None:
    """An empty mapping is the same as none."""
    if not given:
        return None
    if taken := sorted(RESERVED & given.keys()):
        raise _wrong(f"{taken[0]} cannot be set by a request; leave it out")
    try:
        problem = _problem(given)
    except RecursionError:
        problem = _TOO_DEEP
    except (ValueError, TypeError, OverflowError, ProtocolError) as error:
        problem = f"holds a value that a message cannot carry ({error}); change that value"
    if problem is not None:
        raise _wrong(problem)
    return given


def _problem(given: dict[str, Any]) -> str | None:
    size = 0
    for piece in _JSON.iterencode(given):
        size += len(piece.encode())
        if size > MAX_BYTES:
            return f"may take {MAX_BYTES} bytes as JSON, and takes more; shorten it"
    if is_deeper(given):
        return _TOO_DEEP
    unpack(pack(given))  # as the worker will: names are strings
    return None


def _wrong(problem: str) -> PydanticCustomError:
    return PydanticCustomError("template_kwargs", "{problem}", {"problem": problem})


TemplateKwargs = Annotated[dict[str, Any] | None, AfterValidator(_checked)]
