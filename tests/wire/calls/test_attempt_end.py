"""How an attempt ends: what finish, bury, retry and release write beside what `test_protocol_model` sees."""

from __future__ import annotations

import pytest
from support.wire.desk import LONG_MS, Desk

from millstream.wire.calls import Claim
from millstream.wire.keys import GROUP, RELEASED
from millstream.wire.messages.job_messages import State, Timing
from millstream.wire.messages.script_replies import EndOutcome, LogEntry

# --- finish ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["finish", "bury"])
async def test_the_hash_gets_the_times_of_the_result(desk: Desk, end: str) -> None:
    held = await desk.begin()
    await desk.append(held, 1)
    times = Timing(compiled_ms=2, admitted_ms=3, first_token_ms=5, last_token_ms=6, finished_ms=7)
    calls = {"finish": desk.finishing(held, 2, timing=times), "bury": desk.burying(held, timing=times)}
    assert await desk.run(calls[end]) is EndOutcome.OK
    job = await desk.job()
    assert (job.compiled_ms, job.admitted_ms, job.first_token_ms, job.finished_ms) == (2, 3, 5, 7)
    assert await desk.redis.pttl(desk.keys.job("0-a")) > 0  # that is by the server's clock


async def test_finish_publishes_the_last_delta_and_the_end(desk: Desk) -> None:
    held = await desk.begin()
    heard = await desk.messages(lambda: desk.finish(held, 1, delta=b"", state=State.FAILED))
    assert [message for _, message in heard] == [b"1-1 d ", b"1-2 e failed"]  # an empty delta is one
    assert (await desk.job()).first_token_ms is not None


async def test_finish_takes_only_ends(desk: Desk) -> None:
    with pytest.raises(ValueError, match="cannot finish as running"):
        desk.finishing(Claim("0-a", "1-1", "A", 1), state=State.RUNNING)


# --- bury --------------------------------------------------------------------------------------------------


async def test_bury_keeps_the_request_of_a_failed_job(desk: Desk) -> None:
    held = await desk.begin(payload=b"poison")
    await desk.append(held, 1, b"one")
    assert await desk.run(desk.burying(held)) is EndOutcome.OK
    assert ((await desk.job()).state, (await desk.job()).result) == (State.FAILED, b"result")
    ((_, letter),) = await desk.redis.xrange(desk.keys.dead)
    assert letter == {
        b"id": b"0-a", b"lane": b"batch", b"v": b"1", b"reason": b"died", b"attempts": b"1", b"died": b"0",
        b"b": b"poison",
    }  # fmt: skip
    assert (await desk.log())[-1] == LogEntry(1, 2, "e", b"failed")
    await desk.audit_idle()


# --- retry and release -------------------------------------------------------------------------------------


async def test_retry_parks_the_job_and_promote_brings_it_back(desk: Desk) -> None:
    held = await desk.begin(payload=b"request")
    await desk.append(held, 1, b"one")
    assert await desk.run(desk.retrying(held, died=1)) is EndOutcome.OK
    job = await desk.job()
    assert (job.state, job.died, job.owner) == (State.QUEUED, 1, "")
    assert await desk.redis.xlen(desk.keys.lane(desk.lane)) == 0
    assert int(await desk.redis.get(desk.keys.held_bytes)) == len(b"request")
    assert await desk.promote() == ("0-a",)
    ((_, fields),) = await desk.redis.xrange(desk.keys.lane(desk.lane))
    assert fields == {b"id": b"0-a", b"v": b"1", b"b": b"request"}
    entry = await desk.deliver("B")
    reply = await desk.start(entry, "B")
    assert (reply.attempt, reply.last_seq, reply.died) == (2, 1, 1)
    assert await desk.finish(Claim("0-a", entry, "B", 2), 2) is EndOutcome.OK
    await desk.audit_idle()


async def test_release_gives_a_running_job_back_uncharged(desk: Desk) -> None:
    held = await desk.begin()
    heard = await desk.messages(lambda: desk.run(desk.releasing(held)))
    assert heard == [(desk.keys.control, b"released")]
    assert (await desk.job()).state is State.QUEUED
    (entry,) = await desk.redis.xpending_range(desk.keys.lane(desk.lane), GROUP, "-", "+", 10)
    assert (entry["consumer"], entry["times_delivered"]) == (RELEASED.encode(), 0)
    (taken,) = await desk.run(desk.reclaiming(held.entry_id, RELEASED, "B", min_idle_ms=LONG_MS))
    assert (taken.job_id, taken.payload) == ("0-a", b"request")
    assert (await desk.start(held.entry_id, "B")).died == 0
