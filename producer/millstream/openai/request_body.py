"""Converts a body, as the OpenAI API defines it, to a request.

API fields that Millstream does not support are refused by name, unless their value asks for nothing; unknown
names are reported back, to be counted in a warning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from millstream.errors import InvalidRequest
from millstream.openai.api_endpoint import ApiEndpoint
from millstream.openai.chat_messages import TOOL_FIELDS, chat_input, unknown_in
from millstream.openai.format_fields import FORMAT_FIELDS, deprecated_in, format_field, format_of
from millstream.openai.message_content import predicted_text
from millstream.openai.offered_tools import unknown_in_tools
from millstream.openai.unsupported_field import UnsupportedField
from millstream.wire.keys import Lane, QueueKeys
from millstream.wire.messages.job_messages import Request, ResultCache
from millstream.wire.messages.sampling import SamplingParams
from millstream.wire.messages.validation_errors import invalid_request, within_reach

DEFAULT_QUEUE = "default"
COMPLETION_MAX_TOKENS = 16  # the API's default for /v1/completions; chat has none


@dataclass(frozen=True, slots=True)
class RequestBody:
    request: Request
    queue: str
    unknown: tuple[str, ...]  # unknown field names, for a warning
    deprecated: tuple[str, ...] = ()  # names of fields that have newer ones, for another


_DIRECT = (
    "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "ignore_eos", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "n",
)  # fmt: skip
_LISTS = ("stop", "stop_token_ids")
_COMMON = {
    *_DIRECT, *_LISTS, "max_tokens", "logprobs", "logit_bias", "metadata", "model", "chat_template_kwargs",
    "prediction", "cache", *FORMAT_FIELDS,
}  # fmt: skip
KNOWN_FIELDS = {
    ApiEndpoint.CHAT: _COMMON | {"messages", "max_completion_tokens", "top_logprobs", *TOOL_FIELDS},
    ApiEndpoint.COMPLETIONS: _COMMON | {"prompt"},
}
_WITHOUT_EFFECT = {"user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
# API fields that are not supported; beside each, the values that ask for nothing.
UNSUPPORTED_FIELDS: dict[str, tuple[Any, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "audio": (),
    "modalities": (["text"],),
    "web_search_options": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "stream": (False,),
    "stream_options": (),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
}
_NOT_UNKNOWN = {
    endpoint: known | _WITHOUT_EFFECT | UNSUPPORTED_FIELDS.keys() for endpoint, known in KNOWN_FIELDS.items()
}


def read_body(
    endpoint: ApiEndpoint, body: Mapping[str, Any], *, lane: Lane, tenant: str, queue: str | None = None
) -> RequestBody:
    """Raises InvalidRequest naming the field. Null is the same as absent, everywhere. `queue`: overrides the
    body's model; None: the model names the queue.
    """
    with within_reach():
        return _read(endpoint, body, lane, tenant, queue)


def _read(
    endpoint: ApiEndpoint, body: Mapping[str, Any], lane: Lane, tenant: str, queue: str | None
) -> RequestBody:
    given = {name: value for name, value in body.items() if value is not None}
    _refuse_unsupported(given, KNOWN_FIELDS[endpoint])
    inputs = chat_input(given) if endpoint is ApiEndpoint.CHAT else _completion_input(given)
    try:
        request = Request(
            **inputs,
            sampling=SamplingParams.model_validate(_sampling(endpoint, given), strict=True),
            lane=lane,
            tenant=tenant,
            metadata=_metadata(given.get("metadata", {})),
            chat_template_kwargs=given.get("chat_template_kwargs"),
            response_format=format_of(given),
            prediction=predicted_text(given["prediction"]) if "prediction" in given else None,
            cache=_cache(given.get("cache", {})),
        )
    except ValidationError as error:
        raise _named(error, given) from error
    queue = queue or _queue(given.get("model", DEFAULT_QUEUE))
    return RequestBody(request, queue, unknown_names(endpoint, given), deprecated_in(given))


def unknown_names(endpoint: ApiEndpoint, body: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of fields that nothing reads, in a body and in its messages. The body may be invalid."""
    known = _NOT_UNKNOWN[endpoint]
    unknown = tuple(name for name, value in body.items() if name not in known and value is not None)
    messages = body.get("messages")
    if endpoint is not ApiEndpoint.CHAT or not isinstance(messages, list):
        return unknown
    unknown += unknown_in([message for message in messages if isinstance(message, dict)])
    return unknown + unknown_in_tools(body.get("tools"))


def max_tokens_of(endpoint: ApiEndpoint, body: Mapping[str, Any]) -> Any:
    """The bound of an answer's tokens as a body gives it; None: it has none. Raises InvalidRequest."""
    if endpoint is ApiEndpoint.COMPLETIONS:
        return COMPLETION_MAX_TOKENS if body.get("max_tokens") is None else body["max_tokens"]
    old, new = body.get("max_tokens"), body.get("max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise InvalidRequest("max_completion_tokens", new, f"max_tokens says {old}; give one of the two")
    return old if new is None else new


def _refuse_unsupported(given: Mapping[str, Any], known: set[str]) -> None:
    for name, value in given.items():
        if name in known or name not in UNSUPPORTED_FIELDS:
            continue
        if not any(type(value) is type(nothing) and value == nothing for nothing in UNSUPPORTED_FIELDS[name]):
            raise UnsupportedField(name, value)


def _sampling(endpoint: ApiEndpoint, given: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: given[name] for name in _DIRECT if name in given}
    for name in _LISTS:
        if name in given:
            fields[name] = _listed(name, given[name])
    if "logit_bias" in given:
        fields["logit_bias"] = _logit_bias(given["logit_bias"])
    if (max_tokens := max_tokens_of(endpoint, given)) is not None:
        fields["max_tokens"] = max_tokens
    if endpoint is ApiEndpoint.CHAT:
        fields |= {name: given[name] for name in ("logprobs", "top_logprobs") if name in given}
    elif "logprobs" in given:  # in completions it is the number of alternatives
        fields |= {"logprobs": True, "top_logprobs": given["logprobs"]}
    return fields


def _listed(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str) and name == "stop":
        return (value,)
    if not isinstance(value, list):
        expected = "a string or a list of strings" if name == "stop" else "a list of token ids"
        raise InvalidRequest(name, value, f"give {expected}")
    return tuple(value)


def _logit_bias(value: Any) -> dict[int, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(
            "logit_bias", value, 'give an object of token ids and biases, e.g. {"50256": -100}'
        )
    bias = {}
    for token, amount in value.items():
        if not token.isascii() or not token.isdigit() or len(token) > 19:
            raise InvalidRequest("logit_bias", token, "its keys are token ids, written as strings of digits")
        bias[int(token)] = amount
    return bias


def _metadata(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise InvalidRequest("metadata", value, "give an object whose values are strings")
    return value


def _cache(value: Any) -> ResultCache:
    """LiteLLM's form."""
    known = {"no-cache": ResultCache.NO_CACHE, "no-store": ResultCache.NO_STORE}
    if not isinstance(value, dict) or any(
        name not in known or type(asked) is not bool for name, asked in value.items()
    ):
        raise InvalidRequest("cache", value, 'give {"no-cache": true}, {"no-store": true} or both')
    asked = [known[name] for name in known if value.get(name)]
    return asked[-1] if asked else ResultCache.USE


def _queue(model: Any) -> str:
    if not isinstance(model, str):
        raise InvalidRequest("model", model, "give the queue's name as a string")
    try:
        return QueueKeys(model or DEFAULT_QUEUE).queue
    except InvalidRequest as error:
        raise InvalidRequest("model", model, f"names the queue: {error.problem}") from error


def _completion_input(given: Mapping[str, Any]) -> dict[str, Any]:
    prompt = given.get("prompt")
    if isinstance(prompt, str) and prompt:
        return {"prompt": prompt}
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return {"token_ids": tuple(prompt)}
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        raise InvalidRequest(
            "prompt", prompt, "one prompt a request; give each a request (in a file: a line) of its own"
        )
    raise InvalidRequest("prompt", prompt, "give a text, or a list of token ids")


def _named(error: ValidationError, given: Mapping[str, Any]) -> InvalidRequest:
    wrong = invalid_request(error)
    name = re.split(r"[.\[]", wrong.field, maxsplit=1)[0]
    rest = wrong.field.removeprefix(name)
    if name == "max_tokens" and name not in given:
        name = "max_completion_tokens"
    if name == "top_logprobs" and name not in given:
        name = "logprobs"
    if name == "token_ids":
        name = "prompt"
    if name == "response_format":
        name = format_field(given)
    return InvalidRequest(f"{name}{rest}", wrong.value, wrong.problem)
