"""A submit that nobody would ever take is refused; one that may have to wait for an upgrade is not. The
workers here are heartbeats only."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import redis.asyncio
from support.servers.servers import Server
from support.wire.image_files import png
from support.workers.counting_worker import until_read

from millstream import (
    AsyncClient,
    ClientOptions,
    InvalidRequest,
    JobFields,
    NotReady,
    PromptTokens,
    QueueMismatch,
    Submitted,
    Unavailable,
)
from millstream.client.jobs.count_jobs import count_prompts
from millstream.client.session.job_reader import QueueJobs
from millstream.client.session.session import Session
from millstream.client.submit import submission
from millstream.client.submit.submission import Submission
from millstream.client.submit.worker_versions import WorkerVersions
from millstream.wire.calls import run
from millstream.wire.keys import GROUP, QueueKeys
from millstream.wire.messages.record import read_job
from millstream.wire.state.heartbeat import Heartbeat, beat
from millstream.wire.state.queue_info import QueueInfo, create_or_read, open_queue, read_queue, record_worker
from millstream.wire.versions import FIRST_VERSION, TAKEN, WIRE_VERSION, Versions

QUEUE = QueueKeys("default")
LATER = WIRE_VERSION + 1


class Crew:
    """Heartbeats of workers that take what they are told to."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self.redis = client

    async def open(self, low: int, high: int, shards: int = 1) -> None:
        info = QueueInfo(shards, version_min=low, version_max=high)
        await run(self.redis, create_or_read(QUEUE, info))

    async def join(self, name: str, low: int, high: int, shard: int = 0, *, images: bool = False) -> None:
        await run(self.redis, record_worker(QUEUE, Versions(low, high)))
        keys = QUEUE.shard(shard)
        for lane in keys.lanes:
            with contextlib.suppress(redis.ResponseError):  # others have joined before
                await self.redis.xgroup_create(lane, GROUP, "0", mkstream=True)
        await self.redis.xgroup_createconsumer(keys.lanes[0], GROUP, name)
        one = Heartbeat(name, model="tiny", version_min=low, version_max=high, images=images)
        await run(self.redis, beat(keys, one, ttl_ms=60_000))

    async def die(self, name: str, shard: int = 0) -> None:
        await self.redis.delete(QUEUE.shard(shard).worker(name))


@pytest.fixture
def crew(redis_client: redis.asyncio.Redis) -> Crew:
    return Crew(redis_client)


@contextlib.asynccontextmanager
async def looking_always(url: str, **options: Any) -> AsyncIterator[WorkerVersions]:
    """What a client asks before each submit, looking each time."""
    session = Session(url, ClientOptions(**options))
    yield WorkerVersions(QueueJobs(session, "default"), look_s=0.0)
    await session.aclose()


async def test_living_workers_that_take_another_version_refuse(crew: Crew, client: AsyncClient) -> None:
    await crew.open(1, 1)
    await crew.join("b-1", LATER, LATER)
    with pytest.raises(QueueMismatch, match=rf"no living worker takes message version 1.*they take {LATER}:"):
        await client.submit("w1")
    with pytest.raises(QueueMismatch):
        await client.submit_many([{"prompt": "w1"}])
    await crew.die("b-1")
    assert (await client.submit("w1")).created  # none is alive, and there were some that take it


async def test_older_workers_do_not_take_tools_with_a_format(crew: Crew, client: AsyncClient) -> None:
    """They would ignore one of the two."""
    await crew.open(1, 5)
    await crew.join("older-1", 1, 5)
    asked: Any = {
        "messages": [{"role": "user", "content": "w1"}],
        "tools": [{"type": "function", "function": {"name": "get"}}],
    }
    with pytest.raises(QueueMismatch, match="message version 6"):
        await client.submit(**asked, response_format={"type": "json_object"})
    assert (await client.submit(**asked)).created
    assert (await client.submit(**asked, tool_choice="none", response_format={"type": "json_object"})).created


async def test_images_need_a_worker_that_reads_them(crew: Crew, client: AsyncClient) -> None:
    """Older ones would ignore them; newer ones may have a model that reads text only, and say so."""
    await crew.open(1, 6)
    await crew.join("older-1", 1, 6)
    asked: Any = {"messages": [{"role": "user", "content": [{"type": "image", "image": png()}]}]}
    with pytest.raises(QueueMismatch, match="message version 7"):
        await client.submit(**asked)
    await crew.join("text-1", 1, 7)
    with pytest.raises(InvalidRequest, match="this queue's model, tiny, reads text only; send the") as caught:
        await client.submit(**asked)
    assert caught.value.field == "messages"
    await crew.join("vision-1", 1, 7, images=True)
    assert (await client.submit(**asked)).created
    assert (await client.submit("w1")).created


async def test_one_worker_of_any_shard_is_enough(crew: Crew, client: AsyncClient) -> None:
    await crew.open(1, 1, shards=3)
    await crew.join("newer-1", 2, 2, shard=0)
    await crew.join("older-1", 1, 1, shard=2)
    assert (await client.submit("w1")).created


async def test_without_workers_the_window_of_those_that_were_decides(crew: Crew, client: AsyncClient) -> None:
    await crew.open(5, 6)
    with pytest.raises(QueueMismatch, match=r"takes message version 5 to 6 and not 1.*start an upgraded one"):
        await client.submit("w1")
    await open_queue(crew.redis, "default", takes=Versions(1, 2))
    assert (await client.submit("w1")).created


async def test_each_request_needs_the_version_of_its_fields(crew: Crew, client: AsyncClient) -> None:
    """Old workers get what they know; what they would ignore waits for none of them."""
    newer: JobFields = {
        "id": "chat",
        "messages": [{"role": "user", "content": "w1"}],
        "chat_template_kwargs": {"enable_thinking": False},
    }
    await crew.open(1, 1)
    await crew.join("older-1", 1, 1)
    plain, refused = await client.submit_many([{"prompt": "w1"}, newer])
    assert isinstance(plain, Submitted)
    assert isinstance(refused, QueueMismatch)
    assert re.search(r"no living worker takes message version 2,.*they take 1:", str(refused))
    await crew.join("newer-1", 1, 2)
    assert (await client.submit(**newer)).created  # type: ignore[misc]
    records = [await read_job(crew.redis, QUEUE.shard(0), one) for one in (plain.id, "0-chat")]
    assert [record.version for record in records if record is not None] == [1, 2]
    formatted: JobFields = {"prompt": "w1", "response_format": {"type": "json_object"}}
    with pytest.raises(QueueMismatch, match=r"takes message version 3,.*they take 1, 1 to 2: upgrade the"):
        await client.submit(**formatted)  # type: ignore[misc]
    await crew.join("newest-1", 1, 3)
    assert (await client.submit(**formatted)).created  # type: ignore[misc]


async def test_prompts_are_estimated_where_no_living_worker_counts(server: Server, crew: Crew) -> None:
    count: Any = {"prompt": "x" * 40, "kind": "count"}
    async with AsyncClient(server.url) as client:
        assert await client.count("x" * 40) == PromptTokens(10, estimated=True)
        assert isinstance((await client.count_many([{"prompt": ""}]))[0], InvalidRequest)
    assert await read_queue(crew.redis, "default") is None
    await crew.open(1, 4, shards=2)
    await crew.join("newer-1", 1, 4, shard=1)  # and nobody serves the other shard
    async with AsyncClient(server.url) as client:
        assert await client.count("x" * 40) == PromptTokens(10, estimated=True)
    await crew.die("newer-1", shard=1)
    await crew.join("older-1", 1, 3)
    async with AsyncClient(server.url) as client:
        assert await client.count("x" * 40) == PromptTokens(10, estimated=True)
        [refused] = await client.submit_many([count])
        assert isinstance(refused, QueueMismatch)
        assert "no living worker takes message version 4" in str(refused)
    assert await crew.redis.keys("*:job:*") == []


@pytest.fixture
async def jobs(server: Server, crew: Crew) -> AsyncIterator[QueueJobs]:
    """Of a queue whose worker counts prompts, and never answers."""
    await crew.open(1, 4)
    await crew.join("newer-1", 1, 4)
    async with contextlib.aclosing(Session(server.url, ClientOptions())) as session:
        yield QueueJobs(session, "default")


async def test_counts_are_estimated_once_nobody_lives(
    crew: Crew, jobs: QueueJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "WorkerVersions", partial(WorkerVersions, look_s=0.0))
    asked = [{"prompt": "x" * 40}, {"prompt": ""}]
    counting = asyncio.create_task(count_prompts(jobs, Submission(jobs), asked, None, silent_s=0.1))
    await until_read(lambda: crew.redis.keys("*:job:*"), bool)
    await asyncio.sleep(0.3)  # as long as a worker lives, there is no end of it
    assert not counting.done()
    await crew.die("newer-1")
    first, second = await asyncio.wait_for(counting, 30)
    assert first == PromptTokens(10, estimated=True)
    assert isinstance(second, InvalidRequest)
    assert await crew.redis.keys("*:job:*") == []


class LostReplies(Submission):
    """Its requests reach the server, and no reply comes back."""

    async def many(self, *args: Any, **kwargs: Any) -> Any:
        await super().many(*args, **kwargs)
        await asyncio.Event().wait()


async def test_counts_cancelled_during_a_submit_leave_none(crew: Crew, jobs: QueueJobs) -> None:
    counting = asyncio.create_task(count_prompts(jobs, LostReplies(jobs), [{"prompt": "w1"}], None))
    await until_read(lambda: crew.redis.keys("*:job:*"), bool)
    counting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await counting
    assert await crew.redis.keys("*:job:*") == []


@pytest.mark.usefixtures("jobs")
async def test_a_count_that_is_given_up_leaves_no_job(crew: Crew, client: AsyncClient) -> None:
    with pytest.raises(NotReady):
        await client.count("w1", timeout_s=0.2)
    waiting = asyncio.create_task(client.count("w1"))
    await until_read(lambda: crew.redis.keys("*:job:*"), bool)
    await asyncio.sleep(0.1)  # it waits for the job's end
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await crew.redis.keys("*:job:*") == []


async def test_a_client_notices_that_the_workers_were_replaced(server: Server, crew: Crew) -> None:
    async with looking_always(server.url) as versions:
        await versions.open()
        await crew.join("newer-1", LATER, LATER)
        with pytest.raises(QueueMismatch, match="upgrade the older side"):
            await versions.open()


async def test_the_look_is_not_at_every_submit(crew: Crew, client: AsyncClient) -> None:
    await crew.open(1, 2)
    await crew.join("a-1", 1, 2)
    await crew.redis.config_resetstat()
    await client.submit("w1")

    async def looks() -> int:
        stats: dict[str, Any] = await crew.redis.info("commandstats")
        names = ("cmdstat_xinfo|consumers", "cmdstat_xinfo")
        return sum(stats.get(name, {"calls": 0})["calls"] for name in names)

    before = await looks()
    assert before == 2  # both lanes
    for _ in range(20):
        await client.submit("w1", max_tokens=1)  # the window of a lane is looked at when it may be full
    assert await looks() == before


async def test_a_damaged_heartbeat_refuses_nobody(crew: Crew, client: AsyncClient) -> None:
    await crew.open(1, 2)
    await crew.join("a-1", 2, 2)
    await crew.redis.hset(QUEUE.shard(0).worker("a-1"), "version_max", "many")
    assert (await client.submit("w1")).created


async def test_metadata_that_the_server_lost_is_written_again(
    server: Server, redis_client: redis.asyncio.Redis
) -> None:
    async with AsyncClient(server.url, options=ClientOptions(shards=4)) as first:
        await first.submit("w1")
    async with looking_always(server.url) as versions:
        await versions.open()
        await redis_client.flushall()
        assert await versions.open() == QueueInfo(4)
        assert await read_queue(redis_client, "default") == QueueInfo(4)


async def test_an_outage_is_told_by_the_submit_itself() -> None:
    """A look that gets no answer refuses nothing; each job has its own outcome, as before."""
    with Server("valkey") as server:
        async with (
            AsyncClient(server.url, options=ClientOptions(timeout_s=0.5)) as client,
            looking_always(server.url, timeout_s=0.5) as versions,
        ):
            await client.submit("w1")
            info = await versions.open()
            server.kill()
            assert await versions.open() == info
            [outcome] = await client.submit_many([{"prompt": "w1"}])
            assert isinstance(outcome, Unavailable)


def test_windows() -> None:
    window = Versions(2, 4)
    assert [version in window for version in (1, 2, 4, 5)] == [False, True, True, False]
    assert (str(window), str(Versions(3, 3))) == ("2 to 4", "3")
    assert window.covers(Versions(2, 3))
    assert not window.covers(Versions(1, 3))
    assert not window.covers(Versions(3, 5))
    assert WIRE_VERSION in TAKEN
    assert FIRST_VERSION in TAKEN
