"""Blows that are struck at the one moment in which they hurt most."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from chaos import orders
from chaos.arena import RENEW_S
from chaos.faults.server import FillMemory, JumpClock
from chaos.ledger import Accepted, Order
from chaos.watcher import Sight, Turn
from millstream import Lane
from millstream.wire.keys import GROUP, LOOK, shard_of

if TYPE_CHECKING:
    from chaos.arena import Arena
    from chaos.crew import Member

PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class WakeUsurped:
    """A worker is stopped, and goes on in the very moment in which another has begun one of its jobs."""

    name: str = "wake usurped worker"

    async def strike(self, arena: Arena) -> None:
        draw = arena.random.random()
        async with asyncio.timeout(PATIENCE_S):
            while not await self._is_usurped_asleep(arena, await arena.somebody(draw, beside=1)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def _is_usurped_asleep(self, arena: Arena, member: Member) -> bool:
        """Not where all its jobs had ended before it stopped, of which the watcher hears later."""
        if not _is_at_work(arena, member):
            return False
        frozen_s = time.time()
        member.freeze()
        try:
            while not _is_usurped(arena, member, frozen_s):
                if not _is_at_work(arena, member):
                    return False
                await asyncio.sleep(0.01)
        finally:
            member.thaw()
        return True


@dataclass(frozen=True, slots=True)
class JumpAfterRenewal:
    """The clock jumps when a worker has just renewed its leases: its next renewal is as far off as can be."""

    name: str = "clock jump after renewal"

    async def strike(self, arena: Arena) -> None:
        async with asyncio.timeout(PATIENCE_S):
            idle = await _idle_ms(arena)
            while True:
                await asyncio.sleep(0.01)
                before, idle = idle, await _idle_ms(arena)
                if any(ms < before.get(entry, 0) for entry, ms in idle.items()):
                    break
        await JumpClock().strike(arena)
        await asyncio.sleep(2 * RENEW_S)  # until all have renewed: a clock does not jump all the time


@dataclass(frozen=True, slots=True)
class FillUnderLoad:
    """The memory is full while many jobs run, for long enough to let all of them end in that time."""

    jobs: int = 10
    name: str = "memory full under load"

    async def strike(self, arena: Arena) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(_running(arena)) < self.jobs:  # noqa: ASYNC110 - other processes set no event here
                await asyncio.sleep(0.01)
        await FillMemory(shortest=2.0).strike(arena)


@dataclass(frozen=True, slots=True)
class SubmitAgain:
    """Producers that are not sure send again what was accepted long ago, ended or not."""

    count: int = 10
    name: str = "submit again"

    async def strike(self, arena: Arena) -> None:
        source = random.Random(arena.random.random())
        accepted = [entry for entry in arena.ledger if entry.accepted is Accepted.YES]
        for entry in source.sample(accepted, min(self.count, len(accepted))):
            await arena.load.submit(arena.load.shared(0), entry)


@dataclass(frozen=True, slots=True)
class LookAtWaiting:
    """More jobs than a lane takes, so that most are parked, and readers that ask about each of them."""

    jobs: int = 250
    name: str = "look at waiting jobs"

    async def strike(self, arena: Arena) -> None:
        source = random.Random(arena.random.random())
        drawn = [orders.draw(source, f"asked-{source.getrandbits(48):x}") for _ in range(self.jobs)]
        await asyncio.gather(*(self._ask(arena, order) for order in drawn))

    async def _ask(self, arena: Arena, order: Order) -> None:
        entry = await arena.load.place(replace(order, fields={**order.fields, "lane": Lane.BATCH}))
        shard = arena.shards[shard_of(entry.id)]
        with contextlib.suppress(RedisError, OSError):  # another fault is at work
            await arena.admin.execute_command(shard.publish, shard.control, f"{LOOK} {entry.id}")


async def _idle_ms(arena: Arena) -> dict[bytes, int]:
    """Of delivered entries, since their last renewal."""
    lanes = [lane for shard in arena.shards for lane in shard.lanes]
    pages = [await arena.admin.xpending_range(lane, GROUP, min="-", max="+", count=100) for lane in lanes]
    return {row["message_id"]: row["time_since_delivered"] for page in pages for row in page}


def _running(arena: Arena) -> list[Turn]:
    """The attempts under way, as far as they were seen."""
    sights = [arena.watcher.sights.get(entry.id, Sight()) for entry in arena.watcher.open]
    return [turns[-1] for sight in sights if (turns := _turns(sight))]


def _is_at_work(arena: Arena, member: Member) -> bool:
    return any(member.owns(turn.owner) for turn in _running(arena))


def _is_usurped(arena: Arena, member: Member, since_s: float) -> bool:
    """Whether another has begun, since then, a job of this worker."""
    return any(
        turns[-1].first_s >= since_s and member.owns(turns[-2].owner) and not member.owns(turns[-1].owner)
        for sight in arena.watcher.sights.values()
        if len(turns := _turns(sight)) > 1
    )


def _turns(sight: Sight) -> list[Turn]:
    return [turn for _, turn in sorted(sight.turns.items())]
