"""The queue's model in the metadata, in its shards and in the log of a job that another model has begun."""

from __future__ import annotations

from dataclasses import replace

import pytest
import redis.asyncio
from redis.exceptions import ResponseError
from support.servers.servers import BOTH
from support.wire.desk import Desk

from millstream.wire import calls
from millstream.wire.calls import Claim, run
from millstream.wire.keys import RELEASED, QueueKeys
from millstream.wire.messages.job_messages import Timing
from millstream.wire.messages.record import MARKER
from millstream.wire.messages.script_replies import AppendOutcome, EndOutcome, StartReply
from millstream.wire.state.queue_info import QueueInfo, open_queue, record_worker, serve_model
from millstream.wire.versions import TAKEN, Versions

pytestmark = BOTH
KEYS = QueueKeys("docs")


async def recorded(
    client: redis.asyncio.Redis, model: str, digest: str, *, replace: bool = False
) -> QueueInfo:
    return await run(client, record_worker(KEYS, TAKEN, model=model, model_digest=digest, replace=replace))


async def test_the_first_model_stays_until_it_is_replaced(redis_client: redis.asyncio.Redis) -> None:
    await open_queue(redis_client, "docs")
    named = await recorded(redis_client, "a", "")  # by an older worker
    assert (named.model, named.model_digest) == ("a", "")
    for model, digest in (("b", "2"), ("c", "3"), ("b again", "2")):
        stored = await recorded(redis_client, model, digest)
        assert stored.model_digest == "2"
    assert stored.model == "b again"
    stored = await recorded(redis_client, "c", "3", replace=True)
    assert (stored.model, stored.model_digest) == ("c", "3")


async def test_a_refused_worker_changes_nothing(redis_client: redis.asyncio.Redis) -> None:
    await open_queue(redis_client, "docs")
    before = await recorded(redis_client, "a", "1")
    call = record_worker(KEYS, Versions(TAKEN.low, TAKEN.high + 5), model="b", model_digest="2")
    assert await run(redis_client, call) == before


async def test_a_shard_starts_nothing_for_another_model(desk: Desk) -> None:
    await desk.run(serve_model(desk.keys, "1"))
    await desk.submit()
    entry = await desk.deliver()
    before = await desk.redis.hgetall(desk.keys.job("0-a"))
    assert await desk.start(entry, model_digest="2") == StartReply(False, served="1")
    assert await desk.redis.hgetall(desk.keys.job("0-a")) == before
    assert not await desk.redis.exists(desk.keys.tokens("0-a"))
    assert (await desk.start(entry, model_digest="")).started  # of a worker that does not report it
    assert (await desk.start(entry, model_digest="1", nonce="n")).started


async def test_the_first_start_records_the_model_of_a_new_shard(desk: Desk) -> None:
    await desk.submit()
    assert (await desk.start(await desk.deliver(), model_digest="1")).started
    assert await desk.redis.hget(desk.keys.model, "digest") == b"1"


@pytest.mark.parametrize(("first", "second"), [("1", "2"), ("1", "1"), ("", "2"), ("1", "")])
async def test_another_model_begins_the_log_anew(desk: Desk, first: str, second: str) -> None:
    """One that is not known goes on with the log, as before."""
    claim = await begun(desk, first)
    await desk.run(desk.releasing(claim))
    await desk.run(desk.reclaiming(claim.entry_id, RELEASED))
    await desk.run(serve_model(desk.keys, second or first))
    again = await desk.start(claim.entry_id, "B", model_digest=second)
    anew = (first, second) == ("1", "2")
    assert (again.attempt, again.last_seq) == (2, 0 if anew else 1)
    times = (again.compiled_ms, again.admitted_ms, again.first_token_ms)
    assert times == ((None, None, None) if anew else (1, 2, 3))
    assert again.log == tuple(await desk.log())
    assert [(one.kind, one.cursor) for one in again.log][-1] == (MARKER, "2-0" if anew else "2-1")
    assert again.log[-1].body.decode() == second
    assert len(again.log) == (1 if anew else 3)
    taken = replace(claim, owner="B", attempt=2)
    assert (await desk.append(claim, 2)).outcome is AppendOutcome.FENCED
    assert (await desk.append(taken, again.last_seq + 1)).outcome is AppendOutcome.OK
    assert await desk.finish(taken, again.last_seq + 2) is EndOutcome.OK


async def test_a_full_server_keeps_the_log_until_a_new_model_may_begin(desk: Desk) -> None:
    await open_queue(desk.redis, "docs")
    claim = await begun(desk, "1")
    await desk.run(desk.releasing(claim))
    await desk.run(desk.reclaiming(claim.entry_id, RELEASED))
    await desk.run(serve_model(desk.keys, "2"))
    before = await desk.state()
    await desk.redis.config_set("maxmemory", "1")
    try:
        with pytest.raises(ResponseError, match="maxmemory"):
            await desk.start(claim.entry_id, "B", model_digest="2")
        assert await desk.state() == before
        await desk.run(serve_model(desk.keys, "2"))  # passes, as does the record of a model
        await desk.run(record_worker(KEYS, TAKEN, model="b", model_digest="2"))
        forced = await desk.start(claim.entry_id, "B", model_digest="2", force_at_maxmemory=True)
    finally:
        await desk.redis.config_set("maxmemory", "0")
    assert (forced.attempt, forced.last_seq, len(forced.log)) == (2, 0, 1)


async def begun(desk: Desk, digest: str) -> Claim:
    """A job of whose output a model of this digest has written one entry."""
    await desk.submit()
    entry = await desk.deliver()
    assert (await desk.start(entry, model_digest=digest)).started
    claim = Claim("0-a", entry, "A", 1)
    timing = Timing(compiled_ms=1, admitted_ms=2, first_token_ms=3)
    first = calls.append(desk.keys, claim, seq=1, body=b"x", publish=True, timing=timing)
    assert (await desk.run(first)).outcome is AppendOutcome.OK
    return claim
