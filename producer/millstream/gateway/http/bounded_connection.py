"""A connection of uvicorn's server that bounds what a client sends before, and while, a request is read: a
head must come in time, and the chunks of a body must be worth reading. See `incoming_body` for how slowly a
body may come. uvicorn has no such limits.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from millstream.openai.api_error import ApiError

HEAD_S = 20.0  # from the connection, or from the first byte of a later head, to its end; as Apache's default
CHUNK_BYTES = 64  # least of a chunk on average: each costs 10 µs or so, whatever is in it
SMALL_CHUNKS = 1024  # that may be empty but for a byte, together
LINGER_S = 5.0  # after a refusal, for the client to read it: bytes that nobody reads reset the connection


class BoundedConnection(H11Protocol):
    """Overrides asyncio's callbacks, and the answer to what is no request."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.conn = _BoundedParser()
        self._head_timer: asyncio.TimerHandle | None = None
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self._head_timer is None and self.conn.trailing_data[0]:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        assert isinstance(self.conn, _BoundedParser)
        self._refuse(ApiError(400, self.conn.fault or f"{msg} Send HTTP/1.1.", "invalid_http"))

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_S, self._end_without_head)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_without_head(self) -> None:
        if self.conn.trailing_data[0]:
            message = f"the head of the request did not end within {HEAD_S:g} s; send it at once"
            self._refuse(ApiError(408, message, "head_too_slow"))
        else:  # nothing was asked
            self.transport.close()

    def _refuse(self, error: ApiError) -> None:
        """Answers in place of the application, unless it has begun to, and closes the connection. What still
        comes is thrown away for a while.
        """
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps(error.body()).encode()
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            reason = HTTPStatus(error.status).phrase.encode()
            head = h11.Response(status_code=error.status, headers=headers, reason=reason)
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None:
            self.cycle.disconnected = True  # the application answers nobody any more
            self.cycle.message_event.set()
        self._refused = True
        self._stop_timer()
        self.flow.resume_reading()
        if not self.transport.is_closing():
            self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.close)


class _BoundedParser(h11.Connection):
    """Refuses bodies that are cut into chunks of a few bytes."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER)
        self.fault = ""
        self._room = 0  # bytes by which chunks may be too small yet

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._room = SMALL_CHUNKS * CHUNK_BYTES
        elif isinstance(event, h11.Data):
            gained = len(event.data) - CHUNK_BYTES * event.chunk_start
            self._room = min(SMALL_CHUNKS * CHUNK_BYTES, self._room + gained)
            if self._room < 0:
                self.fault = f"the chunks of the body are too small; send {CHUNK_BYTES} bytes or more in each"
                raise h11.RemoteProtocolError(self.fault)
        return event
