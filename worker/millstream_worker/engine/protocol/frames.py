"""Defines the messages between the front and the engine process: msgpack frames over a socket pair.

    frame = 4 bytes big-endian length + msgpack [kind, field, field, …]

Front to engine: Configure (first), HoldImage, DropImage, Add, Abort, Stop. Engine to front: LoadProgress…,
one Found between them, Ready or LoadFailed, then one Step per settled step, Refused for a request that can
never run, Compiled for one whose grammar is there, Beat from a thread of its own, a Step without tokens when
the batch runs empty, and LastWords where it has to end. Neither side waits for the other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, is_dataclass, replace
from enum import StrEnum
from typing import Any, get_args

import msgpack

from millstream_worker.engine.protocol.config import EngineConfig, EngineInfo
from millstream_worker.engine.protocol.outputs import Compiled, EngineStats, Refused, Step
from millstream_worker.engine.protocol.request import (
    EngineRequest,
    GrammarSpec,
    ImageSpan,
    LimitSpec,
    SamplingSpec,
)
from millstream_worker.images.messages import PackedArray

MAX_FRAME_BYTES = 64 * 1024 * 1024
_LENGTH = struct.Struct(">I")


class BadFrame(ValueError):
    """Invalid bytes from the peer: its memory, or the stream, is damaged."""


@dataclass(frozen=True, slots=True)
class Configure:
    config: EngineConfig


@dataclass(frozen=True, slots=True)
class HoldImage:
    """Keep this image for the prompts of one salt that have it, until DropImage. It comes before the first
    Add that names it, and once while it is kept; `arrays` are what the image processor makes of it."""

    salt: str
    digest: bytes
    features: int  # tokens of a prompt that stand for it
    arrays: tuple[PackedArray, ...]


@dataclass(frozen=True, slots=True)
class DropImage:
    """No prompt of this salt that has come, or will come, needs the image any more."""

    salt: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class Add:
    request: EngineRequest


@dataclass(frozen=True, slots=True)
class Abort:
    """Stop these rows without further reports. Unknown handles are ignored."""

    handles: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    pass


class Tried(StrEnum):
    """The work that an engine can do without. Each value begins the report when the engine tries it; each
    name is that of its setting."""

    ATTENTION = "checking attention"
    COMPILE_MODEL = "compiling the model"
    LARGEST_STEP = "measuring the largest step"
    CUDA_GRAPHS = "recording CUDA graphs"

    @property
    def setting(self) -> str:
        """Returns the setting that does without it."""
        return self.name.lower()

    @property
    def suspects(self) -> tuple[Tried, ...]:
        """Returns what may be at fault when an engine dies while it tries this: the likeliest first."""
        if self is Tried.LARGEST_STEP:  # whose sizes nothing has computed before
            return Tried.COMPILE_MODEL, Tried.ATTENTION
        return (self,)


class LoadStep(StrEnum):
    """Steps of loading that are not in `Tried`, worded for people who wait. Each value begins the report of
    its step; behind a colon is how far it is."""

    FETCH = "fetching the model"
    WAIT = "waiting for another worker"
    CONVERT = "converting"
    COMPILE_NATIVE = "compiling native code"
    WEIGHTS = "reading the weights"
    ROOM = "making room for"


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """A step that the engine begins, or a fact that it has found."""

    message: str

    @property
    def is_step(self) -> bool:
        return self.message.startswith((*LoadStep, *Tried))

    @property
    def tried(self) -> Tried | None:
        """Returns what the engine is about to try, if it is one of these."""
        return next((one for one in Tried if self.message.startswith(one)), None)


@dataclass(frozen=True, slots=True)
class Found:
    """The checkpoint that the engine is about to load."""

    model: str
    digest: str


@dataclass(frozen=True, slots=True)
class Ready:
    info: EngineInfo


@dataclass(frozen=True, slots=True)
class LoadFailed:
    message: str


@dataclass(frozen=True, slots=True)
class Beat:
    """The engine's phase, and the time since its last progress in it; from a thread of its own."""

    phase: str  # loading | step | idle
    seconds: float


class Fault(StrEnum):
    """The cause of an engine's end. It tells if the device, or the code that runs on it, is at fault."""

    NONE = "none"
    DEVICE = "device"
    EITHER = "either"  # the device or a job


@dataclass(frozen=True, slots=True)
class LastWords:
    """The reason why the engine ends itself in the middle of its work."""

    message: str
    fault: Fault = Fault.NONE


Frame = (
    Configure
    | HoldImage
    | DropImage
    | Add
    | Abort
    | Stop
    | LoadProgress
    | Found
    | Ready
    | LoadFailed
    | Refused
    | Compiled
    | Beat
    | Step
    | LastWords
)
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Frame)}


def encode(frame: Frame) -> bytes:
    """Returns the frame with its length prefix."""
    body: bytes = msgpack.packb((type(frame).__name__, *_fields(frame)))
    return _LENGTH.pack(len(body)) + body


def _fields(message: Any) -> tuple[Any, ...]:
    """Returns a message's fields, with those of messages inside it. `astuple` would copy every list number by
    number: 60 ms for a prompt of 100,000 tokens, during which the front does nothing else.
    """
    if isinstance(message, tuple):
        return message
    values = (getattr(message, name) for name in message.__slots__)
    return tuple(_plain(value) for value in values)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return _fields(value)
    if isinstance(value, tuple) and value and is_dataclass(value[0]):  # of one kind
        return tuple(_fields(one) for one in value)
    return value


def decode(body: bytes) -> Frame:
    """Returns a frame from its body (without the length). Raises BadFrame if it is none; the content of its
    fields is not checked: the peer is our own process.
    """
    try:
        return _decode(body)
    except (ValueError, TypeError, LookupError, msgpack.exceptions.UnpackException) as error:
        raise BadFrame(f"{len(body)} bytes that are not a frame: {error!r:.200}") from None


def _decode(body: bytes) -> Frame:
    name, *fields = msgpack.unpackb(body, use_list=False)
    match name:
        case "Configure":
            return Configure(EngineConfig(*fields[0]))
        case "Ready":
            return Ready(EngineInfo(*fields[0]))
        case "Add":
            handle, prompt, max_tokens, sampling, *rest, images, grammar, limits = fields[0]
            request = EngineRequest(handle, prompt, max_tokens, SamplingSpec(*sampling), *rest)
            limits = None if limits is None else LimitSpec(*limits)
            spans = tuple(ImageSpan(*span) for span in images)
            return Add(replace(request, images=spans, grammar=_grammar(grammar), limits=limits))
        case "HoldImage":
            salt, digest, features, arrays = fields
            return HoldImage(salt, digest, features, tuple(PackedArray(*array) for array in arrays))
        case "Step":
            handles, tokens, finished, admitted, logprobs, stats, *rest = fields
            return Step(handles, tokens, finished, admitted, logprobs, EngineStats(*stats), *rest)
        case "LastWords":
            message, fault = fields
            return LastWords(message, Fault(fault))
        case _:
            frame: Frame = _KINDS[name](*fields)
            return frame


def _grammar(fields: Sequence[Any] | None) -> GrammarSpec | None:
    if fields is None:
        return None
    *plain, answer = fields
    return replace(GrammarSpec(*plain), answer=_grammar(answer))


class FrameBuffer:
    """Cuts a byte stream into frames, whatever pieces it arrives in. Raises BadFrame."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        self._data += data
        while len(self._data) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._data)
            if size > MAX_FRAME_BYTES:
                raise BadFrame(f"frame of {size} bytes is over the limit of {MAX_FRAME_BYTES}")
            end = _LENGTH.size + size
            if len(self._data) < end:
                return
            with memoryview(self._data) as view:
                body = bytes(view[_LENGTH.size : end])
            del self._data[:end]
            yield decode(body)
