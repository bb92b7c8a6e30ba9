"""Decompresses the body of a request, within its bound and in small steps: a few KiB can stand for GiB."""

from __future__ import annotations

import asyncio
import zlib

from starlette.requests import Request

from millstream.openai.api_error import ApiError

_EITHER = zlib.MAX_WBITS | 32  # the head says whether it is gzip's form or zlib's
_PIECE_BYTES = 256 * 1024  # of a body, until other requests have their turn
_HEADER, _PLAIN = "Content-Encoding", "identity"
_COMPRESSED = {"gzip", "x-gzip", "deflate"}


def is_compressed(request: Request) -> bool:
    """Raises ApiError 415 for an encoding that is not taken."""
    if (encoding := _encoding_of(request)) in _COMPRESSED:
        return True
    if encoding != _PLAIN:
        raise _refusal(f"{encoding:.80} is not taken; send the body as it is, or with gzip", "gzip, deflate")
    return False


def check_plain(request: Request) -> None:
    """Raises ApiError 415 for any encoding."""
    if _encoding_of(request) != _PLAIN:
        raise _refusal("no upload is decompressed; send the form as it is", _PLAIN)


def _encoding_of(request: Request) -> str:
    return request.headers.get(_HEADER, "").strip().lower() or _PLAIN


def _refusal(problem: str, taken: str) -> ApiError:
    message = f"{_HEADER}: {problem}"
    return ApiError(415, message, "unsupported_encoding", _HEADER, {"accept-encoding": taken})


async def decompressed(data: bytes, most_bytes: int) -> bytes | None:
    """Returns None as soon as the body has more bytes than that. Raises ApiError 400."""
    decompressor = zlib.decompressobj(_EITHER)
    body = bytearray()
    while not decompressor.eof:
        try:
            piece = decompressor.decompress(data, _PIECE_BYTES)
        except zlib.error as error:
            raise _damaged(str(error)) from None
        body += piece
        if len(body) > most_bytes:
            return None
        if not piece and not decompressor.eof:
            raise _damaged("it ends too early")
        data = decompressor.unconsumed_tail
        await asyncio.sleep(0)
    if decompressor.unused_data:
        raise _damaged("bytes come behind its end")
    return bytes(body)


def _damaged(problem: str) -> ApiError:
    message = f"{_HEADER}: the body cannot be decompressed: {problem}; send it as it is"
    return ApiError(400, message, "invalid_encoding", _HEADER)
