"""Reads the body of a POST: a request of the queue, and how the answer is to be sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from millstream.client.submit.encoded_prompts import encoded_prompts
from millstream.client.submit.requests import EncodedRequest
from millstream.errors import InvalidRequest, MillstreamError
from millstream.gateway.auth.api_keys import ApiKey
from millstream.gateway.http.json_body import json_object
from millstream.openai.api_endpoint import ApiEndpoint
from millstream.openai.api_error import ApiError, api_error
from millstream.openai.fields.field_check import check_stream_options
from millstream.openai.fields.field_table import OF_GATEWAY
from millstream.openai.prompt_list import MOST_PROMPTS
from millstream.openai.request_body import read_body
from millstream.openai.unsupported_field import UnsupportedField
from millstream.wire.keys import Lane

PROMPT_BYTES = 512
_LANES = {
    "auto": Lane.INTERACTIVE, "default": Lane.INTERACTIVE, "priority": Lane.INTERACTIVE, "flex": Lane.BATCH
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """`model`: the name that the caller used, for the answer; None: there was none. `requests`: one for each
    prompt; they differ in nothing else. `n`: the choices of each.
    """

    endpoint: ApiEndpoint
    model: str | None
    requests: tuple[EncodedRequest, ...]
    n: int
    may_call: bool  # tools
    streamed: bool
    include_usage: bool
    service_tier: str | None = None
    ignored: tuple[str, ...] = ()  # names of fields without effect
    sent: Mapping[str, str] = field(default_factory=dict)  # fields of the body, as RequestImages has them

    @property
    def first(self) -> EncodedRequest:
        return self.requests[0]

    @property
    def cost(self) -> int:
        """Returns the estimated tokens of all."""
        return sum(request.cost for request in self.requests)

    @property
    def named(self) -> dict[str, str | None]:
        """The fields that the response repeats."""
        tier = {} if self.service_tier is None else {"service_tier": self.service_tier}
        return {"model": self.model, **tier}


def reading_size(raw: bytes, endpoint: ApiEndpoint) -> int:
    """Bytes to read, where a text or list of /v1/completions counts as PROMPT_BYTES more: it may be a prompt,
    and so a request of its own.
    """
    if endpoint is ApiEndpoint.CHAT:
        return len(raw)
    return len(raw) + PROMPT_BYTES * min(MOST_PROMPTS, raw.count(b'"') // 2 + raw.count(b"["))


def read_completion(raw: bytes, endpoint: ApiEndpoint, caller: ApiKey) -> CompletionRequest | ApiError:
    """Returns the request of a body, or its error."""
    try:
        return _completion_request(endpoint, json_object(raw), caller)
    except ApiError as error:
        return error
    except MillstreamError as error:
        return api_error(error)


def _model_in(body: Mapping[str, Any]) -> str | None:
    """Raises InvalidRequest."""
    model = body.get("model")
    if model is not None and (not isinstance(model, str) or not model):
        raise InvalidRequest("model", model, "give the name of a model, as /v1/models lists them")
    return model


def _completion_request(endpoint: ApiEndpoint, body: Mapping[str, Any], caller: ApiKey) -> CompletionRequest:
    """Raises InvalidRequest naming the field; ApiError 403 for a lane that the caller may not use."""
    model = _model_in(body)
    given = {name: value for name, value in body.items() if value is not None}
    streamed = given.get("stream", False)
    if not isinstance(streamed, bool):
        raise InvalidRequest("stream", streamed, "must be true or false")
    options = _stream_options(given.get("stream_options"), streamed)
    tier, unknown_tier = _tier(given.get("service_tier"))
    lane = _lane(tier, caller)
    rest = {name: value for name, value in given.items() if name not in OF_GATEWAY}
    read = read_body(endpoint, rest, lane=lane, tenant=caller.tenant, queue="default")
    one = read.request
    if streamed and one.return_token_ids:
        raise UnsupportedField("return_token_ids", True, "not supported in streams; leave stream out")
    encoded = encoded_prompts([each.model_copy(update={"stream": streamed}) for each in read.requests])
    return CompletionRequest(
        endpoint,
        model,
        encoded,
        one.sampling.n,
        one.may_call,
        streamed,
        include_usage=bool(options.get("include_usage")),
        service_tier=tier,
        ignored=(*read.ignored, *check_stream_options(options), *unknown_tier),
        sent=read.sent,
    )


def _stream_options(options: Any, streamed: bool) -> Mapping[str, Any]:
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise InvalidRequest("stream_options", options, 'give {"include_usage": true}')
    if not streamed:
        raise InvalidRequest("stream_options", options, "applies to streams; leave it out, or set stream")
    wanted = options.get("include_usage")
    if wanted is not None and not isinstance(wanted, bool):
        raise InvalidRequest("stream_options.include_usage", wanted, "must be true or false")
    return options


def _tier(given: Any) -> tuple[str | None, tuple[str, ...]]:
    """The tier that a request gets, and the field's name if that is another one than it asks for."""
    if given is not None and (not isinstance(given, str) or not given):
        raise InvalidRequest("service_tier", given, f"give one of {', '.join(_LANES)}")
    return (given, ()) if given is None or given in _LANES else ("default", ("service_tier",))


def _lane(tier: str | None, caller: ApiKey) -> Lane:
    lane = _LANES[tier or "auto"]
    if not caller.lanes or lane in caller.lanes:
        return lane
    if tier in (None, "auto", "default"):
        return caller.lanes[0]
    message = f"service_tier: this key may use {', '.join(caller.lanes)}, and {tier} is {lane}"
    raise ApiError(403, message, "lane_not_allowed", "service_tier")
