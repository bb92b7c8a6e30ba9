"""Pauses between tries, waiting for an event, and the server's clock."""

from __future__ import annotations

import asyncio
import time

import pytest
import redis.asyncio

from millstream.wire.timing import Backoff, ServerClock, doubled, within


def test_pauses_double_up_to_the_longest() -> None:
    assert [doubled(0.5, 3.0, failures) for failures in (1, 2, 3, 4, 5000)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_backoff_pauses_vary_and_restart_after_a_success() -> None:
    many = [Backoff(1.0, 4.0) for _ in range(50)]
    for longest_s in (1.0, 2.0, 4.0, 4.0):
        pauses = {backoff.next_s() for backoff in many}
        assert len(pauses) > 10
        assert 0.5 * longest_s <= min(pauses) <= max(pauses) <= 1.5 * longest_s
    assert many[0].failures == 4
    many[0].reset()
    assert many[0].failures == 0
    assert many[0].next_s() <= 1.5


async def test_an_event_is_waited_for_and_not_for_longer() -> None:
    event = asyncio.Event()
    assert not await within(event, 0.001)
    asyncio.get_running_loop().call_soon(event.set)
    assert await within(event, 60)
    assert await within(event, -1)  # it is set already


async def test_the_servers_clock(redis_client: redis.asyncio.Redis) -> None:
    now_s = 1000.0
    clock = ServerClock(lambda: now_s)
    assert clock.now_ms() == pytest.approx(time.time() * 1000, abs=5000)  # our own, until it is asked
    assert clock.age_s == float("inf")
    await clock.sync(redis_client)
    seconds, _ = await redis_client.time()
    assert clock.now_ms() == pytest.approx(seconds * 1000, abs=5000)
    known_ms = clock.now_ms()
    now_s += 60.0
    assert clock.now_ms() == known_ms + 60_000
    assert clock.age_s == 60.0
