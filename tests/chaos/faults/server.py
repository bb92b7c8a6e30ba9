"""What happens to a single server: crashes, restarts, cut and paused clients, a full memory, an emptied
database, lost groups, a clock that jumps.
"""

from __future__ import annotations

import asyncio
from typing import Any

from redis.exceptions import RedisError, ResponseError

from chaos.arena import LEASE_S, RENEW_S, Arena
from chaos.faults import Fault, fault
from millstream.wire.keys import GROUP, LANES

# Every delivered entry looks a day old, as after a jump of the server's clock. Owners and counts stay.
JUMP = """
for _, lane in ipairs(KEYS) do
  local ok, pending = pcall(redis.call, 'XPENDING', lane, ARGV[1], '-', '+', 10000)
  for _, entry in ipairs(ok and pending or {}) do
    redis.call('XCLAIM', lane, ARGV[1], entry[2], 0, entry[1], 'IDLE', 86400000, 'RETRYCOUNT', entry[4],
      'JUSTID')
  end
end
"""


@fault("kill server")
async def kill_server(arena: Arena) -> None:
    """SIGKILL, and back from its append-only file. Nothing that was acknowledged is gone."""
    seconds = arena.random.choice((0.0, arena.random.uniform(0.0, 2 * LEASE_S)))
    arena.server.kill()
    await asyncio.sleep(seconds)
    await asyncio.to_thread(arena.server.start)


@fault("restart server")
async def restart_server(arena: Arena) -> None:
    await asyncio.to_thread(arena.server.stop)
    await asyncio.to_thread(arena.server.start)


@fault("FLUSHALL")
async def flush_server(arena: Arena) -> None:
    """Scripts too: what was accepted before may be gone, what comes after has to work."""
    for node in await arena.nodes():
        await node.flushall()
        await node.script_flush()
    arena.ledger.wipe()


@fault("XGROUP DESTROY")
async def destroy_group(arena: Arena) -> None:
    """The group goes, and with it all that was pending in it. The entries stay, and are read again."""
    shard, lane = arena.random.choice(arena.shards), arena.random.choice(LANES)
    try:
        await arena.admin.xgroup_destroy(shard.lane(lane), GROUP)
    except ResponseError as error:
        if "no such key" not in str(error) and "requires the key to exist" not in str(error):
            raise


def _cut_clients(kind: str) -> Fault:
    """CLIENT KILL of a kind of connection: `normal` (commands, blocking reads) or `pubsub`."""

    async def strike(arena: Arena) -> None:
        for node in await arena.nodes():
            await node.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")

    return Fault(f"cut {kind} clients", strike)


cut_commands, cut_pubsub = _cut_clients("normal"), _cut_clients("pubsub")


@fault("pause clients")
async def pause_clients(arena: Arena) -> None:
    """The server answers nobody for a while, longer than a lease at times."""
    seconds = arena.random.uniform(0.2, 2.0) * LEASE_S
    for node in await arena.nodes():
        await node.execute_command("CLIENT", "PAUSE", round(1000 * seconds), "ALL")
    await asyncio.sleep(seconds)


@fault("memory full")
async def fill_memory(arena: Arena) -> None:
    await full_memory(arena, shortest=0.2)


async def full_memory(arena: Arena, *, shortest: float) -> None:
    """maxmemory is reached, and lifted again after so many leases, up to two."""
    seconds = arena.random.uniform(shortest, 2.0) * LEASE_S
    nodes = await arena.nodes()
    for node in nodes:
        await node.config_set("maxmemory", "1")
    await asyncio.sleep(seconds)
    for node in nodes:
        await _lift(node)


async def _lift(node: Any) -> None:
    """A server must not stay full because one command was lost."""
    for _ in range(100):
        try:
            await node.config_set("maxmemory", "0")
            return
        except (RedisError, OSError):
            await asyncio.sleep(0.1)
    raise RuntimeError("maxmemory cannot be lifted")


@fault("clock jump")
async def jump_clock(arena: Arena) -> None:
    for shard in arena.shards:
        await arena.admin.eval(JUMP, len(shard.lanes), *shard.lanes, GROUP)
    await asyncio.sleep(2 * RENEW_S)  # a clock that jumps again and again between two renewals is none
