"""Whatever is wrong with a request reaches its sender as a failed result; the worker and the other jobs go
on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from support.servers.servers import Server
from support.workers.counting_worker import assert_nothing_left, model_name, serving, until

from millstream import AsyncClient, JobFailed, Result
from millstream.wire import calls
from millstream.wire.keys import GROUP, RELEASED, QueueKeys
from millstream.wire.messages import codec
from millstream.wire.messages.messages import Request
from millstream.wire.messages.record import read_job
from millstream.wire.messages.replies import SubmitOutcome
from millstream.wire.versions import WIRE_VERSION

SHARD = QueueKeys("default").shard(0)


# What the client sends, and only a worker can refuse: field, value as shown, remedy.
SENT: list[tuple[dict[str, Any], str, str, str]] = [
    ({"prompt": "w1 " * 80}, "prompt", "'80 tokens'", "shorten it"),
    ({"token_ids": [1] * 64}, "token_ids", "'64 tokens'", "shorten it"),
    ({"prompt": "w1 w2", "max_tokens": 63}, "sampling.max_tokens", "63", "has room for 62"),
    ({"prompt": "w1", "logit_bias": {5000: 1.0}}, "sampling.logit_bias", "5000", "vocabulary of 1000"),
    ({"prompt": "w1", "stop_token_ids": [1000]}, "sampling.stop_token_ids", "1000", "use ids below it"),
    ({"token_ids": [1000]}, "token_ids", "1000", "vocabulary of 1000"),
    ({"messages": [{"role": "user", "content": "w1"}]}, "messages", "['user']", "no chat template"),
    ({"prompt": "w13"}, "prompt", "13", "leave it out"),  # refused by the engine itself
]
# The same of what only other clients send.
RAW: list[tuple[bytes, str, str, str]] = [
    (b"\xc1garbage", "request", "b'\\xc1garbage'", "a byte that begins no value; send a msgpack map"),
    (b"\x91" * 200_000, "request", "b'\\x91", "nested too deep; send a msgpack map"),
    (codec.pack(["not", "a", "map"]), "request", "['not', 'a', 'map']", "must be a msgpack map"),
    (codec.pack({}), "prompt", "None", "give exactly one of prompt, messages and token_ids"),
    *(
        (codec.pack({"prompt": "w1"} | fields), field, value, remedy)
        for fields, field, value, remedy in (
            ({"sampling": {"temperature": -1}}, "sampling.temperature", "-1", "must be at least 0"),
            ({"sampling": 5}, "sampling", "5", "must be a map"),
            ({"token_ids": [1]}, "token_ids", "(1,)", "give exactly one of prompt, messages and token_ids"),
        )
    ),
]


async def test_a_bad_request_is_answered_with_its_field_value_and_remedy(
    valkey: Server, tokenizer: Path
) -> None:
    """And those beside it are computed."""
    bad: dict[str, list[str]] = {}
    async with AsyncClient(valkey.url) as client, redis.asyncio.Redis.from_url(valkey.url) as direct:
        for fields, *expected in SENT:
            bad[(await client.submit(**fields)).id] = expected
        for number, (payload, *expected) in enumerate(RAW):
            await submit_raw(direct, f"0-raw-{number}", payload)
            bad[f"0-raw-{number}"] = expected
        await submit_raw(direct, "0-version", codec.pack({"prompt": "w1"}), version=0)
        bad["0-version"] = ["version", "0", "send 1 or a later one"]
        good = await client.submit("w1", max_tokens=2)
        async with serving(valkey, model_name(tokenizer, context=64, refuse=13)):
            outcomes = await client.wait_many([*bad, good.id], timeout_s=30)
        await assert_nothing_left(direct)
    result = outcomes.pop(good.id)
    assert isinstance(result, Result)
    assert result.choices[0].text == "w2 w3"
    for job_id, outcome in outcomes.items():
        assert isinstance(outcome, JobFailed), outcome
        assert outcome.reason == "bad_request"
        error = outcome.result.error
        field, value, remedy = bad[job_id]
        assert error.field == field, error
        assert remedy in error.message
        assert f"(got {value}" in error.message
        assert "Request" not in error.message, "no class names"


async def test_a_refused_request_of_several_choices_takes_no_seat_of_others(
    valkey: Server, tokenizer: Path, gate: Path
) -> None:
    (gate / "2").touch()
    model = model_name(tokenizer, context=64, gate=gate)
    async with AsyncClient(valkey.url) as client, serving(valkey, model):
        good = await client.submit("w1", max_tokens=4, stream=True)
        events = client.stream(good.id)
        await anext(events)
        bad = await client.submit("w1 " * 80, n=4)
        with pytest.raises(JobFailed, match="80 tokens"):
            await client.wait(bad.id, timeout_s=30)
        (gate / "2").unlink()
        assert (await client.wait(good.id, timeout_s=15)).choices[0].text == "w2 w3 w4 w5"
        await events.aclose()


async def test_logits_that_are_no_numbers_fail_their_job_alone(valkey: Server, tokenizer: Path) -> None:
    async with AsyncClient(valkey.url) as client:
        async with serving(valkey, model_name(tokenizer, nan=15)):
            bad = await client.submit("w11", max_tokens=20, stream=True)
            good = await client.submit("w100", max_tokens=20)
            with pytest.raises(JobFailed, match="not finite after 3 output tokens") as failed:
                await client.wait(bad.id, timeout_s=30)
            assert (await client.wait(good.id, timeout_s=30)).usage.output_tokens == 20
            text = [event.text async for event in client.stream(bad.id)]
    assert failed.value.reason == "model_error"
    assert failed.value.result.choices[0].text == "".join(text) == "w12 w13 w14"


async def test_exactly_what_fits_is_computed(valkey: Server, tokenizer: Path) -> None:
    async with AsyncClient(valkey.url) as client, serving(valkey, model_name(tokenizer, context=64)):
        asked = await client.submit("w1 w2", max_tokens=62)
        unasked = await client.submit("w1 " * 60 + "w1")
        assert (await client.wait(asked.id, timeout_s=30)).usage.output_tokens == 62
        assert (await client.wait(unasked.id, timeout_s=30)).usage.output_tokens == 3


async def submit_raw(
    redis_client: redis.asyncio.Redis, job_id: str, payload: bytes, version: int = 1
) -> None:
    call = calls.submit(
        SHARD, job_id=job_id, lane="batch", payload=payload, digest="d", version=version, deadline_ms=None,
        stream=False, max_entries=100, max_bytes=10**6,
    )  # fmt: skip
    assert (await calls.run(redis_client, call)).outcome is SubmitOutcome.ACCEPTED


async def test_a_log_that_cannot_be_read_fails_its_job_alone(
    server: Server, tokenizer: Path, redis_client: redis.asyncio.Redis
) -> None:
    async with AsyncClient(server.url) as client:
        bad = await client.submit("w1", max_tokens=2)
        await redis_client.xadd(SHARD.tokens(bad.id), {"k": "?", "b": "of a stranger"}, id="0-1")
        async with serving(server, model_name(tokenizer)):
            with pytest.raises(JobFailed) as failed:
                await client.wait(bad.id, timeout_s=15)
            good = await client.submit("w1", max_tokens=2)
            assert (await client.wait(good.id, timeout_s=15)).choices[0].text == "w2 w3"
    assert failed.value.reason == "log_damaged"
    await assert_nothing_left(redis_client)


# Each a delta, and the choices' texts that the result has of what readers had.
STRANGE: list[tuple[dict[str, Any], list[str]]] = [
    ({"token_ids": [1000], "text": "w1000"}, ["w1000"]),  # beyond the vocabulary: an engine would die of it
    ({"token_ids": [-1], "text": "w"}, []),
    ({"index": 1, "token_ids": [2], "text": "w2"}, ["w2"]),
    ({"token_ids": [2], "text": "w2"}, ["w2"]),  # without the log-probabilities that were asked for
    ({"token_ids": [2], "text": "w2", "logprobs": [{"token_id": "9" * 30, "token": "", "logprob": 0.0}]}, []),
]


async def test_logs_that_no_worker_wrote_fail_their_jobs(valkey: Server, tokenizer: Path) -> None:
    async with AsyncClient(valkey.url) as client, redis.asyncio.Redis.from_url(valkey.url) as direct:
        bad = [await client.submit("w1", max_tokens=5, logprobs=True) for _ in STRANGE]
        for job, (told, _) in zip(bad, STRANGE, strict=True):
            body = codec.pack({"choices": [told]})
            await direct.xadd(SHARD.tokens(job.id), {"k": "d", "b": body}, id="0-1")
            await direct.hset(SHARD.job(job.id), "seq", 1)
        good = await client.submit("w1", max_tokens=2)
        async with serving(valkey, model_name(tokenizer)):
            ends = await client.wait_many([good.id, *(job.id for job in bad)], timeout_s=30)
    result = ends.pop(good.id)
    assert isinstance(result, Result)
    assert result.choices[0].text == "w2 w3"
    for (told, texts), failed in zip(STRANGE, ends.values(), strict=True):
        assert isinstance(failed, JobFailed), told
        assert failed.reason == "log_damaged", told
        assert [choice.text for choice in failed.result.choices] == texts, told


async def test_jobs_whose_keys_are_overwritten_hold_up_no_other(server: Server, tokenizer: Path) -> None:
    async with AsyncClient(server.url) as client, redis.asyncio.Redis.from_url(server.url) as direct:
        typed, started = [await client.submit("w1", max_tokens=2) for _ in range(2)]
        await direct.set(SHARD.job(typed.id), "something else")
        await direct.hdel(SHARD.job(started.id), "attempt")
        await direct.xgroup_create(SHARD.lane("batch"), GROUP, id="0")

        async def both_read() -> bool:
            return (await direct.xpending(SHARD.lane("batch"), GROUP))["pending"] == 2

        async with serving(server, model_name(tokenizer)):
            await until(both_read)
            good = await client.submit("w1", max_tokens=2)
            assert (await client.wait(good.id, timeout_s=15)).choices[0].text == "w2 w3"


async def test_an_entry_that_names_no_job_is_put_aside(
    server: Server, tokenizer: Path, redis_client: redis.asyncio.Redis
) -> None:
    async with AsyncClient(server.url) as client, serving(server, model_name(tokenizer)):
        await redis_client.xadd(SHARD.lane("batch"), {"hello": "world"})
        job = await client.submit("w1", max_tokens=2)
        assert (await client.wait(job.id, timeout_s=30)).choices[0].text == "w2 w3"
    assert await redis_client.xlen(SHARD.dead) == 1
    await assert_nothing_left(redis_client)


async def test_a_job_of_another_version_is_left_to_others_uncharged(
    server: Server, tokenizer: Path, redis_client: redis.asyncio.Redis
) -> None:
    await submit_raw(redis_client, "0-newer", codec.encode(Request(prompt="w1")), version=WIRE_VERSION + 1)

    async def given_back() -> bool:
        rows = await calls.scan_pending(redis_client, SHARD, lane="batch", start="-", count=9)
        return [row.owner for row in rows] == [RELEASED]

    async with AsyncClient(server.url) as client, serving(server, model_name(tokenizer)):
        job = await client.submit("w1", max_tokens=2)
        await client.wait(job.id, timeout_s=30)
        await until(given_back)
        again = await client.submit("w5", max_tokens=2)
        await client.wait(again.id, timeout_s=30)
    record = await read_job(redis_client, SHARD, "0-newer")
    assert record is not None
    assert (record.state, record.attempt, record.died) == ("queued", 0, 0)
    assert (await redis_client.xpending(SHARD.lane("batch"), GROUP))["pending"] == 1
