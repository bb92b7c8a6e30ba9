"""Reads and writes pages of lists, as OpenAI's clients ask for them and read them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from millstream.errors import InvalidRequest
from millstream.json_bytes import json_bytes
from millstream.openai.api_error import ApiError

_AT_ONCE = 20  # objects of a page, until other requests have their turn: one may have 100 errors


@dataclass(frozen=True, slots=True)
class PageRequest:
    """`after`: the id behind which the page begins."""

    after: str | None
    limit: int
    newest_first: bool

    @classmethod
    def parse(cls, request: Request, *, default: int, most: int) -> PageRequest:
        """Raises InvalidRequest."""
        query = request.query_params
        limit = query.get("limit") or str(default)
        is_number = limit.isascii() and limit.isdecimal() and len(limit) < 10
        if not is_number or not 1 <= int(limit) <= most:
            raise InvalidRequest("limit", limit, f"must be a whole number from 1 to {most}")
        order = query.get("order") or "desc"
        if order not in ("asc", "desc"):
            raise InvalidRequest("order", order, "must be asc or desc")
        return cls(query.get("after") or None, int(limit), order == "desc")


def unknown_after(after: str | None) -> ApiError:
    message = f"after: there is no {(after or '')[:100]!r}, or it has expired; begin with the first page"
    return ApiError(400, message, "invalid_value", "after")


async def page_response(rows: Iterable[dict[str, Any]], has_more: bool) -> Response:
    """A page of objects with ids, encoded a few at a time: nobody waits for a long one."""
    ids: list[str] = []
    pieces: list[bytes] = []
    remaining = iter(rows)
    while some := list(islice(remaining, _AT_ONCE)):
        ids += (some[0]["id"], some[-1]["id"])
        pieces.append(json_bytes(some)[1:-1])
        await asyncio.sleep(0)
    first, last = (ids[0], ids[-1]) if ids else (None, None)
    ends = json_bytes({"first_id": first, "last_id": last, "has_more": has_more})
    body = b'{"object":"list","data":[%b],%b' % (b",".join(pieces), ends[1:])
    return Response(body, media_type="application/json")
