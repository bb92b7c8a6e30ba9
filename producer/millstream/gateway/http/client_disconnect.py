"""Notices that a client has gone while its answer is made."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Never, TypeVar

from starlette.types import Receive

from millstream.client.session.run_while import run_while

T = TypeVar("T")


class ClientDisconnected(Exception):
    """The client closed its connection before it had its answer."""


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Returns the outcome of `work`; the body has been read. Raises ClientDisconnected, which ends
    the work.
    """
    return await run_while(_departure(receive), work)


async def _departure(receive: Receive) -> Never:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientDisconnected
