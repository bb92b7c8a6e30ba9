"""A bad line between everybody and the server: late, cut, answering into nothing. The arena's route must be a
`support.servers.proxy.Proxy`; the server itself is well all the time.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from support.servers.proxy import Line, Proxy, Weather

if TYPE_CHECKING:
    from chaos.arena import Arena


def proxied(server: Any, chance: random.Random) -> Proxy:
    """The arena's route for these faults."""
    return Proxy(server.port, chance)


@dataclass(frozen=True, slots=True)
class BadLine:
    """`share` of the connections are bad for up to `longest_s`. One that a lease need not survive `harms`."""

    line: Line
    share: float
    longest_s: float
    delay_s: float = 0.0
    harms: bool = False

    @property
    def name(self) -> str:
        return f"line: {self.line.value}"

    async def strike(self, arena: Arena) -> None:
        seconds = self.longest_s * arena.random.uniform(0.3, 1.0)
        proxy: Proxy = arena.route
        if self.harms:
            arena.crew.harm(self.name)
        proxy.turn(Weather(self.line, self.share, self.delay_s, self.delay_s))
        try:
            await asyncio.sleep(seconds)
        finally:
            proxy.heal()


@dataclass(frozen=True, slots=True)
class Cut:
    """Open connections are reset, `times` one after the other, new ones included."""

    share: float
    times: int = 1

    @property
    def name(self) -> str:
        return "line: cut"

    async def strike(self, arena: Arena) -> None:
        for pause_s in [arena.random.uniform(0.0, 0.1) for _ in range(self.times)]:
            await asyncio.sleep(pause_s)
            arena.route.cut(self.share)


@dataclass(frozen=True, slots=True)
class Strand:
    """Half-open: both ends keep believing in some connections, until a timeout of their own, which is longer
    than the arena's leases, or what stands for keep-alive probes here."""

    share: float
    longest_s: float = 7.0

    @property
    def name(self) -> str:
        return "line: half-open"

    async def strike(self, arena: Arena) -> None:
        seconds = self.longest_s * arena.random.uniform(0.1, 1.0)
        arena.crew.harm(self.name)
        arena.route.strand(self.share)
        try:
            await asyncio.sleep(seconds)
        finally:
            arena.route.reset_stranded()


LATE = BadLine(Line.DELAY, share=1.0, longest_s=1.5, delay_s=0.03)
LOST_REPLIES = BadLine(Line.LOSE_REPLIES, share=0.4, longest_s=0.6)
CUT_REPLIES = BadLine(Line.CUT_REPLIES, share=0.4, longest_s=0.6)
BLACK_HOLE = BadLine(Line.BLACK_HOLE, share=1.0, longest_s=2.0, harms=True)
ALL_CUT = Cut(share=1.0)
SOME_CUT = Cut(share=0.4, times=5)
HALF_OPEN = Strand(share=0.3)
