"""Reads the size of a large message's input, and its other fields, without unpacking the input. A job that is
far too long is refused, or put off, with only its bytes in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millstream.errors import ProtocolError
from millstream.wire.messages import codec
from millstream.wire.messages.job_messages import Request

_STAND_INS: dict[str, Any] = {"prompt": "-", "messages": [{"role": "user", "content": "-"}], "token_ids": [0]}
_NIL = 0xC0
_MOST_FIELD_BYTES = 2**21  # no field of ours beside the input takes more
# msgpack: the first byte of a text or list with a length field, and that field's bytes
_LENGTH_BYTES = {0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDC: 2, 0xDD: 4}


@dataclass(frozen=True, slots=True)
class Outline:
    """`size` of the input: bytes of a prompt, number of messages or token ids. `end`: its end in the payload.
    `request` has a stand-in for it.
    """

    field: str
    size: int
    end: int
    request: Request


def outline(payload: bytes) -> Outline | None:
    """None for a message that is not valid: decoding it will say why."""
    try:
        return _outline(payload)
    except (ValueError, IndexError, ProtocolError):
        return None


def image_bytes(payload: bytes) -> int:
    """Returns the size of its images; 0 also for a message that is not valid."""
    try:
        return sum(one.end - one.value for one in codec.spans(payload) if one.name == "images")
    except (ValueError, ProtocolError):
        return 0


def _outline(payload: bytes) -> Outline | None:
    inputs: list[tuple[str, int, int]] = []
    kept: list[bytes] = []
    for one in codec.spans(payload):
        if one.name in _STAND_INS and payload[one.value] != _NIL:
            inputs.append((one.name, _length(payload, one.value, a_list=one.name != "prompt"), one.end))
        elif one.name != "images" and one.end - one.start <= _MOST_FIELD_BYTES:  # they are of the input
            kept.append(payload[one.start : one.end])
    if len(inputs) != 1:
        return None
    [(field, size, end)] = inputs
    kept.append(codec.pack(field) + codec.pack(_STAND_INS[field]))
    return Outline(field, size, end, codec.decode(Request, codec.joined(kept)))


def _length(payload: bytes, at: int, *, a_list: bool) -> int:
    """The length of the text or list that begins there. Raises ValueError for any other type."""
    first = payload[at]
    if first & 0xF0 == 0x90 if a_list else first & 0xE0 == 0xA0:
        return first & (0x0F if a_list else 0x1F)
    if first not in _LENGTH_BYTES or a_list != (first >= 0xDC):
        raise ValueError("neither text nor list")
    return int.from_bytes(payload[at + 1 : at + 1 + _LENGTH_BYTES[first]], "big")
