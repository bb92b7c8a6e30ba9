"""How scripts are loaded and sent."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files
from typing import Any

import pytest
import redis.asyncio
from redis.exceptions import NoScriptError, ResponseError
from support.wire.desk import Desk

from millstream.errors import ProtocolError
from millstream.gateway.redis.gateway_calls import GATEWAY
from millstream.wire.calls import Claim, ScriptCall, cancel, expire, expire_one, look, run, run_many, take
from millstream.wire.calls.scripts import PROTOCOL, script, script_paths
from millstream.wire.keys import GROUP, RELEASED, QueueKeys
from millstream.wire.messages.script_replies import AppendOutcome, AppendReply, CancelOutcome

NAMES = sorted(script_paths())
ALL = [(name, package) for package in (PROTOCOL, GATEWAY) for name in sorted(script_paths(package))]


@pytest.mark.parametrize(("name", "package"), ALL)
async def test_every_script_compiles(redis_client: redis.asyncio.Redis, name: str, package: str) -> None:
    sent = script(name, package)
    assert await redis_client.script_load(sent.source) == sent.sha1
    assert sent.sha1 == hashlib.sha1(sent.source.encode()).hexdigest()
    assert "include" not in sent.source


def test_scripts_name_their_arguments_at_the_top() -> None:
    for name, package in ALL:
        path = files(package).joinpath("lua", script_paths(package)[name])
        for line in path.read_text("utf-8").splitlines():
            assert line.startswith("local ") or not re.search(r"(KEYS|ARGV)\[\d+\]", line), f"{name}: {line}"


def test_scripts_publish_as_their_queue_does() -> None:
    """By the command that they are given: a channel of a Cluster has another."""
    assert not [name for name in NAMES if "PUBLISH" in script(name).source]
    queue = Desk(None, QueueKeys("docs", sharded=True).shard(0))  # type: ignore[arg-type]
    held = Claim("0-a", "1-1", "A", 1)
    sent = [
        queue.starting("1-1"), queue.appending(held, 1), queue.finishing(held), queue.burying(held),
        queue.releasing(held), cancel(queue.keys, job_id="0-a", ttl_ms=1),
        expire(queue.keys, limit=1, ttl_ms=1),
        expire_one(queue.keys, job_id="0-a", ttl_ms=1),
        look(queue.keys, job_id="0-a", attempt=1, seq=1, result=b"", ttl_ms=1),
    ]  # fmt: skip
    assert [call.script.name for call in sent if "SPUBLISH" not in call.args] == []
    publishing = [name for name in NAMES if "publish" in script(name).source]
    assert {call.script.name for call in sent} == {*publishing}


def test_a_part_is_taken_once() -> None:
    assert script("expire").source.count("local function read_job") == 1
    assert script("finish").source.count("local function log") == 1


def test_scripts_and_python_name_the_same_group() -> None:
    assert f"local GROUP, RELEASED = '{GROUP}', '{RELEASED}'" in script("renew").source


async def test_a_server_that_knows_no_script_learns_it(desk: Desk) -> None:
    await desk.redis.script_flush()
    with pytest.raises(NoScriptError):
        await desk.redis.execute_command(*desk.submitting().by_digest)
    await desk.submit()
    assert await desk.redis.script_exists(script("submit").sha1) == [True]


async def test_many_calls_share_a_round_trip_also_after_a_script_flush(desk: Desk) -> None:
    await desk.run(desk.submitting("0-0"))
    await desk.redis.script_flush()
    replies = await run_many(desk.redis, [desk.submitting(f"0-{number % 5}") for number in range(10)])
    assert [reply.outcome for reply in replies if not isinstance(reply, Exception)] == [
        "exists", "accepted", "accepted", "accepted", "accepted",
        "exists", "exists", "exists", "exists", "exists",
    ]  # fmt: skip
    assert await desk.redis.xlen(desk.keys.lane(desk.lane)) == 5


async def test_one_bad_call_leaves_the_others_alone(desk: Desk) -> None:
    held = await desk.begin()
    await desk.redis.set(desk.keys.job("0-broken"), "not a hash")
    broken = Claim("0-broken", held.entry_id, "A", 1)
    replies = await run_many(desk.redis, [desk.appending(one, 1) for one in (held, broken, held)])
    assert replies[0] == AppendReply(AppendOutcome.OK, 1)
    assert isinstance(replies[1], ResponseError)
    assert replies[2] == AppendReply(AppendOutcome.DUPLICATE, 1)


async def test_no_calls_are_no_round_trip() -> None:
    assert await run_many(None, []) == []


async def test_a_reply_that_is_not_the_scripts_is_a_protocol_error(desk: Desk) -> None:
    call: ScriptCall[Any] = ScriptCall(
        script("drop_consumer"), (desk.keys.lane(desk.lane),), ("A",), lambda reply: reply[7]
    )
    with pytest.raises(ProtocolError, match="drop_consumer returned int"):
        await run(desk.redis, call)
    (error,) = await run_many(desk.redis, [call])
    assert isinstance(error, ProtocolError)


@pytest.mark.parametrize("value", [0, -1, 10**300])
def test_a_number_no_server_takes_is_refused_before_sending(value: int) -> None:
    shard = Desk(None)  # type: ignore[arg-type]
    for name, call in (
        ("ttl_ms", lambda: cancel(shard.keys, job_id="0-a", ttl_ms=value)),
        ("cost", lambda: shard.submitting(cost=value)),
        ("max_entries", lambda: take(shard.keys, owner="A", max_entries=value, max_bytes=1)),
        ("max_bytes", lambda: take(shard.keys, owner="A", max_entries=1, max_bytes=value)),
    ):
        with pytest.raises(ValueError, match=f"{name} must be at least 1 and at most"):
            call()


async def test_the_longest_time_to_live_is_one_that_servers_take(desk: Desk) -> None:
    await desk.submit()
    assert await desk.run(cancel(desk.keys, job_id="0-a", ttl_ms=2**52)) is CancelOutcome.CANCELLED
    assert await desk.redis.pttl(desk.keys.job("0-a")) > 2**51
