"""Whom a death is blamed on: counts of deaths in company and alone, whoever tells them, in whatever order."""

from __future__ import annotations

import pytest
from support.wire.desk import Desk

from millstream.wire.calls import Claim
from millstream.wire.keys import RELEASED
from millstream.wire.messages.replies import EndOutcome


async def deaths(desk: Desk) -> tuple[int, int]:
    job = await desk.job()
    return job.died, job.died_alone


async def test_only_an_attempt_that_was_isolated_is_charged_as_alone(desk: Desk) -> None:
    held = await desk.begin()
    held = await desk.take_over(held, "B")
    assert await deaths(desk) == (1, 0)
    assert await desk.run(desk.isolating(held)) is EndOutcome.OK
    await desk.run(desk.reclaiming(held.entry_id, "B", "C"))
    assert await deaths(desk) == (2, 1)
    reply = await desk.start(held.entry_id, "C")
    assert (reply.attempt, reply.died, reply.died_alone) == (3, 2, 1)
    await desk.run(desk.reclaiming(held.entry_id, "C", "D"))  # this attempt was in company
    assert await deaths(desk) == (3, 1)


async def test_an_attempt_that_is_in_company_again_is_not_charged_as_alone(desk: Desk) -> None:
    held = await desk.begin()
    await desk.run(desk.isolating(held))
    await desk.run(desk.isolating(held, alone=False, died=1, died_alone=1))
    await desk.run(desk.reclaiming(held.entry_id, "A"))
    assert await deaths(desk) == (2, 1)


async def test_an_isolated_job_that_is_given_back_is_not_charged(desk: Desk) -> None:
    held = await desk.begin()
    await desk.run(desk.isolating(held))
    await desk.run(desk.releasing(held))
    await desk.run(desk.reclaiming(held.entry_id, RELEASED, "B"))
    assert await deaths(desk) == (0, 0)


@pytest.mark.parametrize("way", ["isolate", "retry", "release"])
async def test_what_a_worker_knows_of_deaths_is_kept_as_the_most(desk: Desk, way: str) -> None:
    held = await desk.begin()
    await desk.run(desk.isolating(held, alone=False, died=3, died_alone=1))
    call = {"isolate": desk.isolating, "retry": desk.retrying, "release": desk.releasing}[way]
    assert await desk.run(call(held, died=2, died_alone=2)) is EndOutcome.OK
    assert await deaths(desk) == (3, 2)


async def test_a_repetition_changes_nothing_and_a_stranger_is_fenced(desk: Desk) -> None:
    held = await desk.begin()
    call = desk.isolating(held, died=2, died_alone=1)
    assert await desk.run(call) is EndOutcome.OK
    before = await desk.state()
    assert await desk.run(call) is EndOutcome.OK
    for stranger in (Claim("0-a", held.entry_id, "B", 1), Claim("0-a", held.entry_id, "A", 2)):
        assert await desk.run(desk.isolating(stranger, died=9)) is EndOutcome.FENCED
    assert await desk.state() == before
