"""Converts a body, as the OpenAI API defines it, to a request.

The table (`openai/fields/field_table.py`) says which fields are done; the names of those without effect are
reported back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from millstream.errors import InvalidRequest
from millstream.openai.api_endpoint import ApiEndpoint
from millstream.openai.fields.field_check import check_fields
from millstream.openai.fields.field_table import Treatment, names_of
from millstream.openai.fields.value_forms import sampling_values, turn_values
from millstream.openai.format_fields import deprecated_in, format_field, format_of
from millstream.openai.messages.chat_messages import chat_input
from millstream.openai.messages.image_parts import FileReader, RequestImages
from millstream.openai.messages.message_content import predicted_text
from millstream.openai.prompt_list import prompt_inputs
from millstream.openai.unsupported_field import UnsupportedField
from millstream.wire.keys import Lane, QueueKeys
from millstream.wire.messages.job_messages import Request, ResultCache
from millstream.wire.messages.sampling import SamplingParams
from millstream.wire.messages.validation_errors import invalid_request, within_reach

DEFAULT_QUEUE = "default"
MOST_CHOICES = 1024  # of all prompts together: one answer has them all
COMPLETION_MAX_TOKENS = 16  # the API's default for /v1/completions; chat has none


@dataclass(frozen=True, slots=True)
class RequestBody:
    """`requests`: one for each prompt of a list; of any other body one. `sent`: as RequestImages has it."""

    requests: tuple[Request, ...]
    queue: str
    ignored: tuple[str, ...]  # names of fields without effect
    deprecated: tuple[str, ...] = ()  # names of fields that have newer ones, for another
    sent: Mapping[str, str] = field(default_factory=dict)

    @property
    def request(self) -> Request:
        """Returns the first one: the others differ from it in their prompts only."""
        return self.requests[0]


_LISTS = {"stop": "a string or a list of strings", "bad_words": "a list of strings"} | dict.fromkeys(
    ("stop_token_ids", "allowed_token_ids"), "a list of token ids"
)
_PLAIN = SamplingParams.model_fields.keys() - {
    *_LISTS,
    "logit_bias",
    "max_tokens",
    "logprobs",
    "top_logprobs",
}


def read_body(
    endpoint: ApiEndpoint,
    body: Mapping[str, Any],
    *,
    lane: Lane,
    tenant: str,
    queue: str | None = None,
    files: FileReader | None = None,
) -> RequestBody:
    """Raises InvalidRequest naming the field. Null is the same as absent, everywhere. `queue`: overrides the
    body's model; None: the model names the queue. `files` reads those that images name; None: they name none.
    """
    with within_reach():
        return _read(endpoint, body, lane, tenant, queue, files)


def _read(
    endpoint: ApiEndpoint,
    body: Mapping[str, Any],
    lane: Lane,
    tenant: str,
    queue: str | None,
    files: FileReader | None,
) -> RequestBody:
    ignored = check_fields(endpoint, body)
    done = names_of(Treatment.DONE, endpoint)
    given = {name: value for name, value in body.items() if value is not None and name in done}
    is_chat = endpoint is ApiEndpoint.CHAT
    images = RequestImages(files=files)
    inputs = [("messages", chat_input(given, images))] if is_chat else prompt_inputs(given.get("prompt"))
    if len(inputs) > 1 and given.get("return_token_ids"):
        problem = "not supported with several prompts; send each in a request of its own"
        raise UnsupportedField("return_token_ids", True, problem)
    requests: list[Request] = []
    try:
        shared = _shared(endpoint, given) | {"lane": lane, "tenant": tenant}
        _check_choices(shared["sampling"].n, len(inputs))
        for _, one in inputs:
            requests.append(
                _of_other_prompt(requests[0], Request(**one)) if requests else Request(**one, **shared)
            )
    except ValidationError as error:
        raise _named(error, given, inputs[len(requests)][0]) from None  # the cause shows the input
    queue = queue or _queue(given.get("model", DEFAULT_QUEUE))
    return RequestBody(tuple(requests), queue, ignored, deprecated_in(given), images.sent)


def _shared(endpoint: ApiEndpoint, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request that all prompts of a body have. Raises InvalidRequest, ValidationError."""
    return {
        **turn_values(given),
        "sampling": SamplingParams.model_validate(_sampling(endpoint, given), strict=True),
        "metadata": _metadata(given.get("metadata", {})),
        "chat_template_kwargs": given.get("chat_template_kwargs"),
        "response_format": format_of(given),
        "prediction": predicted_text(given["prediction"]) if "prediction" in given else None,
        "cache": _cache(given.get("cache", {})),
    }


def _check_choices(n: int, prompts: int) -> None:
    if prompts > 1 and n * prompts > MOST_CHOICES:
        problem = (
            f"{n} choices × {prompts} prompts are more than {MOST_CHOICES:,} together; ask for fewer or send "
            "several requests"
        )
        raise InvalidRequest("n", n, problem)


def _of_other_prompt(request: Request, other: Request) -> Request:
    """The same request of another prompt. What they share was checked: a schema takes milliseconds."""
    return request.model_copy(update={"prompt": other.prompt, "token_ids": other.token_ids})


def max_tokens_of(endpoint: ApiEndpoint, body: Mapping[str, Any]) -> Any:
    """The bound of an answer's tokens as a body gives it; None: it has none. Raises InvalidRequest."""
    if endpoint is ApiEndpoint.COMPLETIONS:
        return COMPLETION_MAX_TOKENS if body.get("max_tokens") is None else body["max_tokens"]
    old, new = body.get("max_tokens"), body.get("max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise InvalidRequest("max_completion_tokens", new, f"max_tokens says {old}; give one of the two")
    return old if new is None else new


def _sampling(endpoint: ApiEndpoint, given: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: given[name] for name in _PLAIN if name in given}
    fields |= {name: _listed(name, given[name]) for name in _LISTS if name in given}
    if "logit_bias" in given:
        fields["logit_bias"] = _logit_bias(given["logit_bias"])
    if (max_tokens := max_tokens_of(endpoint, given)) is not None:
        fields["max_tokens"] = max_tokens
    if endpoint is ApiEndpoint.CHAT:
        fields |= {name: given[name] for name in ("logprobs", "top_logprobs") if name in given}
    elif "logprobs" in given:  # in completions it is the number of alternatives
        fields |= {"logprobs": True, "top_logprobs": given["logprobs"]}
    return sampling_values(fields)


def _listed(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str) and name == "stop":
        return (value,) if value else ()
    if not isinstance(value, list):
        raise InvalidRequest(name, value, f"give {_LISTS[name]}")
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


def _named(error: ValidationError, given: Mapping[str, Any], prompt: str) -> InvalidRequest:
    """`prompt`: the field of the prompt that the request has."""
    wrong = invalid_request(error)
    name = re.split(r"[.\[]", wrong.field, maxsplit=1)[0]
    rest = wrong.field.removeprefix(name)
    if name == "max_tokens" and name not in given:
        name = "max_completion_tokens"
    if name == "top_logprobs" and name not in given:
        name = "logprobs"
    if name in ("prompt", "token_ids"):
        name = prompt
    if name == "response_format":
        name = format_field(given)
    return InvalidRequest(f"{name}{rest}", wrong.value, wrong.problem)
