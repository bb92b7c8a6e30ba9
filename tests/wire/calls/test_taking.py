"""Reading lanes by entries and bytes."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError
from support.servers.servers import BOTH
from support.wire.desk import ROOM, WINDOW, Desk

from millstream.wire import calls
from millstream.wire.calls.lane_calls import Delivered
from millstream.wire.keys import GROUP, RELEASED, Lane


async def take(desk: Desk, entries: int = 100, held: int = 10**6, owner: str = "A") -> list[Delivered]:
    call = calls.take(desk.keys, owner=owner, max_entries=entries, max_bytes=held)
    return list(await desk.run(call))


def ids(taken: list[Delivered]) -> list[str]:
    return [calls.lane_entry(one.lane, one.entry_id, one.fields).job_id for one in taken]


async def test_the_first_lane_first_then_in_order(desk: Desk) -> None:
    for number in range(3):
        await desk.submit(f"0-b{number}", lane=Lane.BATCH)
    await desk.submit("0-i", lane=Lane.INTERACTIVE)
    taken = await take(desk, entries=3)
    assert ids(taken) == ["0-i", "0-b0", "0-b1"]
    assert [one.lane for one in taken] == [Lane.INTERACTIVE, Lane.BATCH, Lane.BATCH]
    assert ids(await take(desk)) == ["0-b2"]
    assert await take(desk) == []


async def test_bytes_end_a_read_with_the_entry_that_reaches_them(desk: Desk) -> None:
    for number in range(5):
        await desk.submit(f"0-{number}", payload=b"x" * 1000)
    assert len(await take(desk, held=2500)) == 3
    assert len(await take(desk, held=1)) == 1  # an entry larger than the bound is not left for ever
    assert len(await take(desk, held=2500)) == 1


async def test_without_a_group_it_says_so(desk: Desk) -> None:
    await desk.submit()
    await desk.redis.xgroup_destroy(desk.keys.lane(Lane.INTERACTIVE), "workers")
    with pytest.raises(ResponseError, match="NOGROUP"):
        await take(desk)


@BOTH
async def test_no_consumers_are_listed_to_count_a_lane(desk: Desk) -> None:
    """Jobs that run stay in their lane: so a large fleet's lane is counted at each submit. Groups of foreign
    programs change nothing.
    """
    lane = desk.keys.lane(desk.lane)
    await desk.redis.xgroup_create(lane, "foreign", "$")
    await desk.fill_window()
    for owner in ("A", RELEASED):
        assert len(await take(desk, entries=WINDOW // 2, owner=owner)) == WINDOW // 2
    await desk.redis.config_resetstat()
    await desk.submit("0-entered", **ROOM)
    assert await desk.parked() == []
    for number in range(WINDOW - 1):
        await desk.submit(f"0-{number}", **ROOM)
    await desk.park("0-parked")
    assert ids(await take(desk, entries=WINDOW + 1))[::WINDOW] == ["0-entered", "0-parked"]
    await desk.promote()
    stats = await desk.redis.info("commandstats")
    assert stats["cmdstat_xinfo|groups"]["calls"] == WINDOW + 2
    assert not {"cmdstat_xinfo|consumers", "cmdstat_xpending"} & stats.keys()


@pytest.mark.parametrize("full", [False, True])
async def test_joining_makes_groups_and_a_consumer_once(desk: Desk, full: bool) -> None:
    """Also at maxmemory."""
    await desk.submit()
    await desk.redis.xgroup_destroy(desk.keys.lane(Lane.BATCH), GROUP)
    await desk.redis.delete(desk.keys.lane(Lane.INTERACTIVE))
    if full:
        await desk.redis.config_set("maxmemory", "1")
    for _ in range(2):
        await desk.run(calls.join(desk.keys))
        await desk.run(calls.join(desk.keys, owner="A"))
    for lane in desk.keys.lanes:
        [group] = await desk.redis.xinfo_groups(lane)
        assert (group["name"], group["consumers"]) == (GROUP.encode(), 1)
    assert ids(await take(desk)) == ["0-a"]  # it was submitted before


async def test_a_key_that_is_no_lane_is_not_joined(desk: Desk) -> None:
    await desk.redis.delete(desk.keys.lane(Lane.BATCH))
    await desk.redis.set(desk.keys.lane(Lane.BATCH), "x")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await desk.run(calls.join(desk.keys))
