"""Reads and writes pages of lists, as OpenAI's clients ask for them and read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from millstream.errors import InvalidRequest
from millstream.openai.api_error import ApiError


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


def page_body(data: Sequence[dict[str, Any]], has_more: bool) -> dict[str, Any]:
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"object": "list", "data": list(data), "first_id": first, "last_id": last, "has_more": has_more}
