"""Submitting, cancelling, asking for and waiting for jobs, on real servers."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import pytest
from support.servers.proxy import Proxy
from support.servers.servers import Server
from support.workers.hand_worker import HandWorker

from millstream import (
    AsyncClient,
    CancelOutcome,
    ChatMessage,
    Choice,
    ClientOptions,
    Conflict,
    ErrorInfo,
    InvalidRequest,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobFields,
    NotFound,
    NotReady,
    PubSub,
    QueueFull,
    QueueMismatch,
    Request,
    Result,
    State,
    Submitted,
    Unavailable,
)
from millstream.client.session.session import CLOCK_S, Session
from millstream.client.submit.submission import LONGEST_PAUSE_S, RETRY_S, pause_s
from millstream.wire import calls
from millstream.wire.messages import codec
from millstream.wire.messages.codec import MAX_MESSAGE_BYTES
from millstream.wire.timing import ServerClock


async def test_from_submit_to_result(client: AsyncClient, worker: HandWorker) -> None:
    submitted = await client.submit("Hello", id="letter-1", metadata={"row": "7"})
    assert submitted == Submitted("0-letter-1", State.QUEUED, created=True)
    with pytest.raises(NotReady, match="queued"):
        await client.result(submitted.id)
    job = await worker.take()
    assert job.request.prompt == "Hello"
    await job.say("Good ")
    with pytest.raises(NotReady, match="running"):
        await client.result(submitted.id)
    await job.end(last="day")
    result = await client.result(submitted.id)
    assert result.state is State.COMPLETED
    assert (result.choices[0].text, result.metadata) == ("Good day", {"row": "7"})


async def test_submitting_again_is_the_same_job(client: AsyncClient, worker: HandWorker) -> None:
    first = await client.submit("Hello", id="a", max_tokens=3)
    again = await client.submit("Hello", id="a", max_tokens=3, deadline_s=9, traceparent="00-other")
    assert again == Submitted(first.id, State.QUEUED, created=False)
    assert (await client.status(first.id)).submits == 2
    for changed in ({"prompt": "Hello!"}, {"max_tokens": 4}, {"seed": 1}):
        with pytest.raises(Conflict, match="0-a"):
            await client.submit(**{"prompt": "Hello", "id": "a", "max_tokens": 3} | changed)
    await worker.serve(lambda request: "x", jobs=1)
    assert (await client.submit("Hello", id="a", max_tokens=3)).state is State.COMPLETED


async def test_many_at_once_each_with_its_outcome(client: AsyncClient, worker: HandWorker) -> None:
    await client.submit("taken", id="taken")
    items: list[JobFields] = [{"prompt": f"p{n}", "id": f"i{n}"} for n in range(600)]
    items[3] = {"prompt": "bad", "temperature": -1.0}
    items[500] = {"prompt": "other", "id": "taken"}
    items[599] = {"request": Request(prompt="ready"), "id": "ready"}
    outcomes = await client.submit_many(iter(items))
    assert isinstance(outcomes[3], InvalidRequest)
    assert isinstance(outcomes[500], Conflict)
    ids = [outcome.id for outcome in outcomes if isinstance(outcome, Submitted)]
    assert ids == [f"0-i{n}" for n in range(599) if n not in (3, 500)] + ["0-ready"]
    queued = await worker.redis.xlen(worker.keys.lane("batch"))
    assert queued + await worker.redis.zcard(worker.keys.parked("batch")) == 599
    assert await client.submit_many([]) == []


async def test_an_item_that_no_check_has_seen_loses_no_other(client: AsyncClient) -> None:
    deep: Any = {}
    for _ in range(300):
        deep = {"a": deep}
    messages = (ChatMessage(role="user", content="x"),)
    unchecked = Request.model_construct(messages=messages, chat_template_kwargs=deep)
    first, wrong, last = await client.submit_many([{"prompt": "x"}, {"request": unchecked}, {"prompt": "y"}])
    assert isinstance(first, Submitted)
    assert isinstance(last, Submitted)
    assert isinstance(wrong, InvalidRequest)
    assert isinstance(wrong.__cause__, ValueError)
    assert wrong.field == "request"


async def test_a_full_queue(server: Server, worker: HandWorker) -> None:
    async with AsyncClient(server.url, options=ClientOptions(max_entries=3)) as client:
        outcomes = await client.submit_many([{"prompt": "x"}] * 4)
        assert isinstance(full := outcomes[3], QueueFull)
        assert (full.entries, full.queue, full.reason) == (3, "default", "entries")
        assert full.retry_after_s > 0
        with pytest.raises(QueueFull):
            await client.submit("y", wait_s=0.01)
        waiting = asyncio.ensure_future(client.submit("z", wait_s=30))
        await worker.serve(lambda request: "x", jobs=2)
        assert (await waiting).created
    async with AsyncClient(server.url, options=ClientOptions(max_bytes=1000)) as client:
        await client.submit("x" * 600)
        with pytest.raises(QueueFull, match="is full") as caught:
            await client.submit("x" * 600)
        assert caught.value.reason == "bytes"


def test_who_waits_for_room_does_not_trust_the_estimate() -> None:
    """It is a minute after a standstill."""
    standstill, soon = QueueFull("q", 1, 0, 60.0), QueueFull("q", 1, 0, 0.2)
    for _ in range(50):
        assert LONGEST_PAUSE_S / 2 <= pause_s([standstill]) <= LONGEST_PAUSE_S
        assert 0.1 <= pause_s([standstill, soon, Unavailable("away")]) <= 0.2
        assert RETRY_S / 2 <= pause_s([standstill, Unavailable("away")]) <= RETRY_S


async def test_cancel_a_running_job_keeps_its_text(client: AsyncClient, worker: HandWorker) -> None:
    submitted = await client.submit("Hello")
    job = await worker.take()
    await job.say("half")
    assert await client.cancel(submitted.id) is CancelOutcome.REQUESTED
    assert (await client.status(submitted.id)).cancel_requested
    assert await job.say("more") == "cancelled"
    await job.end(State.CANCELLED)
    with pytest.raises(JobCancelled) as caught:
        await client.wait(submitted.id, timeout_s=20)
    assert caught.value.result.choices[0].text == "half"


@pytest.mark.parametrize("name", ["0-nobody", "7-nobody", "nobody", "no id/of mine"])
async def test_whoever_asks_for_what_is_no_job_finds_none(client: AsyncClient, name: str) -> None:
    await client.submit("Hello")
    for ask in (client.status, client.result, client.wait, client.cancel):
        with pytest.raises(NotFound, match=f"{name}: no such job"):
            await ask(name)
    assert await client.forget(name) is False


async def test_an_own_id_finds_its_job(server: Server, client: AsyncClient) -> None:
    """On every shard, also from a client that has not submitted it."""
    names = [f"invoice-{number}" for number in range(8)]
    async with AsyncClient(server.url, options=ClientOptions(shards=4)) as producer:
        ids = {name: (await producer.submit("Hello", id=name)).id for name in names}
    assert [(await client.status(name)).id for name in names] == list(ids.values())
    with pytest.raises(NotReady, match=f"{ids[names[0]]}: no result yet"):
        await client.result(names[0])
    for name in names:
        assert await client.cancel(name) is CancelOutcome.CANCELLED
    with pytest.raises(JobCancelled):
        await client.wait(names[0])
    both = [*names, ids[names[0]]]
    outcomes = await client.wait_many([*both, "nobody"], timeout_s=20)
    assert sorted(outcomes) == sorted([*both, "nobody"])
    assert all(isinstance(outcomes[name], JobCancelled) for name in both)
    assert isinstance(outcomes["nobody"], NotFound)
    assert [event.job_id async for event in client.stream(names[1])] == [ids[names[1]]]
    assert await client.forget_many([names[2], "nobody"]) == {names[2]: True, "nobody": False}


async def test_cancel_many_by_own_ids_over_shards(server: Server) -> None:
    options = ClientOptions(shards=3)
    async with AsyncClient(server.url, queue="sharded", options=options) as client:
        await client.submit_many({"prompt": "x", "id": f"own-{i}"} for i in range(600))
        told = await client.cancel_many([*(f"own-{i}" for i in range(600)), "nobody"])
    assert told.pop("nobody") is CancelOutcome.NOT_FOUND
    assert told == {f"own-{i}": CancelOutcome.CANCELLED for i in range(600)}


async def test_a_failed_job_says_why(client: AsyncClient, worker: HandWorker) -> None:
    submitted = await client.submit("Hello")
    job = await worker.take()
    await job.end(State.FAILED, error=ErrorInfo(code="too_long", message="9 tokens over", field="prompt"))
    with pytest.raises(JobFailed, match="9 tokens over") as caught:
        await client.wait(submitted.id, timeout_s=20)
    assert (caught.value.reason, caught.value.result.error.field) == ("too_long", "prompt")


async def test_whoever_looks_first_expires_a_late_job(client: AsyncClient, worker: HandWorker) -> None:
    waiting = await client.submit("Hello", deadline_s=0.2)
    running = await client.submit("Hello", deadline_s=0.2)
    await (await worker.take()).end()
    job = await worker.take()
    await job.say("half")
    outcomes = await client.wait_many([running.id, waiting.id], timeout_s=20)
    assert isinstance(outcomes[waiting.id], Result)
    late = outcomes[running.id]
    assert isinstance(late, JobExpired)
    assert late.result.choices[0].text == "half"
    assert (await client.status(running.id)).state is State.EXPIRED
    with pytest.raises(JobExpired):
        await client.result(running.id)


async def test_status_tells_where_a_job_stands(client: AsyncClient, worker: HandWorker) -> None:
    submitted = await client.submit("Hello", lane="interactive")
    status = await client.status(submitted.id)
    assert (status.state, status.lane) == (State.QUEUED, "interactive")
    assert (status.attempt, status.worker) == (0, None)
    job = await worker.take()
    await job.say("x")
    status = await client.status(submitted.id)
    assert (status.state, status.attempt, status.worker) == (State.RUNNING, 1, worker.name)
    assert status.submitted_ms <= (status.started_ms or 0) <= (status.first_token_ms or 0)
    assert status.finished_ms is None


async def test_many_jobs_as_they_complete(client: AsyncClient, worker: HandWorker) -> None:
    count = 300
    outcomes = await client.submit_many({"prompt": str(n), "id": str(n)} for n in range(count))
    ids = [outcome.id for outcome in outcomes if isinstance(outcome, Submitted)]
    await asyncio.gather(*(client.cancel(job_id) for job_id in ids[100:]))
    ended = client.as_completed([*ids, *ids[:5], "0-nobody"], timeout_s=60)
    seen: dict[str, Any] = {}
    serving = asyncio.ensure_future(worker.serve(lambda request: ["r", request.prompt or ""], jobs=100))
    async for job_id, outcome in ended:
        assert job_id not in seen
        seen[job_id] = outcome
    await serving
    assert len(seen) == count + 1
    assert isinstance(seen["0-nobody"], NotFound)
    assert [seen[job_id].choices[0].text for job_id in ids[:100]] == [f"r{n}" for n in range(100)]
    assert all(isinstance(seen[job_id], JobCancelled) for job_id in ids[100:])


async def test_a_result_larger_than_a_request_may_be(client: AsyncClient, worker: HandWorker) -> None:
    submitted = await client.submit("Hello")
    job = await worker.take()
    choice = Choice(text="x" * (MAX_MESSAGE_BYTES + 1), finish_reason="stop")
    call = calls.finish(
        worker.keys, job.claim, lane=job.entry.lane, state=State.COMPLETED,
        result=codec.encode(Result(choices=(choice,))), seq=1, delta=None, ttl_ms=60_000,
    )  # fmt: skip
    await calls.run(worker.redis, call)
    assert (await client.result(submitted.id)).choices == (choice,)
    await worker.redis.delete(worker.keys.tokens(job.id))
    assert [event.text async for event in client.stream(submitted.id)] == [choice.text, ""]


@pytest.mark.parametrize("seconds", [math.nan, -1, "5", True])
async def test_a_time_that_cannot_be_waited_for_is_refused(client: AsyncClient, seconds: Any) -> None:
    submitted = await client.submit("Hello")
    with pytest.raises(InvalidRequest, match=r"timeout_s: must be a number of seconds, 0 or more \(got "):
        await client.wait(submitted.id, timeout_s=seconds)
    with pytest.raises(InvalidRequest, match="wait_s"):
        await client.submit("Hello", wait_s=seconds)
    with pytest.raises(InvalidRequest, match="wait_s"):
        await client.submit_many([{"prompt": "Hello"}], wait_s=seconds)


async def test_queues_are_apart_and_share_connections(client: AsyncClient, worker: HandWorker) -> None:
    other = client.with_queue("other")
    submitted = await other.submit("Hello", id="a")
    assert other.queue == "other"
    with pytest.raises(NotFound):
        await client.status(submitted.id)
    assert (await other.status(submitted.id)).state is State.QUEUED
    await other.aclose()
    assert (await client.submit("Hello")).created
    with pytest.raises(InvalidRequest, match="queue"):
        client.with_queue("two words")


async def test_shards_spread_jobs_and_any_client_finds_them(server: Server) -> None:
    async with AsyncClient(server.url, queue="wide", options=ClientOptions(shards=4)) as client:
        ids = [(await client.submit("Hello")).id for _ in range(40)]
        assert {job_id[0] for job_id in ids} == set("0123")
    async with AsyncClient(server.url, queue="wide") as plain:
        assert all([(await plain.status(job_id)).state is State.QUEUED for job_id in ids])
        assert (await plain.submit("Hello", id="x")).created
    for options in (ClientOptions(shards=2), ClientOptions(pubsub=PubSub.SHARDED)):
        async with AsyncClient(server.url, queue="wide", options=options) as wrong:
            with pytest.raises(QueueMismatch, match="wide"):
                await wrong.submit("Hello")


async def test_reading_creates_no_queue(client: AsyncClient, worker: HandWorker) -> None:
    with pytest.raises(NotFound):
        await client.with_queue("never").status("0-a")
    assert not await worker.redis.keys("*never*")


async def test_a_server_that_does_not_answer() -> None:
    options = ClientOptions(timeout_s=0.1, reconnect_s=0)
    async with AsyncClient("redis://127.0.0.1:1/0", options=options) as client:
        for call in (client.submit("Hello"), client.status("0-a"), client.wait("0-a"), client.cancel("0-a")):
            with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
                await call
        with pytest.raises(Unavailable):
            await anext(client.stream("0-a"))


async def test_the_time_to_wait_counts_while_the_server_is_away() -> None:
    options = ClientOptions(timeout_s=0.5)
    with Server("valkey") as server:
        async with AsyncClient(server.url, options=options) as client, asyncio.timeout(30):
            submitted = await client.submit("Hello")
            server.kill()
            with pytest.raises(Unavailable):
                await client.wait(submitted.id, timeout_s=0.2)


async def test_the_clock_is_known_while_the_server_is_away(valkey: Server) -> None:
    late_s = 0.0
    async with Proxy(valkey.port) as proxy:
        session = Session(proxy.url, ClientOptions(), clock=ServerClock(lambda: time.monotonic() + late_s))
        known_ms = await session.now_ms()
    late_s = 2 * CLOCK_S
    assert 0 <= await session.now_ms() - known_ms - 1000 * late_s < 10_000
    await session.aclose()
    unknown = Session(proxy.url, ClientOptions())
    with pytest.raises(Unavailable):
        await unknown.now_ms()
    await unknown.aclose()


async def test_a_server_without_memory(client: AsyncClient, worker: HandWorker) -> None:
    await client.submit("first", id="first")
    await worker.redis.config_set("maxmemory", "1")
    with pytest.raises(QueueFull, match="finds the server at its maxmemory") as caught:
        await client.submit("Hello")
    assert (caught.value.reason, caught.value.entries) == ("memory", 1)
    with pytest.raises(QueueFull, match="maxmemory"):
        await client.with_queue("new").submit("Hello")
    assert not (await client.submit("first", id="first")).created  # it is there: nothing to refuse
    waiting = asyncio.ensure_future(client.submit("Hello", wait_s=30))
    await worker.redis.config_set("maxmemory", "0")
    assert (await waiting).created
