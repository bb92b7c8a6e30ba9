"""Reads the size of a large message's input, and its other fields, without unpacking the input. A job that is
far too long is refused, or put off, with only its bytes in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgpack

from millstream.errors import ProtocolError
from millstream.wire.messages import codec
from millstream.wire.messages.messages import Request

_STAND_INS: dict[str, Any] = {"prompt": "-", "messages": [{"role": "user", "content": "-"}], "token_ids": [0]}
_NIL = 0xC0
_MOST_NAME_BYTES = 64
_MOST_FIELD_BYTES = 512 * 1024  # no field of ours beside the input takes more
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
    reader = msgpack.Unpacker(
        max_buffer_size=max(1, len(payload)), max_str_len=_MOST_NAME_BYTES, max_bin_len=0, max_array_len=0,
        max_map_len=0, max_ext_len=0,
    )  # fmt: skip
    try:
        reader.feed(payload)
        return _outline(reader, payload)
    except (ValueError, TypeError, IndexError, RecursionError, msgpack.exceptions.UnpackException):
        return None
    except ProtocolError:
        return None


def _outline(reader: msgpack.Unpacker, payload: bytes) -> Outline | None:
    inputs: list[tuple[str, int, int]] = []
    kept: list[bytes] = []
    for _ in range(reader.read_map_header()):
        start = reader.tell()
        name = reader.unpack()
        value = reader.tell()
        reader.skip()
        if name in _STAND_INS and payload[value] != _NIL:
            inputs.append((name, _length(payload, value, a_list=name != "prompt"), reader.tell()))
        elif reader.tell() - start <= _MOST_FIELD_BYTES:
            kept.append(payload[start : reader.tell()])
    if len(inputs) != 1 or reader.tell() != len(payload):
        return None
    [(field, size, end)] = inputs
    kept += [codec.pack(field), codec.pack(_STAND_INS[field])]
    header: bytes = msgpack.Packer().pack_map_header(len(kept) - 1)
    return Outline(field, size, end, codec.decode(Request, header + b"".join(kept)))


def _length(payload: bytes, at: int, *, a_list: bool) -> int:
    """The length of the text or list that begins there. Raises ValueError for any other type."""
    first = payload[at]
    if first & 0xF0 == 0x90 if a_list else first & 0xE0 == 0xA0:
        return first & (0x0F if a_list else 0x1F)
    if first not in _LENGTH_BYTES or a_list != (first >= 0xDC):
        raise ValueError("neither text nor list")
    return int.from_bytes(payload[at + 1 : at + 1 + _LENGTH_BYTES[first]], "big")
