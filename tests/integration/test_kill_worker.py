"""SIGKILL of a whole worker in the middle of a stream: another one goes on, and the reader sees one unbroken
text.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import redis.asyncio
from support.servers.servers import Server
from support.workers.counting_worker import (
    assert_nothing_left,
    counted,
    model_name,
    serving,
    worker_process,
    write_tokenizer,
)

from millstream import AsyncClient, TokenEvent
from millstream.wire.keys import QueueKeys
from millstream.wire.messages.record import read_job


async def test_a_stream_outlives_its_worker(
    server: Server, tmp_path: Path, redis_client: redis.asyncio.Redis
) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer")
    gate = tmp_path / "gate"
    gate.mkdir()
    (gate / "6").touch()
    async with AsyncClient(server.url) as client:
        streamed = await client.submit("w1", max_tokens=30, stream=True)
        unstreamed = await client.submit("w100", max_tokens=30, stop=["w120"])
        events = client.stream(streamed.id)
        seen = []
        with worker_process(server, model_name(tokenizer, gate=gate)) as first:
            while "".join(event.text for event in seen) != counted(2, 6):
                seen.append(await anext(events))
            os.kill(first.pid, signal.SIGKILL)
        async with serving(server, model_name(tokenizer)) as second:
            seen.extend([event async for event in events])
            result = await client.wait(streamed.id, timeout_s=30)
            other = await client.wait(unstreamed.id, timeout_s=30)
            assert second.metric("jobs_reclaimed_total") == 2
    deltas = [delta for event in seen if isinstance(event, TokenEvent) for delta in event.choices]
    assert "".join(delta.text for delta in deltas) == result.choices[0].text == counted(2, 30)
    assert sum((delta.token_ids for delta in deltas), ()) == result.choices[0].token_ids
    assert (result.attempts, result.usage.output_tokens) == (2, 30)
    assert other.choices[0].text == counted(101, 19) + " "
    record = await read_job(redis_client, QueueKeys("default").shard(0), streamed.id)
    assert record is not None
    assert record.died == 1
    await assert_nothing_left(redis_client)
