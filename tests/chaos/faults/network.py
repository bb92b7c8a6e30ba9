"""A bad line between everybody and the server: late, cut, answering into nothing. The arena's route must be a
`support.servers.proxy.Proxy`; the server itself is well all the time.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from support.servers.proxy import Line, Proxy, Weather

from chaos.arena import Arena
from chaos.faults import Fault, fault


def proxied(server: Any, chance: random.Random) -> Proxy:
    """The arena's route for these faults."""
    return Proxy(server.port, chance)


def _bad_line(
    line: Line, share: float, longest_s: float, *, delay_s: float = 0.0, harms: bool = False
) -> Fault:
    """`share` of the connections are bad for up to `longest_s`. One that a lease need not survive `harms`."""
    name = f"line: {line.value}"

    async def strike(arena: Arena) -> None:
        seconds = longest_s * arena.random.uniform(0.3, 1.0)
        if harms:
            arena.crew.harm(name)
        arena.route.turn(Weather(line, share, delay_s, delay_s))
        try:
            await asyncio.sleep(seconds)
        finally:
            arena.route.heal()

    return Fault(name, strike)


def _cut(share: float, times: int) -> Fault:
    """Open connections are reset, so often one after the other, new ones included."""

    async def strike(arena: Arena) -> None:
        for pause_s in [arena.random.uniform(0.0, 0.1) for _ in range(times)]:
            await asyncio.sleep(pause_s)
            arena.route.cut(share)

    return Fault("line: cut", strike)


@fault("line: half-open")
async def half_open(arena: Arena) -> None:
    """Both ends keep believing in some connections, until a timeout of their own, which is longer than the
    arena's leases, or what stands for keep-alive probes here."""
    seconds = 7.0 * arena.random.uniform(0.1, 1.0)
    arena.crew.harm("line: half-open")
    arena.route.strand(0.3)
    try:
        await asyncio.sleep(seconds)
    finally:
        arena.route.reset_stranded()


late = _bad_line(Line.DELAY, share=1.0, longest_s=1.5, delay_s=0.03)
lost_replies = _bad_line(Line.LOSE_REPLIES, share=0.4, longest_s=0.6)
cut_replies = _bad_line(Line.CUT_REPLIES, share=0.4, longest_s=0.6)
black_hole = _bad_line(Line.BLACK_HOLE, share=1.0, longest_s=2.0, harms=True)
all_cut = _cut(share=1.0, times=1)
some_cut = _cut(share=0.4, times=5)
