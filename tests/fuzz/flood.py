"""Garbage into a real queue: a hundred thousand entries, right, changed, damaged and of extreme shapes,
through a real server into two real workers. Entries with an id and a hash end; those of strangers are put
aside; a good job is done; no engine dies, and no job meets an exception that nobody expected."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import redis.asyncio
from support.models.spelling import CALLING_TEMPLATE
from support.servers.servers import Server
from support.workers.counting_worker import (
    assert_nothing_left,
    counted,
    model_name,
    serving,
    until,
    write_tokenizer,
)
from support.workers.work import SHARD, answer, raw_submission

from fuzz import valid
from fuzz.shapes import wire_request
from fuzz.targets.codec import body, pack
from fuzz.targets.jobs import small_request, told
from fuzz.targets.queue import lane_fields
from millstream import AsyncClient
from millstream.errors import ProtocolError
from millstream.wire import calls
from millstream.wire.keys import LANES
from millstream.wire.messages import codec
from millstream.wire.messages.job_messages import Result, State
from millstream.wire.messages.record import read_job

_CHUNK = 500
_RESUMED = 0.1  # of the entries: jobs with a token log, there before the worker
_SUBMITTED = 0.7  # of the others: with a hash of their own
_SHAPED = 0.5  # of those: with a value of an extreme shape
_WAIT_S = 600.0


@dataclass(slots=True)
class Flooded:
    """What came of it."""

    states: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    strangers: int = 0
    noted: int = 0


async def flood(server: Server, folder: Path, seed: str, entries: int) -> Flooded:
    """`folder`: for the tokenizer. Raises AssertionError where an entry is left without its end, or anything
    is left behind.
    """
    tokenizer = write_tokenizer(folder, chat=True, template=CALLING_TEMPLATE)
    chance = Random(seed)
    flooded = Flooded()
    model = model_name(tokenizer, rows=32, context=128, blocks=4096)
    async with redis.asyncio.Redis.from_url(server.url) as client, AsyncClient(server.url) as producer:
        resumed = await _resume(client, chance, round(_RESUMED * entries))
        settings: dict[str, Any] = {"max_dead": 10 * entries, "max_rows": 32, "lookahead": 256}
        async with serving(server, model, **settings) as one, serving(server, model, **settings) as other:
            ids = resumed
            for first in range(len(resumed), entries, _CHUNK):
                ids += await _pour(client, chance, first, min(_CHUNK, entries - first), flooded)
                await _publish(client, chance)
            await until(lambda: _is_drained(client), _WAIT_S)
            await _count(client, ids, flooded)
            assert await answer(producer, "w1", 3) == counted(2, 3)
            for worker in (one, other):
                assert worker.metric("engine_restarts_total") == 0
                assert worker.metric("unreadable_requests_total") == 0
        flooded.noted = await client.xlen(SHARD.dead)
        assert flooded.noted == flooded.strangers, f"{flooded.noted} notes of {flooded.strangers} strangers"
        await assert_nothing_left(client)
    return flooded


async def _resume(client: redis.asyncio.Redis, chance: Random, count: int) -> list[str]:
    """Jobs with a log, as a worker that died has left them, or anybody has written it."""
    ids = [f"0-resumed-{number}" for number in range(count)]
    for job_id in ids:
        asked = small_request(chance)
        asked.pop("deadline_ms", None)
        asked["sampling"] |= {"max_tokens": 20}
        log = [told(chance, asked) for _ in range(chance.randrange(4))]
        await calls.run(client, raw_submission(job_id, pack(asked)))
        async with client.pipeline(transaction=False) as pipeline:
            for seq, entry in enumerate(log, 1):
                pipeline.xadd(SHARD.tokens(job_id), {"k": "d", "b": entry}, id=f"0-{seq}")
            pipeline.hset(SHARD.job(job_id), "seq", max(0, len(log) + chance.choice((0, 0, 0, 0, 1))))
            await pipeline.execute()
    return ids


async def _pour(
    client: redis.asyncio.Redis, chance: Random, first: int, count: int, flooded: Flooded
) -> list[str]:
    """So many entries in one round trip; answers the ids of those that are jobs."""
    submitted, commands = [], []
    for number in range(first, first + count):
        if chance.random() < _SUBMITTED:
            shaped = chance.random() < _SHAPED
            payload = wire_request(chance) if shaped else body(chance, _request)
            version = chance.choice((1, 1, 1, 0, -1))
            # Below the first version it is refused, above it left to others.
            changes = {"lane": chance.choice(LANES), "version": version, "stream": len(payload) % 5 == 0}
            submitted.append(raw_submission(f"0-fuzz-{number}", payload, **changes))
        else:
            commands.append(_stranger(chance, flooded))
    replies = await calls.run_many(client, submitted)
    assert not [one for one in replies if isinstance(one, Exception)]
    async with client.pipeline(transaction=False) as pipeline:
        for lane, fields in commands:
            pipeline.xadd(lane, fields)
        await pipeline.execute()
    return [call.args[0] for call in submitted]  # type: ignore[misc]


def _request(chance: Random) -> dict[str, Any]:
    """One whose answer is short."""
    asked = valid.request(chance)
    asked.pop("deadline_ms", None)
    asked["sampling"] = asked.get("sampling", {}) | {
        "max_tokens": chance.choice((1, 2, 5)),
        "n": chance.choice((1, 1, 2)),
    }
    return asked


def _stranger(chance: Random, flooded: Flooded) -> tuple[str, dict[bytes, bytes]]:
    """An entry without a hash. One that names no job leaves a note, any other is stale and leaves none."""
    fields = lane_fields(chance) or {b"": b""}
    lane = chance.choice(LANES)
    try:
        entry = calls.lane_entry(lane, b"1-1", fields)
        if entry.version > 1:  # a newer version's is not this worker's to judge
            fields[b"v"] = b"1"
    except ProtocolError:
        flooded.strangers += 1
    return SHARD.lane(lane), fields


async def _publish(client: redis.asyncio.Redis, chance: Random) -> None:
    for channel in (SHARD.control, SHARD.events("0-fuzz-1")):
        await client.publish(
            channel, chance.choice((b"cancel \xff", b"cancel 0-none", b"released", chance.randbytes(20)))
        )


async def _is_drained(client: redis.asyncio.Redis) -> bool:
    await asyncio.sleep(0.05)
    return not sum([await client.xlen(lane) for lane in SHARD.lanes])


async def _count(client: redis.asyncio.Redis, ids: Sequence[str], flooded: Flooded) -> None:
    for job_id in ids:
        record = await read_job(client, SHARD, job_id)
        assert record is not None, f"{job_id} is gone"
        assert record.state.terminal, f"{job_id} is {record.state}"
        assert record.result is not None, f"{job_id} has no result"
        result = codec.decode(Result, record.result)
        flooded.states[record.state] += 1
        if record.state is State.FAILED:
            assert result.error is not None
            flooded.reasons[result.error.code] += 1
