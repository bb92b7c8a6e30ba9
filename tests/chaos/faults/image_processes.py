"""What happens to the processes that prepare a worker's images: one that dies over an image, and the nursery
that forks them.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path

from chaos.arena import Arena
from chaos.crew import send
from chaos.faults import fault

PATIENCE_S = 20.0  # until a worker prepares an image
LOOKS = 200  # in a row at the same nurseries
REST_S = 0.5  # an image has two tries: this one is over before the next strike


@fault("kill image process")
async def kill_child(arena: Arena) -> None:
    """SIGKILL of a process while it prepares an image, which costs this one of its two tries."""
    async with asyncio.timeout(PATIENCE_S):
        while not await _kill_one(await _nurseries(arena)):
            pass
    await asyncio.sleep(REST_S)


@fault("kill image nursery")
async def kill_nursery(arena: Arena) -> None:
    """The worker starts another one, and prepares again what was under way."""
    draw = arena.random.random()
    async with asyncio.timeout(PATIENCE_S):
        while not (nurseries := await _nurseries(arena)):  # noqa: ASYNC110 - processes set no event
            await asyncio.sleep(0.05)
    send(nurseries[int(draw * len(nurseries))], signal.SIGKILL)


async def _nurseries(arena: Arena) -> list[int]:
    found = [member.nursery_pid() for member in arena.crew.alive if not member.frozen]
    return [pid for pid in found if pid is not None]


async def _kill_one(nurseries: list[int]) -> bool:
    for _ in range(LOOKS):
        for nursery in nurseries:
            for child in _children(nursery):
                send(child, signal.SIGKILL)
                return True
        await asyncio.sleep(0.001)
    return False


def _children(nursery: int) -> list[int]:
    """Those that run; one that has ended stays until the nursery's next."""
    found = []
    with contextlib.suppress(OSError):
        listed = Path(f"/proc/{nursery}/task/{nursery}/children").read_text()
        for pid in listed.split():
            with contextlib.suppress(OSError):
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                if state not in "ZX":
                    found.append(int(pid))
    return found
