"""All calls of a gateway, one after the other, with what they must come to."""

from __future__ import annotations

import asyncio
from typing import Any

from millstream.gateway.redis.batch_calls import (
    LOST,
    PartCounts,
    cancel_batch,
    commit_part,
    create_batch,
    move_batch,
    renew_batch,
    restore_part,
    take_batch,
)
from millstream.gateway.redis.file_calls import (
    OnceFile,
    Sweep,
    add_file,
    claim_sweep,
    register_store,
    remove_file,
)
from millstream.gateway.redis.gateway_calls import (
    Limits,
    RequestEnd,
    charge,
    claim_once,
    close_request,
    gateway_alive,
    open_request,
    uncharge,
)
from millstream.gateway.redis.tenant_keys import TenantKeys
from support.wire.desk import TTL_MS, Desk


async def every_post(desk: Desk) -> None:
    """Requests of a gateway: charged, repeated, ended; and its files."""
    keys, limits = TenantKeys("acme"), Limits(10, 1000, 100)
    charged = {"tokens": 60, "gateway": "g", "gateway_ms": 1}
    assert not (await desk.run(charge(keys, limits, id="a q", ttl_ms=1, **charged))).refused_by
    await asyncio.sleep(0.01)  # it is forgotten
    for _ in range(2):  # the same job
        assert not (await desk.run(charge(keys, limits, id="b q", ttl_ms=TTL_MS, **charged))).refused_by
    assert (await desk.run(charge(keys, limits, id="c q", ttl_ms=TTL_MS, **charged))).refused_by == "enqueued"
    await desk.run(uncharge(keys, ["60 no q", "60 b q"]))
    assert not (await desk.run(charge(keys, limits, id="c q", ttl_ms=TTL_MS, **charged))).refused_by
    await desk.run(uncharge(keys, ["60 c q"]))
    one = {"digest": "d", "own_id": "a", "replica": "r"}
    given = {"queue": "default", "patient": True, "window_ms": TTL_MS, "lease_ms": TTL_MS, "keep_ms": TTL_MS}
    replies = [
        await desk.run(open_request(keys, repeated=repeated, **one, **given)) for repeated in (False, True)
    ]
    assert [reply.outcome for reply in replies] == ["new", "wait"]
    assert await desk.run(close_request(keys, how=RequestEnd.LEFT, **one))
    assert (await desk.run(open_request(keys, repeated=True, **one, **given))).outcome == "joined"
    other = open_request(keys, repeated=True, **one | {"digest": "e"}, **given)
    assert (await desk.run(other)).outcome == "new"  # it waits for nobody
    await desk.run(gateway_alive(keys, replica="r", window_ms=TTL_MS))
    assert not await desk.run(close_request(keys, how=RequestEnd.ABANDONED, **one))
    assert await desk.run(close_request(keys, how=RequestEnd.ANSWERED, **one))
    added = [
        await desk.run(add_file(keys, id, {"bytes": "1"}, expires_ms=expires_ms, once=once))
        for id, expires_ms, once in (
            ("file-1", 0, None),
            ("file-1", 2**50, OnceFile("f", "d", TTL_MS)),
            ("file-2", 0, OnceFile("f", "d", TTL_MS)),
        )
    ]
    assert added == [("new", "file-1"), ("new", "file-1"), ("same", "file-1")]
    assert [await desk.run(remove_file(keys, "file-1")) for _ in range(2)] == [True, False]
    assert [(await desk.run(register_store(id)))[0] for id in (None, "a", "b")] == ["", "a", "a"]
    for kind in Sweep:
        assert [await desk.run(claim_sweep(kind, while_ms=TTL_MS)) for _ in range(2)] == [True, False]
    claim = claim_once(keys, key_digest="k", digest="d", queue="default", ttl_ms=TTL_MS)
    assert [(await desk.run(claim))[0] for _ in range(2)] == ["new", "same"]


async def every_batch(desk: Desk, redis: Any) -> None:
    """A gateway's batch: charged, taken, taken over, written, cancelled. `redis`: as a gateway."""
    keys, one = TenantKeys("acme"), "batch_1"
    charged = {"id": one, "tokens": 9, "gateway": "g", "gateway_ms": 1}
    await desk.run(charge(keys, Limits(max_enqueued_tokens=9), ttl_ms=TTL_MS, **charged))
    new = create_batch(keys, one, {"total": "1"}, window_s=60, charge=f"9 {one}", lasts_ms=TTL_MS)
    assert [await desk.run(new) for _ in range(2)] == [True, False]
    assert await redis.zcard(keys.enqueued) == 1
    takes = [take_batch(keys, one, holder=name, lease_ms=TTL_MS) for name in "ab"]
    assert [(await desk.run(take)).outcome for take in takes] == ["taken", "held"]
    assert (await desk.run(renew_batch(keys, one, holder="a", lease_ms=0))).status == "validating"
    assert (await desk.run(takes[1])).outcome == "taken"
    assert (await desk.run(renew_batch(keys, one, holder="a", lease_ms=TTL_MS))).status == LOST
    live = renew_batch(keys, one, holder="b", lease_ms=TTL_MS, live_tokens=7)
    assert (await desk.run(live)).status == "validating"
    assert await redis.hget(keys.batch(one), "live") == b"b 7"
    counts, parts = PartCounts(completed=1, output_tokens=5), [("output x 1 9", "1")]
    given = {"counts": counts, "parts": parts, "behind": 0}
    writes = [commit_part(keys, one, holder=name, **given) for name in "abb"]
    assert [await desk.run(write) for write in writes] == [False, True, True]
    assert await redis.hget(keys.batch(one), "live") == b"b 2"
    late = commit_part(keys, one, holder="b", **given | {"parts": [("output y 1 9", "2")]})
    assert not await desk.run(late)  # it does not know of the first part
    assert await redis.hget(keys.batch(one), "completed") == b"1"  # a repeated commit counts once
    lost = {"place": 0, "before": "output x 1 9", "after": "output z 0 0", "counts": PartCounts(-1, 1)}
    restores = [restore_part(keys, one, holder=name, **lost) for name in "abb"]
    assert [await desk.run(restore) for restore in restores] == [False, True, True]
    assert not await desk.run(restore_part(keys, one, holder="b", **lost | {"after": "output y 1 9"}))
    assert await redis.hmget(keys.batch(one), "completed", "failed") == [b"0", b"1"]
    moves = [("a", "in_progress"), ("b", "in_progress"), ("b", "in_progress")]
    for holder, status in moves:
        move = move_batch(keys, one, {}, holder=holder, change=("validating", status), ttl_ms=TTL_MS)
        assert await desk.run(move) == (LOST if holder == "a" else status)
    assert [await desk.run(cancel_batch(keys, id)) for id in (one, "batch_2")] == ["cancelling", None]
    end = move_batch(keys, one, {"x": "y"}, holder="b", change=("cancelling", "cancelled"), ttl_ms=TTL_MS)
    assert [await desk.run(end) for _ in range(2)] == ["cancelled", "cancelled"]
    assert (await desk.run(takes[0])).outcome == "ended"
    assert [await redis.zcard(keys.enqueued), await redis.lrange(keys.batch_lines(one), 0, -1)] == [0, []]
    for status in ("failed", "completed", "expired"):
        await desk.run(create_batch(keys, status, {"total": "1"}, window_s=60, charge="", lasts_ms=TTL_MS))
        take = take_batch(keys, status, holder="a", lease_ms=TTL_MS)
        assert (await desk.run(take)).outcome == "taken"
        end = move_batch(keys, status, {}, holder="a", change=("validating", status), ttl_ms=TTL_MS)
        assert await desk.run(end) == status
        assert (await desk.run(take)).outcome == "ended"
