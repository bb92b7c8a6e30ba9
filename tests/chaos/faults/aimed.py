"""Blows that are struck at the one moment in which they hurt most."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import replace

from redis.exceptions import RedisError

from chaos import orders
from chaos.arena import RENEW_S, Arena
from chaos.crew import Member
from chaos.faults import fault
from chaos.faults.process import kill_engine
from chaos.faults.server import full_memory, jump_clock
from chaos.ledger import Accepted, Entry, Order
from chaos.watcher import Sight, Turn
from millstream import Lane, State
from millstream.wire.keys import GROUP, LOOK, shard_of

PATIENCE_S = 30.0
RUNNING = 10  # jobs under a full memory
IN_GRAMMARS = 6  # jobs completed, and as many under way
AGAIN = 10  # jobs submitted once more
WAITING = 250  # jobs: more than a lane takes


@fault("wake usurped worker")
async def wake_usurped(arena: Arena) -> None:
    """A worker is stopped, and goes on in the very moment in which another has begun one of its jobs."""
    draw = arena.random.random()
    async with asyncio.timeout(PATIENCE_S):
        while not await _is_usurped_asleep(arena, await arena.somebody(draw, beside=1)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def _is_usurped_asleep(arena: Arena, member: Member) -> bool:
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


@fault("clock jump after renewal")
async def jump_after_renewal(arena: Arena) -> None:
    """The clock jumps when a worker has just renewed its leases: its next renewal is as far off as can be."""
    async with asyncio.timeout(PATIENCE_S):
        idle = await _idle_ms(arena)
        while True:
            await asyncio.sleep(0.01)
            before, idle = idle, await _idle_ms(arena)
            if any(ms < before.get(entry, 0) for entry, ms in idle.items()):
                break
    await jump_clock.strike(arena)
    await asyncio.sleep(2 * RENEW_S)  # until all have renewed: a clock does not jump all the time


@fault("memory full under load")
async def fill_under_load(arena: Arena) -> None:
    """The memory is full while many jobs run, for long enough to let all of them end in that time."""
    async with asyncio.timeout(PATIENCE_S):
        while len(_running(arena)) < RUNNING:  # noqa: ASYNC110 - other processes set no event here
            await asyncio.sleep(0.01)
    await full_memory(arena, shortest=2.0)


@fault("kill engine in grammars")
async def kill_engine_in_grammars(arena: Arena) -> None:
    """An engine dies that has completed answers with a grammar, and computes more of them."""
    async with asyncio.timeout(PATIENCE_S):
        while min(map(len, _in_grammars(arena))) < IN_GRAMMARS:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
    await kill_engine.strike(arena)


@fault("submit again")
async def submit_again(arena: Arena) -> None:
    """Producers that are not sure send again what was accepted long ago, ended or not."""
    source = random.Random(arena.random.random())
    accepted = [entry for entry in arena.ledger if entry.accepted is Accepted.YES]
    for entry in source.sample(accepted, min(AGAIN, len(accepted))):
        await arena.load.submit(arena.load.shared(0), entry)


@fault("look at waiting jobs")
async def look_at_waiting(arena: Arena) -> None:
    """More jobs than a lane takes, so that most are parked, and readers that ask about each of them."""
    source = random.Random(arena.random.random())
    drawn = [
        orders.draw(source, f"asked-{source.getrandbits(48):x}", arena.setup.images) for _ in range(WAITING)
    ]
    await asyncio.gather(*(_ask(arena, order) for order in drawn))


async def _ask(arena: Arena, order: Order) -> None:
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


def _in_grammars(arena: Arena) -> tuple[list[Entry], list[Entry]]:
    """Jobs whose answers follow a grammar: those that have completed, and those under way."""
    asked = [entry for entry in arena.ledger if "response_format" in entry.order.fields]
    sights = [(entry, arena.watcher.sights.get(entry.id, Sight())) for entry in asked]
    completed = [entry for entry, sight in sights if sight.state is State.COMPLETED]
    return completed, [entry for entry, sight in sights if sight.turns and sight.ended is None]


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
