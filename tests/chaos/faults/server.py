"""What happens to a single server: crashes, restarts, cut and paused clients, a full memory, an emptied
database, lost groups, a clock that jumps.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from redis.exceptions import RedisError, ResponseError

from chaos.arena import LEASE_S, RENEW_S
from millstream.wire.keys import GROUP, LANES

if TYPE_CHECKING:
    from chaos.arena import Arena

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


@dataclass(frozen=True, slots=True)
class KillServer:
    """SIGKILL, and back from its append-only file. Nothing that was acknowledged is gone."""

    name: str = "kill server"

    async def strike(self, arena: Arena) -> None:
        seconds = arena.random.choice((0.0, arena.random.uniform(0.0, 2 * LEASE_S)))
        arena.server.kill()
        await asyncio.sleep(seconds)
        await asyncio.to_thread(arena.server.start)


@dataclass(frozen=True, slots=True)
class RestartServer:
    name: str = "restart server"

    async def strike(self, arena: Arena) -> None:
        await asyncio.to_thread(arena.server.stop)
        await asyncio.to_thread(arena.server.start)


@dataclass(frozen=True, slots=True)
class FlushServer:
    """FLUSHALL, scripts too: what was accepted before may be gone, what comes after has to work."""

    name: str = "FLUSHALL"

    async def strike(self, arena: Arena) -> None:
        for node in await arena.nodes():
            await node.flushall()
            await node.script_flush()
        arena.ledger.wipe()


@dataclass(frozen=True, slots=True)
class DestroyGroup:
    """The group goes, and with it all that was pending in it. The entries stay, and are read again."""

    name: str = "XGROUP DESTROY"

    async def strike(self, arena: Arena) -> None:
        shard, lane = arena.random.choice(arena.shards), arena.random.choice(LANES)
        try:
            await arena.admin.xgroup_destroy(shard.lane(lane), GROUP)
        except ResponseError as error:
            if "no such key" not in str(error) and "requires the key to exist" not in str(error):
                raise


@dataclass(frozen=True, slots=True)
class CutClients:
    """CLIENT KILL of a kind of connection: `normal` (commands, blocking reads) or `pubsub`."""

    kind: str

    @property
    def name(self) -> str:
        return f"cut {self.kind} clients"

    async def strike(self, arena: Arena) -> None:
        for node in await arena.nodes():
            await node.execute_command("CLIENT", "KILL", "TYPE", self.kind, "SKIPME", "yes")


@dataclass(frozen=True, slots=True)
class PauseClients:
    """The server answers nobody for a while, longer than a lease at times."""

    name: str = "pause clients"

    async def strike(self, arena: Arena) -> None:
        seconds = arena.random.uniform(0.2, 2.0) * LEASE_S
        for node in await arena.nodes():
            await node.execute_command("CLIENT", "PAUSE", round(1000 * seconds), "ALL")
        await asyncio.sleep(seconds)


@dataclass(frozen=True, slots=True)
class FillMemory:
    """maxmemory is reached, and lifted again."""

    name: str = "memory full"
    shortest: float = 0.2  # leases

    async def strike(self, arena: Arena) -> None:
        seconds = arena.random.uniform(self.shortest, 2.0) * LEASE_S
        nodes = await arena.nodes()
        for node in nodes:
            await node.config_set("maxmemory", "1")
        await asyncio.sleep(seconds)
        for node in nodes:
            await _until_set(node)


@dataclass(frozen=True, slots=True)
class JumpClock:
    name: str = "clock jump"

    async def strike(self, arena: Arena) -> None:
        for shard in arena.shards:
            await arena.admin.eval(JUMP, len(shard.lanes), *shard.lanes, GROUP)
        await asyncio.sleep(2 * RENEW_S)  # a clock that jumps again and again between two renewals is none


async def _until_set(node: object) -> None:
    """A server must not stay full because one command was lost."""
    for _ in range(100):
        try:
            await node.config_set("maxmemory", "0")  # type: ignore[attr-defined]
            return
        except (RedisError, OSError):
            await asyncio.sleep(0.1)
    raise RuntimeError("maxmemory cannot be lifted")
