"""A call whose reply was lost is sent again: it says that it is done, and is done once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.desk import Desk

from millstream.wire import calls
from millstream.wire.calls import Claim, Forgotten, ScriptCall
from millstream.wire.messages.messages import State
from millstream.wire.messages.replies import AppendOutcome, CancelOutcome, EndOutcome, SubmitOutcome


async def test_submit_queues_once(desk: Desk) -> None:
    assert (await desk.submit()).outcome is SubmitOutcome.ACCEPTED
    reply = await desk.submit()
    assert (reply.outcome, reply.state, reply.entries) == (SubmitOutcome.EXISTS, State.QUEUED, 1)
    assert (await desk.job()).submits == 2
    assert await desk.redis.xlen(desk.keys.lane(desk.lane)) == 1


async def test_submit_of_a_job_that_ended_meanwhile_tells_its_state(desk: Desk) -> None:
    await desk.finish(await desk.begin())
    reply = await desk.submit()
    assert (reply.outcome, reply.state) == (SubmitOutcome.EXISTS, State.COMPLETED)
    assert await desk.redis.pttl(desk.keys.job("0-a")) > 0


async def test_start_gets_the_same_attempt(desk: Desk) -> None:
    await desk.submit()
    entry = await desk.deliver()
    first = await desk.start(entry)
    before = await desk.state()
    assert await desk.start(entry) == first
    assert await desk.state() == before


async def test_start_of_a_retried_attempt_with_an_old_nonce_is_a_new_attempt(desk: Desk) -> None:
    held = await desk.begin()
    await desk.run(desk.retrying(held))
    await desk.promote()
    assert (await desk.start(await desk.deliver())).attempt == 2


async def test_append_writes_once(desk: Desk) -> None:
    held = await desk.begin()
    await desk.append(held, 1)
    before = await desk.state()
    reply = await desk.append(held, 1)
    assert (reply.outcome, reply.last_seq) == (AppendOutcome.DUPLICATE, 1)
    assert await desk.state() == before


ENDS: dict[str, Callable[[Desk, Claim], ScriptCall[EndOutcome]]] = {
    "finish": lambda desk, held: desk.finishing(held, 2, delta=b"last"),
    "finish without a delta": lambda desk, held: desk.finishing(held, 2),
    "bury": lambda desk, held: desk.burying(held),
    "retry": lambda desk, held: desk.retrying(held, died=1),
    "release": lambda desk, held: desk.releasing(held),
    "give back": lambda desk, held: desk.giving_back(held.entry_id),
}


@pytest.mark.parametrize("end", ENDS)
async def test_an_end_happens_once(desk: Desk, end: str) -> None:
    held = await desk.begin()
    await desk.append(held, 1)
    call = ENDS[end](desk, held)
    assert await desk.run(call) is EndOutcome.OK
    before = await desk.state()
    heard = await desk.messages(lambda: again(desk, call))
    assert await desk.state() == before
    assert heard == []


async def again(desk: Desk, call: ScriptCall[EndOutcome]) -> None:
    assert await desk.run(call) is EndOutcome.ALREADY


async def test_retry_is_known_after_its_job_was_promoted(desk: Desk) -> None:
    held = await desk.begin()
    await desk.run(desk.retrying(held))
    await desk.promote()
    before = await desk.state()
    assert await desk.run(desk.retrying(held)) is EndOutcome.ALREADY
    assert await desk.state() == before


@pytest.mark.parametrize("drop", [False, True])
async def test_give_back_of_an_unstarted_entry_happens_once(desk: Desk, drop: bool) -> None:
    await desk.submit()
    entry = await desk.deliver()
    if drop:
        await desk.cancel()
    assert await desk.run(desk.giving_back(entry)) is EndOutcome.OK
    before = await desk.state()
    assert await desk.run(desk.giving_back(entry)) is EndOutcome.ALREADY
    assert await desk.state() == before


@pytest.mark.parametrize(
    ("running", "outcome"), [(False, CancelOutcome.CANCELLED), (True, CancelOutcome.REQUESTED)]
)
async def test_cancel_answers_the_same_again(desk: Desk, running: bool, outcome: CancelOutcome) -> None:
    if running:
        await desk.begin()
    else:
        await desk.submit()
    assert await desk.cancel() is outcome
    before = await desk.state()
    assert await desk.cancel() is outcome
    assert await desk.state() == before


async def promote(desk: Desk) -> Any:
    await desk.run(desk.retrying(await desk.begin()))
    return calls.promote(desk.keys, limit=10)


async def expire(desk: Desk) -> Any:
    await desk.begin(deadline_ms=1)
    return calls.expire(desk.keys, limit=10, ttl_ms=1000)


async def reclaim(desk: Desk) -> Any:
    held = await desk.begin()
    return desk.reclaiming(held.entry_id, "A", "B")


@pytest.mark.parametrize("prepare", [promote, expire, reclaim])
async def test_upkeep_happens_once(desk: Desk, prepare: Callable[[Desk], Awaitable[Any]]) -> None:
    call = await prepare(desk)
    assert len(await desk.run(call)) == 1
    before = await desk.state()
    assert await desk.run(call) == ()
    assert await desk.state() == before


async def test_forget_answers_that_nothing_is_left(desk: Desk) -> None:
    await desk.finish(await desk.begin(), 1, delta=b"all")
    call = calls.forget(desk.keys, job_id="0-a")
    assert await desk.run(call) == Forgotten(True)
    before = await desk.state()
    assert await desk.run(call) == Forgotten(False)
    assert await desk.state() == before


async def test_forget_leaves_a_job_alone_that_has_not_ended(desk: Desk) -> None:
    await desk.begin()
    before = await desk.state()
    for _ in range(2):
        assert await desk.run(calls.forget(desk.keys, job_id="0-a")) == Forgotten(False, State.RUNNING)
    assert await desk.state() == before
