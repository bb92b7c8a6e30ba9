"""What a stranger with a right to write leaves in the queue ends nobody: no worker, no reader, no scan."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis
from support.servers.servers import Server
from support.workers.counting_worker import assert_nothing_left, counted, until_read
from support.workers.work import LANE, SHARD, Work, answer

from millstream import AsyncClient, ProtocolError
from millstream.wire.calls.upkeep import lane_entry
from millstream.wire.keys import GROUP
from millstream.wire.messages.record import parse_event
from millstream.wire.state.heartbeat import read_workers


@pytest.fixture
async def strange(redis_client: Redis) -> Redis:
    await redis_client.xgroup_create(LANE, GROUP, "0", mkstream=True)
    return redis_client


async def test_a_worker_survives_entries_that_no_worker_wrote(
    server: Server, work: Work, strange: Redis
) -> None:
    """Half a job, with a hash behind it, so that a scan takes it for an overdue one; a job that is held under
    a name that is no text."""
    entry = await strange.xadd(LANE, {"id": "0-half"})
    await strange.hset(SHARD.job("0-half"), mapping={"state": "running", "entry": entry, "attempt": 1})
    await strange.xreadgroup(GROUP, "gone", {LANE: ">"})
    async with AsyncClient(server.url) as client:
        job = await client.submit("w1", max_tokens=3)
        await strange.xreadgroup(GROUP, b"\xff\xfe", {LANE: ">"})
        assert await read_workers(strange, SHARD) == []

        async with work():
            await until_read(lambda: strange.xlen(SHARD.dead), lambda count: count == 1)
            assert (await client.wait(job.id, timeout_s=30)).text == counted(2, 3)
            assert await answer(client, "w1", 3) == counted(2, 3)
    await strange.delete(SHARD.job("0-half"))
    await assert_nothing_left(strange)


def test_numbers_are_those_of_a_stream() -> None:
    """Python refuses to read a number of many thousand digits by an error of its own."""
    for message in (b"9" * 5000 + b"-1 d x", b"1-" + b"9" * 5000 + b" d x", b"1" * 41 + b"-1 d x"):
        with pytest.raises(ProtocolError):
            parse_event(message)
    assert parse_event(b"18446744073709551615-18446744073709551615 d x").seq == 2**64 - 1


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({b"v": b"1", b"b": b"x"}, "no field 'id'"),
        ({b"id": b"0-a", b"b": b"x"}, "no field 'v'"),
        ({b"id": b"0-a", b"v": b"1"}, "no field 'b'"),
        ({b"id": b"\xffSECRET", b"v": b"1", b"b": b"x"}, "no text"),
        ({b"id": b"0-a", b"v": b"SECRET", b"b": b"x"}, "no number"),
        ({b"id": b"0-a", b"v": b"1" * 5000, b"b": b"x"}, "no number"),
        ({b"id": b"0-SECRET\n\x1b[2J", b"v": b"1", b"b": b"x"}, "its id has the wrong form"),
        ({b"id": b"SECRET", b"v": b"1", b"b": b"x"}, "its id has the wrong form"),
    ],
)
def test_what_is_no_job_is_named_but_not_shown(fields: dict[bytes, bytes], problem: str) -> None:
    """The message goes into the log and the note."""
    with pytest.raises(ProtocolError, match=problem) as failed:
        lane_entry("batch", b"1-1", fields)
    assert "SECRET" not in str(failed.value)
