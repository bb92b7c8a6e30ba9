"""What happens to processes: workers and engines killed, stopped and woken too late, asked to go."""

from __future__ import annotations

import asyncio
import signal

import psutil

from chaos.arena import LEASE_S, Arena
from chaos.crew import Member, send
from chaos.faults import fault

ORPHAN_S = 15.0  # for which an engine may outlive its worker


@fault("kill worker")
async def kill_worker(arena: Arena) -> None:
    """SIGKILL of a front; its engine has to notice."""
    draw = arena.random.random()
    await kill(arena, await arena.somebody(draw, beside=1))


async def kill(arena: Arena, member: Member) -> None:
    orphans = {"engine": member.engine_pid(), "nursery": member.nursery_pid()}
    member.kill()
    arena.crew.ensure()
    for kind, pid in orphans.items():
        if pid is not None:
            arena.load.spawn(_no_orphan(arena, f"{kind} of {member.name}", pid))


@fault("kill engine")
async def kill_engine(arena: Arena) -> None:
    member = await arena.somebody(arena.random.random())
    engine = member.engine_pid()
    if engine is not None:
        send(engine, signal.SIGKILL)


@fault("freeze worker")
async def freeze_worker(arena: Arena) -> None:
    """A zombie: stopped for longer than its lease, and then it goes on as if nothing had been."""
    draw, seconds = arena.random.random(), arena.random.uniform(1.7, 2.5) * LEASE_S
    member = await arena.somebody(draw, beside=1)
    member.freeze()
    try:
        await asyncio.sleep(seconds)
    finally:
        member.thaw()


@fault("freeze engine")
async def freeze_engine(arena: Arena) -> None:
    """A step that takes long. No lease depends on it."""
    draw, seconds = arena.random.random(), arena.random.uniform(0.3, 2.0) * LEASE_S
    engine = (await arena.somebody(draw)).engine_pid()
    if engine is None:
        return
    send(engine, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        send(engine, signal.SIGCONT)


@fault("drain worker")
async def drain_worker(arena: Arena) -> None:
    """SIGTERM, as a deployment does."""
    await _drain(arena, hurry=False)


@fault("drain worker twice")
async def hurry_worker(arena: Arena) -> None:
    """And a second one soon after."""
    await _drain(arena, hurry=True)


async def _drain(arena: Arena, *, hurry: bool) -> None:
    draw, seconds = arena.random.random(), arena.random.uniform(0.0, 0.2)
    member = await arena.somebody(draw, beside=1)
    member.terminate()
    arena.crew.ensure()
    if hurry:
        await asyncio.sleep(seconds)
        member.terminate()
    arena.load.spawn(_ends_well(arena, member))


async def _ends_well(arena: Arena, member: Member) -> None:
    status = await member.ended(60.0)
    if status != 0:
        arena.ledger.note(f"{member.name} ended with {status} after SIGTERM")


async def _no_orphan(arena: Arena, what: str, pid: int) -> None:
    """The processes of a killed worker end by themselves."""
    try:
        process = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return
    for _ in range(round(ORPHAN_S / 0.1)):
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            return
        await asyncio.sleep(0.1)
    arena.ledger.note(f"the {what}, which was killed, still runs after {ORPHAN_S:g} s")
