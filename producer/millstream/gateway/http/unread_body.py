"""Discards the rest of a request's body when the answer comes before its end, as for one that is too long.

Closing a connection with unread bytes resets it, and many clients lose an answer that they have not read yet:
they send all of the body first. So the answer is sent, and what comes after it is thrown away for a while.
"""

from __future__ import annotations

import asyncio
import contextlib

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

LONGEST_S = 30.0
SILENCE_S = 5.0


class UnreadBody:
    """The body of one request. Use its `receive` in place of the server's."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        headers = Headers(scope=scope)
        comes = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        self.is_left = comes and "expect" not in headers  # whoever asks first, sends nothing after a refusal
        self._receive = receive

    async def receive(self) -> Message:
        message = await self._receive()
        if not message.get("more_body", False):  # its end, or the client has gone
            self.is_left = False
        return message

    async def discard(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_S):
                while self.is_left:
                    async with asyncio.timeout(SILENCE_S):
                        await self.receive()
