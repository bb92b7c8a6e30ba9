"""Jobs that this build parks, and processes of release 0.1.0, which know nothing of that."""

from __future__ import annotations

from support.desk import WINDOW, Desk, Held
from support.released import Released

from millstream.wire.keys import Lane
from millstream.wire.messages import State


async def overdue(desk: Desk, job_id: str = "0-a") -> None:
    await desk.redis.zadd(desk.keys.delayed, {job_id: 1})


async def untidy(desk: Desk) -> list[str]:
    """Everything is taken and finished; answers the ids in that order."""
    order = []
    while taken := await desk.take(50):
        for entry in taken:
            order.append(entry.job_id)
            await desk.done(entry)
    await desk.audit_idle()
    return order


async def test_old_workers_alone_find_parked_jobs_among_the_retries(desk: Desk) -> None:
    old = Released(desk)
    await desk.fill_window()
    await desk.park(payload=b"kept")
    await old.promote()
    assert (await desk.job()).state is State.QUEUED
    assert await desk.parked() == ["0-a"]  # its time has not come
    await overdue(desk)
    await old.promote()
    for _ in range(WINDOW):
        await desk.deliver()
    held = await old.start("0-a", await desk.deliver("B"), "B")
    assert await old.append(held, 1) == "ok"
    assert await old.finish(held, 2) == "ok"
    assert (await desk.job()).state is State.COMPLETED
    assert await desk.promote() == ()  # its place was left, and nobody's


async def test_a_place_left_by_an_old_worker_is_nobodys(desk: Desk) -> None:
    """Also while the job waits for a retry, outside of its lane again."""
    old = Released(desk)
    await desk.fill_window()
    await desk.park()
    await desk.park("0-b")
    await overdue(desk)
    await old.promote()
    for _ in range(WINDOW):
        await desk.deliver()
    held = await old.start("0-a", await desk.deliver("B"), "B")
    await desk.run(desk.retrying(Held("0-a", held.entry_id, "B", held.attempt), delay_ms=10**9))
    assert [entry.job_id for entry in await desk.take()] == ["0-b"]
    assert not await desk.redis.exists(*desk.keys.parking)
    await overdue(desk)
    assert await desk.promote() == ("0-a",)


async def test_an_old_cancel_ends_a_parked_job(desk: Desk) -> None:
    old = Released(desk)
    ids = await desk.fill_window()
    await desk.park()
    await desk.park("0-b", tenant="b")
    assert await old.cancel("0-a") == "cancelled"
    assert (await desk.job()).state is State.CANCELLED
    assert await untidy(desk) == [*ids, "0-b"]


async def test_an_old_submit_goes_into_the_lane(desk: Desk) -> None:
    old = Released(desk)
    ids = await desk.fill_window()
    await desk.park()
    keys = (*desk.keys.ending("0-old"), desk.keys.lane("batch"), desk.keys.lane("interactive"))
    args = ("0-old", Lane.BATCH, 1, b"request", "d1", "", "1", "", 100_000, 10_000_000)
    answer = await old.send("submit", keys, *args)
    assert (answer[0], answer[2]) == (b"accepted", WINDOW + 2)  # it counts what is parked
    assert await untidy(desk) == [*ids, "0-old", "0-a"]
