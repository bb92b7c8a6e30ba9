"""One attempt at a job while it runs: start, append, renew. What they answer in any order of calls is proven
by `test_protocol_model`; here is what its model does not hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.wire.desk import LONG_MS, TTL_MS, Desk

from millstream.wire import calls
from millstream.wire.calls.attempt import seed_of
from millstream.wire.keys import GROUP, RELEASED
from millstream.wire.messages.job_messages import State, Timing
from millstream.wire.messages.record import parse_event
from millstream.wire.messages.script_replies import AppendOutcome, EndOutcome, LogEntry, SubmitOutcome


async def test_a_job_runs_from_submit_to_its_result(desk: Desk) -> None:
    held = await desk.begin()
    assert (await desk.append(held, 1, b"one")).outcome is AppendOutcome.OK
    assert await desk.finish(held, 2, delta=b"two", result=b"both") is EndOutcome.OK
    job = await desk.job()
    assert (job.state, job.result, job.attempt, job.owner) == (State.COMPLETED, b"both", 1, "A")
    assert job.submitted_ms <= (job.started_ms or 0) <= (job.first_token_ms or 0) <= (job.finished_ms or 0)
    told = [(entry.cursor, entry.kind, entry.body) for entry in await desk.log()]
    assert told == [("1-0", "m", b""), ("1-1", "d", b"one"), ("1-2", "d", b"two"), ("1-3", "e", b"completed")]
    assert job.last_seq == 3
    await desk.audit_idle()


async def test_hash_and_log_live_until_the_same_moment(desk: Desk) -> None:
    held = await desk.begin()
    assert await desk.redis.pttl(desk.keys.job("0-a")) == await desk.redis.pttl(desk.keys.tokens("0-a")) == -1
    await desk.finish(held)
    async with desk.redis.pipeline(transaction=True) as pipeline:
        pipeline.pttl(desk.keys.job("0-a")).pttl(desk.keys.tokens("0-a"))
        job, tokens = await pipeline.execute()
    assert 0 < job <= TTL_MS
    assert abs(job - tokens) <= 1  # read one after the other


# --- start -------------------------------------------------------------------------------------------------


async def test_the_next_attempt_gets_the_text_of_the_one_before(desk: Desk) -> None:
    first = await desk.begin()
    await desk.append(first, 1, b"one")
    begun = await desk.job()
    assert await desk.redis.hget(desk.keys.job("0-a"), "seed") == str(seed_of("0-a")).encode()
    await desk.redis.hset(desk.keys.job("0-a"), "seed", 2**53 - 1)  # as another version's worker sampled it
    await desk.run(desk.reclaiming(first.entry_id, "A"))
    reply = await desk.start(first.entry_id, "B")
    assert (reply.attempt, reply.last_seq, reply.died, reply.seed) == (2, 1, 1, 2**53 - 1)
    assert [(entry.cursor, entry.kind) for entry in reply.log] == [("1-0", "m"), ("1-1", "d"), ("2-1", "m")]
    assert (reply.submitted_ms, reply.started_ms) == (begun.submitted_ms, begun.started_ms)
    assert (reply.admitted_ms, reply.first_token_ms) == (None, begun.first_token_ms)


def test_sampled_seeds_are_exact_in_every_language() -> None:
    seeds = [seed_of(f"0-{number}") for number in range(200)]
    assert len(set(seeds)) == 200
    assert min(seeds) >= 0
    assert 2**52 < max(seeds) < 2**53


async def test_a_start_with_an_old_nonce_after_retry_is_a_new_attempt(desk: Desk) -> None:
    held = await desk.begin()
    await desk.run(desk.retrying(held))
    await desk.promote()
    assert (await desk.start(await desk.deliver())).attempt == 2


async def test_a_reused_id_runs_under_its_new_entry_only(desk: Desk) -> None:
    await desk.submit()
    await desk.cancel()
    await desk.redis.delete(
        desk.keys.job("0-a")
    )  # its time is over; that the log is not yet, is the worse case
    assert (await desk.submit(payload=b"another", digest="d2")).outcome is SubmitOutcome.ACCEPTED
    old, new = await desk.deliver(), await desk.deliver()
    assert not (await desk.start(old)).started
    assert (await desk.holders()).keys() == {new}
    reply = await desk.start(new)
    assert (reply.attempt, reply.log) == (1, (LogEntry(1, 0, "m", b""),))


async def test_a_recreated_group_gives_running_jobs_to_the_next_reader(desk: Desk) -> None:
    held = await desk.begin()
    await desk.redis.xgroup_destroy(desk.keys.lane(desk.lane), GROUP)
    assert (await desk.run(desk.renewing(("0-a", held.entry_id)))).lost == ("0-a",)
    assert not (await desk.start(held.entry_id, nonce="new")).started
    await desk.redis.xgroup_create(desk.keys.lane(desk.lane), GROUP, "0")
    entry = await desk.deliver("B")
    assert entry == held.entry_id
    assert (await desk.start(entry, "B")).attempt == 2
    assert (await desk.append(held, 1)).outcome is AppendOutcome.FENCED


async def test_an_attempt_given_back_by_another_reader_is_not_charged(desk: Desk) -> None:
    held = await desk.begin()
    await desk.redis.xgroup_destroy(desk.keys.lane(desk.lane), GROUP)
    await desk.redis.xgroup_create(desk.keys.lane(desk.lane), GROUP, "0")
    await desk.run(desk.giving_back(await desk.deliver("B"), "B"))
    assert (await desk.append(held, 1)).outcome is AppendOutcome.OK  # nobody has started it since
    await desk.run(desk.reclaiming(held.entry_id, RELEASED, "C", died=True))
    assert (await desk.append(held, 2)).outcome is AppendOutcome.FENCED
    assert (await desk.job()).died == 0


# --- append ------------------------------------------------------------------------------------------------


async def test_append_publishes_what_it_stores_where_somebody_reads(desk: Desk) -> None:
    held = await desk.begin()
    body = b"\x00 two words \xff"
    heard = await desk.messages(lambda: desk.append(held, 1, body))
    assert heard == [(desk.keys.events("0-a"), b"1-1 d " + body)]
    assert parse_event(heard[0][1]) == (await desk.log())[-1] == LogEntry(1, 1, "d", body)
    assert await desk.messages(lambda: desk.append(held, 2, publish=False)) == []
    assert len(await desk.log()) == 3


async def test_the_first_attempt_s_times_stand(desk: Desk) -> None:
    held = await desk.begin()
    times = Timing(compiled_ms=2, admitted_ms=3, first_token_ms=5)
    await desk.run(calls.append(desk.keys, held, seq=1, body=b"d", publish=True, timing=times))
    held = await desk.take_over(held)
    await desk.append(held, 2)
    reply = await desk.start(held.entry_id, "B", nonce="again-B")
    assert (reply.compiled_ms, reply.admitted_ms, reply.first_token_ms) == (2, 3, 5)
    await desk.finish(held, 3, delta=b"last")
    job = await desk.job()
    assert (job.compiled_ms, job.admitted_ms, job.first_token_ms) == (2, 3, 5)


@pytest.mark.parametrize("wrong", [{"attempt": 2}, {"owner": "B"}, {"entry_id": "1-1"}])
async def test_append_needs_the_whole_fence(desk: Desk, wrong: dict[str, Any]) -> None:
    held = await desk.begin()
    other = replace(held, **wrong)
    assert (await desk.append(other, 1)).outcome is AppendOutcome.FENCED


# --- renew -------------------------------------------------------------------------------------------------


async def test_renew_resets_the_idle_time_and_counts_no_delivery(desk: Desk) -> None:
    held = await desk.begin()
    lane = desk.keys.lane(desk.lane)
    await desk.redis.xclaim(lane, GROUP, "A", 0, [held.entry_id], idle=LONG_MS, justid=True)
    reply = await desk.run(desk.renewing(("0-a", held.entry_id)))
    (entry,) = await desk.redis.xpending_range(lane, GROUP, "-", "+", 10)
    assert (reply.lost, reply.cancelled) == ((), ())
    assert entry["time_since_delivered"] < LONG_MS
    assert entry["times_delivered"] == 1
