"""msgpack into the protocol's messages: bytes that no model, or no msgpack at all, stands behind."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import msgpack
from pydantic import BaseModel

from fuzz import valid
from fuzz.mutation import damage, mutate
from fuzz.target import Target
from fuzz.values import blob, plain, weighted
from millstream.errors import ProtocolError
from millstream.wire.messages import choices, codec, job_messages
from millstream.wire.messages.sampling import SamplingParams

MODELS: dict[str, tuple[type[BaseModel], Callable[[Random], Any]]] = {
    "Request": (job_messages.Request, valid.request),
    "RequestOfImages": (job_messages.Request, valid.request_of_images),
    "Delta": (choices.Delta, valid.delta),
    "Result": (job_messages.Result, valid.result),
    "SamplingParams": (SamplingParams, valid.sampling),
    "ChatMessage": (job_messages.ChatMessage, lambda chance: valid.messages(chance)[0]),
    "ChoiceDelta": (choices.ChoiceDelta, valid.choice_delta),
    "Choice": (choices.Choice, valid.choice_delta),
    "TokenLogprob": (choices.TokenLogprob, valid.token_logprob),
    "Timing": (job_messages.Timing, valid.timing),
    "Usage": (job_messages.Usage, lambda chance: {"prompt_tokens": chance.randrange(9)}),
    "ErrorInfo": (job_messages.ErrorInfo, lambda _: {"code": "c", "message": "m", "field": "f"}),
}
_PLAIN = {dict, list, str, bytes, int, float, bool, type(None)}


def body(chance: Random, make: Callable[[Random], Any]) -> bytes:
    """A message of this kind as bytes: right, changed, or damaged."""
    return weighted(
        chance,
        (3, lambda c: pack(make(c))),
        (6, lambda c: pack(mutate(c, make(c)))),
        (4, lambda c: damage(c, pack(make(c)))),
        (1, lambda c: pack(plain(c, 3))),
        (1, blob),
        (0.2, nest),
    )


def nest(chance: Random) -> bytes:
    """Lists or maps in each other."""
    start = chance.choice((b"\x91", b"\x81\xa1a", b"\xdc\x00\x01"))
    return start * chance.choice((9, 500, 1100, 5000)) + b"\xc0"


def pack(value: Any) -> bytes:
    """With what our own packing would refuse: keys of any kind."""
    return msgpack.packb(value, use_bin_type=True)


def _message(chance: Random) -> tuple[str, bytes]:
    name = chance.choice(list(MODELS))
    return name, body(chance, MODELS[name][1])


def _decode(case: tuple[str, bytes]) -> None:
    name, data = case
    kind = MODELS[name][0]
    read = codec.decode(kind, data)
    again = codec.decode(kind, codec.encode(read))
    assert again == read, f"{again!r:.200} is not {read!r:.200}"
    assert all(map(math.isfinite, _floats(read.model_dump()))), "a number that is none came through"


def _floats(value: Any) -> list[float]:
    if isinstance(value, float):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [number for one in inner for number in _floats(one)]


def _any_bytes(chance: Random) -> bytes:
    return body(chance, lambda c: plain(c, 4))


def _unpack(data: bytes) -> None:
    value = codec.unpack(data)
    count, kinds = _census(value)
    assert kinds <= _PLAIN, f"made {kinds - _PLAIN}"
    assert count <= len(data) + 1, f"{count} values of {len(data)} bytes"
    again = codec.pack(value)
    assert codec.pack(codec.unpack(again)) == again, "it comes back as something else"


def _census(value: Any) -> tuple[int, set[type]]:
    """How many values there are, and of which types."""
    count, kinds, left = 0, set(), [value]
    while left:
        one = left.pop()
        count += 1
        kinds.add(type(one))
        if isinstance(one, dict):
            assert all(type(name) is str for name in one), "a key that is no text"
            left += one.values()
        elif isinstance(one, list):
            left += one
    return count, kinds


TARGETS = (
    Target("messages", _message, _decode, (ProtocolError,), share=3),
    Target("msgpack", _any_bytes, _unpack, (ProtocolError,), share=3),
)
