"""The header Range: a part of a content, for downloads that go on where they were cut off."""

from __future__ import annotations

import re
from dataclasses import dataclass

from starlette.requests import Request

from millstream.openai.api_error import NO_RETRY, ApiError

_ONE = re.compile(r"bytes=\s*(\d{0,19})-(\d{0,19})\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class ByteRange:
    """From `start` up to `end`, which is not included, of `size` bytes."""

    start: int
    end: int
    size: int

    @property
    def headers(self) -> dict[str, str]:
        return {"content-range": f"bytes {self.start}-{self.end - 1}/{self.size}"}


def byte_range(request: Request, size: int) -> ByteRange | None:
    """None: all of it is to be sent, as without the header, with several ranges, or with If-Range, as
    contents have no validators. Raises ApiError 416.
    """
    found = _ONE.fullmatch(request.headers.get("range", "").lower())
    if found is None or found[1] == found[2] == "" or "if-range" in request.headers:
        return None
    first, last = found.groups()
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < start:
            return None
    if start >= end:
        message = f"Range: the content has {size} bytes; ask for some of them"
        headers = {"content-range": f"bytes */{size}"} | NO_RETRY
        raise ApiError(416, message, "range_not_satisfiable", "Range", headers)
    return ByteRange(start, end, size)
