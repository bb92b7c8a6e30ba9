"""A job whose entry was destroyed ends. That any other stays as it is, `test_protocol_model` proves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from support.wire.desk import LONG_MS, TTL_MS, Desk

from millstream.wire import calls
from millstream.wire.messages.job_messages import State


async def look(desk: Desk, job_id: str = "0-a", result: bytes = b"result") -> bool:
    job = await desk.job(job_id)
    call = calls.look(
        desk.keys, job_id=job_id, attempt=job.attempt, seq=job.last_seq, ttl_ms=TTL_MS, result=result,
        finished_ms=17,
    )  # fmt: skip
    return await desk.run(call)


async def queued(desk: Desk) -> None:
    await desk.submit(deadline_ms=LONG_MS)
    await desk.redis.xtrim(desk.keys.lane(desk.lane), maxlen=0)


async def retried(desk: Desk) -> None:
    await desk.run(desk.retrying(await desk.begin(deadline_ms=LONG_MS)))
    await desk.promote()
    await desk.redis.xtrim(desk.keys.lane(desk.lane), maxlen=0)


async def running(desk: Desk) -> None:
    """Its worker has learnt that it does not hold the entry any more, and has given up."""
    held = await desk.begin(deadline_ms=LONG_MS)
    await desk.redis.xtrim(desk.keys.lane(desk.lane), maxlen=0)
    await desk.redis.xack(desk.keys.lane(desk.lane), "workers", held.entry_id)


async def without_its_place(desk: Desk) -> None:
    for job_id in await desk.fill_window():
        await desk.cancel(job_id)
    await desk.park(deadline_ms=LONG_MS)
    await desk.redis.delete(*desk.keys.parking_keys)
    await desk.sweep_stale()


@pytest.mark.parametrize("lose", [queued, retried, running, without_its_place])
async def test_a_job_without_its_entry_fails(desk: Desk, lose: Callable[[Desk], Awaitable[None]]) -> None:
    """At maxmemory, where its log may stay without an end, too."""
    await lose(desk)
    await desk.redis.config_set("maxmemory", "1")
    heard = await desk.messages(lambda: look(desk, result=b""))
    assert heard == []
    assert not (await desk.job()).state.terminal
    heard = await desk.messages(lambda: look(desk))
    assert [message.partition(b" ")[2] for _, message in heard] == [b"e failed"]
    job = await desk.job()
    assert (job.state, job.result, job.owner, job.finished_ms) == (State.FAILED, b"result", "", 17)
    before = await desk.state()
    assert not await look(desk)
    assert await desk.state() == before
    await desk.redis.config_set("maxmemory", "0")
    assert await desk.redis.zcard(desk.keys.deadlines) == 0
    await desk.audit_idle()
