"""Reads the body of a request, with a bound, and parses it as a JSON object."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from typing import Any

from starlette.requests import ClientDisconnect, Request

from millstream.gateway.http.body_encoding import decompressed, is_compressed
from millstream.gateway.http.client_disconnect import ClientDisconnected
from millstream.json_bytes import strict_json
from millstream.openai.api_error import ApiError


async def body_of(request: Request, most_bytes: int) -> bytes:
    """Returns the body, decompressed and without a byte order mark. Raises ApiError 413: before reading if a
    header has the body's length, otherwise at the bound; 400 and 415 by its `Content-Encoding`. Raises
    ClientDisconnected.
    """
    compressed = is_compressed(request)
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdecimal() and int(length[:20]) > most_bytes:
        raise _too_large(most_bytes)
    data = bytearray()
    try:
        async for part in request.stream():
            data += part
            if len(data) > most_bytes:
                raise _too_large(most_bytes)
    except ClientDisconnect:
        raise ClientDisconnected from None
    whole = await decompressed(bytes(data), most_bytes) if compressed else bytes(data)
    if whole is None:
        raise _too_large(most_bytes)
    return whole.removeprefix(BOM_UTF8)


def json_object(data: bytes) -> dict[str, Any]:
    """Raises ApiError 400 unless the body is a JSON object."""
    try:
        value = strict_json(data.decode("utf-8"))
        json.dumps(value, ensure_ascii=False).encode()  # no queue takes halves of surrogate pairs
    except RecursionError:
        raise _no_json("it is nested too deeply") from None
    except ValueError as error:  # also of the encodings
        raise _no_json(str(error)) from None
    if not isinstance(value, dict):
        raise ApiError(400, "the body must be a JSON object", "invalid_json")
    return value


def _too_large(most_bytes: int) -> ApiError:
    message = f"the body may have {most_bytes} bytes; shorten it"
    return ApiError(413, message, "body_too_large")


def _no_json(problem: str) -> ApiError:
    return ApiError(400, f"the body is not JSON: {problem:.200}", "invalid_json")
