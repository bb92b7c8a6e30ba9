"""The messages of the protocol: request, token delta, result. One version number covers them all: a job's
deltas and its result have the version of its request.

A request is read once by a worker; deltas are the token log's entries and the published messages; a result is
read by pollers. Times are Unix milliseconds of the Redis server's clock.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, TypeVar, overload

from pydantic import (
    BaseModel,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    StringConstraints,
    ValidationError,
    model_serializer,
    model_validator,
)

from millstream.errors import IncompleteAnswer, InvalidRequest, ProtocolError
from millstream.wire.keys import Lane
from millstream.wire.messages import codec
from millstream.wire.messages.choices import Choice
from millstream.wire.messages.codec import LongText, Message, Number, ShortText
from millstream.wire.messages.digest import digest_of
from millstream.wire.messages.images import MAX_IMAGES, Image, MessagePart
from millstream.wire.messages.prediction import PredictedText
from millstream.wire.messages.response_format import ResponseFormat
from millstream.wire.messages.sampling import SamplingParams, TokenId
from millstream.wire.messages.template import TemplateKwargs
from millstream.wire.messages.tools import (
    EarlierCall,
    Tool,
    ToolChoice,
    check_lengths,
    check_tools,
    has_later_name,
)
from millstream.wire.messages.validation_errors import WHOLE, WrongField, invalid_request, within_reach
from millstream.wire.versions import ADDED, FIRST_VERSION, lowest_version

M = TypeVar("M", bound=BaseModel)
INPUTS = ("prompt", "messages", "token_ids")
# Of messages, later than the first version.
_LATER_IN_MESSAGES = ("tool_calls", "tool_call_id", "name", "reasoning_content", "parts")
_OF_CHATS = ("continue_final_message", "reasoning_effort", "chat_template_kwargs", "tools")


class State(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def terminal(self) -> bool:
        return self not in (State.QUEUED, State.RUNNING)


class ResultCache(StrEnum):
    """The way a request uses the results that a queue keeps for equal requests."""

    USE = "use"
    NO_CACHE = "no-cache"  # it is computed anew; its result is kept
    NO_STORE = "no-store"  # it is computed anew, and its result not kept


class RequestKind(StrEnum):
    ANSWER = "answer"
    COUNT = "count"  # its prompt's tokens are counted, and nothing is computed


class ReasoningEffort(StrEnum):
    """OpenAI's names; the model's chat template decides which of them it knows."""

    NONE = "none"
    MINIMAL = "minimal"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    XHIGH = "xhigh"


class ChatMessage(Message):
    """`tool_calls`: those of an answer, which needs no content then; `tool_call_id`: the call whose outcome
    the message tells; `reasoning_content`: the thought before an answer; `name`: of the speaker or function;
    `parts`: its texts and images in order, instead of `content`, which is empty then.
    """

    role: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    content: LongText
    tool_calls: tuple[EarlierCall, ...] = ()
    tool_call_id: ShortText = ""
    name: ShortText = ""
    reasoning_content: LongText = ""
    parts: Annotated[tuple[MessagePart, ...], Field(max_length=2**16)] = ()

    @model_validator(mode="before")
    @classmethod
    def _without_content(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("content") is not None:
            return given
        if given.get("tool_calls") or given.get("parts"):
            return {**given, "content": ""}
        return given


class Request(Message):
    """A producer's request. Exactly one of `prompt`, `messages` and `token_ids` is given."""

    version: Number = FIRST_VERSION
    prompt: LongText | None = None
    messages: Annotated[tuple[ChatMessage, ...], Field(max_length=2**16)] | None = None
    token_ids: Annotated[tuple[TokenId, ...], Field(max_length=codec.MAX_LIST)] | None = None
    sampling: SamplingParams = SamplingParams()
    lane: Lane = Lane.BATCH
    deadline_ms: Annotated[int, Field(gt=0, lt=2**53)] | None = None
    tenant: ShortText = ""
    metadata: Annotated[dict[ShortText, ShortText], Field(max_length=64)] = Field(default_factory=dict)
    stream: bool = False
    traceparent: Annotated[str, StringConstraints(max_length=128)] | None = None
    chat_template_kwargs: TemplateKwargs = None  # such as {"enable_thinking": False}; only with `messages`
    response_format: ResponseFormat | None = None
    tools: tuple[Tool, ...] | None = None  # only with `messages`
    tool_choice: ToolChoice | None = None  # auto where there are tools
    parallel_tool_calls: bool = True  # False: at most one call
    prediction: PredictedText | None = None  # the guessed answer: see its module
    cache: ResultCache = ResultCache.USE
    kind: RequestKind = RequestKind.ANSWER
    continue_final_message: bool = False  # the answer goes on with the last message; only with `messages`
    add_generation_prompt: bool = True  # False: the prompt ends behind the last message; only with `messages`
    reasoning_effort: ReasoningEffort | None = None  # only with `messages`
    return_token_ids: bool = False  # the result has the prompt's token ids, too
    images: Annotated[tuple[Image, ...], Field(max_length=MAX_IMAGES)] = ()  # of the parts of `messages`

    @model_validator(mode="before")
    @classmethod
    def _bounded(cls, given: Any) -> Any:
        if isinstance(given, dict):
            check_lengths(given.get("tools"))
        return given

    @model_validator(mode="after")
    def _one_input(self) -> Request:
        given = [name for name in INPUTS if getattr(self, name) is not None]
        if len(given) != 1:
            field = given[1] if given else INPUTS[0]
            problem = "give exactly one of prompt, messages and token_ids"
            if given:
                problem += f", not {' and '.join(given)}"
            raise WrongField(field, getattr(self, field), problem)
        if not getattr(self, given[0]):
            raise WrongField(given[0], getattr(self, given[0]), "is empty; give some input")
        asked = [name for name in _OF_CHATS if getattr(self, name)]
        asked += [] if self.add_generation_prompt else ["add_generation_prompt"]
        if asked and not self.messages:
            problem = f"needs messages: a chat template renders them, and no {given[0]}"
            raise WrongField(asked[0], getattr(self, asked[0]), problem)
        return self

    @model_validator(mode="after")
    def _goes_on(self) -> Request:
        if self.continue_final_message and self.add_generation_prompt:
            problem = (
                "begins a new turn, and continue_final_message goes on with the last; set one of them false"
            )
            raise WrongField("add_generation_prompt", True, problem)
        return self

    @model_validator(mode="after")
    def _ends_by_itself(self) -> Request:
        check_tools(self.tools, self.tool_choice)
        asked: dict[str, str] = {"response_format": self.response_format.type} if self.response_format else {}
        if self.may_call:
            asked["tools"] = self.calling
        for name in ("min_tokens", "ignore_eos"):
            if asked and (value := getattr(self.sampling, name)):
                problem = (
                    f"cannot be met with {name} {value}: the format ends the answer; leave one of them out"
                )
                raise WrongField(*asked.popitem(), problem)
        return self

    @model_serializer(mode="wrap")
    def _with_said(self, serialize: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        """With what was set, also where it equals the default: the model may have another."""
        fields: dict[str, Any] = serialize(self)
        if info.exclude_defaults and (said := self.sampling.said()):
            fields["sampling"] = said | fields.get("sampling", {})
        return fields

    @property
    def input_field(self) -> str:
        """The name of the one input that it has."""
        return next(name for name in INPUTS if getattr(self, name) is not None)

    @property
    def calling(self) -> str:
        """The type of its tool choice; `none` without tools."""
        if self.tools is None:
            return "none"
        return "auto" if self.tool_choice is None else self.tool_choice.type

    @property
    def may_call(self) -> bool:
        return self.calling != "none"

    @property
    def has_one_answer(self) -> bool:
        """True if equal requests get equal answers."""
        return self.sampling.temperature == 0 or self.sampling.seed is not None

    @property
    def may_be_kept(self) -> bool:
        """True if its result may be kept for equal requests."""
        stored = self.cache is not ResultCache.NO_STORE and self.kind is RequestKind.ANSWER
        return self.has_one_answer and stored

    def lowest_version(self) -> int:
        """The lowest version of a message that has all of its fields."""
        fields = type(self).model_fields
        names = [name for name in ADDED if name in fields and getattr(self, name) != fields[name].default]
        for message in self.messages or ():
            names += [f"messages.{name}" for name in _LATER_IN_MESSAGES if getattr(message, name)]
        names += [f"sampling.{name}" for name in self.sampling.later_fields()]
        names += ["tools.name"] if has_later_name(self.tools or ()) else []
        names += ["tools.response_format"] if self.may_call and self.response_format else []
        return lowest_version(names)

    def digest(self) -> str:
        """Returns a digest that is equal for equal submissions; see digest_of."""
        return digest_of(self)


def read_request(data: bytes) -> Request:
    """Reads a request as some client sent it. Raises InvalidRequest, for that client, and nothing else."""
    try:
        fields = codec.unpack_request(data)
    except ProtocolError as error:
        raise InvalidRequest(WHOLE, data, f"{error}; send a msgpack map of the request's fields") from None
    if not isinstance(fields, dict):
        raise InvalidRequest(WHOLE, fields, "must be a msgpack map of the request's fields")
    try:
        with within_reach():
            return Request.model_validate(fields)
    except ValidationError as error:
        raise invalid_request(error) from None  # the cause shows the input


class Usage(Message):
    """Tokens counted once per job, over all attempts; `cached_tokens` of the prompt were in the KV cache.

    `draft_tokens` were guessed and verified by the worker that ended the job; of these,
    `accepted_draft_tokens` were right, and are part of the output. `image_tokens` of the prompt are in the
    place of images.
    """

    prompt_tokens: Number = 0
    cached_tokens: Number = 0
    output_tokens: Number = 0
    draft_tokens: Number = 0
    accepted_draft_tokens: Number = 0
    image_tokens: Number = 0


class ErrorInfo(Message):
    """The reason why a job failed. `code` is stable; `field` names the invalid request field, if there is
    one.
    """

    code: str
    message: str
    field: str | None = None


class Timing(Message):
    """Unix milliseconds of the server's clock, over all attempts; None: the job never got there. A job's hash
    has equal numbers under equal names.
    """

    submitted_ms: Number = 0
    started_ms: Number | None = None  # a worker first took it
    compiled_ms: Number | None = None  # its response_format was compiled; None: it has none
    admitted_ms: Number | None = None  # it first entered the batch
    first_token_ms: Number | None = None  # sent to its readers; of jobs without a stream: sampled
    last_token_ms: Number | None = None
    finished_ms: Number | None = None


class Result(Message):
    """The stored end of a job: text, usage and times; partial text for failed, cancelled and expired jobs."""

    version: Number = FIRST_VERSION
    state: State = State.COMPLETED
    choices: tuple[Choice, ...] = ()
    usage: Usage = Usage()
    error: ErrorInfo | None = None
    timing: Timing = Timing()
    model: str = ""
    weights: str | None = None  # their format, as "bfloat16", "int8" or "Q4_K+Q6_K"; older workers do not say
    cached: bool = False  # computed for an equal request
    kv_format: str | None = None  # of keys and values, as "bfloat16" or "int8"; older workers do not say
    model_digest: str | None = None  # of the checkpoint; the same
    attempts: Number = 1
    seed: Number | None = None
    metadata: dict[str, str] = Field(default_factory=dict)
    prompt_token_ids: tuple[TokenId, ...] | None = Field(default=None, repr=False)  # with `return_token_ids`
    sampling: dict[str, Any] | None = None  # parameters that the model's defaults set, by name

    @property
    def text(self) -> str:
        """The text of the first choice; `choices` has them all."""
        return self.choices[0].text if self.choices else ""

    @overload
    def parse(self, model: None = None) -> Any: ...

    @overload
    def parse(self, model: type[M]) -> M: ...

    def parse(self, model: type[M] | None = None) -> M | Any:
        """The first choice's JSON text as an object; see Choice.parse."""
        if not self.choices:
            raise IncompleteAnswer(0, "", None)
        return self.choices[0].parse(model)
