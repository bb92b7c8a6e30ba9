"""Streams on real servers: whatever happens between the worker and the reader, the text arrives whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from support.servers.servers import Server
from support.workers.hand_worker import HandJob, HandWorker, delta

from millstream import (
    AsyncClient,
    ClientOptions,
    CursorExpired,
    EndEvent,
    ErrorInfo,
    Event,
    InvalidRequest,
    JobExpired,
    JobFailed,
    NotFound,
    RewindEvent,
    State,
    Transcript,
)


async def read(events: AsyncGenerator[Event, None]) -> list[Event]:
    return [event async for event in events]


def text(events: list[Event]) -> str:
    transcript = Transcript()
    for event in events:
        transcript.add(event)
    return transcript.text()


async def until(events: AsyncGenerator[Event, None], word: str) -> list[Event]:
    """Read on to the event with that text."""
    seen: list[Event] = []
    async for event in events:
        seen.append(event)
        if event.text == word:
            break
    return seen


async def begun(client: AsyncClient, worker: HandWorker) -> HandJob:
    await client.submit("Hello")
    return await worker.take()


async def test_tokens_come_as_they_are_said(client: AsyncClient, worker: HandWorker) -> None:
    submitted = await client.submit("Hello", max_tokens=3, stream=True)
    events = client.stream(submitted.id)
    job = await worker.take()
    seen: list[Event] = []
    for word in ("one ", "two ", "three"):
        await job.say(word)
        seen.append(await anext(events))
        assert seen[-1].text == word
    await job.end()
    seen += await read(events)
    assert text(seen) == "one two three"
    assert seen[-1] == EndEvent("1-4", submitted.id, State.COMPLETED)


async def test_messages_that_get_lost_are_read_from_the_log(client: AsyncClient, worker: HandWorker) -> None:
    job = await begun(client, worker)
    events = client.stream(job.id)
    await job.say("a")
    first = await anext(events)
    await job.say("b", publish=False)
    await job.say("c")
    seen = [first, *await until(events, "c")]
    await job.say("d", publish=False)  # nothing after it: only silence tells
    seen += await until(events, "d")
    await job.end()
    assert text([*seen, *await read(events)]) == "abcd"


async def test_the_server_lost_the_last_writes(client: AsyncClient, worker: HandWorker) -> None:
    job = await begun(client, worker)
    events = client.stream(job.id)
    for word in "abc":
        await job.say(word)
    seen = await until(events, "c")
    # What a crash with an append-only file written each second leaves behind.
    await worker.redis.delete(worker.keys.tokens(job.id))
    await worker.redis.xadd(worker.keys.tokens(job.id), {"k": "m", "b": b""}, id="1-0")
    for seq, word in enumerate("aX", start=1):
        await worker.redis.xadd(worker.keys.tokens(job.id), {"k": "d", "b": delta(word)}, id=f"1-{seq}")
    await worker.redis.hset(worker.keys.job(job.id), "seq", 2)
    await worker.redis.client_kill_filter(_type="pubsub")
    job = await job.die()
    await job.say("Y")
    await job.end()
    seen += await read(events)
    assert RewindEvent("1-1", 1) in seen
    assert text(seen) == "aXY"


async def test_the_subscription_is_killed_again_and_again(client: AsyncClient, worker: HandWorker) -> None:
    job = await begun(client, worker)
    reading = asyncio.ensure_future(read(client.stream(job.id)))
    words = [f"{n} " for n in range(40)]
    for number, word in enumerate(words):
        await job.say(word)
        if number % 5 == 0:
            await worker.redis.client_kill_filter(_type="pubsub")
    await job.end()
    assert text(await reading) == "".join(words)


async def test_many_streams_share_one_connection(client: AsyncClient, worker: HandWorker) -> None:
    count = 60
    outcomes = await client.submit_many([{"prompt": f"job {n}", "id": str(n)} for n in range(count)])
    jobs = [await worker.take() for _ in outcomes]
    readings = [asyncio.ensure_future(read(client.stream(job.id))) for job in jobs]
    for word in "abc":
        await asyncio.gather(*(job.say(f"{job.request.prompt}{word}") for job in jobs))
    connections = await worker.redis.client_list(_type="pubsub")
    assert len([one for one in connections if one["name"].startswith("test-client")]) == 1
    await asyncio.gather(*(job.end() for job in jobs))
    for job, events in zip(jobs, await asyncio.gather(*readings), strict=True):
        assert text(events) == "".join(f"{job.request.prompt}{word}" for word in "abc")
    assert await _subscriptions(worker) == 0


async def _subscriptions(worker: HandWorker) -> int:
    """Channels with subscribers, once the last UNSUBSCRIBE has been sent."""
    for _ in range(200):
        if not await worker.redis.pubsub_channels():
            break
        await asyncio.sleep(0.01)
    return len(await worker.redis.pubsub_channels())


async def test_a_slow_reader_misses_nothing_and_holds_up_nobody(server: Server, worker: HandWorker) -> None:
    async with AsyncClient(server.url, options=ClientOptions(stream_buffer=4)) as client:
        slow_id = (await client.submit("slow")).id
        quick_id = (await client.submit("quick")).id
        slow_job, quick_job = await worker.take(), await worker.take()
        slow, quick = client.stream(slow_id), client.stream(quick_id)
        await slow_job.say("0 ")
        seen = [await anext(slow)]
        for number in range(1, 50):  # meanwhile the slow reader does not read
            await slow_job.say(f"{number} ")
        await quick_job.end(last="quick")
        assert text(await read(quick)) == "quick"
        await slow_job.end()
        assert text([*seen, *await read(slow)]) == "".join(f"{number} " for number in range(50))


async def test_an_abandoned_stream_unsubscribes(client: AsyncClient, worker: HandWorker) -> None:
    job = await begun(client, worker)
    await job.say("a")
    events = client.stream(job.id)
    await anext(events)
    assert await worker.redis.pubsub_channels()
    await events.aclose()
    assert await _subscriptions(worker) == 0


async def test_a_closed_client_ends_its_streams(server: Server, worker: HandWorker) -> None:
    client = AsyncClient(server.url)
    job = await begun(client, worker)
    await job.say("a")
    events = client.stream(job.id)
    await anext(events)
    reading = asyncio.ensure_future(anext(events))
    waiting = asyncio.ensure_future(client.wait(job.id))
    await asyncio.sleep(0)
    await client.aclose()
    for task in (reading, waiting):
        with pytest.raises(RuntimeError, match="closed"):
            await task


GARBAGE = (b"hello", b"1-2 d \xc1", b"1-2 e whatever", b"1-2 z x", b"9-9 d x", b"1-9999999999999999999 d ")


async def test_what_others_publish_is_not_believed(client: AsyncClient, worker: HandWorker) -> None:
    for garbage in GARBAGE:
        job = await begun(client, worker)
        events = client.stream(job.id)
        await job.say("a")
        seen = [await anext(events)]
        waiting = asyncio.ensure_future(anext(events))
        await worker.redis.publish(worker.keys.events(job.id), garbage)
        await job.say("b")
        seen.append(await waiting)
        await job.end()
        assert text(seen + await read(events)) == "ab", garbage


async def test_a_closed_client_opens_nothing(server: Server, worker: HandWorker) -> None:
    client = AsyncClient(server.url, options=ClientOptions(name="closed-client"))
    submitted = await client.submit("Hello")
    await client.aclose()
    before = asyncio.all_tasks()
    with pytest.raises(RuntimeError, match="closed"):
        await anext(client.stream(submitted.id))
    with pytest.raises(RuntimeError, match="closed"):
        await client.wait(submitted.id)
    assert asyncio.all_tasks() == before
    assert not [one for one in await worker.redis.client_list() if one["name"].startswith("closed-client")]


async def test_after_the_log_has_expired(client: AsyncClient, worker: HandWorker) -> None:
    submitted = await client.submit("Hello")
    await worker.serve(lambda request: "abc", jobs=1)
    await worker.redis.delete(worker.keys.tokens(submitted.id))
    assert text(await read(client.stream(submitted.id))) == "abc"
    with pytest.raises(CursorExpired, match="1-2"):
        await read(client.stream(submitted.id, "1-2"))
    await worker.redis.delete(worker.keys.job(submitted.id))
    with pytest.raises(NotFound):
        await read(client.stream(submitted.id))


async def test_how_a_job_ended_is_the_last_event(client: AsyncClient, worker: HandWorker) -> None:
    failed = await client.submit("Hello")
    job = await worker.take()
    await job.say("half")
    await job.end(State.FAILED, error=ErrorInfo(code="out_of_memory", message="no room"))
    events = await read(client.stream(failed.id))
    end = events[-1]
    assert isinstance(end, EndEvent)
    assert end.error == ErrorInfo(code="out_of_memory", message="no room")
    with pytest.raises(JobFailed, match="out_of_memory"):
        end.raise_for_state()

    cancelled = await client.submit("Hello")
    waiting = asyncio.ensure_future(read(client.stream(cancelled.id)))
    await client.cancel(cancelled.id)
    assert await waiting == [EndEvent("0-1", cancelled.id, State.CANCELLED)]


async def test_a_deadline_passes_while_no_worker_looks(client: AsyncClient) -> None:
    submitted = await client.submit("Hello", deadline_s=0.05)
    [end] = await read(client.stream(submitted.id))
    assert isinstance(end, EndEvent)
    with pytest.raises(JobExpired):
        end.raise_for_state()


async def test_no_such_job(client: AsyncClient) -> None:
    for job_id in ("0-nobody", "nobody", "0-", "", "a\nb", "9" * 5000 + "-a"):
        with pytest.raises(NotFound, match=r"\A[^\n]{,100}: no such job") as caught:
            await read(client.stream(job_id))
        assert caught.value.job_id.endswith(job_id)
    for no_text in (None, 7, b"0-a"):
        with pytest.raises(InvalidRequest, match="job_id: must be a string"):
            await read(client.stream(no_text))  # type: ignore[arg-type]
