"""Jobs that were given up: listed over all shards, shown, requeued as new jobs, dropped."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest
from support.servers.proxy import Line, Proxy, Weather, until_answered
from support.servers.servers import Server
from support.wire.dead_letters import bury, discard_strange
from support.workers.hand_worker import HandWorker, hand_worker

from millstream import (
    AsyncClient,
    ClientOptions,
    DeadLetter,
    InvalidRequest,
    JobFailed,
    NotDead,
    ProtocolError,
    QueueFull,
    State,
)
from millstream.client.jobs import dead_letters as module
from millstream.wire.keys import Lane
from millstream.wire.messages import codec


async def all_letters(client: AsyncClient, limit: int | None = None) -> list[DeadLetter]:
    return [letter async for letter in client.dead_letters(limit)]


async def dead_job(client: AsyncClient, worker: HandWorker, prompt: str = "poison", **fields: Any) -> str:
    submitted = await client.submit(prompt, **fields)
    await bury(await worker.take())
    return submitted.id


@pytest.mark.parametrize(
    ("payload", "share"),
    [
        (codec.pack({"token_ids": [1, 2], "sampling": {"max_tokens": 5}, "tenant": "t"}), ("t", 7)),
        (b"\xc1" + b"x" * 40, ("", 10)),
        (b"\xc1", ("", 1)),
    ],
)
def test_requeued_it_counts_for_its_tenant(payload: bytes, share: tuple[str, int]) -> None:
    letter = DeadLetter("0@1-1", "0-a", "died", "batch", 1, 1, 1, 1, len(payload), payload)
    job = module.again(letter)
    assert (job.tenant, job.cost) == share


async def test_letters_are_listed_from_the_newest_on(client: AsyncClient, worker: HandWorker) -> None:
    assert await all_letters(client) == []
    ids = [await dead_job(client, worker, id=str(n)) for n in range(5)]
    await discard_strange(worker, b"\xc1garbage", Lane.INTERACTIVE)
    strange, *letters = await all_letters(client)
    assert [letter.job_id for letter in letters] == ids[::-1]
    assert (strange.job_id, strange.reason, strange.size) == (None, "not a job: no id", 8)
    newest = letters[0]
    assert (newest.reason, newest.lane, newest.attempts, newest.version) == ("poison", "batch", 1, 1)
    assert newest.payload == b""  # lists stay small
    assert newest.size > 0
    told = [letter.id for letter in await all_letters(client, 3)]
    assert told == [strange.id, *(x.id for x in letters[:2])]
    with pytest.raises(InvalidRequest, match="limit: must be at least 1"):
        await all_letters(client, 0)


async def test_letters_of_several_pages_come_once(client: AsyncClient, worker: HandWorker) -> None:
    await discard_strange(worker, b"garbage")
    [(_, fields)] = await worker.redis.xrange(worker.keys.dead)
    async with worker.redis.pipeline() as pipeline:
        for _ in range(2 * module.PAGE_LETTERS):
            pipeline.xadd(worker.keys.dead, fields)
        written = await pipeline.execute()
    letters = [letter.id for letter in await all_letters(client)]
    assert letters[:-1] == [f"0@{place.decode()}" for place in reversed(written)]
    assert len(set(letters)) == 2 * module.PAGE_LETTERS + 1


async def test_letters_of_all_shards_in_one_order(server: Server) -> None:
    async with AsyncClient(server.url, queue="wide", options=ClientOptions(shards=3)) as client:
        await client.cancel((await client.submit("makes the queue")).id)
        workers: dict[int, HandWorker] = {}
        async with (
            hand_worker(server.url, "wide", 0) as workers[0],
            hand_worker(server.url, "wide", 1) as workers[1],
            hand_worker(server.url, "wide", 2) as workers[2],
        ):
            ids = []
            for n in range(9):
                submitted = await client.submit("x", id=str(n))
                await bury(await workers[int(submitted.id[0])].take())
                ids.append(submitted.id)
            assert {job_id[0] for job_id in ids} == set("012")
            letters = await all_letters(client)
            ages = [letter.dead_ms for letter in letters]
            assert ages == sorted(ages, reverse=True)  # of one millisecond in any order: shards know no other
            assert sorted(letter.job_id or "" for letter in letters) == sorted(ids)
            for job_id in ids:
                job = await client.requeue(job_id)
                assert (await client.status(job.id)).requeued_from == job_id
            assert await all_letters(client) == []


async def test_a_letter_is_found_by_its_id_and_by_its_jobs(client: AsyncClient, worker: HandWorker) -> None:
    job_id = await dead_job(client, worker, "a" * 5000, metadata={"row": "7"}, max_tokens=3)
    await dead_job(client, worker)
    letter = await client.dead_letter(job_id)
    assert await client.dead_letter(letter.id) == letter
    assert letter.request.prompt == "a" * 5000
    assert (letter.request.metadata, letter.request.sampling.max_tokens) == ({"row": "7"}, 3)
    with pytest.raises(ProtocolError):
        _ = (await all_letters(client, 1))[0].request


async def test_what_is_no_dead_letter(client: AsyncClient, worker: HandWorker) -> None:
    await dead_job(client, worker)
    alive = await client.submit("fine", id="alive")
    for act in (client.dead_letter, client.requeue, client.drop_dead):
        for one in ("0-nobody", "0@1-1", "7@1-1", "7-nobody", "no id", alive.id):
            with pytest.raises(NotDead, match=f"{one}: no dead letter"):
                await act(one)
        for wrong in (None, 7):
            with pytest.raises(InvalidRequest, match="job_id"):
                await act(wrong)  # type: ignore[arg-type]
    assert len(await all_letters(client)) == 1


async def test_requeued_it_is_a_new_job_with_all_that_was_asked_for(
    client: AsyncClient, worker: HandWorker
) -> None:
    job_id = await dead_job(
        client, worker, id="letter-1", lane="interactive", tenant="acme", metadata={"row": "7"}, seed=5,
        stream=True, deadline_s=3600,
    )  # fmt: skip
    letter = await client.dead_letter(job_id)
    job = await client.requeue(job_id)
    assert job.id == f"0-letter-1.r{letter.id[2:]}"
    assert (job.created, job.state) == (True, State.QUEUED)
    status = await client.status(job.id)
    assert (status.requeued_from, status.lane) == (job_id, Lane.INTERACTIVE)
    assert await worker.redis.hget(worker.keys.job(job.id), "stream") == b"1"
    assert await worker.redis.zcard(worker.keys.deadlines) == 0
    taken = await worker.take()
    assert taken.id == job.id
    before = letter.request
    assert taken.request == before.model_copy(update={"deadline_ms": None})
    assert taken.request.tenant == "acme"
    assert (taken.request.metadata, taken.request.stream) == ({"row": "7"}, True)
    await taken.end(last="better")
    assert (await client.result(job.id)).choices[0].text == "better"
    with pytest.raises(JobFailed):  # what was, stays as it was
        await client.result(job_id)
    with pytest.raises(NotDead):
        await client.requeue(job_id)


async def test_a_letter_stays_until_its_job_is_as_durable_as_asked(
    server: Server, worker: HandWorker
) -> None:
    options = ClientOptions(durability="replicas", durability_timeout_s=0.05)
    async with AsyncClient(server.url, options=options) as client:
        job_id = await dead_job(client, worker)
        job = await client.requeue(job_id)
        assert (job.created, job.durable) == (True, False)
        assert [letter.job_id for letter in await all_letters(client)] == [job_id]


async def test_a_job_that_dies_again_is_requeued_under_its_first_name(
    client: AsyncClient, worker: HandWorker
) -> None:
    name = "x" * 190  # with what is added it would be too long
    for own_id, kept in (("short", "short"), (name, None)):
        first = await dead_job(client, worker, id=own_id)
        second = await client.requeue(first)
        await bury(await worker.take())
        letter = await client.dead_letter(second.id)
        third = await client.requeue(second.id)
        own = third.id.partition("-")[2]
        assert own.endswith(f".r{letter.id[2:]}")
        assert own.count(".r") == 1
        assert kept is None or own.startswith(f"{kept}.r")
        assert (await client.status(third.id)).requeued_from == second.id
        await (await worker.take()).end()


async def test_a_full_queue_keeps_the_letter(server: Server, worker: HandWorker) -> None:
    async with AsyncClient(server.url, options=ClientOptions(max_entries=1)) as client:
        job_id = await dead_job(client, worker)
        await client.submit("in the way")
        with pytest.raises(QueueFull):
            await client.requeue(job_id)
        assert len(await all_letters(client)) == 1


async def test_a_request_of_another_version_goes_on_as_it_is(client: AsyncClient, worker: HandWorker) -> None:
    """With fields that this client does not know."""
    request = codec.pack({"version": 9, "prompt": "x", "deadline_ms": 2**50, "mood": {"of": ["day"]}})
    counts = {"attempts": 3, "died": 2}
    fields = {"id": "0-new", "lane": "batch", "v": 9, "reason": "poison", "b": request, **counts}
    await worker.redis.xadd(worker.keys.dead, fields)
    letter = await client.dead_letter("0-new")
    assert (letter.version, letter.attempts, letter.died) == (9, 3, 2)
    await client.requeue("0-new")
    [(_, entry)] = await worker.redis.xrange(worker.keys.lane("batch"))
    assert entry[b"v"] == b"9"
    assert codec.unpack(entry[b"b"]) == {"version": 9, "prompt": "x", "mood": {"of": ["day"]}}


async def test_a_request_that_cannot_be_read_goes_on_as_it_is(
    client: AsyncClient, worker: HandWorker
) -> None:
    for n, payload in enumerate((b"\xc1", codec.pack(["a", "list"]))):
        await worker.redis.xadd(
            worker.keys.dead, {"id": f"0-{n}", "lane": "batch", "v": 1, "reason": "garbage", "b": payload}
        )
        await client.requeue(f"0-{n}")
        assert (await worker.redis.xrevrange(worker.keys.lane("batch"), count=1))[0][1][b"b"] == payload


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"reason": "x", "b": "y"}, "a foreign entry and not a job"),
        ({"id": "0-a", "lane": "batch", "b": ""}, "has lost its request"),
        ({"id": "0-a", "lane": "fast", "b": "y"}, "of an unknown lane 'fast'"),
        ({"id": "0-a b", "lane": "batch", "b": "y"}, "1 to 200 characters"),
        ({"id": "0-a", "v": "x" * 5000, "attempts": "9" * 5000, "died": "-3", "b": ""}, "lost its request"),
        ({"nothing": "at all"}, "a foreign entry"),
    ],
)
async def test_what_cannot_be_requeued_can_be_dropped(
    client: AsyncClient, worker: HandWorker, fields: dict[Any, Any], problem: str
) -> None:
    await worker.redis.xadd(worker.keys.dead, fields)
    [letter] = await all_letters(client)
    with pytest.raises(InvalidRequest, match=problem):
        await client.requeue(letter.id)
    await client.drop_dead(letter.id)
    assert await all_letters(client) == []


async def test_only_what_is_listed_first_is_looked_at(client: AsyncClient, worker: HandWorker) -> None:
    """What dies while a list is read does not make it endless."""
    await dead_job(client, worker)
    seen = 0
    async for _ in client.dead_letters():
        seen += 1
        await dead_job(client, worker)
    assert seen == 1


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
async def test_lost_answers_requeue_nothing_twice(server: Server, worker: HandWorker) -> None:
    async with AsyncClient(server.url) as client:
        ids = [await dead_job(client, worker, id=str(n)) for n in range(12)]
    async with Proxy(server.port, random.Random(3)) as proxy, AsyncClient(proxy.url) as client:
        await client.dead_letter(ids[0])
        for job_id in ids:
            proxy.turn(Weather(Line.LOSE_REPLIES, share=0.5))  # of the connections, those to come too
            with suppress(NotDead):  # only the answer that its letter is gone was lost
                await until_answered(lambda job_id=job_id: client.requeue(job_id))  # type: ignore[misc]
        assert proxy.seen[Line.LOSE_REPLIES] > 5
    assert await worker.redis.xlen(worker.keys.dead) == 0
    entries = await worker.redis.xrange(worker.keys.lane("batch"))
    assert [fields[b"id"].partition(b".r")[0].decode() for _, fields in entries] == ids
