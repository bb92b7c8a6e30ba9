"""A call whose reply was lost is sent again: it says that it is done, and is done once. What the model of
`test_protocol_model` repeats is not repeated here."""

from __future__ import annotations

import pytest
from support.wire.desk import Desk

from millstream.wire.keys import RELEASED
from millstream.wire.messages.messages import State
from millstream.wire.messages.replies import EndOutcome, SubmitOutcome


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
    assert await desk.holders() == ({} if drop else {entry: RELEASED})
    before = await desk.state()
    assert await desk.run(desk.giving_back(entry)) is EndOutcome.ALREADY
    assert await desk.state() == before
