"""Sharded channels in a Cluster: subscribed to where their slots are, wherever those go."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator

import pytest
from support.servers.cluster import TAGS, Cluster
from support.workers.counting_worker import until

from millstream.wire.connection import Endpoint, Subscriptions
from millstream.wire.connection.nodes import ServerNode
from millstream.wire.connection.slots import channel_slot

pytestmark = pytest.mark.xdist_group("subscriptions")  # one Cluster of a kind for all
NAME = "test-subscriptions"


class Hearing:
    """What a listener has heard, and how often each channel was subscribed to."""

    def __init__(self, cluster: Cluster, *, sharded: bool = True) -> None:
        self.cluster = cluster
        self.endpoint = Endpoint.of(cluster.url)
        self.subscriptions = Subscriptions(self.endpoint, NAME, self, sharded=sharded)
        self.publisher = Endpoint.of(cluster.url).commands("publisher", retries=10)
        self.acknowledged: defaultdict[str, int] = defaultdict(int)
        self.heard: dict[str, list[bytes]] = defaultdict(list)
        self.running = asyncio.ensure_future(self.subscriptions.run())

    def deliver(self, channel: str, payload: bytes) -> None:
        self.heard[channel].append(payload)

    def subscribed(self, channel: str) -> None:
        self.acknowledged[channel] += 1

    async def acknowledgements(self, counts: dict[str, int]) -> None:
        await until(lambda: all(self.acknowledged[channel] >= count for channel, count in counts.items()))

    async def assert_heard(self, channel: str) -> None:
        """What is published after the acknowledgement arrives."""
        payload = random.randbytes(8).hex().encode()
        assert await self.publisher.execute_command("SPUBLISH", channel, payload) >= 0
        await until(lambda: payload in self.heard[channel])

    async def close(self) -> None:
        self.subscriptions.close()
        async with asyncio.timeout(10):
            await self.running
        await self.publisher.aclose()


@pytest.fixture
async def hearing(cluster: Cluster) -> AsyncIterator[Hearing]:
    hearing = Hearing(cluster)
    yield hearing
    await hearing.close()


async def test_one_connection_for_each_node(cluster: Cluster, hearing: Hearing) -> None:
    """However many channels and slots; 600 of one slot are more than one command takes."""
    channels = [f"{tag}{n}" for tag in TAGS for n in range(3)] + [f"{{a}}:{n}" for n in range(600)]
    for channel in channels:
        hearing.subscriptions.subscribe(channel)
    await hearing.acknowledgements(dict.fromkeys(channels, 1))
    for channel in (*channels[:24], channels[-1]):
        await hearing.assert_heard(channel)
    for server in cluster.servers:
        listed = (await asyncio.to_thread(server.ask, "CLIENT", "LIST")).decode()
        assert listed.count(f"name={NAME}") == 1
    assert set(hearing.acknowledged.values()) == {1}


async def test_a_moved_slot_is_told_and_followed(cluster: Cluster, hearing: Hearing) -> None:
    """The server ends the subscription by itself; whoever listens learns that messages may be missing."""
    hearing.subscriptions.subscribe("{a}1")
    hearing.subscriptions.subscribe("{b}1")
    await hearing.acknowledgements({"{a}1": 1, "{b}1": 1})
    for moves in (2, 3, 4):
        await asyncio.to_thread(cluster.move_slot, "{a}")
        await hearing.acknowledgements({"{a}1": moves})
        assert hearing.subscriptions.is_acknowledged("{a}1")
        await hearing.assert_heard("{a}1")
    await hearing.assert_heard("{b}1")
    assert hearing.acknowledged["{b}1"] == 1


async def test_what_is_believed_of_a_slot_may_be_wrong(cluster: Cluster, hearing: Hearing) -> None:
    topology = hearing.endpoint.topology
    assert topology is not None
    await topology.node_of(0)
    wrong = next(server for server in cluster.servers if server is not cluster.owner("{a}"))
    topology.learn(channel_slot("{a}"), ServerNode("127.0.0.1", wrong.port))
    hearing.subscriptions.subscribe("{a}1")
    hearing.subscriptions.subscribe("{a}2")
    hearing.subscriptions.unsubscribe("{a}2")
    await hearing.acknowledgements({"{a}1": 1})
    await hearing.assert_heard("{a}1")
    assert not hearing.subscriptions.is_acknowledged("{a}2")


async def test_a_node_that_goes_and_comes_back(cluster: Cluster, hearing: Hearing) -> None:
    for tag in TAGS:
        hearing.subscriptions.subscribe(tag)
    await hearing.acknowledgements(dict.fromkeys(TAGS, 1))
    gone = cluster.servers[2]
    theirs = [tag for tag in TAGS if cluster.owner(tag) is gone]
    assert 0 < len(theirs) < len(TAGS)
    await asyncio.to_thread(gone.kill)
    for tag in set(TAGS) - set(theirs):
        assert hearing.subscriptions.is_acknowledged(tag)
    await asyncio.to_thread(gone.start)
    await asyncio.to_thread(cluster.wait_ok)
    await hearing.acknowledgements(dict.fromkeys(theirs, 2))
    for tag in TAGS:
        await hearing.assert_heard(tag)


async def test_channels_come_and_go_while_slots_move(cluster: Cluster, hearing: Hearing) -> None:
    """In any order: at the end what is wanted is heard."""
    chance = random.Random(random.getrandbits(32))  # pytest tells the seed
    channels = [f"{tag}{n}" for tag in TAGS for n in range(4)]
    wanted: set[str] = set()
    for _ in range(12):
        moving = asyncio.ensure_future(asyncio.to_thread(cluster.move_slot, chance.choice(TAGS)))
        while not moving.done():
            channel = chance.choice(channels)
            if channel in wanted:
                hearing.subscriptions.unsubscribe(channel)
                wanted.discard(channel)
            else:
                hearing.subscriptions.subscribe(channel)
                wanted.add(channel)
            await asyncio.sleep(0)
        await moving
    for channel in wanted:
        await until(lambda name=channel: hearing.subscriptions.is_acknowledged(name))  # type: ignore[misc]
        await hearing.assert_heard(channel)


async def test_plain_channels_are_heard_from_any_node(cluster: Cluster) -> None:
    hearing = Hearing(cluster, sharded=False)
    for tag in TAGS:
        hearing.subscriptions.subscribe(tag)
    await hearing.acknowledgements(dict.fromkeys(TAGS, 1))
    for server in cluster.servers:
        await asyncio.to_thread(server.ask, "PUBLISH", "{a}", f"from {server.port}")
    await until(lambda: len(hearing.heard["{a}"]) == len(cluster.servers))
    await hearing.close()


async def test_closing_at_any_moment(cluster: Cluster) -> None:
    for turns in range(25):
        hearing = Hearing(cluster)
        for tag in TAGS:
            hearing.subscriptions.subscribe(tag)
        for _ in range(turns * 3):
            await asyncio.sleep(0)
        await hearing.close()
