"""Whatever is wrong with a request reaches its sender as a failed result; the worker and the other jobs go
on."""

from __future__ import annotations

from typing import Any

import pytest
from redis.asyncio import Redis
from support.servers.servers import BOTH
from support.workers.counting_worker import assert_nothing_left, until_read
from support.workers.work import LANE, SHARD, Work, answer, outcome, raw_submission, read_to

from millstream import AsyncClient, JobFailed, Result
from millstream.wire import calls
from millstream.wire.keys import GROUP
from millstream.wire.messages import codec
from millstream.wire.messages.sampling import SamplingParams
from millstream.wire.messages.script_replies import SubmitOutcome

# What the client sends, and only a worker can refuse: field, value as shown, remedy.
SENT: list[tuple[dict[str, Any], str, str, str]] = [
    ({"prompt": "w1 " * 80}, "prompt", "'80 tokens'", "reduce the length of the prompt"),
    ({"token_ids": [1] * 64}, "token_ids", "'64 tokens'", "reduce the length of the token_ids"),
    (
        {"prompt": "w1 w2", "max_tokens": 63},
        "sampling.max_tokens",
        "63",
        "2 in the prompt, 63 in the completion",
    ),
    ({"prompt": "w1", "logit_bias": {5000: 1.0}}, "sampling.logit_bias", "5000", "vocabulary of 1000"),
    ({"prompt": "w1", "stop_token_ids": [1000]}, "sampling.stop_token_ids", "1000", "use ids below it"),
    (
        {"prompt": "w1", "sampling": SamplingParams(allowed_token_ids=(1, 1000))},
        "sampling.allowed_token_ids", "1000", "use ids below it",
    ),
    (
        {"prompt": "w1", "sampling": SamplingParams(allowed_token_ids=(1, 2), bad_words=("w1", "w2"))},
        "sampling.bad_words", "['w1', 'w2']", "allow other tokens",
    ),
    (
        {"prompt": "w1", "sampling": SamplingParams(bad_words=(" ",))},
        "sampling.bad_words", "[' ']", "leave it out",
    ),
    (
        {"prompt": "w1", "sampling": SamplingParams(thinking_token_budget=0)},
        "sampling.thinking_token_budget", "0", "a model that thinks",
    ),
    ({"token_ids": [1000]}, "token_ids", "1000", "vocabulary of 1000"),
    ({"messages": [{"role": "user", "content": "w1"}]}, "messages", "['user']", "no chat template"),
    ({"prompt": "w13"}, "prompt", "13", "leave it out"),  # refused by the engine itself
]  # fmt: skip
# The same of what only other clients send.
RAW: list[tuple[bytes, str, str, str]] = [
    (b"\xc1garbage", "request", "b'\\xc1garbage'", "a byte that begins no value; send a msgpack map"),
    (b"\x91" * 200_000, "request", "200,000 bytes", "nested too deep; send a msgpack map"),
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


async def test_a_bad_request_is_answered_with_field_value_and_remedy(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    """And those beside it are computed."""
    bad: dict[str, list[str]] = {}
    for fields, *expected in SENT:
        bad[(await client.submit(**fields)).id] = expected
    for number, (payload, *expected) in enumerate(RAW):
        await submit_raw(redis_client, f"0-raw-{number}", payload)
        bad[f"0-raw-{number}"] = expected
    await submit_raw(redis_client, "0-version", codec.pack({"prompt": "w1"}), version=0)
    bad["0-version"] = ["version", "0", "send 1 or a later one"]
    good = await client.submit("w1", max_tokens=2)
    async with work(context=64, refuse=13):
        outcomes = await client.wait_many([*bad, good.id], timeout_s=30)
    await assert_nothing_left(redis_client)
    result = outcomes.pop(good.id)
    assert isinstance(result, Result)
    assert result.text == "w2 w3"
    for job_id, failed in outcomes.items():
        assert isinstance(failed, JobFailed), failed
        beyond = "maximum context length is 64 tokens. However, you" in str(failed)
        assert failed.reason == ("context_length_exceeded" if beyond else "bad_request")
        error = failed.result.error
        field, value, remedy = bad[job_id]
        assert error.field == field, error
        assert remedy in error.message
        assert f"(got {value}" in error.message
        assert "Request" not in error.message, "no class names"


async def submit_raw(redis_client: Redis, job_id: str, payload: bytes, version: int = 1) -> None:
    call = raw_submission(job_id, payload, version=version)
    assert (await calls.run(redis_client, call)).outcome is SubmitOutcome.ACCEPTED


async def test_a_refused_request_of_many_choices_takes_no_seats(client: AsyncClient, work: Work) -> None:
    """And what fits exactly is computed."""
    work.hold(2)
    async with work(context=64):
        good = await client.submit("w1", max_tokens=4, stream=True)
        await read_to(client.stream(good.id), "w2 w3")
        with pytest.raises(JobFailed, match="80 tokens"):
            await outcome(client, "w1 " * 80, 4, n=4)
        work.go(2)
        assert (await client.wait(good.id, timeout_s=15)).text == "w2 w3 w4 w5"
        assert (await outcome(client, "w1 w2", 62)).usage.output_tokens == 62
        unasked = await client.submit("w1 " * 60 + "w1")
        assert (await client.wait(unasked.id, timeout_s=30)).usage.output_tokens == 3


async def test_logits_that_are_no_numbers_fail_their_job_alone(client: AsyncClient, work: Work) -> None:
    async with work(nan=15):
        bad = await client.submit("w11", max_tokens=20, stream=True)
        assert (await outcome(client, "w100", 20)).usage.output_tokens == 20
        with pytest.raises(JobFailed, match="not finite after 3 output tokens") as failed:
            await client.wait(bad.id, timeout_s=30)
        text = "".join([event.text async for event in client.stream(bad.id)])
    assert failed.value.reason == "model_error"
    assert failed.value.result.text == text == "w12 w13 w14"


# Each a delta, and the choices' texts that the result has of what readers had.
STRANGE: list[tuple[dict[str, Any], list[str]]] = [
    ({"token_ids": [1000], "text": "w1000"}, ["w1000"]),  # beyond the vocabulary: an engine would die of it
    ({"token_ids": [-1], "text": "w"}, []),
    ({"index": 1, "token_ids": [2], "text": "w2"}, ["w2"]),
    ({"token_ids": [2], "text": "w2"}, ["w2"]),  # without the log-probabilities that were asked for
    ({"token_ids": [2], "text": "w2", "logprobs": [{"token_id": "9" * 30, "token": "", "logprob": 0.0}]}, []),
]


@BOTH
async def test_logs_that_no_worker_wrote_fail_their_jobs(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    bad = [await client.submit("w1", max_tokens=5, logprobs=True) for _ in STRANGE]
    for job, (told, _) in zip(bad, STRANGE, strict=True):
        body = codec.pack({"choices": [told]})
        await redis_client.xadd(SHARD.tokens(job.id), {"k": "d", "b": body}, id="0-1")
        await redis_client.hset(SHARD.job(job.id), "seq", 1)
    unreadable = await client.submit("w1", max_tokens=2)
    await redis_client.xadd(SHARD.tokens(unreadable.id), {"k": "?", "b": "of a stranger"}, id="0-1")
    async with work():
        assert await answer(client, "w1", 2) == "w2 w3"
        ends = await client.wait_many([job.id for job in (unreadable, *bad)], timeout_s=30)
    for job, (told, texts) in zip((unreadable, *bad), [({}, []), *STRANGE], strict=True):
        failed = ends[job.id]
        assert isinstance(failed, JobFailed), told
        assert failed.reason == "log_damaged", told
        assert [choice.text for choice in failed.result.choices] == texts, told
    await assert_nothing_left(redis_client)


@BOTH
async def test_jobs_whose_keys_are_overwritten_hold_up_no_other(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    typed, started = [await client.submit("w1", max_tokens=2) for _ in range(2)]
    await redis_client.set(SHARD.job(typed.id), "something else")
    await redis_client.hdel(SHARD.job(started.id), "attempt")
    await redis_client.xgroup_create(LANE, GROUP, id="0")

    async with work():
        await until_read(lambda: redis_client.xpending(LANE, GROUP), lambda pending: pending["pending"] == 2)
        assert await answer(client, "w1", 2) == "w2 w3"
