"""Commands to a Cluster: each at the node that has its keys, in order, through every way in which a slot can
be on the move; and what cannot be done is said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ClusterDownError, ConnectionError, ResponseError, TryAgainError
from support.servers.cluster import TAGS, Cluster, Migration
from support.servers.servers import Server

from millstream.errors import InvalidRequest, Unavailable
from millstream.wire import calls
from millstream.wire.calls.scripts import run_many_then
from millstream.wire.connection import Endpoint, unavailable
from millstream.wire.connection.nodes import ServerNode
from millstream.wire.connection.topology import Topology
from millstream.wire.keys import QueueKeys
from millstream.wire.state.queue_info import PubSub, QueueInfo, create_or_read, open_queue

pytestmark = pytest.mark.xdist_group("cluster")  # one Cluster of a kind for all


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Redis]:
    client = Endpoint.of(cluster.url).commands("test", retries=3)
    yield client
    await client.aclose()


async def steps(*some: Any) -> None:
    """Of a migration, which block."""
    for step in some:
        await asyncio.to_thread(step)


async def test_commands_go_where_their_keys_are(cluster: Cluster, client: Redis) -> None:
    assert len({cluster.owner(tag).port for tag in TAGS}) == 3
    for tag in TAGS:
        await client.set(tag, tag)
    async with client.pipeline(transaction=False) as pipeline:
        for tag in TAGS:
            pipeline.get(tag)
            pipeline.hget(tag, "field")
        replies = await pipeline.execute(raise_on_error=False)
    assert replies[::2] == [tag.encode() for tag in TAGS]
    assert all(isinstance(reply, ResponseError) for reply in replies[1::2])  # each fails for itself
    assert (await client.time())[0] > 0


async def test_keys_that_have_gone_ahead_are_asked_for(cluster: Cluster, client: Redis) -> None:
    """Many at once: the allowance of an ASK must reach the connection that its command takes."""
    names = [f"{{a}}{n}" for n in range(30)]
    for name in names:
        await client.set(name, name)
    migration = cluster.migration("{a}")
    await steps(migration.begin, lambda: migration.move_keys(15), lambda: reset_counts(cluster))
    found = await asyncio.gather(*(client.get(name) for name in names))
    assert found == [name.encode() for name in names]
    assert sum(await asyncio.to_thread(calls_of, cluster, "asking")) == 15
    async with client.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.set(name, "new")
            pipeline.get(name)
        assert await pipeline.execute() == [True, b"new"] * 30
    await steps(migration.move_keys, migration.end)
    assert await client.mget(names) == [b"new"] * 30


@pytest.fixture
async def parted(cluster: Cluster) -> AsyncIterator[Migration]:
    """Of two keys of a slot one has gone ahead; ended after the test if not in it."""
    cluster.owner("{a}1").ask("MSET", "{a}1", "1", "{a}2", "2")  # type: ignore[attr-defined]
    migration = cluster.migration("{a}")
    await steps(migration.begin, lambda: migration.move_keys(1))
    yield migration
    await steps(migration.move_keys, migration.end)


async def test_what_needs_both_keys_waits_for_the_move(parted: Migration, client: Redis) -> None:
    """And what stands behind it in the same slot is read after it, also where it was read before."""
    async with client.pipeline(transaction=False) as pipeline:
        pipeline.mget("{a}1", "{a}2")
        pipeline.get("{a}1")
        executing = asyncio.ensure_future(pipeline.execute())
        async with client.pipeline(transaction=False) as alone:
            alone.set("{a}1", "changed")
            assert await alone.execute() == [True]
        assert not executing.done()
        await steps(parted.move_keys, parted.end)
        assert await executing == [[b"changed", b"2"], b"changed"]


async def test_a_move_that_never_ends_is_said(parted: Migration, cluster: Cluster) -> None:
    endpoint = Endpoint.of(cluster.url)
    brief = endpoint.commands("test")
    async with brief.pipeline(transaction=False) as pipeline:
        pipeline.mget("{a}1", "{a}2")
        pipeline.ping()
        refused, _ = await pipeline.execute(raise_on_error=False)
    assert isinstance(refused, TryAgainError)
    with pytest.raises(Unavailable, match="Multiple keys"), unavailable(endpoint):
        await brief.mget("{a}1", "{a}2")
    await brief.aclose()


async def test_a_blocked_read_follows_its_slot(cluster: Cluster, client: Redis) -> None:
    await client.xgroup_create("{a}s", "g", "0", mkstream=True)
    reader = Endpoint.of(cluster.url).blocking("reader", block_s=20)
    reading = asyncio.ensure_future(read_on(reader))
    owner = cluster.owner("{a}s")

    def is_blocked() -> bool:
        return b"blocked_clients:1" in owner.ask("INFO", "clients")  # type: ignore[attr-defined,no-any-return]

    while not await asyncio.to_thread(is_blocked):  # noqa: ASYNC110 - the server has no event for it
        await asyncio.sleep(0.01)
    migration = cluster.migration("{a}s")
    await steps(migration.begin, migration.end)  # with its key left behind: who waits is sent on
    await client.xgroup_create("{a}s", "g", "0", mkstream=True)
    await client.xadd("{a}s", {"a": "1"})
    async with asyncio.timeout(20):
        [[name, entries]] = await reading
    assert (name, len(entries)) == (b"{a}s", 1)
    await reader.aclose()


async def read_on(reader: Redis) -> Any:
    """As a worker does: who was sent on, or woken because the key has gone, reads again."""
    while True:
        try:
            return await reader.xreadgroup("g", "me", {"{a}s": ">"}, block=20_000)
        except ResponseError as error:
            if "NOGROUP" not in str(error) and "UNBLOCKED" not in str(error):
                raise


def calls_of(cluster: Cluster, command: str) -> list[int]:
    """How often each node has done it since its statistics were reset."""
    counts = []
    for server in cluster.servers:
        lines = server.ask("INFO", "commandstats").decode().split()  # type: ignore[attr-defined]
        found = [line for line in lines if line.startswith(f"cmdstat_{command}:calls=")]
        counts.append(int(found[0].partition("=")[2].partition(",")[0]) if found else 0)
    return counts


def reset_counts(cluster: Cluster) -> None:
    for server in cluster.servers:
        server.ask("CONFIG", "RESETSTAT")  # type: ignore[attr-defined]


async def test_a_wait_stands_behind_the_writes_of_each_slot(cluster: Cluster, client: Redis) -> None:
    keys = [QueueKeys(f"queue-{n}") for n in range(8)]
    info = QueueInfo(pubsub=PubSub.SHARDED)
    many = [create_or_read(one, info) for one in keys]
    assert await calls.run_many(client, many[:3]) == [info] * 3
    await asyncio.to_thread(cluster.move_slot, keys[0].meta)
    await steps(lambda: reset_counts(cluster))
    assert await run_many_then(client, many, ("WAIT", 0, 50)) == [(info, 0)] * 8
    owners = [cluster.servers.index(cluster.owner(one.meta)) for one in keys]  # type: ignore[arg-type]
    waits = await asyncio.to_thread(calls_of, cluster, "wait")
    assert all(waits[node] >= owners.count(node) > 0 for node in range(3))


async def test_a_wait_speaks_for_all_that_its_connection_wrote(
    parted: Migration, cluster: Cluster, client: Redis
) -> None:
    """What was done before the trouble is done again with the rest, on one connection."""
    source = cluster.servers[parted.source]
    [stayed] = await asyncio.to_thread(source.ask, "CLUSTER", "GETKEYSINSLOT", parted.slot, 10)
    await steps(lambda: reset_counts(cluster))
    async with client.pipeline(transaction=False) as pipeline:
        pipeline.set(stayed, "new")
        pipeline.mget("{a}1", "{a}2")
        pipeline.execute_command("WAIT", 0, 50)
        executing = asyncio.ensure_future(pipeline.execute())
        while not sum(await asyncio.to_thread(calls_of, cluster, "set")):  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0)
        assert not executing.done()
        await steps(parted.move_keys, parted.end)
        assert (await executing)[::2] == [True, 0]
    to = parted.to
    assert (await asyncio.to_thread(calls_of, cluster, "set"))[to] == 1


async def test_without_retries_nothing_lost_is_sent_again(cluster: Cluster) -> None:
    """A node that takes commands and hangs up: which of them it did is unknown."""
    taken: list[bytes] = []

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while b"INCR" not in (data := await reader.read(65536)) and data:
            writer.write(b"+OK\r\n" * data.count(b"*"))
        taken.extend([data] * bool(data))
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for retries in (0, 2):
            endpoint = Endpoint.of(cluster.url)
            assert endpoint.topology is not None
            client = endpoint.commands("test", retries=retries, timeout_s=1.0)
            await client.ping()
            slot = cluster.migration("{a}").slot
            endpoint.topology.learn(slot, ServerNode("127.0.0.1", port))
            taken.clear()
            if retries:
                assert await client.incr("{a}") == 1  # it looked again where the slot is
            else:
                with pytest.raises(ConnectionError):
                    await client.incr("{a}")
            assert len(taken) == 1
            await client.aclose()


async def test_a_node_that_is_gone_fails_its_own_commands_only(cluster: Cluster) -> None:
    client = Endpoint.of(cluster.url).commands("test")
    there = next(tag for tag in TAGS if cluster.owner(tag) is cluster.servers[0])
    gone = next(tag for tag in TAGS if cluster.owner(tag) is cluster.servers[2])
    await client.set(there, "1")
    await client.set(gone, "1")
    await asyncio.to_thread(cluster.servers[2].kill)
    try:
        async with client.pipeline(transaction=False) as pipeline:
            pipeline.get(gone)
            pipeline.get(there)
            lost, answer = await pipeline.execute(raise_on_error=False)
        assert isinstance(lost, ConnectionError)
        assert answer == b"1"
        async with client.pipeline(transaction=False) as pipeline:
            pipeline.get(gone)
            with pytest.raises((ConnectionError, ClusterDownError)):
                await pipeline.execute()
    finally:
        await asyncio.to_thread(cluster.servers[2].start)
        await asyncio.to_thread(cluster.wait_ok)
    assert await client.get(gone) is None  # nothing was saved
    await client.aclose()


class Views:
    """Nodes of which each believes that itself serves everything."""

    async def ask(self, node: ServerNode, *command: str) -> list[Any]:
        return [[0, 16383, [node.host.encode(), node.port]]]


async def test_a_node_that_was_cut_off_is_not_believed_for_ever() -> None:
    cut_off, other = ServerNode("a", 1), ServerNode("b", 2)
    topology = Topology([cut_off, other], Views())  # type: ignore[arg-type]
    assert await topology.node_of(7) == cut_off
    topology.doubt(cut_off)  # it answered CLUSTERDOWN, or not at all
    assert await topology.node_of(7) == other
    topology.doubt()
    assert await topology.node_of(7) == other


async def test_an_address_that_is_none_of_a_cluster_is_told(server: Server, cluster: Cluster) -> None:
    plain = server.url.replace("redis://", "redis+cluster://").removesuffix("/0")
    elsewhere = next(tag for tag in TAGS if cluster.owner(tag) is not cluster.servers[0])
    for url, problem, key in (
        ("redis+cluster://127.0.0.1:1,127.0.0.1:2", r"Cluster 127\.0\.0\.1:1, 127\.0\.0\.1:2", "a"),
        (plain, "cluster support disabled", "a"),
        (cluster.servers[0].url, r"connect by redis\+cluster://", elsewhere),
    ):
        endpoint = Endpoint.of(url)
        async with endpoint.commands("test") as client:
            with pytest.raises(Unavailable, match=problem), unavailable(endpoint):
                await client.get(key)


async def test_what_one_node_cannot_answer_for_all(client: Redis) -> None:
    with pytest.raises(ValueError, match="for one node of a Cluster"):
        await client.dbsize()
    with pytest.raises(ValueError, match="use a script"):
        client.pipeline(transaction=True)


async def test_a_queue_of_a_cluster_publishes_sharded(client: Redis) -> None:
    assert (await open_queue(client, "new", shards=3)).pubsub is PubSub.SHARDED
    with pytest.raises(InvalidRequest, match="pubsub"):
        await open_queue(client, "other", pubsub=PubSub.PLAIN)
