"""A queue with sharded pub/sub: everything that scripts publish reaches SSUBSCRIBE, and only that."""

from __future__ import annotations

from typing import Any

import redis.asyncio
from support.wire.desk import Desk

from millstream.wire.messages.record import parse_event
from millstream.wire.state.queue_info import PubSub, QueueInfo


async def heard(pubsub: Any, count: int) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    while len(found) < count:
        message = await pubsub.get_message(timeout=10)
        assert message is not None, f"only {found} was published"
        if message["type"] in ("smessage", "message"):
            found.append((message["channel"], message["data"]))
    return found


async def test_tokens_and_control_messages_reach_sharded_subscribers(
    redis_client: redis.asyncio.Redis,
) -> None:
    keys = QueueInfo(pubsub=PubSub.SHARDED).keys("docs").shard(0)
    desk = await Desk(redis_client, keys).open()
    await desk.submit("0-b", deadline_ms=1)
    async with redis_client.pubsub() as sharded, redis_client.pubsub() as plain:
        await plain.subscribe(keys.events("0-a"))
        assert (await plain.get_message(timeout=10))["type"] == "subscribe"
        channels = (keys.events("0-a"), keys.events("0-b"), keys.control)
        for channel in channels:
            await sharded.execute_command("SSUBSCRIBE", channel)
            assert (await sharded.get_message(timeout=10))["type"] == "ssubscribe"
        assert await desk.expire() == ("0-b",)
        await desk.deliver()  # the slot of 0-b
        held = await desk.begin()
        await desk.append(held, 1)
        await desk.cancel()
        await desk.run(desk.releasing(held))
        await desk.cancel()
        found = await heard(sharded, 6)
        assert [(name.decode(), data) for name, data in found if name.decode() == keys.control] == [
            (keys.control, b"cancel 0-a"),
            (keys.control, b"released"),
        ]
        assert [parse_event(data).cursor for name, data in found if name.decode() != keys.control] == [
            "0-1", "1-0", "1-1", "1-2",
        ]  # fmt: skip
        await redis_client.publish(keys.events("0-a"), b"plain")
        assert await heard(plain, 1) == [(keys.events("0-a").encode(), b"plain")]
