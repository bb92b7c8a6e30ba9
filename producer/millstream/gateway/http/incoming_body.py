"""The body of one request on its way in: how slowly it may come, and what becomes of its rest when the answer
comes before its end, as for one that is too long.

Closing a connection with unread bytes resets it, and many clients lose an answer that they have not read yet:
they send all of the body first. So the answer is sent, with `connection: close`, and what comes after it is
thrown away for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

from millstream.openai.api_error import ApiError

# Each 16 KiB, or the rest of a body, may take 30 s of waiting: 546 bytes/s, as Apache's 500 by default.
PIECE_BYTES, PIECE_S = 16 * 1024, 30.0
DISCARDED_S, SILENCE_S = 30.0, 5.0  # as nginx's lingering_time and lingering_timeout
DISCARDED_BYTES = 64 * 1024**2


class IncomingBody:
    """Use its `receive` in place of the server's. `is_left`: its end has not come."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        headers = Headers(scope=scope)
        self.is_left = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        self._follows = "expect" not in headers  # whoever asks first, sends nothing after a refusal
        self._receive = receive
        self._piece_bytes, self._piece_s = 0, 0.0  # of the piece that comes now, and waited for it

    async def receive(self) -> Message:
        """Raises ApiError 408. Only waiting counts: a client cannot send what the gateway does not take."""
        if not self.is_left:
            return await self._receive()
        self._follows = True
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(PIECE_S - self._piece_s):
                message = await self._next()
        except TimeoutError:
            raise _too_slow() from None
        self._piece_s += time.monotonic() - began_s
        self._piece_bytes += len(message.get("body", b""))
        if self._piece_bytes >= PIECE_BYTES:
            self._piece_bytes, self._piece_s = 0, 0.0
        return message

    async def discard(self) -> None:
        """Throw away what is left, within bounds."""
        room = DISCARDED_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISCARDED_S):
                while self.is_left and self._follows and room > 0:
                    async with asyncio.timeout(SILENCE_S):
                        room -= len((await self._next()).get("body", b""))

    async def _next(self) -> Message:
        message = await self._receive()
        if not message.get("more_body", False):  # its end, or the client has gone
            self.is_left = False
        return message


def _too_slow() -> ApiError:
    message = f"the body comes too slowly: {PIECE_BYTES} bytes, or its rest, must come within {PIECE_S:g} s"
    return ApiError(408, message, "body_too_slow")
