"""What happens to gateways in the middle of batches, uploads and answers."""

from __future__ import annotations

import asyncio
import shutil

from chaos.arena import Arena
from chaos.door.gateways import LEASE_S
from chaos.faults import fault


@fault("kill gateway")
async def kill_gateway(arena: Arena) -> None:
    """SIGKILL; another one takes its place, and its port."""
    assert arena.gateways is not None
    await arena.gateways.kill(arena.random.randrange(arena.setup.gateways))


@fault("kill claiming gateway")
async def kill_claiming_gateway(arena: Arena) -> None:
    """Whatever it sends while the server takes no writes is done in the end, and it does not live to hear so:
    keys are claimed without a job, files have a record that nobody was told of."""
    assert arena.gateways is not None
    place, seconds = arena.random.randrange(arena.setup.gateways), arena.random.uniform(0.2, 0.6) * LEASE_S
    await arena.admin.execute_command("CLIENT", "PAUSE", 5000, "WRITE")
    await asyncio.sleep(seconds)
    try:
        arena.gateways.halt(place)
        await arena.admin.execute_command("CLIENT", "UNPAUSE")
        await asyncio.sleep(0.1)
    finally:
        await arena.gateways.kill(place)


@fault("freeze gateway")
async def freeze_gateway(arena: Arena) -> None:
    """For longer than its lease."""
    assert arena.gateways is not None
    place, seconds = arena.random.randrange(arena.setup.gateways), arena.random.uniform(1.5, 2.5) * LEASE_S
    await arena.gateways.freeze(place, seconds)


@fault("replace gateway")
async def replace_gateway(arena: Arena) -> None:
    """SIGTERM, as a deployment does."""
    assert arena.gateways is not None
    await arena.gateways.replace(arena.random.randrange(arena.setup.gateways))


@fault("store away")
async def lose_store(arena: Arena) -> None:
    """The folder of files is unmounted, and comes back: an empty one is left behind meanwhile."""
    away = arena.files.with_name("away")
    await asyncio.to_thread(arena.files.rename, away)
    arena.files.mkdir()
    try:
        await asyncio.sleep(arena.random.uniform(0.2, 2.0) * LEASE_S)
    finally:
        if found := [str(path) for path in arena.files.rglob("*") if path.is_file()]:
            arena.ledger.note(f"written where no store was: {found}")
        await asyncio.to_thread(shutil.rmtree, arena.files)  # with the folders of what was not written
        await asyncio.to_thread(away.rename, arena.files)
