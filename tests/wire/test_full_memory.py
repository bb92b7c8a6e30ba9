"""A server at maxmemory: what ends or gives back work passes, what takes on more fails cleanly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import OutOfMemoryError
from support.desk import Desk

from millstream.wire import calls
from millstream.wire.calls import Claim, ScriptCall
from millstream.wire.keys import GROUP, RELEASED
from millstream.wire.messages.messages import State
from millstream.wire.messages.replies import CancelOutcome, EndOutcome, SubmitOutcome
from millstream.wire.state.dead import list_dead
from millstream.wire.state.heartbeat import Heartbeat, beat


async def fill(desk: Desk) -> None:
    """From here on the server holds more than it may."""
    await desk.redis.config_set("maxmemory", "1")
    with pytest.raises(OutOfMemoryError):
        await desk.redis.set("more", "x")


async def test_finish_passes_with_its_last_delta(desk: Desk) -> None:
    held = await desk.begin()
    await fill(desk)
    assert await desk.finish(held, 1, delta=b"all", result=b"R" * 1000) is EndOutcome.OK
    assert (await desk.job()).result == b"R" * 1000
    assert [(entry.cursor, entry.kind) for entry in await desk.log()] == [
        ("1-0", "m"),
        ("1-1", "d"),
        ("1-2", "e"),
    ]
    await desk.audit_idle()


async def test_bury_passes_with_its_letter(desk: Desk) -> None:
    held = await desk.begin()
    await fill(desk)
    assert await desk.run(desk.burying(held)) is EndOutcome.OK
    assert await desk.redis.xlen(desk.keys.dead) == 1
    await desk.audit_idle()


async def test_retry_passes(desk: Desk) -> None:
    held = await desk.begin(payload=b"p" * 1000)
    await fill(desk)
    assert await desk.run(desk.retrying(held, died=1)) is EndOutcome.OK
    await desk.redis.config_set("maxmemory", "0")
    assert await desk.promote() == ("0-a",)
    reply = await desk.start(await desk.deliver())
    assert (reply.attempt, reply.died) == (2, 1)


async def test_release_passes(desk: Desk) -> None:
    started = await desk.begin("0-a")
    await desk.submit("0-b")
    waiting = await desk.deliver()
    await fill(desk)
    assert await desk.run(desk.releasing(started)) is EndOutcome.OK
    assert await desk.run(desk.giving_back(waiting, job_id="0-b")) is EndOutcome.OK
    assert await desk.holders() == {started.entry_id: RELEASED, waiting: RELEASED}
    assert (await desk.job()).state is State.QUEUED


async def test_release_passes_when_the_group_is_gone(desk: Desk) -> None:
    held = await desk.begin()
    await desk.redis.xgroup_destroy(desk.keys.lane(desk.lane), GROUP)
    await fill(desk)
    assert await desk.run(desk.releasing(held)) is EndOutcome.OK
    assert (await desk.job()).state is State.QUEUED


async def test_cancel_passes(desk: Desk) -> None:
    held = await desk.begin("0-a")
    await desk.submit("0-b")
    await fill(desk)
    assert await desk.cancel("0-a") is CancelOutcome.REQUESTED
    assert (await desk.run(desk.renewing(("0-a", held.entry_id)))).cancelled == ("0-a",)
    assert await desk.cancel("0-b") is CancelOutcome.CANCELLED
    assert [entry.cursor for entry in await desk.log("0-b")] == ["0-1"]


@pytest.mark.parametrize("running", [False, True])
async def test_expire_passes(desk: Desk, running: bool) -> None:
    await (desk.begin(deadline_ms=1) if running else desk.submit(deadline_ms=1))
    await fill(desk)
    assert await desk.expire() == ("0-a",)
    assert (await desk.log())[-1].body == b"expired"


async def test_reclaim_and_dropping_stale_entries_pass(desk: Desk) -> None:
    held = await desk.begin("0-a")
    await desk.submit("0-b")
    stale = await desk.deliver()
    await desk.cancel("0-b")
    await fill(desk)
    assert len(await desk.run(desk.reclaiming(held.entry_id, "A"))) == 1
    assert (await desk.job()).died == 1
    assert not (await desk.start(stale, job_id="0-b")).started
    assert await desk.holders() == {held.entry_id: "B"}


async def test_forgetting_and_reading_dead_letters_pass(desk: Desk) -> None:
    await desk.finish(await desk.begin("0-a"), 1, delta=b"all")
    await desk.run(desk.burying(await desk.begin("0-b")))
    await fill(desk)
    assert await desk.run(calls.forget(desk.keys, job_id="0-a")) == calls.Forgotten(True)
    [letter] = await desk.run(list_dead(desk.keys, shard=0, before=None, count=9, most_bytes=3))
    assert (letter.job_id, letter.payload, letter.size) == ("0-b", b"req", 7)
    assert await desk.redis.xdel(desk.keys.dead, letter.id.partition("@")[2]) == 1


async def test_a_consumer_that_is_gone_is_dropped(desk: Desk) -> None:
    await desk.finish(await desk.begin())
    await fill(desk)
    assert await desk.run(calls.drop_consumer(desk.keys, lane=desk.lane, consumer="A")) is True
    assert await desk.redis.xinfo_consumers(desk.keys.lane(desk.lane), GROUP) == []


async def test_heartbeats_pass(desk: Desk) -> None:
    await fill(desk)
    await desk.run(beat(desk.keys, Heartbeat("host-1", "tiny"), ttl_ms=1000))
    assert await desk.redis.pttl(desk.keys.worker("host-1")) > 0


async def test_a_new_job_finds_the_shard_full_and_an_old_one_is_known(desk: Desk) -> None:
    await desk.submit("0-a")
    await fill(desk)
    before = await desk.state()
    reply = await desk.submit("0-new")
    assert (reply.outcome, reply.state, reply.used_up, reply.entries) == (
        SubmitOutcome.FULL,
        None,
        "memory",
        1,
    )
    assert await desk.state() == before
    assert (await desk.submit("0-a")).outcome is SubmitOutcome.EXISTS
    assert (await desk.job("0-a")).submits == 2  # a write: a WAIT behind it covers the first submit
    await desk.redis.config_set("maxmemory", "0")
    assert (await desk.submit("0-new")).outcome is SubmitOutcome.ACCEPTED


async def test_a_start_that_presses_passes(desk: Desk) -> None:
    await desk.submit("0-a")
    entry = await desk.deliver()
    await fill(desk)
    started = await desk.start(entry, force_at_maxmemory=True)
    assert (started.started, started.attempt) == (True, 1)
    assert await desk.start(entry, force_at_maxmemory=True) == started  # its reply was lost
    assert (await desk.job()).state is State.RUNNING
    assert [(one.cursor, one.kind) for one in await desk.log()] == [("1-0", "m")]


async def test_what_moves_into_its_lane_passes(desk: Desk) -> None:
    """It takes no more room there than where it was."""
    retried = await desk.begin("0-retried")
    await desk.run(desk.retrying(retried))
    await desk.fill_window()
    await desk.park("0-parked")
    await desk.take(1)
    await fill(desk)
    assert await desk.promote() == ("0-parked", "0-retried")
    await desk.redis.config_set("maxmemory", "0")
    await desk.park("0-more")
    await fill(desk)
    assert [entry.job_id for entry in await desk.take()][-3:] == ["0-parked", "0-retried", "0-more"]


FAILING: dict[str, Callable[[Desk, Claim, str], ScriptCall[Any]]] = {
    "start": lambda desk, held, waiting: desk.starting(waiting, job_id="0-b"),
    "append": lambda desk, held, waiting: desk.appending(held, 1),
}


@pytest.mark.parametrize("name", FAILING)
async def test_what_takes_on_more_fails_and_writes_nothing(desk: Desk, name: str) -> None:
    held = await desk.begin("0-a")
    await desk.submit("0-b")
    call = FAILING[name](desk, held, await desk.deliver())
    await fill(desk)
    before = await desk.state()

    async def fail() -> None:
        with pytest.raises(OutOfMemoryError):
            await desk.run(call)

    assert await desk.messages(fail) == []
    assert await desk.state() == before
    await desk.redis.config_set("maxmemory", "0")
    await desk.run(call)
    assert await desk.state() != before
