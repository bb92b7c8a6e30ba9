"""What happens to gateways in the middle of batches, uploads and answers."""

from __future__ import annotations

from chaos.arena import Arena
from chaos.door.gateways import LEASE_S
from chaos.faults import fault


@fault("kill gateway")
async def kill_gateway(arena: Arena) -> None:
    """SIGKILL; another one takes its place, and its port."""
    assert arena.gateways is not None
    await arena.gateways.kill(arena.random.randrange(arena.setup.gateways))


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
