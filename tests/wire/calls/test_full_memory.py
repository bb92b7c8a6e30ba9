"""A server at maxmemory: what ends or gives back work passes, what takes on more fails cleanly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import OutOfMemoryError
from support.wire.desk import TTL_MS, WINDOW, Desk

from millstream.wire import calls
from millstream.wire.calls import Claim, ScriptCall
from millstream.wire.keys import GROUP
from millstream.wire.messages.job_messages import State
from millstream.wire.messages.script_replies import CancelOutcome, EndOutcome, SubmitOutcome
from millstream.wire.state.dead_letter import list_dead
from millstream.wire.state.heartbeat import Heartbeat, beat


async def fill(desk: Desk) -> None:
    """From here on the server holds more than it may."""
    await desk.redis.config_set("maxmemory", "1")
    with pytest.raises(OutOfMemoryError):
        await desk.redis.set("more", "x")


PASSES: dict[str, tuple[Callable[[Desk, Claim, str], ScriptCall[Any]], Any]] = {
    "finish": (lambda desk, held, waiting: desk.finishing(held, 1, delta=b"all"), EndOutcome.OK),
    "bury": (lambda desk, held, waiting: desk.burying(held), EndOutcome.OK),
    "retry": (lambda desk, held, waiting: desk.retrying(held, died=1), EndOutcome.OK),
    "release": (lambda desk, held, waiting: desk.releasing(held, died=1), EndOutcome.OK),
    "give back": (lambda desk, held, waiting: desk.giving_back(waiting, job_id="0-b"), EndOutcome.OK),
    "isolate": (lambda desk, held, waiting: desk.isolating(held, died=1), EndOutcome.OK),
    "cancel a running job": (lambda desk, held, waiting: cancel(desk, "0-a"), CancelOutcome.REQUESTED),
    "cancel a queued job": (lambda desk, held, waiting: cancel(desk, "0-b"), CancelOutcome.CANCELLED),
    "expire": (lambda desk, held, waiting: expire(desk), ("0-a", "0-b")),
    "expire one": (lambda desk, held, waiting: expire_one(desk, "0-a"), True),
}


def cancel(desk: Desk, job_id: str) -> ScriptCall[CancelOutcome]:
    return calls.cancel(desk.keys, job_id=job_id, ttl_ms=TTL_MS)


def expire(desk: Desk) -> ScriptCall[tuple[str, ...]]:
    return calls.expire(desk.keys, limit=9, ttl_ms=TTL_MS)


def expire_one(desk: Desk, job_id: str) -> ScriptCall[bool]:
    return calls.expire_one(desk.keys, job_id=job_id, ttl_ms=TTL_MS)


async def changed(desk: Desk, name: str, *, full: bool) -> dict[str, Any]:
    """All that is there after the call, without ids and times that differ from run to run."""
    await desk.redis.flushall()
    await desk.open()
    held = await desk.begin("0-a", deadline_ms=1)
    await desk.submit("0-b", deadline_ms=2)
    waiting = await desk.deliver()
    call, answer = PASSES[name]
    if full:
        await fill(desk)
    assert await desk.run(call(desk, held, waiting)) == answer
    await desk.redis.config_set("maxmemory", "0")
    jobs = [await desk.job(job_id) for job_id in ("0-a", "0-b")]
    return {
        "keys": {key: expires for key, (_, expires) in (await desk.state()).items()},
        "jobs": [(job.state, job.owner, job.died, job.result, job.cancelled, job.last_seq) for job in jobs],
        "logs": [[(one.cursor, one.kind, one.body) for one in await desk.log(job.job_id)] for job in jobs],
        "held": list((await desk.holders()).values()),
        "bytes": await desk.redis.get(desk.keys.held_bytes),
        "due": [await desk.redis.zrange(key, 0, -1) for key in (desk.keys.delayed, desk.keys.deadlines)],
        "letters": [letter[b"b"] for _, letter in await desk.redis.xrange(desk.keys.dead)],
    }


@pytest.mark.parametrize("name", PASSES)
async def test_what_ends_or_gives_back_work_does_the_same_as_with_room(desk: Desk, name: str) -> None:
    assert await changed(desk, name, full=True) == await changed(desk, name, full=False)


async def test_release_passes_when_the_group_is_gone(desk: Desk) -> None:
    held = await desk.begin()
    await desk.redis.xgroup_destroy(desk.keys.lane(desk.lane), GROUP)
    await fill(desk)
    assert await desk.run(desk.releasing(held)) is EndOutcome.OK
    assert (await desk.job()).state is State.QUEUED


async def test_reclaim_and_dropping_stale_entries_pass(desk: Desk) -> None:
    held = await desk.begin("0-a")
    await desk.submit("0-b")
    stale = await desk.deliver()
    await desk.cancel("0-b")
    await fill(desk)
    assert (await desk.run(desk.renewing(("0-a", held.entry_id)))).lost == ()
    assert len(await desk.run(desk.reclaiming(held.entry_id, "A"))) == 1
    assert (await desk.job()).died == 1
    assert not (await desk.start(stale, job_id="0-b")).started
    assert await desk.holders() == {held.entry_id: "B"}


async def test_what_looks_after_a_queue_passes(desk: Desk) -> None:
    """Forgetting, dead letters, consumers that are gone, heartbeats."""
    await desk.finish(await desk.begin("0-a"), 1, delta=b"all")
    await desk.run(desk.burying(await desk.begin("0-b")))
    await fill(desk)
    assert await desk.run(calls.forget(desk.keys, job_id="0-a")) == calls.Forgotten(True)
    [letter] = await desk.run(list_dead(desk.keys, shard=0, before=None, count=9, most_bytes=3))
    assert (letter.job_id, letter.payload, letter.size) == ("0-b", b"req", 7)
    assert await desk.redis.xdel(desk.keys.dead, letter.id.partition("@")[2]) == 1
    assert await desk.run(calls.drop_consumer(desk.keys, lane=desk.lane, consumer="A")) is True
    assert await desk.redis.xinfo_consumers(desk.keys.lane(desk.lane), GROUP) == []
    await desk.run(beat(desk.keys, Heartbeat("host-1", model="tiny"), ttl_ms=1000))
    assert await desk.redis.pttl(desk.keys.worker("host-1")) > 0


async def test_a_new_job_finds_the_shard_full_and_an_old_one_is_known(desk: Desk) -> None:
    await desk.submit("0-a")
    await fill(desk)
    before = await desk.state()
    reply = await desk.submit("0-new")
    assert (reply.outcome, reply.state) == (SubmitOutcome.FULL, None)
    assert (reply.used_up, reply.entries) == ("memory", 1)
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
    await desk.take(WINDOW)
    await fill(desk)
    assert await desk.promote() == ("0-parked", "0-retried")
    await desk.redis.config_set("maxmemory", "0")
    await desk.park("0-more", cost=4096)  # of which a lane holds one
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
