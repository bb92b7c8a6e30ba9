"""What happens to a queue that lives on several servers: failovers under Sentinel, moving slots and dying
nodes in a Cluster (the arena's server is one of `support.servers`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import time

import redis.asyncio
from support.servers.cluster import Cluster
from support.servers.sentinel import Sentinels
from support.servers.servers import Server

from chaos.arena import LEASE_S, Arena
from chaos.faults import fault

REPLICATION_S = 1.0  # replication is asynchronous: so much of the last may have reached one server only


@fault("kill master")
async def kill_master(arena: Arena) -> None:
    """SIGKILL of the master; a replica takes over. The old one comes back as a replica."""
    sentinels: Sentinels = arena.server
    await asyncio.to_thread(sentinels.wait_settled)  # else nobody can take over
    began_s, old = time.time(), sentinels.master
    old.kill()
    try:
        await asyncio.to_thread(sentinels.wait_for_new_master, old)
    finally:
        await asyncio.to_thread(old.start)
        arena.ledger.risk(began_s - REPLICATION_S)


@fault("switch master")
async def switch_master(arena: Arena) -> None:
    """A failover that somebody asks for. What the old master had not replicated is gone."""
    sentinels: Sentinels = arena.server
    began_s, old = time.time(), sentinels.master
    try:
        await asyncio.to_thread(sentinels.failover)
        await _until_replica(old)
    finally:
        arena.ledger.risk(began_s - REPLICATION_S)


@fault("wake old master")
async def wake_old_master(arena: Arena) -> None:
    """The master stops answering, another takes over, and the old one wakes and takes writes of whoever is
    still connected to it, until the Sentinels make it a replica: two masters for a moment."""
    sentinels: Sentinels = arena.server
    await asyncio.to_thread(sentinels.wait_settled)
    began_s, old = time.time(), sentinels.master
    assert old.process is not None
    os.kill(old.process.pid, signal.SIGSTOP)
    try:
        await asyncio.to_thread(sentinels.wait_for_new_master, old)
    finally:
        os.kill(old.process.pid, signal.SIGCONT)
        await _until_replica(old)
        arena.ledger.risk(began_s - REPLICATION_S)


async def _until_replica(server: Server, wait_s: float = 30.0) -> None:
    """Until the Sentinels have told it that it is one."""
    client = redis.asyncio.Redis(port=server.port, socket_timeout=2)
    async with client, asyncio.timeout(wait_s):
        while (await client.role())[0] != b"slave":  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.02)


@fault("move slot")
async def move_slot(arena: Arena) -> None:
    """A shard's slot moves to another node, a few keys at a time, under load."""
    cluster: Cluster = arena.server
    shard, most = arena.random.choice(arena.shards), arena.random.choice((1, 10, 100))
    pause_s = arena.random.uniform(0.0, 0.1)
    target = arena.random.randrange(len(cluster.servers))
    migration = cluster.migration(shard.held_bytes, target)
    if migration.source == target:
        migration = cluster.migration(shard.held_bytes)
    await asyncio.to_thread(migration.begin)
    give_up = time.monotonic() + 5 * LEASE_S
    while await asyncio.to_thread(migration.move_keys, most):
        if time.monotonic() < give_up:
            await asyncio.sleep(pause_s)
    await asyncio.to_thread(migration.end)


@fault("kill node")
async def kill_node(arena: Arena) -> None:
    """SIGKILL of one master, and back from its append-only file. The others go on."""
    cluster: Cluster = arena.server
    server, seconds = arena.random.choice(cluster.servers), arena.random.uniform(0.0, 2 * LEASE_S)
    server.kill()
    await asyncio.sleep(seconds)
    await asyncio.to_thread(server.start)
    await asyncio.to_thread(cluster.wait_ok)
