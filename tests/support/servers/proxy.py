"""A TCP proxy on loopback between clients and one server, whose line can be made bad while it is in use: slow
or cut, swallowing all or losing the answers. It knows bytes only, no RESP; chance comes from a generator that
is given.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Self, TypeVar

from millstream.errors import Unavailable

T = TypeVar("T")

_READ_BYTES = 1 << 16


class Line(Enum):
    """What happens to the bytes of a connection."""

    PASS = "pass"
    DELAY = "delay"  # each piece, in both directions, is late
    LOSE_REPLIES = "lose replies"  # the request arrives; in place of its answer the connection is cut
    CUT_REPLIES = "cut replies"  # the connection is cut in the middle of an answer
    BLACK_HOLE = "black hole"  # accepted, and nothing of it arrives anywhere
    STRANDED = "stranded"  # the same for ever: both ends believe in a connection that is none (half-open)


@dataclass(frozen=True, slots=True)
class Weather:
    """`share` of the connections, those that are there and those to come, have this line. Seconds."""

    line: Line = Line.PASS
    share: float = 1.0
    delay_s: float = 0.0
    jitter_s: float = 0.0


_FAIR = Weather()


async def until_answered(act: Callable[[], Awaitable[T]]) -> T:
    """Do it again and again through a bad line."""
    while True:
        with contextlib.suppress(Unavailable):
            return await act()


class Proxy:
    """`async with Proxy(port) as proxy`: clients connect to `proxy.url`. `seen` counts what was done."""

    def __init__(self, port: int, chance: random.Random | None = None) -> None:
        self.port = 0
        self.seen: Counter[Line] = Counter()
        self._upstream = port
        self._chance = chance or random.Random(0)
        self._weather = _FAIR
        self._connections: dict[_Connection, None] = {}  # in the order of their coming
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._server.wait_closed()

    def turn(self, weather: Weather) -> int:
        """From now on the line is like this. Answers how many of the open connections it concerns."""
        self._weather = weather
        for connection in list(self._connections):
            connection.mend()
        return sum(self._expose(connection) for connection in list(self._connections))

    def heal(self) -> None:
        """The line is good again. A connection that lost bytes is cut: it has no sound continuation."""
        self.turn(_FAIR)

    def cut(self, share: float = 1.0) -> int:
        """Cut open connections, now, by a reset."""
        return sum(connection.cut() for connection in self._some(share))

    def strand(self, share: float = 1.0) -> int:
        """Make open connections half-open, for ever; new ones are not concerned."""
        chosen = list(self._some(share))
        for connection in chosen:
            connection.weather = Weather(Line.STRANDED)
        self.seen[Line.STRANDED] += len(chosen)
        return len(chosen)

    def reset_stranded(self) -> int:
        """What keep-alive probes do in the end: both ends are told."""
        stranded = [one for one in list(self._connections) if one.weather.line is Line.STRANDED]
        return sum(connection.cut() for connection in stranded)

    def _some(self, share: float) -> Iterator[_Connection]:
        return (one for one in list(self._connections) if self._chance.random() < share)

    def _expose(self, connection: _Connection) -> bool:
        hit = self._chance.random() < self._weather.share and connection.weather.line is not Line.STRANDED
        if hit:
            connection.weather = self._weather
        return hit

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        assert self._server is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            upstream = await asyncio.open_connection("127.0.0.1", self._upstream)
        except OSError:  # the server is down: so is the line
            writer.transport.abort()
            return
        connection = _Connection((reader, writer), upstream, self._chance, self.seen)
        self._connections[connection] = None
        self._expose(connection)
        if not self._server.is_serving():
            connection.cut()
        try:
            await connection.run()
        finally:
            del self._connections[connection]
            connection.close()


class _Connection:
    """One client's connection and the one behind it."""

    def __init__(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        chance: random.Random,
        seen: Counter[Line],
    ) -> None:
        self.weather = _FAIR
        self._client = client
        self._server = server
        self._chance = chance
        self._seen = seen
        self._torn = False  # bytes of it are lost

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._carry_requests())
            group.create_task(self._carry_replies())

    def mend(self) -> None:
        """Fair weather; what is torn is cut, what is stranded stays so."""
        if self.weather.line is Line.STRANDED:
            return
        self.weather = _FAIR
        if self._torn:
            self.cut()

    def cut(self) -> bool:
        """False where it was cut before."""
        was_open = not self._client[1].is_closing()
        self._client[1].transport.abort()
        self._server[1].transport.abort()
        return was_open

    def close(self) -> None:
        """What was written to either end before still arrives."""
        for _, writer in (self._client, self._server):
            writer.close()

    async def _carry_requests(self) -> None:
        while data := await _read(self._client[0]):
            if await self._lets_through():
                await _write(self._server[1], data)
        self._end()

    async def _carry_replies(self) -> None:
        while data := await _read(self._server[0]):
            if self.weather.line in (Line.LOSE_REPLIES, Line.CUT_REPLIES):
                self._seen[self.weather.line] += 1
                if self.weather.line is Line.CUT_REPLIES:
                    await _write(self._client[1], data[: self._chance.randrange(len(data))])
                self.close()
                return
            if await self._lets_through():
                await _write(self._client[1], data)
        self._end()

    async def _lets_through(self) -> bool:
        """After its delay; False where the bytes are swallowed."""
        weather = self.weather
        if weather.line is Line.DELAY:
            self._seen[Line.DELAY] += 1
            await asyncio.sleep(weather.delay_s + weather.jitter_s * self._chance.random())
        swallowed = self.weather.line in (Line.BLACK_HOLE, Line.STRANDED)
        if swallowed:
            self._torn = True
            self._seen[Line.BLACK_HOLE] += self.weather.line is Line.BLACK_HOLE
        return not swallowed

    def _end(self) -> None:
        """One end has closed; a stranded connection does not tell the other."""
        if self.weather.line is not Line.STRANDED or self._client[1].is_closing():
            self.close()


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(_READ_BYTES)
    except OSError:
        return b""


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(OSError):
        writer.write(data)
        await writer.drain()
