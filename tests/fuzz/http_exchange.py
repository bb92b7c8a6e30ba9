"""A request as bytes through an ASGI application: as uvicorn does it with h11, without sockets."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from urllib.parse import unquote

import h11
from starlette.types import ASGIApp, Message, Scope

PATIENCE_S = 1.0  # of the client
_ENDS_S = 30.0  # for which the application may go on after the client has gone
_DISCONNECT: Message = {"type": "http.disconnect"}


class NoRequest(Exception):
    """The bytes are no HTTP request: uvicorn answers by itself, and the application never sees them."""


@dataclass(slots=True)
class Reply:
    """`status` 0: the client went before the answer began. `ended`: the answer is whole."""

    method: str
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False


class HttpExchange:
    """One request. `leaves`: its client goes as soon as the request is sent."""

    def __init__(self, data: bytes, *, leaves: bool) -> None:
        """Raises NoRequest."""
        self._parser = h11.Connection(h11.SERVER)
        self._over = asyncio.Event()
        self._bodies: list[Message] = []
        self._leaves = leaves
        self._is_whole = False
        self.request = self._parsed(data)
        self.reply = Reply(self.request.method.decode())

    def _parsed(self, data: bytes) -> h11.Request:
        self._parser.receive_data(data)
        try:
            request = self._parser.next_event()
        except h11.RemoteProtocolError as error:
            raise NoRequest(f"h11: {error!s:.200}") from None
        if not isinstance(request, h11.Request):
            raise NoRequest("no whole head")
        with contextlib.suppress(h11.RemoteProtocolError):  # uvicorn closes the connection
            while isinstance(event := self._parser.next_event(), h11.Data):
                self._bodies.append(_body(bytes(event.data), more=True))
            if isinstance(event, h11.EndOfMessage):
                self._bodies.append(_body(b"", more=False))
                self._is_whole = True
        return request

    async def through(self, app: ASGIApp) -> Reply:
        """Errors of the application pass, as those of h11 about what it sends."""
        async with asyncio.timeout(PATIENCE_S + _ENDS_S):
            await app(self._scope(), self._receive, self._send)
        return self.reply

    def _scope(self) -> Scope:
        path, _, query = self.request.target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": self.request.http_version.decode(),
            "server": ("127.0.0.1", 8000),
            "client": ("127.0.0.1", 50_000),
            "scheme": "http",
            "method": self.reply.method,
            "root_path": "",
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "headers": [(name.lower(), value) for name, value in self.request.headers],
            "state": {},
        }

    async def _receive(self) -> Message:
        if self._bodies:
            return self._bodies.pop(0)
        if self._is_whole and not self._leaves:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), PATIENCE_S)
        return _DISCONNECT

    async def _send(self, message: Message) -> None:
        """What comes after the client has gone is lost, but must be right all the same."""
        if message["type"] == "http.response.start":
            headers = list(message["headers"])
            self._parser.send(h11.Response(status_code=message["status"], headers=headers, reason=b""))
            self.reply.status = message["status"]
            self.reply.headers = {name.decode().lower(): value.decode("latin-1") for name, value in headers}
            return
        body = message.get("body", b"") if self.reply.method != "HEAD" else b""
        self._parser.send(h11.Data(data=body))
        self.reply.body += body
        if not message.get("more_body", False):
            self._parser.send(h11.EndOfMessage())
            self.reply.ended = True
            self._over.set()


def _body(data: bytes, *, more: bool) -> Message:
    return {"type": "http.request", "body": data, "more_body": more}
