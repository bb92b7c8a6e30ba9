"""Converts a caller's arguments to a request on the wire, or raises an InvalidRequest that names the
field.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict, TypeVar

from pydantic import BaseModel, ValidationError

from millstream.client.session.options import MAX_S
from millstream.client.submit.request_cost import cost_of
from millstream.errors import InvalidRequest
from millstream.openai.fields.field_check import check_message_names, remedy_of
from millstream.openai.fields.value_forms import TURN_FIELDS, one_of, sampling_values, turn_values
from millstream.openai.messages.chat_messages import asked_messages
from millstream.openai.messages.image_parts import RequestImages, has_images
from millstream.openai.messages.message_content import PredictionArgument, predicted_text
from millstream.openai.name_likeness import meant_name
from millstream.openai.offered_tools import TOOL_FIELDS, ToolArgument, ToolChoiceArgument, asked_tools
from millstream.openai.structured_outputs import FormatArgument, asked_format
from millstream.wire.keys import Lane, check_own_id, new_own_id
from millstream.wire.messages import codec
from millstream.wire.messages.job_messages import INPUTS, ChatMessage, Request, RequestKind, ResultCache
from millstream.wire.messages.sampling import SamplingParams
from millstream.wire.messages.validation_errors import invalid_request, within_reach
from millstream.wire.versions import FIRST_VERSION

M = TypeVar("M", bound=BaseModel)
FORMATS = ("response_format", "structured_outputs")  # at most one of them
REQUEST_FIELDS = (
    *INPUTS, "chat_template_kwargs", "prediction", "cache", "tenant", "metadata", "stream", "traceparent",
)  # fmt: skip


class SamplingFields(TypedDict, total=False):
    """Sampling parameters as keywords; SamplingParams documents them."""

    max_tokens: int | None
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    logprobs: bool
    top_logprobs: int
    n: int
    bad_words: Sequence[str]
    allowed_token_ids: Sequence[int] | None
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    truncate_prompt_tokens: int | None
    thinking_token_budget: int | None


class JobArguments(SamplingFields, total=False):
    """The keywords of `submit` that describe its job."""

    messages: Sequence[ChatMessage | Mapping[str, object]] | None
    token_ids: Sequence[int] | None
    chat_template_kwargs: Mapping[str, object] | None
    response_format: FormatArgument | None
    structured_outputs: Mapping[str, object] | None
    tools: Sequence[ToolArgument] | None
    tool_choice: ToolChoiceArgument | None
    parallel_tool_calls: bool | None
    prediction: PredictionArgument | None
    cache: ResultCache | str
    id: str | None
    sampling: SamplingParams | None
    lane: Lane | str
    deadline_s: float | None
    tenant: str
    metadata: Mapping[str, str] | None
    stream: bool
    traceparent: str | None
    continue_final_message: bool
    add_generation_prompt: bool
    reasoning_effort: str | None
    return_token_ids: bool


class JobFields(JobArguments, total=False):
    """One job of `submit_many`: the arguments of `submit` as a mapping.

    Or a ready `request` in their place, with at most an `id` and a `deadline_s`.
    """

    request: Request | EncodedRequest
    prompt: str | None


_KEYWORDS = frozenset(JobFields.__annotations__).union(
    JobArguments.__annotations__, SamplingFields.__annotations__
)


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """A checked and encoded request. Its id is fixed, so that it can be sent again."""

    own_id: str
    lane: Lane
    payload: bytes = field(repr=False)
    digest: str
    deadline_ms: int | None
    stream: bool
    version: int = FIRST_VERSION
    requeued_from: str | None = None  # the dead-lettered job that it repeats
    tenant: str = ""
    cost: int = 1  # estimated tokens
    kept_digest: str = ""  # as `own_id_of` takes it
    images: int = 0

    def settled(self, own_id: str | None, deadline_ms: int | None) -> EncodedRequest:
        """With this id and deadline in place of its own, which were none."""
        payload = self.payload
        if deadline_ms is not None:
            payload = codec.with_field(payload, "deadline_ms", deadline_ms)
        return replace(
            self, own_id=own_id or self.own_id, payload=payload, deadline_ms=deadline_ms or self.deadline_ms
        )


def draft(fields: Mapping[str, Any], now_ms: int, max_payload_bytes: int, shards: int = 1) -> EncodedRequest:
    """Check and encode the arguments of `submit`. `shards`: see own_id_of. Raises InvalidRequest for the
    first wrong one.
    """
    with within_reach():
        return _encoded(fields, now_ms, max_payload_bytes, shards)


def _encoded(fields: Mapping[str, Any], now_ms: int, max_payload_bytes: int, shards: int) -> EncodedRequest:
    if not isinstance(fields, Mapping):
        raise InvalidRequest("request", fields, "give the arguments of submit as a mapping")
    given = {name: value for name, value in fields.items() if value is not None}
    own_id = _own_id(given.pop("id", None))
    deadline_ms = _deadline_ms(given.pop("deadline_s", None), now_ms)
    if isinstance(ready := given.get("request"), EncodedRequest) and len(given) == 1:
        return ready.settled(own_id, deadline_ms)
    kind = one_of(RequestKind, "kind", given.pop("kind", RequestKind.ANSWER))
    request = _request(given)
    if kind is not request.kind and kind is not RequestKind.ANSWER:
        request = request.model_copy(update={"kind": kind})
    version = request.lowest_version()
    if (deadline_ms, version) != (None, request.version):
        settled = {"version": version, "deadline_ms": deadline_ms or request.deadline_ms}
        request = request.model_copy(update=settled)
    payload = codec.encode(request)
    if len(payload) > max_payload_bytes:
        name = request.input_field
        remedy = "send fewer or smaller images" if request.images else "shorten it"
        problem = f"the request takes {len(payload)} bytes and may take {max_payload_bytes}; {remedy}"
        raise InvalidRequest(name, getattr(request, name), problem)
    digest = request.digest()
    kept_digest = digest if request.may_be_kept else ""
    return EncodedRequest(
        own_id_of(kept_digest, shards) if own_id is None else own_id,
        request.lane,
        payload,
        digest,
        request.deadline_ms,
        request.stream,
        version=version,
        tenant=request.tenant,
        cost=cost_of(request),
        kept_digest=kept_digest,
        images=len(request.images),
    )


async def drafted(
    fields: Mapping[str, Any], now_ms: int, max_payload_bytes: int, shards: int = 1
) -> EncodedRequest:
    """The same beside the loop where images are read, which may be files."""
    if has_images(fields):
        return await asyncio.to_thread(draft, fields, now_ms, max_payload_bytes, shards)
    return draft(fields, now_ms, max_payload_bytes, shards)


def own_id_of(kept_digest: str, shards: int) -> str:
    """A new one. `kept_digest`: of a request whose result may be kept for equal ones; empty for others.
    `shards`: of a queue that keeps results, as equal requests meet only in one shard; 1 for other queues.
    """
    return new_own_id(kept_digest if shards > 1 else "", shards)


def _request(given: dict[str, Any]) -> Request:
    if "request" in given:
        request = given.pop("request")
        if given or not isinstance(request, Request):
            raise InvalidRequest("request", request, "give a Request, and beside it only id and deadline_s")
        return request
    lane = one_of(Lane, "lane", given.pop("lane", Lane.BATCH))
    base = given.pop("sampling", None)
    rest = {name: given.pop(name) for name in REQUEST_FIELDS if name in given}
    turn = turn_values({name: given.pop(name) for name in TURN_FIELDS if name in given})
    formats = {name: given.pop(name) for name in FORMATS if name in given}
    tools = asked_tools({name: given.pop(name) for name in TOOL_FIELDS if name in given})
    values = (
        _converted(rest)
        | turn
        | tools
        | {
            "lane": lane,
            "sampling": _sampling(base, given),
            "response_format": asked_format(formats),
        }
    )
    try:
        return _checked(Request, values)
    except InvalidRequest as error:
        if error.field == "response_format" and "structured_outputs" in formats:
            raise InvalidRequest("structured_outputs", error.value, error.problem) from None
        raise


def _own_id(own_id: Any) -> str | None:
    if own_id is not None and not isinstance(own_id, str):
        raise InvalidRequest("id", own_id, "must be a string")
    return None if own_id is None else check_own_id(own_id)


def _deadline_ms(deadline_s: Any, now_ms: int) -> int | None:
    if deadline_s is None:
        return None
    number = deadline_s if type(deadline_s) in (int, float) else math.nan
    if not 0 < number <= MAX_S:
        raise InvalidRequest(
            "deadline_s", deadline_s, "must be seconds from now, above 0 and at most ten years"
        )
    return now_ms + max(1, round(number * 1000))


def _sampling(base: SamplingParams | None, fields: Mapping[str, Any]) -> SamplingParams:
    """`fields` override `base`; a field that neither sets stays unset, out of the request's digest."""
    for name, value in fields.items():
        if name not in SamplingParams.model_fields:
            raise InvalidRequest(str(name), value, f"no such parameter; {_advice(str(name))}")
    if base is None:
        return _checked(SamplingParams, sampling_values(_converted(fields)))
    if not isinstance(base, SamplingParams):
        raise InvalidRequest("sampling", base, "must be a millstream.SamplingParams")
    if not fields:
        return base
    kept = {name: getattr(base, name) for name in base.model_fields_set if name not in fields}
    return _checked(SamplingParams, kept | sampling_values(_converted(fields)))


def _advice(name: str) -> str:
    """Says in place of an unknown parameter what there is."""
    if remedy := remedy_of(name):
        return remedy
    meant = meant_name(name, _KEYWORDS)
    return f"did you mean {meant}?" if meant else "see millstream.SamplingParams for those there are"


def _converted(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Python's and JSON's spellings of a value, as the strict models take them."""
    values = dict(fields)
    if isinstance(prompt := values.get("prompt"), list | tuple):
        problem = "give one text, or one prompt's token_ids; submit_many takes many jobs, one for each prompt"
        raise InvalidRequest("prompt", prompt, problem)
    if isinstance(values.get("stop"), str) and values["stop"]:
        values["stop"] = (values["stop"],)
    for name in ("stop", "stop_token_ids", "bad_words", "allowed_token_ids", "token_ids", "messages"):
        if isinstance(values.get(name), Sequence) and not isinstance(values[name], str | bytes):
            values[name] = tuple(values[name])
    if isinstance(messages := values.get("messages"), tuple):
        check_message_names(messages)
        images = RequestImages(local=True)
        values["messages"] = asked_messages(messages, images)
        values |= images.fields()
    if isinstance(bias := values.get("logit_bias"), Mapping):  # JSON knows only strings as keys
        values["logit_bias"] = {_token_id(key): value for key, value in bias.items()}
    if "cache" in values:
        values["cache"] = one_of(ResultCache, "cache", values["cache"])
    if "prediction" in values:
        values["prediction"] = predicted_text(values["prediction"])
    for name in ("metadata", "chat_template_kwargs"):
        if isinstance(values.get(name), Mapping):
            values[name] = dict(values[name])
    return values


def _token_id(key: Any) -> Any:
    digits = isinstance(key, str) and key.isdecimal() and len(key) < 20  # Python refuses to read thousands
    return int(key) if digits else key


def _checked(kind: type[M], values: Mapping[str, Any]) -> M:
    try:
        return kind.model_validate(values, strict=True)
    except ValidationError as error:
        raise invalid_request(error) from None
