"""Processes of release 0.1.0 beside this build, call by call: whichever of the two does a step of a job's
life, the other goes on with what it finds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
from support.desk import Desk, Held
from support.released import Released

from millstream.errors import QueueMismatch
from millstream.wire.keys import QueueKeys
from millstream.wire.messages import State
from millstream.wire.queue_info import QueueInfo, describe, open_queue, widen
from millstream.wire.versions import Versions


@dataclass(frozen=True, slots=True)
class Side:
    """The steps of a job's life, as one of the two builds does them."""

    submit: Callable[[str], Awaitable[Any]]
    start: Callable[[str, str, str], Awaitable[Held]]
    append: Callable[[Held, int], Awaitable[str]]
    reclaim: Callable[[Held, str], Awaitable[str]]
    release: Callable[[Held], Awaitable[str]]
    retry: Callable[[Held], Awaitable[str]]
    promote: Callable[[], Awaitable[Any]]
    renew: Callable[[Held], Awaitable[Any]]
    finish: Callable[[Held, int], Awaitable[str]]
    cancel: Callable[[str], Awaitable[str]]


def this_build(desk: Desk) -> Side:
    async def start(job_id: str, entry_id: str, owner: str) -> Held:
        reply = await desk.start(entry_id, owner, job_id=job_id)
        assert reply.started
        return Held(job_id, entry_id, owner, reply.attempt)

    async def append(held: Held, seq: int) -> str:
        return (await desk.append(held, seq)).outcome

    async def reclaim(held: Held, owner: str) -> str:
        (entry,) = await desk.run(desk.reclaiming(held.entry_id, held.owner, owner))
        return entry.entry_id

    async def renew(held: Held) -> Any:
        reply = await desk.run(desk.renewing((held.job_id, held.entry_id), owner=held.owner))
        return [[one.encode() for one in reply.lost], [one.encode() for one in reply.cancelled]]

    return Side(
        submit=desk.submit,
        start=start,
        append=append,
        reclaim=reclaim,
        release=lambda held: desk.run(desk.releasing(held)),
        retry=lambda held: desk.run(desk.retrying(held, died=1)),
        promote=desk.promote,
        renew=renew,
        finish=desk.finish,
        cancel=desk.cancel,
    )


def that_build(desk: Desk) -> Side:
    old = Released(desk)
    return Side(
        submit=old.submit,
        start=old.start,
        append=old.append,
        reclaim=lambda held, owner: old.reclaim(held.entry_id, held.owner, owner),
        release=old.release,
        retry=old.retry,
        promote=old.promote,
        renew=old.renew,
        finish=old.finish,
        cancel=old.cancel,
    )


async def moved(desk: Desk, how: str, by: Side, then: Side, held: Held) -> str:
    """The attempt is over; answers the entry that its successor `B` starts."""
    if how == "reclaim":
        return await then.reclaim(held, "B")
    if how == "release":
        assert await by.release(held) == "ok"
        return await then.reclaim(Held(held.job_id, held.entry_id, "released", held.attempt), "B")
    assert await by.retry(held) == "ok"
    await then.promote()
    return await desk.deliver("B")


@pytest.mark.parametrize("how", ["reclaim", "release", "retry"])
async def test_a_jobs_life_in_any_mix_of_builds(desk: Desk, how: str) -> None:
    sides = (this_build(desk), that_build(desk))
    for number, (submitter, first, mover, second, ender) in enumerate(product(sides, repeat=5)):
        job_id = f"0-{number}"
        await submitter.submit(job_id)
        held = await first.start(job_id, await desk.deliver("A"), "A")
        assert await first.renew(held) == [[], []]
        assert [await first.append(held, 1), await mover.append(held, 2)] == ["ok", "ok"]
        again = await second.start(job_id, await moved(desk, how, first, mover, held), "B")
        assert again.attempt == 2
        assert await first.append(held, 3) == "fenced"
        assert await first.finish(held, 3) == "fenced"
        assert await second.append(again, 3) == "ok"
        assert await ender.finish(again, 4) == "ok"
        assert await second.finish(again, 4) == "already"
        record = await desk.job(job_id)
        assert (record.state, record.attempt, record.last_seq) == (State.COMPLETED, 2, 4)
        assert record.died == int(how != "release")
        kinds = [(entry.cursor, entry.kind) for entry in await desk.log(job_id)]
        assert kinds == [
            ("1-0", "m"), ("1-1", "d"), ("1-2", "d"), ("2-2", "m"), ("2-3", "d"), ("2-4", "e"),
        ]  # fmt: skip
    await desk.audit_idle()


async def test_a_cancellation_reaches_the_other_build(desk: Desk) -> None:
    sides = (this_build(desk), that_build(desk))
    for number, (submitter, runner, canceller) in enumerate(product(sides, repeat=3)):
        job_id = f"0-{number}"
        await submitter.submit(job_id)
        held = await runner.start(job_id, await desk.deliver("A"), "A")
        assert await canceller.cancel(job_id) == "requested"
        assert await runner.append(held, 1) == "cancelled"
        assert await runner.renew(held) == [[], [job_id.encode()]]
        assert await runner.finish(held, 1) == "ok"
    await desk.audit_idle()


async def test_a_widened_queue_is_still_one_that_the_released_build_takes(desk: Desk) -> None:
    old = Released(desk)
    first = await old.describe(shards=1, pubsub="plain", version_min=1, version_max=1)
    assert await open_queue(desk.redis, "docs", takes=Versions(1, 3)) == QueueInfo(1, version_max=3)
    again = await old.describe(shards=4, pubsub="plain", version_min=1, version_max=1)
    assert again == first | {b"version_max": b"3"}
    assert int(again[b"version_min"]) <= 1 <= int(again[b"version_max"])
    with pytest.raises(QueueMismatch, match="created with shards 1, not 4"):
        await open_queue(desk.redis, "docs", shards=4, takes=Versions(1, 9))
    stored = await desk.run(describe(QueueKeys("docs"), QueueInfo()))
    assert stored.versions == Versions(1, 3)


async def test_nobody_narrows_a_window(desk: Desk) -> None:
    await open_queue(desk.redis, "docs", takes=Versions(2, 3))
    assert (await open_queue(desk.redis, "docs")).versions == Versions(1, 3)
    assert (await desk.run(widen(QueueKeys("docs"), Versions(2, 2)))).versions == Versions(1, 3)
    assert (await desk.run(widen(QueueKeys("docs"), Versions(1, 5)))).versions == Versions(1, 5)
