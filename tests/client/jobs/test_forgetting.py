"""Deleting a result before its time is over: only what has ended, with all that belongs to it."""

from __future__ import annotations

import pytest
from support.workers.hand_worker import HandWorker

from millstream import AsyncClient, CursorExpired, NotFound, NotReady


async def test_a_forgotten_job_leaves_nothing(client: AsyncClient, worker: HandWorker) -> None:
    job = await client.submit("Hello", id="a", stream=True)
    await worker.serve(lambda request: ["some", "text"], jobs=1)
    assert await worker.redis.exists(worker.keys.job(job.id), worker.keys.tokens(job.id)) == 2
    assert await client.forget(job.id) is True
    assert await worker.redis.exists(worker.keys.job(job.id), worker.keys.tokens(job.id)) == 0
    assert await client.forget(job.id) is False
    for read in (client.result(job.id), client.status(job.id), client.wait(job.id)):
        with pytest.raises(NotFound):
            await read
    with pytest.raises((NotFound, CursorExpired)):
        await anext(client.stream(job.id, "1-1"))
    assert (await client.submit("another", id="a")).created  # the id is free again


async def test_what_has_not_ended_stays(client: AsyncClient, worker: HandWorker) -> None:
    running, waiting = await client.submit("Hello"), await client.submit("Hello")
    job = await worker.take()
    with pytest.raises(NotReady, match="cannot be forgotten; cancel it first: the job is running"):
        await client.forget(running.id)
    with pytest.raises(NotReady, match="the job is queued"):
        await client.forget(waiting.id)
    await job.say("text")
    await job.end()
    assert (await client.result(running.id)).choices[0].text == "text"
    await client.cancel(waiting.id)
    assert await client.forget(waiting.id)
    assert await worker._take() is None  # its entry is dropped when it is read
    assert await worker.redis.xlen(worker.keys.lane("batch")) == 0


async def test_many_at_once_each_with_its_outcome(client: AsyncClient, worker: HandWorker) -> None:
    outcomes = await client.submit_many({"prompt": "x", "id": str(n)} for n in range(600))
    assert len(outcomes) == 600
    await worker.serve(lambda request: "y", jobs=300)
    told = await client.forget_many([*(f"0-{n}" for n in range(600)), "0-nobody", "0-0"])
    assert [told[f"0-{n}"] for n in range(300)] == [True] * 300
    assert all(isinstance(told[f"0-{n}"], NotReady) for n in range(300, 600))
    assert told["0-nobody"] is False
    assert len(told) == 601
    assert await client.forget_many([]) == {}
