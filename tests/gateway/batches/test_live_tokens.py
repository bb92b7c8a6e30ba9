"""Output tokens of rows under way, read from the logs that a worker writes."""

from __future__ import annotations

from support.servers.servers import Server
from support.workers.hand_worker import hand_worker

from millstream.gateway.batches.runner import live_tokens
from millstream.gateway.batches.runner.live_tokens import LiveTokens
from millstream.gateway.queues.queue_clients import LOG_ENTRIES, QueueClient


async def test_tokens_are_counted_once(valkey: Server) -> None:
    live = LiveTokens()
    async with QueueClient(valkey.url) as client, hand_worker(valkey.url) as worker:
        names = [(await client.submit("x")).id for _ in range(3)]
        live.begin(client, names)
        await live.look()
        assert live.total == 0  # none has begun
        first, second = [await worker.take() for _ in range(2)]
        await first.say("abc")
        await second.say("de")
        await live.look()
        await live.look()
        assert live.total == 5
        await worker.redis.set(worker.keys.tokens(names[2]), "no log")  # it harms no other
        for _ in range(LOG_ENTRIES + 3):
            await first.say("f")
        await live.look()
        assert live.total == 5 + LOG_ENTRIES  # a long log is read in parts
        await live.look()
        assert live.total == 5 + LOG_ENTRIES + 3
        live.end(first.id)
        assert live.total == 2


async def test_the_jobs_read_in_one_look_are_bounded(valkey: Server) -> None:
    live = LiveTokens()
    asked: list[int] = []

    class Counting(QueueClient):
        async def new_tokens(self, cursors: object) -> dict[str, tuple[str, int]]:
            asked.append(len(list(cursors)))  # type: ignore[call-overload]
            return {}

    async with Counting(valkey.url) as client:
        live.begin(client, map(str, range(2000)))
        await live.look()
    assert asked == [live_tokens.MOST_JOBS]
