"""Converts results to the bodies with which OpenAI's endpoints answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.openai.api_endpoint import ApiEndpoint
from millstream.wire.messages.choices import Choice, ChoiceDelta, TokenLogprob, TopLogprob
from millstream.wire.messages.job_messages import Result, Usage

_ALSO_TOLD = ("metadata", "cached", "weights", "kv_format", "sampling")  # where a result has them


def answer_body(endpoint: ApiEndpoint, job_id: str, result: Result) -> dict[str, Any]:
    """The body of a completed job."""
    made = _chat if endpoint is ApiEndpoint.CHAT else _completion
    return made(job_id, result)


def answer_id(endpoint: ApiEndpoint, job_id: str) -> str:
    return f"chatcmpl-{job_id}" if endpoint is ApiEndpoint.CHAT else f"cmpl-{job_id}"


def reused_body(body: Mapping[str, Any], metadata: Mapping[str, str]) -> dict[str, Any]:
    """The body of a request with this metadata that has the same answer, whose prompt was not computed."""
    prompt, output = (body["usage"][name] for name in ("prompt_tokens", "completion_tokens"))
    made = {name: value for name, value in body.items() if name != "metadata"}
    images = body["usage"]["prompt_tokens_details"].get("image_tokens", 0)
    told = {"prompt_tokens": prompt, "cached_tokens": prompt, "image_tokens": images, "output_tokens": output}
    made["usage"] = usage_body(Usage(**told))
    if metadata:
        made["metadata"] = dict(metadata)
    return made | {"cached": True}


def first_text(body: Mapping[str, Any]) -> str | None:
    """Returns the text of the first choice; None if there is no choice."""
    if not body["choices"]:
        return None
    first = body["choices"][0]
    return str((first["message"]["content"] if "message" in first else first["text"]) or "")


def _chat(job_id: str, result: Result) -> dict[str, Any]:
    return _envelope(answer_id(ApiEndpoint.CHAT, job_id), "chat.completion", result) | {
        "choices": [
            {
                "index": choice.index,
                "message": _message(choice),
                "logprobs": chat_logprobs(choice),
                "finish_reason": choice.finish_reason,
                **completeness(choice),
                **_token_ids(choice, result),
            }
            for choice in result.choices
        ],
        **_prompt_ids(result),
    }


def _message(choice: Choice) -> dict[str, Any]:
    """Returns the message, with a thought and calls of tools only where there are any."""
    message: dict[str, Any] = {"role": "assistant", "content": choice.content, "refusal": None}
    if choice.reasoning_content:
        message["reasoning_content"] = choice.reasoning_content
    if choice.tool_calls:
        message["tool_calls"] = [call.model_dump() for call in choice.tool_calls]
    return message


def _completion(job_id: str, result: Result) -> dict[str, Any]:
    return _envelope(answer_id(ApiEndpoint.COMPLETIONS, job_id), "text_completion", result) | {
        "choices": [
            {
                "text": choice.text,
                "index": choice.index,
                "logprobs": completion_logprobs(choice),
                "finish_reason": choice.finish_reason,
                **completeness(choice),
                **_token_ids(choice, result),
                **_prompt_ids(result),
            }
            for choice in result.choices
        ],
    }


def _token_ids(choice: Choice, result: Result) -> dict[str, Any]:
    """As vLLM has them, with `return_token_ids`."""
    return {} if result.prompt_token_ids is None else {"token_ids": list(choice.token_ids)}


def _prompt_ids(result: Result) -> dict[str, Any]:
    ids = result.prompt_token_ids
    return {} if ids is None else {"prompt_token_ids": list(ids)}


def completeness(choice: Choice | ChoiceDelta) -> dict[str, Any]:
    """Returns no field without a response format or calls, and before the end."""
    told: dict[str, Any] = {} if choice.complete is None else {"complete": choice.complete}
    return told | ({"schema_error": choice.schema_error} if choice.schema_error else {})


def schema_error_of(result: Result) -> str:
    """Returns why a call does not fit its function's parameters; empty if all do."""
    return next((choice.schema_error for choice in result.choices if choice.schema_error), "")


def _envelope(own_id: str, kind: str, result: Result) -> dict[str, Any]:
    body: dict[str, Any] = {
        "id": own_id,
        "object": kind,
        "created": (result.timing.finished_ms or result.timing.submitted_ms) // 1000,
        "model": result.model,
        "choices": [],
        "usage": usage_body(result.usage),
    }
    told = {name: getattr(result, name) for name in _ALSO_TOLD}
    return body | {name: value for name, value in told.items() if value not in (None, False, {})}


def usage_body(usage: Usage) -> dict[str, Any]:
    made: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    if usage.image_tokens:
        made["prompt_tokens_details"]["image_tokens"] = usage.image_tokens
    if usage.draft_tokens:
        made["completion_tokens_details"] = {
            "accepted_prediction_tokens": usage.accepted_draft_tokens,
            "rejected_prediction_tokens": usage.draft_tokens - usage.accepted_draft_tokens,
        }
    return made


def chat_logprobs(choice: Choice | ChoiceDelta) -> dict[str, Any] | None:
    if choice.logprobs is None:
        return None
    content = [
        {
            "token": drawn.token,
            "logprob": drawn.logprob,
            "bytes": _bytes(drawn),
            "top_logprobs": [
                {"token": top.token, "logprob": top.logprob, "bytes": _bytes(top)} for top in drawn.top
            ],
        }
        for drawn in choice.logprobs
    ]
    return {"content": content, "refusal": None}


def _bytes(told: TopLogprob) -> list[int] | None:
    """None if the token is a part of a character, and was told by an older worker: without its bytes."""
    if told.bytes is not None:
        return list(told.bytes)
    return None if "\ufffd" in told.token else list(told.token.encode())


def completion_logprobs(choice: Choice | ChoiceDelta, offset: int = 0) -> dict[str, Any] | None:
    """Returns the field `logprobs`. `offset`: characters of the choice before these."""
    if choice.logprobs is None:
        return None
    return {
        "tokens": [drawn.token for drawn in choice.logprobs],
        "token_logprobs": [drawn.logprob for drawn in choice.logprobs],
        "top_logprobs": [_top_logprobs(drawn) for drawn in choice.logprobs],
        "text_offset": _offsets(choice.logprobs, offset),
    }


def _top_logprobs(drawn: TokenLogprob) -> dict[str, float]:
    """Returns the likeliest tokens and the sampled one; of tokens with one text the likeliest."""
    found: dict[str, float] = {}
    for token, logprob in (*((top.token, top.logprob) for top in drawn.top), (drawn.token, drawn.logprob)):
        found.setdefault(token, logprob)
    return found


def _offsets(logprobs: tuple[TokenLogprob, ...], at: int) -> list[int]:
    offsets = []
    for drawn in logprobs:
        offsets.append(at)
        at += len(drawn.token)
    return offsets
