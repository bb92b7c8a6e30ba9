"""What happens to gateways in the middle of batches."""

from __future__ import annotations

from chaos.arena import Arena
from chaos.faults import fault


@fault("kill gateway")
async def kill_gateway(arena: Arena) -> None:
    """SIGKILL; another one takes its place, and its port."""
    assert arena.gateways is not None
    await arena.gateways.kill(arena.random.randrange(arena.setup.gateways))


@fault("replace gateway")
async def replace_gateway(arena: Arena) -> None:
    """SIGTERM, as a deployment does."""
    assert arena.gateways is not None
    await arena.gateways.replace(arena.random.randrange(arena.setup.gateways))
