"""An attempt that is over wakes up, between any two commands of those after it: it changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.wire.desk import TTL_MS, Desk

from millstream.wire import calls
from millstream.wire.calls import Claim, ScriptCall
from millstream.wire.messages.script_replies import AppendOutcome, EndOutcome

# What has happened to the job since attempt 1 of worker A appended its first delta and fell asleep.


async def reclaimed(desk: Desk, old: Claim) -> None:
    assert len(await desk.run(desk.reclaiming(old.entry_id, "A"))) == 1


async def restarted(desk: Desk, old: Claim) -> None:
    await desk.take_over(old)


async def continued(desk: Desk, old: Claim) -> None:
    new = await desk.take_over(old)
    assert (await desk.append(new, 2)).outcome is AppendOutcome.OK


async def reclaimed_twice(desk: Desk, old: Claim) -> None:
    new = await desk.take_over(old)
    await desk.run(desk.reclaiming(new.entry_id, "B", "C"))


async def given_back_by_the_next(desk: Desk, old: Claim) -> None:
    assert await desk.run(desk.releasing(await desk.take_over(old))) is EndOutcome.OK


async def parked_by_the_next(desk: Desk, old: Claim) -> None:
    assert await desk.run(desk.retrying(await desk.take_over(old))) is EndOutcome.OK


async def promoted(desk: Desk, old: Claim) -> None:
    await parked_by_the_next(desk, old)
    assert await desk.promote() == ("0-a",)


async def redelivered(desk: Desk, old: Claim) -> None:
    await promoted(desk, old)
    await desk.deliver("C")


async def redelivered_to_the_same_worker(desk: Desk, old: Claim) -> None:
    await promoted(desk, old)
    entry = await desk.deliver("A")
    assert (await desk.start(entry, "A", nonce="third")).attempt == 3


async def finished(desk: Desk, old: Claim) -> None:
    assert await desk.finish(await desk.take_over(old), 2) is EndOutcome.OK


async def buried(desk: Desk, old: Claim) -> None:
    assert await desk.run(desk.burying(await desk.take_over(old))) is EndOutcome.OK


async def expired(desk: Desk, old: Claim) -> None:
    await desk.redis.zadd(desk.keys.deadlines, {"0-a": 1})
    assert await desk.expire() == ("0-a",)


async def cancelled_while_parked(desk: Desk, old: Claim) -> None:
    await parked_by_the_next(desk, old)
    await desk.cancel()


async def gone(desk: Desk, old: Claim) -> None:
    await finished(desk, old)
    await desk.redis.delete(desk.keys.job("0-a"), desk.keys.tokens("0-a"))


async def submitted_again(desk: Desk, old: Claim) -> None:
    await gone(desk, old)
    await desk.begin(owner="B")


SINCE = [
    reclaimed, restarted, continued, reclaimed_twice, given_back_by_the_next, parked_by_the_next, promoted,
    redelivered, redelivered_to_the_same_worker, finished, buried, expired, cancelled_while_parked, gone,
    submitted_again,
]  # fmt: skip

# What worker A, awake again, may do with what it knew.

WAKES: dict[str, Callable[[Desk, Claim], ScriptCall[Any]]] = {
    "start again": lambda desk, old: desk.starting(old.entry_id, "A"),
    "start anew": lambda desk, old: desk.starting(old.entry_id, "A", nonce="another"),
    "append the next": lambda desk, old: desk.appending(old, 2),
    "append after the end": lambda desk, old: desk.appending(old, 3),
    "append the last": lambda desk, old: desk.appending(old, 1),
    "append far ahead": lambda desk, old: desk.appending(old, 9),
    "renew": lambda desk, old: desk.renewing(("0-a", old.entry_id)),
    "finish": lambda desk, old: desk.finishing(old, 2),
    "finish with a delta": lambda desk, old: desk.finishing(old, 2, delta=b"late"),
    "bury": lambda desk, old: desk.burying(old),
    "retry": lambda desk, old: desk.retrying(old, died=1),
    "isolate": lambda desk, old: desk.isolating(old, died=9, died_alone=9),
    "release": lambda desk, old: desk.releasing(old),
    "give back": lambda desk, old: desk.giving_back(old.entry_id, "A"),
    "reclaim": lambda desk, old: desk.reclaiming(old.entry_id, "A", "A"),
    "discard": lambda desk, old: calls.discard(
        desk.keys, lane=desk.lane, owner="A", entry_id=old.entry_id, reason="late", max_dead=10
    ),
    "expire": lambda desk, old: calls.expire_one(desk.keys, job_id=old.job_id, ttl_ms=TTL_MS),
}


@pytest.mark.parametrize("since", SINCE, ids=lambda since: since.__name__)
async def test_an_attempt_that_is_over_changes_nothing(
    desk: Desk, since: Callable[[Desk, Claim], Awaitable[None]]
) -> None:
    old = await desk.begin()
    await desk.append(old, 1)
    await since(desk, old)
    before = await desk.state()
    answers: dict[str, Any] = {}

    async def wake_up() -> None:
        for name, call in WAKES.items():
            answers[name] = await desk.run(call(desk, old))
            assert await desk.state() == before, name

    assert await desk.messages(wake_up) == []
    assert not answers["start again"].started
    assert answers["append the next"].outcome is AppendOutcome.FENCED
    assert answers["renew"].lost == ("0-a",)
    assert {answers[name] for name in ("finish", "bury", "retry", "release")} == {EndOutcome.FENCED}
