"""SIGKILL of a whole worker in the middle of a stream: another one goes on, and the reader sees one unbroken
text."""

from __future__ import annotations

from redis.asyncio import Redis
from support.servers.servers import Server
from support.workers.counting_worker import assert_nothing_left, counted
from support.workers.work import Work, record_of

from millstream import AsyncClient, TokenEvent


async def test_a_stream_outlives_its_worker(server: Server, redis_client: Redis, work: Work) -> None:
    work.hold(6)
    async with AsyncClient(server.url) as client:
        streamed = await client.submit("w1", max_tokens=30, stream=True)
        unstreamed = await client.submit("w100", max_tokens=30, stop=["w120"])
        events = client.stream(streamed.id)
        seen = []
        with work.process() as first:
            while "".join(event.text for event in seen) != counted(2, 6):
                seen.append(await anext(events))
            first.kill()
        work.go(6)
        async with work() as second:
            seen.extend([event async for event in events])
            result = await client.wait(streamed.id, timeout_s=30)
            other = await client.wait(unstreamed.id, timeout_s=30)
            assert second.metric("jobs_reclaimed_total") == 2
    deltas = [delta for event in seen if isinstance(event, TokenEvent) for delta in event.choices]
    assert "".join(delta.text for delta in deltas) == result.text == counted(2, 30)
    assert sum((delta.token_ids for delta in deltas), ()) == result.choices[0].token_ids
    assert (result.attempts, result.usage.output_tokens) == (2, 30)
    assert other.text == counted(101, 19) + " "
    assert (await record_of(redis_client, streamed.id)).died == 1
    await assert_nothing_left(redis_client)
