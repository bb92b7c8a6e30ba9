"""A queue has one model: another one is refused, or replaces it; no answer is of two, and none is lost."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from support.servers.servers import BOTH
from support.workers.counting_worker import assert_nothing_left, counted, until, until_read, until_running
from support.workers.work import SHARD, Work, answer, read_to, record_of

from millstream import AsyncClient, State
from millstream.client.streaming.events import Transcript
from millstream.wire import calls
from millstream.wire.keys import QueueKeys
from millstream.wire.messages.record import MARKER, read_log
from millstream.wire.state.queue_info import read_queue, record_worker, serve_model
from millstream.wire.versions import TAKEN
from millstream_worker.engine.protocol.config import EngineInfo
from millstream_worker.service.queue_model import QueueModel
from millstream_worker.service.service import CannotServe, Service

OTHER = {"name": "other", "by": 3}  # counts on by three


def replacing(work: Work, **options: Any) -> Service:
    return Service(work.settings(**options), CollectorRegistry(), replace_model=True)


@contextlib.asynccontextmanager
async def serving(service: Service) -> Any:
    async with asyncio.TaskGroup() as group:
        running = group.create_task(service.run())
        yield running
        if not running.done():
            service.drain()


async def digest_of(redis_client: Redis, queue: str = "default") -> str:
    info = await read_queue(redis_client, queue)
    return info.model_digest if info else ""


def threes(first: int, count: int) -> str:
    return " ".join(f"w{first + 3 * place}" for place in range(count))


async def test_a_worker_of_another_model_is_refused_before_it_loads(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    async with work():
        assert await answer(client, "w1", 2) == counted(2, 2)
        mine = await digest_of(redis_client)
        with pytest.raises(CannotServe) as refused:
            await work.service(**OTHER, load_s=60.0).run()  # longer than this test may take
        assert await answer(client, "w1", 2) == counted(2, 2)
        assert await digest_of(redis_client) == mine
    for word in ("'default'", "counting", "other", "--queue", "--replace-model", mine):
        assert word in str(refused.value)


async def test_the_last_to_load_is_refused_where_two_begin_a_new_queue(
    client: AsyncClient, work: Work
) -> None:
    slow = work.service(**OTHER, load_s=1.0)
    late = asyncio.create_task(slow.run())
    await until(lambda: slow.session is not None and bool(slow.session.components.supervisor.pids))
    async with work():
        assert await answer(client, "w1", 2) == counted(2, 2)
        with pytest.raises(CannotServe, match="'default' has the model counting"):
            await late


@BOTH
async def test_a_replaced_worker_finishes_its_jobs_and_takes_no_more(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    work.hold(3)
    async with asyncio.TaskGroup() as group:
        old = work.service(grace_s=0.1)
        ended = group.create_task(_end_of(old))
        begun = await client.submit("w1", max_tokens=6, stream=True)
        text = await read_to(events := client.stream(begun.id), counted(2, 3))
        async with serving(replacing(work, **OTHER)):
            await until(lambda: bool(old.session and old.session.components.model.replaced))
            late = await client.submit("w1", max_tokens=3)
            assert (await client.wait(late.id, timeout_s=30)).text == threes(4, 3)
            assert not ended.done()
            work.go(3)
            text += "".join([event.text async for event in events])
            assert text == (await client.result(begun.id)).text == counted(2, 6)
            assert "another model, other" in await ended
    assert (await client.result(begun.id)).model == "counting"
    assert (await client.result(late.id)).model == "other"
    await assert_nothing_left(redis_client)


async def _end_of(service: Service) -> str:
    with pytest.raises(CannotServe) as ended:
        await service.run()
    return str(ended.value)


async def test_a_worker_that_cannot_serve_replaces_nothing(
    client: AsyncClient, redis_client: Redis, work: Work, tmp_path: Path
) -> None:
    async with work():
        assert await answer(client, "w1", 2) == counted(2, 2)
        mine = await digest_of(redis_client)
        with pytest.raises(CannotServe, match="tokenizer"):
            await replacing(work, **OTHER, tokenizer=tmp_path).run()
        assert await digest_of(redis_client) == mine
        assert await answer(client, "w1", 2) == counted(2, 2)


async def test_two_signals_end_a_replaced_worker_as_any_other(client: AsyncClient, work: Work) -> None:
    work.hold(3)
    old = work.service()
    ended = asyncio.create_task(_end_of(old))
    job = await client.submit("w1", max_tokens=6)
    await until_running(client, job)
    async with serving(replacing(work, **OTHER)):
        await until(lambda: bool(old.session and old.session.components.model.replaced))
        old.drain()
        assert not ended.done()
        old.drain()
        await ended
        work.go(3)
        assert (await client.wait(job.id, timeout_s=30)).text == threes(4, 6)


@BOTH
async def test_a_job_restarts_with_a_new_model_and_its_stream_rewinds(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    work.hold(3)
    read = Transcript()
    async with work() as old:
        job = await client.submit("w1", max_tokens=6, stream=True, n=2)
        events = client.stream(job.id)
        while len(read.text(0).split()) + len(read.text(1).split()) < 6:
            read.add(await anext(events))
        old.service.drain()
        old.service.drain()
    first = await record_of(redis_client, job.id)
    work.go(3)
    async with serving(replacing(work, **OTHER)):
        rewinds = 0
        async for event in events:
            read.add(event)
            rewinds += (
                event.kind == "rewind" if hasattr(event, "kind") else type(event).__name__ == "RewindEvent"
            )
        result = await client.wait(job.id, timeout_s=30)
    texts = [choice.text for choice in result.choices]
    assert texts == [read.text(0), read.text(1)] == [threes(4, 6), threes(5, 6)]
    assert rewinds == 1
    assert (result.attempts, result.model) == (2, "other")
    assert result.model_digest == await digest_of(redis_client)
    log = await read_log(redis_client, SHARD, job.id)
    assert (log[0].kind, log[0].attempt, log[0].seq) == (MARKER, 2, 0)
    assert log[0].body.decode() == result.model_digest
    assert first.last_seq > 0
    assert first.first_token_ms is not None
    assert result.timing.first_token_ms is not None
    assert result.timing.first_token_ms > first.first_token_ms


async def test_shards_refuse_workers_of_a_replaced_model_at_once(
    client: AsyncClient, redis_client: Redis, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before the worker itself has heard of it; what they had taken is free for others."""
    heard = asyncio.Event()
    heard.set()
    keep = QueueModel.keep

    async def keep_once_heard(model: QueueModel) -> None:
        if heard.is_set():
            await keep(model)

    monkeypatch.setattr(QueueModel, "keep", keep_once_heard)
    old = work.service()
    ended = asyncio.create_task(_end_of(old))
    assert await answer(client, "w1", 2) == counted(2, 2)
    heard.clear()
    await replace_model(redis_client)
    job = await client.submit("w1", max_tokens=2)
    assert old.session is not None
    model = old.session.components.model
    await until(lambda: model._refused)
    assert (await record_of(redis_client, job.id)).attempt == 0
    heard.set()
    assert "another model, third" in await ended
    record = await record_of(redis_client, job.id)
    assert (record.attempt, record.died, record.state) == (0, 0, State.QUEUED)


async def test_a_restarted_engine_does_not_take_its_queue_back(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    old = replacing(work)
    ended = asyncio.create_task(_end_of(old))
    assert await answer(client, "w1", 2) == counted(2, 2)
    await replace_model(redis_client)
    work.kill_engine()
    assert "third" in await ended
    assert await digest_of(redis_client) == "2" * 32


async def test_a_flushed_queue_has_its_model_again(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    async with work():
        assert await answer(client, "w1", 2) == counted(2, 2)
        mine = await digest_of(redis_client)
        await redis_client.flushall()

        await until_read(lambda: digest_of(redis_client), lambda digest: digest == mine)
        assert await answer(client, "w1", 2) == counted(2, 2)
        assert await redis_client.hget(SHARD.model, "digest") == mine.encode()
        with pytest.raises(CannotServe, match="has the model counting"):
            await work.service(**OTHER).run()


async def test_recording_the_model_waits_for_an_absent_server(
    client: AsyncClient, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a stop ends the wait."""
    away = [RedisConnectionError("away")] * 3
    record = QueueModel._record

    async def fail_first(model: QueueModel, info: EngineInfo) -> None:
        if away:
            raise away.pop()
        await record(model, info)

    monkeypatch.setattr(QueueModel, "_record", fail_first)
    async with work():
        assert await answer(client, "w1", 2) == counted(2, 2)
    away += [RedisConnectionError("away")] * 1000
    async with work() as worker:
        await until(lambda: len(away) < 1000)
        worker.service.drain()


async def replace_model(redis_client: Redis) -> None:
    """As a worker of a third model does."""
    digest = "2" * 32
    call = record_worker(QueueKeys("default"), TAKEN, model="third", model_digest=digest, replace=True)
    await calls.run(redis_client, call)
    await calls.run(redis_client, serve_model(SHARD, digest))
