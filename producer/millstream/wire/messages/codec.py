"""Messages, and their msgpack encoding, strictly: no ext types, no object hooks, unique string keys, bounded
size.

Unknown fields are ignored (a newer peer may send them); absent ones take their defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgpack
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from millstream.errors import ProtocolError
from millstream.wire.messages.validation_errors import invalid_request

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_RESULT_BYTES = 512 * 1024 * 1024  # the most that a server's value can be: logprobs of many choices add up
MAX_LIST, MAX_MAP = 2**20, 2**16  # items of one list and of one map of a request

_TIMESTAMP = b"\xff"  # the type byte of msgpack's own extension, which no hook sees; no byte of UTF-8 text

_MAX_NAME_BYTES = 64  # of a field of ours
_SMALL = 64 * 1024  # bytes: too few to take much memory, whatever they contain
_BYTES_EACH = 12  # least average size of our lists and maps on the wire
_FEW = 1000

_REASONS: dict[type[Exception], str] = {  # for errors that msgpack raises without a text
    msgpack.exceptions.StackError: "it is nested too deep",
    msgpack.exceptions.FormatError: "it has a byte that begins no value",
}

M = TypeVar("M", bound=BaseModel)
ShortText = Annotated[str, StringConstraints(max_length=512)]
LongText = Annotated[str, StringConstraints(max_length=4 * 1024 * 1024)]  # in UTF-8, fits into a message
Number = Annotated[int, Field(ge=-(2**63), lt=2**63)]  # the range that msgpack can carry


class Message(BaseModel):
    """A message of the protocol, or a part of one."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    def bytes_fields(self) -> dict[str, Any]:
        """Its fields that hold bytes, which JSON has not, as they are encoded."""
        return {}


def encode(message: BaseModel) -> bytes:
    """The message as a msgpack map; fields at their default are left out."""
    with_bytes = message.bytes_fields() if isinstance(message, Message) else {}
    fields = message.model_dump(mode="json", exclude_defaults=True, exclude=set(with_bytes) or None)
    return pack(fields | with_bytes)


def decode(kind: type[M], data: bytes, max_bytes: int = MAX_MESSAGE_BYTES) -> M:
    """Read a message of `kind`. Raises ProtocolError, and nothing else."""
    fields = unpack(data, max_bytes)
    if not isinstance(fields, dict):
        raise ProtocolError(f"{kind.__name__}: expected a map, got {type(fields).__name__}")
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        wrong = invalid_request(error, whole="")
        # the path may be a key of the sender's, of any length; the cause shows the input
        place = f"{kind.__name__}.{wrong.field:.200}".rstrip(".")
        raise ProtocolError(f"{place}: {wrong.problem:.500}") from None


def pack(value: Any) -> bytes:
    """One plain value (maps, lists, strings, numbers) as msgpack."""
    data: bytes = msgpack.packb(value, use_bin_type=True)
    return data


def with_field(message: bytes, name: str, value: Any) -> bytes:
    """An encoded message that does not have this field yet, with it; its other fields are not read."""
    header = 1 if 0x80 <= message[0] <= 0x8F else 3  # beyond 15 fields their number has two bytes
    fields = msgpack.Unpacker(strict_map_key=False)
    fields.feed(message[:header])
    packer = msgpack.Packer(use_bin_type=True)
    begin: bytes = packer.pack_map_header(fields.read_map_header() + 1)
    return begin + message[header:] + pack(name) + pack(value)


@dataclass(frozen=True, slots=True)
class Span:
    """Where a field lies in a message: its name from `start`, its value from `value` to `end`."""

    name: str
    start: int
    value: int
    end: int


def spans(data: bytes) -> list[Span]:
    """The fields of a message's map; no value is unpacked. Raises ProtocolError unless `data` is one map."""
    reader = msgpack.Unpacker(
        max_buffer_size=max(1, len(data)), max_str_len=_MAX_NAME_BYTES, max_bin_len=0, max_array_len=0,
        max_map_len=0, max_ext_len=0,
    )  # fmt: skip
    found: list[Span] = []
    try:
        reader.feed(data)
        for _ in range(reader.read_map_header()):
            start, name, value = reader.tell(), reader.unpack(), reader.tell()
            reader.skip()
            found.append(Span(name, start, value, reader.tell()))
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise ProtocolError(f"not a msgpack message: {type(error).__name__}") from None
    if reader.tell() != len(data):
        raise ProtocolError("not a msgpack message: more than one value")
    return found


def joined(fields: Sequence[bytes]) -> bytes:
    """A message of these fields, each with its name."""
    header: bytes = msgpack.Packer().pack_map_header(len(fields))
    return header + b"".join(fields)


def decode_without(kind: type[M], name: str, data: bytes) -> M:
    """Read a message of `kind` without one of its fields, however long that is. Raises ProtocolError."""
    kept = [data[one.start : one.end] for one in spans(data) if one.name != name]
    return decode(kind, joined(kept), MAX_RESULT_BYTES)


def unpack_request(data: bytes) -> Any:
    """One plain value, whose lists and maps have the bounds of requests: nothing else runs while one is read.
    Raises ProtocolError.
    """
    return unpack(data, max_array_len=MAX_LIST, max_map_len=MAX_MAP)


def unpack(data: bytes, max_bytes: int = MAX_MESSAGE_BYTES, **bounds: int) -> Any:
    """One plain value. Raises ProtocolError unless `data` is exactly one well-formed msgpack value."""
    if len(data) > max_bytes:
        raise ProtocolError(f"message of {len(data)} bytes is over the limit of {max_bytes}")
    small = len(data) < _SMALL and _TIMESTAMP not in data  # most are, and readers take thousands a second
    try:
        return _unpack(data, _fields, None, **bounds) if small else _Census(data).unpack(**bounds)
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        reason = str(error) or _REASONS.get(type(error), type(error).__name__)
        raise ProtocolError(f"not a msgpack message: {reason}") from None  # a cause may show somebody's text


def _unpack(
    data: bytes,
    fields: Callable[[Any], dict[str, Any]],
    values: Callable[[Any], Any] | None = None,
    **bounds: int,
) -> Any:
    return msgpack.unpackb(
        data,
        raw=False,
        strict_map_key=True,
        ext_hook=_refuse_ext,
        object_pairs_hook=fields,
        list_hook=values,
        **bounds,
    )


def _fields(pairs: Any) -> dict[str, Any]:
    """A map's pairs, with unique text keys."""
    fields: dict[str, Any] = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a map names a key twice")
    if bytes in map(type, fields):
        raise ValueError("bytes is not allowed for map key")
    return fields


class _Census:
    """Counts every list and map while it is read. An empty one is a byte on the wire and 60 in memory: a
    message of nothing else would take sixty times its size.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = _FEW + len(data) // _BYTES_EACH
        self._maybe_timestamps = _TIMESTAMP in data

    def unpack(self, **bounds: int) -> Any:
        [value] = self._list([_unpack(self._data, self._map, self._list, **bounds)])
        return value

    def _map(self, pairs: Any) -> dict[str, Any]:
        fields = _fields(pairs)
        self._list(fields.values())
        return fields

    def _list(self, values: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise ValueError("more lists and maps than a message of its size can have")
        if self._maybe_timestamps and msgpack.Timestamp in map(type, values):
            raise ValueError("msgpack timestamps are not allowed")
        return values


def _refuse_ext(code: int, _data: bytes) -> Any:
    raise ValueError(f"msgpack extension type {code} is not allowed")
