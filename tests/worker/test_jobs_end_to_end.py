"""Jobs through a whole worker: real server, real client, a real engine process that counts."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis
from support.servers.servers import BOTH
from support.wire.desk import WINDOW
from support.wire.flood import submit_all
from support.workers.counting_worker import assert_nothing_left, counted
from support.workers.work import SHARD, Work, outcome, read_to

from millstream import AsyncClient, JobFields, Result, TokenEvent


@BOTH
async def test_a_job_comes_back_with_all_it_should_say(client: AsyncClient, work: Work) -> None:
    async with work():
        result = await outcome(client, "w7 w8", 5, seed=11, metadata={"page": "3"})
        chosen = await outcome(client, "w1", 3, n=3, logprobs=True, top_logprobs=2)
    assert result.text == counted(9, 5)
    assert result.choices[0].token_ids == (9, 10, 11, 12, 13)
    assert result.choices[0].finish_reason == "length"
    assert (result.usage.prompt_tokens, result.usage.output_tokens) == (2, 5)
    assert (result.model, result.weights, result.kv_format) == ("counting", "int8", "int8")
    assert (result.attempts, result.seed, result.metadata) == (1, 11, {"page": "3"})
    times = result.timing
    # Submission is timed by the server, the rest by what the worker makes of that clock.
    assert times.submitted_ms - 5 <= times.admitted_ms <= times.first_token_ms
    assert times.first_token_ms <= times.last_token_ms <= times.finished_ms

    assert [choice.text for choice in chosen.choices] == [counted(2 + i, 3) for i in range(3)]
    assert [choice.index for choice in chosen.choices] == [0, 1, 2]
    assert chosen.usage.output_tokens == 9
    logprobs = chosen.choices[1].logprobs
    assert logprobs is not None
    assert [one.token_id for one in logprobs] == [3, 4, 5]
    assert logprobs[0].token == " w3"
    assert [top.token_id for top in logprobs[0].top] == [3, 0]


async def test_an_idle_worker_begins_a_burst_in_one_step(client: AsyncClient, work: Work) -> None:
    async with work(step_s=0.3):
        jobs = await client.submit_many({"prompt": f"w{i}", "max_tokens": 2} for i in range(8))
        results = [await client.wait(job.id, timeout_s=30) for job in jobs if not isinstance(job, Exception)]
    admitted = [result.timing.admitted_ms or 0 for result in results]
    assert len(admitted) == 8
    assert max(admitted) - min(admitted) < 150, admitted


async def test_a_worker_samples_with_the_seed_of_the_first_start(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    fresh, stored, given = [await client.submit("w7", max_tokens=2, seed=seed) for seed in (None, None, -5)]
    for job in (stored, given):  # as the first attempt, by a worker of another version, left it
        await redis_client.hset(SHARD.job(job.id), "seed", 2**53 - 1)
    await work.burst()
    seeds = [(await client.result(job.id)).seed for job in (fresh, stored, given)]
    assert seeds == [int(await redis_client.hget(SHARD.job(fresh.id), "seed")), 2**53 - 1, -5]


@BOTH
async def test_a_burst_answers_all_and_leaves_nothing(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    submitted = await client.submit_many(
        {"prompt": f"w{i}", "max_tokens": 1 + i % 9, "lane": ("batch", "interactive")[i % 2]}
        for i in range(120)
    )
    await work.burst()
    for i, job in enumerate(submitted):
        assert (await client.result(job.id)).text == counted(i + 1, 1 + i % 9)
    await assert_nothing_left(redis_client)


@BOTH
async def test_a_stream_delivers_tokens_live_and_equals_the_result(client: AsyncClient, work: Work) -> None:
    """An unstreamed job is logged while it runs all the same."""
    work.hold(4)
    async with work():
        unstreamed = await client.submit("w1", max_tokens=40)
        await read_to(client.stream(unstreamed.id), counted(2, 4))
        job = await client.submit("w1", max_tokens=40, stream=True)
        events = []
        async for event in client.stream(job.id):
            events.append(event)
            if "".join(one.text for one in events) == counted(2, 4):
                work.go(4)  # the rest is computed only because these have arrived
        result = await client.result(job.id)
        assert (await client.wait(unstreamed.id, timeout_s=30)).text == counted(2, 40)
    deltas = [choice for event in events if isinstance(event, TokenEvent) for choice in event.choices]
    assert "".join(delta.text for delta in deltas) == result.text == counted(2, 40)
    assert sum((delta.token_ids for delta in deltas), ()) == result.choices[0].token_ids
    assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + ["length"]


async def test_stop_strings_and_tokens_end_an_answer(client: AsyncClient, work: Work) -> None:
    """A stop string may lie over several tokens; the token that ends a sequence counts, and is no text."""
    async with work(step_s=0.002):
        job = await client.submit("w9", max_tokens=400, stop=["w14 w15", "w30"], stream=True)
        events = [event async for event in client.stream(job.id)]
        result = await client.result(job.id)
        ended = (await outcome(client, "w995", 50)).choices[0]
        ignored = (await outcome(client, "w995", 6, ignore_eos=True)).choices[0]
        stopped = (await outcome(client, "w4", 50, stop_token_ids=[7])).choices[0]
    choice = result.choices[0]
    assert (choice.text, choice.finish_reason) == ("w10 w11 w12 w13 ", "stop")
    assert choice.token_ids == (10, 11, 12, 13, 14)  # the space before w14 belongs to its token
    assert result.usage.output_tokens == 5
    deltas = [delta for event in events if isinstance(event, TokenEvent) for delta in event.choices]
    assert "".join(delta.text for delta in deltas) == choice.text
    assert sum((delta.token_ids for delta in deltas), ()) == choice.token_ids
    assert (ended.text, ended.finish_reason) == ("w996 w997 w998", "stop")
    assert ended.token_ids == (996, 997, 998, 999)
    assert ignored.token_ids == (996, 997, 998, 999, 0, 1)
    assert (stopped.text, stopped.token_ids) == ("w5 w6", (5, 6, 7))


@pytest.mark.slow
async def test_a_waiting_worker_wakes_and_a_burst_leaves_no_parked_job(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    job: JobFields = {"prompt": "w1", "max_tokens": 4}
    async with work(block_s=10) as worker:
        for count in (1, 400):  # the second time it waits in a read
            ids = await submit_all(client, [job] * count)
            await client.wait_many(ids, timeout_s=30)
        worker.service.drain()
        ids = await submit_all(client, [job])  # it leaves its read
    ids += await submit_all(client, [job] * 300)
    assert await redis_client.zcard(SHARD.parked("batch")) >= 300 - WINDOW
    await work.burst()
    assert all(isinstance(end, Result) for end in (await client.wait_many(ids, timeout_s=1)).values())
    await assert_nothing_left(redis_client)
