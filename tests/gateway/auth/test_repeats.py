"""A repeated request gets the job of the first one, and two honest ones get two. Nothing is computed for
clients that have gone."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import signal
from typing import Any

import httpx2
import openai
import pytest
from redis import Redis
from support.gateway import HELLO, Gateway, add_key, gateway
from support.servers.servers import Server
from support.wire.desk import Desk
from support.workers.counting_worker import until
from support.workers.hand_worker import HandJob, HandWorker, hand_worker, register

from millstream import AsyncClient, ClientOptions, State
from millstream.gateway.redis.gateway_calls import open_request
from millstream.gateway.redis.tenant_keys import TenantKeys
from millstream.wire.keys import QueueKeys
from millstream.wire.messages.record import read_job

CHAT: dict[str, Any] = {"model": "default", "messages": HELLO}
AGAIN = {"X-Stainless-Retry-Count": "1"}


def ask(client: openai.AsyncOpenAI, key: str | None = None, **changes: Any) -> asyncio.Task[Any]:
    headers = {} if key is None else {"Idempotency-Key": key}
    headers |= changes.pop("extra_headers", {})
    return asyncio.ensure_future(client.chat.completions.create(**CHAT | changes, extra_headers=headers))


async def leave(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def is_cancelled(worker: HandWorker, job: HandJob) -> bool:
    record = await read_job(worker.redis, worker.keys, job.id)
    return record is not None and (record.cancelled or record.state is State.CANCELLED)


async def content(task: asyncio.Task[Any]) -> str:
    answer = await task
    said: str = answer.choices[0].message.content
    return said


async def test_a_job_whose_post_cannot_be_entered_is_cancelled(
    worker: HandWorker, http: httpx2.AsyncClient
) -> None:
    """A repeated request would not find it."""
    path, body = "/v1/chat/completions", json.dumps(CHAT).encode()
    digest = hashlib.sha256(f"{path}\ndefault\n".encode() + body).hexdigest()
    await worker.redis.set(TenantKeys("").posts(digest), "not a hash")
    assert (await http.post(path, content=body)).status_code == 503
    [key] = await worker.redis.keys(worker.keys.job("*"))
    assert await worker.redis.hget(key, "state") == b"cancelled"


async def test_a_client_that_goes_ends_its_job(worker: HandWorker, client: openai.AsyncOpenAI) -> None:
    task = ask(client)
    job = await worker.take()
    await leave(task)
    await until(lambda: is_cancelled(worker, job))
    stream = await client.chat.completions.create(**CHAT, stream=True, service_tier="flex")
    job = await worker.take()
    await stream.close()
    await until(lambda: is_cancelled(worker, job))


async def test_a_retry_joins_the_job_of_a_client_that_has_gone(valkey: Server, worker: HandWorker) -> None:
    with gateway(valkey.url, "--disconnect-grace-s", 5) as door:
        async with door.client() as client:
            task = ask(client)
            job = await worker.take()
            await leave(task)
            again = ask(client, extra_headers=AGAIN)
            await until(lambda: attempts(worker, job, 2))
            await job.end(last="once")
            assert await content(again) == "once"
            assert await worker.redis.xlen(worker.keys.lane("interactive")) == 0


async def attempts(worker: HandWorker, job: HandJob, count: int) -> bool:
    record = await read_job(worker.redis, worker.keys, job.id)
    return record is not None and record.submits == count


async def test_two_honest_requests_are_two(worker: HandWorker, client: openai.AsyncOpenAI) -> None:
    tasks = [ask(client, service_tier="flex"), ask(client, service_tier="flex")]
    jobs = [await worker.take() for _ in tasks]
    assert jobs[0].id != jobs[1].id
    for job, text in zip(jobs, "ab", strict=True):
        await job.end(last=text)
    assert sorted([await content(task) for task in tasks]) == ["a", "b"]


@pytest.mark.parametrize(
    ("state", "seen_s", "outcome"),
    [("open", 0, "wait"), ("open", 5, "joined"), ("open", 601, "new"), ("left", 0, "new")],
)
async def test_a_retry_joins_an_old_request_only_if_its_gateway_lives(
    desk: Desk, state: str, seen_s: int, outcome: str
) -> None:
    """`seen_s`: how long ago its gateway said that it lives."""
    keys = TenantKeys("acme")
    posts = {"digest": "d", "queue": "q", "patient": True, "keep_ms": 86_400_000}
    posts |= {"window_ms": 600_000, "lease_ms": 3_000}
    await desk.run(open_request(keys, own_id="long", replica="r", repeated=False, **posts))
    assert await desk.redis.pttl(keys.posts("d")) > 600_000
    now_s = int((await desk.redis.time())[0])
    await desk.redis.hset(keys.posts("d"), "long", f"{state} r {(now_s - 4_000) * 1000} q")
    await desk.redis.zadd(keys.replicas, {"r": (now_s - seen_s) * 1000})
    again = open_request(keys, own_id="other", replica="s", repeated=True, **posts)
    assert (await desk.run(again)).outcome == outcome


@pytest.mark.slow
async def test_a_retry_of_something_else_is_a_request_of_its_own(
    worker: HandWorker, client: openai.AsyncOpenAI
) -> None:
    """The client of the equal one is still there: that is waited for, but not for long."""
    first = ask(client, stream=True)
    one = await worker.take()
    second = ask(client, stream=True, extra_headers=AGAIN)
    other = await worker.take()
    assert one.id != other.id
    for job in (one, other):
        await job.end(last="x")
    for task in (first, second):
        async for _ in await task:
            pass


async def test_one_idempotency_key_is_one_job(door: Gateway, worker: HandWorker) -> None:
    async with door.client() as client, door.client(retries=2) as trying:
        tasks = [ask(client, "order-7"), ask(client, "order-7")]
        job = await worker.take()
        assert job.id.startswith("0-g")
        await leave(tasks.pop())
        await asyncio.sleep(0.5)  # more than the grace
        assert not await is_cancelled(worker, job)
        await job.end(last="one")
        assert [await content(task) for task in tasks] == ["one"]
        assert await content(ask(client, "order-7")) == "one"
        with pytest.raises(openai.ConflictError) as caught:
            await ask(trying, "order-7", temperature=0.5)
        assert caught.value.param == "Idempotency-Key"
        assert caught.value.response.headers["x-should-retry"] == "false"
        with pytest.raises(openai.BadRequestError):
            await ask(client, "k" * 256)
        with pytest.raises(openai.BadRequestError):  # nothing was queued under this key
            await ask(client, "order-8", top_p=7)
        other = ask(client, "order-8")
        await (await worker.take()).end(last="two")
        assert await content(other) == "two"


async def test_a_key_joins_no_job_of_a_queue_that_it_may_not_use(
    door: Gateway, worker: HandWorker, valkey: Server
) -> None:
    """The body names no model: so each of the tenant's keys means its own queue."""
    one, two = [
        await asyncio.to_thread(add_key, valkey, "acme", "--queue", queue) for queue in ("default", "other")
    ]
    register(valkey.port, QueueKeys("other").shard(0))
    body: dict[str, Any] = {"messages": HELLO, "service_tier": "flex"}
    async with httpx2.AsyncClient(base_url=door.url) as http, hand_worker(valkey.url, "other") as others:

        def post(key: str, headers: dict[str, str]) -> asyncio.Task[httpx2.Response]:
            given = {"authorization": f"Bearer {key}"} | headers
            return asyncio.ensure_future(http.post("/v1/chat/completions", json=body, headers=given))

        first = post(one, {"Idempotency-Key": "order-9"})
        job = await worker.take()
        refused = await post(two, {"Idempotency-Key": "order-9"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "idempotency_key_reused")
        await job.end(last="x")
        assert (await first).status_code == 200
        again = post(one, {})
        job = await worker.take()
        again.cancel()
        repeated = post(two, AGAIN)
        other = await others.take()
        await other.end(last="y")
        assert (await repeated).json()["choices"][0]["message"]["content"] == "y"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_another_replica_answers_what_a_killed_one_began(
    valkey: Server, worker: HandWorker, number: signal.Signals
) -> None:
    """By key the whole stream from its beginning; without one a retry joins, when the lease is over."""
    with gateway(valkey.url, "--grace-s", 1) as dying, gateway(valkey.url) as door:
        async with dying.client() as lost, door.client() as client:
            keyed = await ask(lost, "stream-1", stream=True, service_tier="flex")
            job = await worker.take()
            await job.say("one ")
            chunks = aiter(keyed)
            await anext(chunks)
            assert (await anext(chunks)).choices[0].delta.content == "one "
            keyless = ask(lost)
            other = await worker.take()
            await asyncio.to_thread(dying.stop, number)
            with pytest.raises((openai.APIError, httpx2.RemoteProtocolError)):
                await anext(chunks)
            with pytest.raises(
                (openai.APIConnectionError, openai.InternalServerError), match=r"error|stopped"
            ):
                await keyless
            again = await ask(client, "stream-1", stream=True, service_tier="flex")
            joined = ask(client, extra_headers=AGAIN)
            await job.end(last="two")
            await until(lambda: attempts(worker, other, 2))
            await other.end(last="three")
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in again])
            assert text == "one two"
            assert await content(joined) == "three"


async def test_equal_requests_share_a_shard_where_results_are_kept(valkey: Server) -> None:
    async with AsyncClient(valkey.url, options=ClientOptions(shards=64)) as producer:
        await producer.submit("the queue is there")
    register(valkey.port, QueueKeys("default").shard(5), keeps_results="1")

    async def shards(client: openai.AsyncOpenAI, **changes: Any) -> set[bytes]:
        """Of six jobs."""
        before = set(redis.scan_iter("*:job:*"))
        tasks = [ask(client, **changes) for _ in range(6)]
        await until(lambda: len(set(redis.scan_iter("*:job:*")) - before) == 6)
        found = set(redis.scan_iter("*:job:*")) - before
        for task in tasks:
            await leave(task)
        return {key.partition(b"}")[0] for key in found}

    with Redis(port=valkey.port) as redis, gateway(valkey.url) as door:
        async with door.client() as client:
            assert len(await shards(client, temperature=0)) == 1
            assert len(await shards(client)) > 1
