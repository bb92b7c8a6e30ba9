"""What any worker does for all: due retries, entries of workers that are gone, entries of strangers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from redis.exceptions import ResponseError
from support.wire.desk import LONG_MS, Desk

from millstream.wire import calls
from millstream.wire.calls import Claim
from millstream.wire.keys import GROUP, Lane
from millstream.wire.messages.job_messages import State
from millstream.wire.messages.script_replies import EndOutcome, LaneEntry

# --- promote -----------------------------------------------------------------------------------------------


async def test_a_retry_waits_for_its_time(desk: Desk) -> None:
    await desk.run(desk.retrying(await desk.begin(), delay_ms=LONG_MS))
    before = await desk.state()
    assert await desk.promote() == ()
    assert await desk.state() == before


async def test_a_retry_goes_back_to_its_own_lane(desk: Desk) -> None:
    desk.lane = Lane.INTERACTIVE
    await desk.run(desk.retrying(await desk.begin()))
    assert await desk.promote() == ("0-a",)
    assert await desk.redis.xlen(desk.keys.lane(Lane.INTERACTIVE)) == 1
    assert await desk.redis.xlen(desk.keys.lane(Lane.BATCH)) == 0
    assert await desk.redis.zcard(desk.keys.delayed) == 0
    assert not await desk.redis.hexists(desk.keys.job("0-a"), "payload")


async def test_promote_is_bounded(desk: Desk) -> None:
    for number in range(3):
        await desk.run(desk.retrying(await desk.begin(f"0-{number}")))
    assert len(await desk.run(calls.promote(desk.keys, limit=2))) == 2
    assert len(await desk.run(calls.promote(desk.keys, limit=2))) == 1


async def test_a_parked_id_whose_job_is_gone_is_forgotten(desk: Desk) -> None:
    await desk.redis.zadd(desk.keys.delayed, {"0-gone": 1})
    assert await desk.promote() == ()
    assert await desk.redis.zcard(desk.keys.delayed) == 0
    assert not await desk.redis.exists(desk.keys.job("0-gone"))


# --- reclaim -----------------------------------------------------------------------------------------------


async def overwrite(desk: Desk, job_id: str) -> None:
    await desk.redis.set(desk.keys.job(job_id), "something else")


async def cut(desk: Desk, job_id: str) -> None:
    await desk.redis.hdel(desk.keys.job(job_id), "lane", "seq")


@pytest.mark.parametrize("damage", [overwrite, cut])
async def test_a_damaged_job_keeps_no_other_from_its_retry(
    desk: Desk, damage: Callable[[Desk, str], Awaitable[None]]
) -> None:
    for job_id in ("0-a", "0-b"):
        await desk.run(desk.retrying(await desk.begin(job_id)))
    await damage(desk, "0-a")
    assert await desk.promote() == ("0-b",)
    assert await desk.redis.zcard(desk.keys.delayed) == 0


@pytest.mark.parametrize("damage", [overwrite, cut])
async def test_a_damaged_job_keeps_no_other_from_its_deadline(
    desk: Desk, damage: Callable[[Desk, str], Awaitable[None]]
) -> None:
    for job_id, deadline_ms in (("0-a", 1), ("0-b", 2)):
        await desk.submit(job_id, deadline_ms=deadline_ms)
    await damage(desk, "0-a")
    assert await desk.expire() == ("0-b",)
    assert await desk.redis.zcard(desk.keys.deadlines) == 0


async def test_a_deadline_outlasts_a_server_that_takes_no_writes(desk: Desk) -> None:
    await desk.submit("0-a", deadline_ms=1)
    await desk.redis.config_set("min-replicas-to-write", 1)
    with pytest.raises(ResponseError, match="NOREPLICAS"):
        await desk.expire()
    await desk.redis.config_set("min-replicas-to-write", 0)
    assert await desk.expire() == ("0-a",)


async def test_reclaim_charges_a_running_attempt(desk: Desk) -> None:
    held = await desk.begin()
    (entry,) = await desk.run(desk.reclaiming(held.entry_id, "A"))
    assert entry == LaneEntry("batch", held.entry_id, "0-a", 1, b"request")
    (pending,) = await desk.redis.xpending_range(desk.keys.lane(desk.lane), GROUP, "-", "+", 10)
    assert (pending["consumer"], pending["times_delivered"]) == (b"B", 2)
    job = await desk.job()
    assert (job.state, job.died, job.owner) == (State.QUEUED, 1, "")
    assert await desk.holders() == {held.entry_id: "B"}


async def test_reclaim_leaves_an_entry_that_moved_on(desk: Desk) -> None:
    held = await desk.begin()
    before = await desk.state()
    assert await desk.run(desk.reclaiming(held.entry_id, "A", min_idle_ms=LONG_MS)) == ()
    assert await desk.run(desk.reclaiming(held.entry_id, "C")) == ()
    assert await desk.run(desk.reclaiming("1-1", "A")) == ()
    assert await desk.state() == before


async def test_reclaim_drops_what_no_longer_stands_for_a_job(desk: Desk) -> None:
    lane = desk.keys.lane(desk.lane)
    await desk.submit()
    cancelled = await desk.deliver()
    await desk.cancel()
    await desk.redis.xadd(lane, {"id": "0-ghost", "v": 1, "b": b""})
    await desk.redis.xadd(lane, {"foreign": "entry"})
    ghost, foreign = await desk.deliver(), await desk.deliver()
    await desk.submit("0-d")
    deleted = await desk.deliver()
    await desk.redis.xdel(lane, deleted)
    overdue = [(entry, "A") for entry in (cancelled, ghost, foreign, deleted)]
    call = calls.reclaim(desk.keys, lane=desk.lane, owner="B", overdue=overdue, min_idle_ms=0, died=True)
    assert await desk.run(call) == ()
    assert await desk.holders() == {}
    assert await desk.redis.xlen(lane) == 0
    assert not await desk.redis.exists(desk.keys.job("0-ghost"), desk.keys.job(""))


# --- consumers ---------------------------------------------------------------------------------------------


async def test_a_consumer_goes_only_when_it_holds_nothing(desk: Desk) -> None:
    held = await desk.begin()
    call = calls.drop_consumer(desk.keys, lane=desk.lane, consumer="A")
    assert await desk.run(call) is False
    assert await desk.holders() == {held.entry_id: "A"}
    await desk.finish(held)
    assert await desk.run(call) is True
    assert await desk.redis.xinfo_consumers(desk.keys.lane(desk.lane), GROUP) == []
    assert await desk.run(call) is True


async def test_a_consumer_of_a_group_that_is_gone_is_gone(desk: Desk) -> None:
    await desk.redis.delete(desk.keys.lane(desk.lane))
    assert await desk.run(calls.drop_consumer(desk.keys, lane=desk.lane, consumer="A")) is True


async def test_pending_entries_are_read_in_pages(desk: Desk) -> None:
    entries = [(await desk.begin(f"0-{number}")).entry_id for number in range(3)]
    page = await calls.scan_pending(desk.redis, desk.keys, lane=desk.lane, start="-", count=2)
    assert [entry.entry_id for entry in page] == entries[:2]
    rest = await calls.scan_pending(
        desk.redis, desk.keys, lane=desk.lane, start=f"({page[-1].entry_id}", count=2
    )
    assert [(entry.entry_id, entry.owner) for entry in rest] == [(entries[2], "A")]


# --- strangers ---------------------------------------------------------------------------------------------


async def test_a_strangers_entry_is_dropped_with_a_note(desk: Desk) -> None:
    await desk.redis.xadd(desk.keys.lane(desk.lane), {"foreign": "entry", "b": b"what it held"})
    entry = await desk.deliver()
    call = calls.discard(desk.keys, lane=desk.lane, owner="A", entry_id=entry, reason="no id", max_dead=10)
    assert await desk.run(call) is EndOutcome.OK
    ((_, letter),) = await desk.redis.xrange(desk.keys.dead)
    assert letter == {b"reason": b"no id", b"entry": entry.encode(), b"b": b"what it held"}
    assert await desk.run(call) is EndOutcome.FENCED
    await desk.audit_idle()


async def test_only_the_holder_discards(desk: Desk) -> None:
    held = await desk.begin(owner="B")
    call = calls.discard(desk.keys, lane=desk.lane, owner="A", entry_id=held.entry_id, reason="", max_dead=10)
    before = await desk.state()
    assert await desk.run(call) is EndOutcome.FENCED
    assert await desk.state() == before
    assert await desk.finish(Claim("0-a", held.entry_id, "B", 1)) is EndOutcome.OK
