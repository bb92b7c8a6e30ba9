"""Dead letters are bounded by their bytes, too."""

from __future__ import annotations

import os

from support.wire.desk import Desk

from millstream.wire import calls

SIZE = 12 * 2**20
MOST_BYTES = 256 * 2**20


async def test_the_oldest_go_where_letters_are_large(desk: Desk) -> None:
    fields = {"owner": "A", "reason": "garbage", "max_dead": 1000}
    large = os.urandom(SIZE)
    kept = []
    for number in range(30):
        await desk.redis.xadd(desk.keys.lane(desk.lane), {"b": large if number < 26 else b"small"})
        entry = await desk.deliver()
        assert await desk.run(calls.discard(desk.keys, lane=desk.lane, entry_id=entry, **fields))
        kept.append(await desk.redis.xlen(desk.keys.dead))
        assert await desk.redis.memory_usage(desk.keys.dead, samples=0) < MOST_BYTES + 2 * SIZE
    assert kept[:16] == list(range(1, 17))
    assert 16 < kept[25] < 23  # Redis allocates more for each than it has
    assert kept[29] > 16
    [(_, newest)] = await desk.redis.xrevrange(desk.keys.dead, count=1)
    assert newest[b"b"] == b"small"
