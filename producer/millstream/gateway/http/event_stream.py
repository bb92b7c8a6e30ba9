"""An answer as server-sent events, whose headers wait for the first event: until then it can still be an
error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.types import Send

from millstream.client.session.run_while import run_while
from millstream.json_bytes import json_bytes

T = TypeVar("T")
FIRST_PING_S = 1.0  # a job that waits longer than this begins its stream without an event
PING_S = 15.0
DONE = b"data: [DONE]\n\n"
_PING = b": ping\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect events
]


class EventStream:
    """Tasks write whole events, each behind its own last one; pings come between them."""

    def __init__(self, send: Send) -> None:
        self.begun = False
        self._send = send
        self._beginning = asyncio.Lock()

    async def pinged(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work, which writes, and ping beside it."""
        return await run_while(self._ping(), work)

    async def write(self, data: bytes) -> None:
        await self._begin()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes) -> None:
        await self._begin()
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def _begin(self) -> None:
        if self.begun:
            return
        async with self._beginning:
            if not self.begun:
                await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                self.begun = True

    async def _ping(self) -> None:
        await asyncio.sleep(FIRST_PING_S)
        while True:
            await self.write(_PING)
            await asyncio.sleep(PING_S)


def event(data: Mapping[str, Any]) -> bytes:
    return b"data: %b\n\n" % json_bytes(data)


async def begun(items: AsyncIterator[T]) -> AsyncIterator[T]:
    """Returns the same items, once the first one is there. Raises what getting it raises."""
    async for first in items:
        return _chained(first, items)
    return items


async def _chained(first: T, items: AsyncIterator[T]) -> AsyncIterator[T]:
    yield first
    async for item in items:
        yield item
