"""msgpack in and out of pydantic models, strictly: no ext types, no object hooks, string keys, bounded size.

Unknown fields are ignored (a newer peer may send them); absent ones take their defaults.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgpack
from pydantic import BaseModel, ValidationError

from millstream.errors import ProtocolError

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_RESULT_BYTES = 512 * 1024 * 1024  # as large as a server's value may be: logprobs of many choices add up

_TIMESTAMP = b"\xff"  # the type byte of msgpack's own extension, which no hook sees; no byte of UTF-8 text

M = TypeVar("M", bound=BaseModel)


def encode(message: BaseModel) -> bytes:
    """The message as a msgpack map; fields at their default are left out."""
    return pack(message.model_dump(mode="json", exclude_defaults=True))


def decode(kind: type[M], data: bytes, max_bytes: int = MAX_MESSAGE_BYTES) -> M:
    """Read a message of `kind`. Raises ProtocolError with what is wrong, never anything else."""
    fields = unpack(data, max_bytes)
    if not isinstance(fields, dict):
        raise ProtocolError(f"{kind.__name__}: expected a map, got {type(fields).__name__}")
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or kind.__name__
        raise ProtocolError(f"{kind.__name__}.{where}: {first['msg']}") from error


def pack(value: Any) -> bytes:
    """One plain value (maps, lists, strings, numbers) as msgpack."""
    data: bytes = msgpack.packb(value, use_bin_type=True)
    return data


def unpack(data: bytes, max_bytes: int = MAX_MESSAGE_BYTES) -> Any:
    """One plain value. Raises ProtocolError where `data` is not exactly one well-formed msgpack value."""
    if len(data) > max_bytes:
        raise ProtocolError(f"message of {len(data)} bytes is over the limit of {max_bytes}")
    try:
        value = msgpack.unpackb(data, raw=False, strict_map_key=True, ext_hook=_refuse_ext)
        if _TIMESTAMP in data:
            _refuse_timestamps(value)
        return value
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise ProtocolError(f"not a msgpack message: {error}") from error


def _refuse_ext(code: int, _data: bytes) -> Any:
    raise ValueError(f"msgpack extension type {code} is not allowed")


def _refuse_timestamps(value: Any) -> None:
    match value:
        case msgpack.Timestamp():
            raise ValueError("msgpack timestamps are not allowed")
        case list():
            for item in value:
                _refuse_timestamps(item)
        case dict():
            for item in value.values():
                _refuse_timestamps(item)
