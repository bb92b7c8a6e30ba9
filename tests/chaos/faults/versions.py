"""Rolling deployments: workers of the next build (`support.versions.next_version`: another message version,
other scripts, fields that this one does not know) take the place of this build's under load, and the other
way round.
"""

from __future__ import annotations

import asyncio
import contextlib

from redis.exceptions import RedisError

from chaos.arena import Arena
from chaos.crew import Member
from chaos.faults import fault

NEXT = "support.versions.next_version"  # for `python -m`, with the folder that the build is made in
READY_S = 60.0


@fault("rolling deployment")
async def deploy(arena: Arena) -> None:
    """One worker after the other: a new one is ready, then an old one is asked to go, or killed. Forward
    where this build has the majority, else back."""
    old = list(arena.crew.alive)
    killed = [arena.random.random() < 0.3 for _ in old]
    forward = 2 * sum(_is_next(member) for member in old) < len(old)
    launcher = (NEXT, str(arena.folder / "next-build")) if forward else None
    for member, is_killed in zip(old, killed, strict=True):
        if _is_next(member) is not forward:
            await until_ready(arena, arena.crew.hire(launcher=launcher))
            if is_killed:
                member.kill()
            else:
                member.terminate()


def _is_next(member: Member) -> bool:
    return NEXT in member.command


async def until_ready(arena: Arena, member: Member) -> None:
    async with asyncio.timeout(READY_S):
        while member.alive:
            with contextlib.suppress(RedisError, OSError):  # another fault is at work
                if member in await arena.on_duty():
                    return
            await asyncio.sleep(0.05)
    raise RuntimeError(f"{member.name} has ended: {' '.join(member.command)}")
