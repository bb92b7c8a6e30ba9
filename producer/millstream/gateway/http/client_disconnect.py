"""Notices that a client has gone while its answer is made."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Never, TypeVar

from starlette.types import Receive

from millstream.client.session.run_while import beside

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed its connection before it had its answer."""


async def while_there(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The outcome of `work`; the request's body has been read. Raises ClientGone, and ends the work."""
    return await beside(_departure(receive), work)


async def _departure(receive: Receive) -> Never:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientGone
