"""What producers do to a job: submit, cancel, end it at its deadline."""

from __future__ import annotations

from dataclasses import replace

import pytest
from redis.exceptions import ResponseError
from support.wire.desk import LONG_MS, TTL_MS, Desk

from millstream.wire import calls
from millstream.wire.keys import Lane
from millstream.wire.messages.job_messages import State
from millstream.wire.messages.script_replies import LogEntry, SubmitOutcome


async def test_a_job_is_queued_with_its_request(desk: Desk) -> None:
    reply = await desk.submit(lane=Lane.INTERACTIVE, payload=b"\x00\xff", deadline_ms=LONG_MS)
    assert (reply.outcome, reply.state) == (SubmitOutcome.ACCEPTED, State.QUEUED)
    assert (reply.entries, reply.held_bytes) == (1, 2)
    ((entry_id, fields),) = await desk.redis.xrange(desk.keys.lane(Lane.INTERACTIVE))
    assert fields == {b"id": b"0-a", b"v": b"1", b"b": b"\x00\xff"}
    job = await desk.job()
    assert (job.state, job.lane, job.attempt, job.submits) == (State.QUEUED, "interactive", 0, 1)
    assert job.submitted_ms == int(entry_id.partition(b"-")[0])
    assert await desk.redis.zscore(desk.keys.deadlines, "0-a") == LONG_MS
    assert await desk.log() == []


async def test_submit_of_a_job_that_ended_meanwhile_tells_its_state(desk: Desk) -> None:
    await desk.finish(await desk.begin())
    reply = await desk.submit()
    assert (reply.outcome, reply.state) == (SubmitOutcome.EXISTS, State.COMPLETED)
    assert await desk.redis.pttl(desk.keys.job("0-a")) > 0


async def test_the_bound_in_entries_counts_lanes_and_parked_jobs(desk: Desk) -> None:
    await desk.submit("0-1", lane=Lane.INTERACTIVE)
    await desk.run(desk.retrying(await desk.begin("0-2"), delay_ms=LONG_MS))
    assert (await desk.submit("0-3", max_entries=3)).outcome is SubmitOutcome.ACCEPTED
    before = await desk.state()
    reply = await desk.submit("0-4", max_entries=3)
    assert (reply.outcome, reply.state, reply.entries) == (SubmitOutcome.FULL, None, 3)
    assert await desk.state() == before
    assert (await desk.submit("0-3", max_entries=3)).outcome is SubmitOutcome.EXISTS


async def test_the_bound_in_bytes_counts_the_new_job_too(desk: Desk) -> None:
    await desk.submit("0-1", payload=b"x" * 60)
    assert (await desk.submit("0-2", payload=b"x" * 41, max_bytes=100)).outcome is SubmitOutcome.FULL
    reply = await desk.submit("0-2", payload=b"x" * 40, max_bytes=100)
    assert (reply.outcome, reply.held_bytes) == (SubmitOutcome.ACCEPTED, 100)
    await desk.cancel("0-1")
    assert (await desk.submit("0-3", payload=b"x" * 60, max_bytes=100)).held_bytes == 100


# --- cancel ------------------------------------------------------------------------------------------------


async def test_cancel_of_a_queued_job_ends_it_at_once(desk: Desk) -> None:
    await desk.submit(deadline_ms=LONG_MS)
    heard = await desk.messages(desk.cancel)
    assert heard == [(desk.keys.events("0-a"), b"0-1 e cancelled")]
    assert await desk.log() == [LogEntry(0, 1, "e", b"cancelled")]
    assert (await desk.job()).state is State.CANCELLED
    assert await desk.redis.xlen(desk.keys.lane(desk.lane)) == 1  # an undelivered entry is never deleted
    await desk.sweep_stale()
    await desk.audit_idle()


async def test_cancel_of_a_running_job_tells_its_worker(desk: Desk) -> None:
    held = await desk.begin()
    heard = await desk.messages(desk.cancel)
    assert heard == [(desk.keys.control, b"cancel 0-a")]
    assert ((await desk.job()).state, (await desk.job()).cancelled) == (State.RUNNING, True)
    await desk.finish(held, state=State.CANCELLED)
    assert ((await desk.job()).state, (await desk.job()).cancelled) == (State.CANCELLED, False)
    await desk.audit_idle()


# --- deadlines ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lazily", [False, True])
async def test_a_running_job_ends_at_its_deadline_and_keeps_its_text(desk: Desk, lazily: bool) -> None:
    held = await desk.begin(deadline_ms=1)
    await desk.append(held, 1, b"text")

    async def end() -> None:
        if lazily:
            assert await desk.run(calls.expire_one(desk.keys, job_id="0-a", ttl_ms=TTL_MS))
        else:
            assert await desk.expire() == ("0-a",)

    told = await desk.messages(end)
    assert told == [(desk.keys.control, b"cancel 0-a"), (desk.keys.events("0-a"), b"1-2 e expired")]
    assert [entry.body for entry in await desk.log()] == [b"", b"text", b"expired"]
    job = await desk.job()
    assert (job.state, job.result, job.owner) == (State.EXPIRED, None, "")
    if lazily:  # producers only add to a lane: whoever holds the entry drops it
        assert (await desk.run(desk.renewing(("0-a", held.entry_id)))).lost == ("0-a",)
    await desk.audit_idle()


async def test_a_deadline_that_is_no_number_queues_nothing(desk: Desk) -> None:
    """Of a client in another language: refused after the first writes, it would leave the counters wrong."""
    call = desk.submitting(deadline_ms=1)
    args = (*call.args[:5], "soon", *call.args[6:])
    with pytest.raises(ResponseError, match="deadline ms is no number: soon"):
        await desk.run(replace(call, args=args))
    assert await desk.redis.exists(desk.keys.job("0-a"), desk.keys.held_bytes, desk.keys.deadlines) == 0
    assert await desk.redis.xlen(desk.keys.lane(desk.lane)) == 0


async def test_nothing_ends_before_its_deadline(desk: Desk) -> None:
    await desk.submit("0-far", deadline_ms=2**52)
    await desk.submit("0-none")
    before = await desk.state()
    assert await desk.expire() == ()
    for job_id in ("0-far", "0-none", "0-unknown"):
        assert not await desk.run(calls.expire_one(desk.keys, job_id=job_id, ttl_ms=TTL_MS))
    assert await desk.state() == before


async def test_deadlines_are_swept_in_bounded_batches_the_oldest_first(desk: Desk) -> None:
    for number in (3, 1, 2):
        await desk.submit(f"0-{number}", deadline_ms=number)
    assert await desk.expire(limit=2) == ("0-1", "0-2")
    assert await desk.expire(limit=2) == ("0-3",)
    assert await desk.expire(limit=2) == ()


async def test_a_deadline_whose_job_is_gone_does_not_stop_the_sweep(desk: Desk) -> None:
    await desk.redis.zadd(desk.keys.deadlines, {"0-gone": 1})
    await desk.submit(deadline_ms=2)
    assert await desk.expire() == ("0-a",)
    assert await desk.redis.zcard(desk.keys.deadlines) == 0
