"""Jobs through a whole worker: real server, real client, a real engine process that counts."""

from __future__ import annotations

from pathlib import Path

import redis.asyncio
from support.servers.servers import Server
from support.workers.counting_worker import assert_nothing_left, counted, model_name, serving

from millstream import AsyncClient, Result, State, TokenEvent
from millstream.wire.keys import QueueKeys
from millstream.wire.state.queue_info import open_queue


async def test_a_job_comes_back_with_all_it_should_say(server: Server, tokenizer: Path) -> None:
    async with AsyncClient(server.url) as client, serving(server, model_name(tokenizer)):
        job = await client.submit("w7 w8", max_tokens=5, seed=11, metadata={"page": "3"})
        result = await client.wait(job.id, timeout_s=30)
    assert result.choices[0].text == counted(9, 5)
    assert result.choices[0].token_ids == (9, 10, 11, 12, 13)
    assert result.choices[0].finish_reason == "length"
    assert (result.usage.prompt_tokens, result.usage.output_tokens) == (2, 5)
    assert (result.model, result.attempts, result.seed, result.metadata) == ("counting", 1, 11, {"page": "3"})
    times = result.timing
    assert times.admitted_ms is not None
    assert times.first_token_ms is not None
    assert times.last_token_ms is not None
    assert times.finished_ms is not None
    # Submission is timed by the server, the rest by what the worker makes of that clock.
    assert times.submitted_ms - 5 <= times.admitted_ms <= times.first_token_ms
    assert times.first_token_ms <= times.last_token_ms <= times.finished_ms


async def test_a_worker_samples_with_the_seed_that_the_first_start_stored(
    server: Server, tokenizer: Path, redis_client: redis.asyncio.Redis
) -> None:
    async with AsyncClient(server.url) as client:
        fresh, stored, given = [
            await client.submit("w7", max_tokens=2, seed=seed) for seed in (None, None, -5)
        ]
        keys = QueueKeys("default").shard(0)
        for job in (stored, given):  # as the first attempt, by a worker of another version, left it
            await redis_client.hset(keys.job(job.id), "seed", 2**53 - 1)
        async with serving(server, model_name(tokenizer), burst=True):
            seeds = [(await client.wait(job.id, timeout_s=30)).seed for job in (fresh, stored, given)]
    assert seeds == [int(await redis_client.hget(keys.job(fresh.id), "seed")), 2**53 - 1, -5]


async def test_a_burst_answers_all_and_leaves_nothing(
    server: Server, tokenizer: Path, redis_client: redis.asyncio.Redis
) -> None:
    async with AsyncClient(server.url) as client:
        jobs = [
            {"prompt": f"w{i}", "max_tokens": 1 + i % 9, "lane": ("batch", "interactive")[i % 2]}
            for i in range(120)
        ]
        submitted = await client.submit_many(jobs)
        async with serving(server, model_name(tokenizer), burst=True):
            results = await client.wait_many([job.id for job in submitted], timeout_s=60)
    for i, job in enumerate(submitted):
        result = results[job.id]
        assert isinstance(result, Result)
        assert result.choices[0].text == counted(i + 1, 1 + i % 9)
    await assert_nothing_left(redis_client)


async def test_a_stream_tells_tokens_as_they_come_and_equals_the_result(
    server: Server, tokenizer: Path, gate: Path
) -> None:
    (gate / "4").touch()
    async with AsyncClient(server.url) as client, serving(server, model_name(tokenizer, gate=gate)):
        job = await client.submit("w1", max_tokens=40, stream=True)
        events = []
        async for event in client.stream(job.id):
            events.append(event)
            if sum(len(c.token_ids) for e in events if isinstance(e, TokenEvent) for c in e.choices) == 4:
                (gate / "4").unlink(missing_ok=True)  # the rest is computed only because these have arrived
        result = await client.result(job.id)
    deltas = [choice for event in events if isinstance(event, TokenEvent) for choice in event.choices]
    assert "".join(delta.text for delta in deltas) == result.choices[0].text == counted(2, 40)
    assert sum((delta.token_ids for delta in deltas), ()) == result.choices[0].token_ids
    assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + ["length"]


async def test_an_unstreamed_job_is_logged_while_it_runs(valkey: Server, tokenizer: Path, gate: Path) -> None:
    (gate / "6").touch()
    async with AsyncClient(valkey.url) as client, serving(valkey, model_name(tokenizer, gate=gate)):
        job = await client.submit("w1", max_tokens=9)
        events = client.stream(job.id)
        text = ""
        while len(text.split()) < 6:
            text += (await anext(events)).text
        assert text == counted(2, 6)
        (gate / "6").unlink()
        await events.aclose()
        assert (await client.wait(job.id, timeout_s=30)).choices[0].text == counted(2, 9)


async def test_a_stop_string_over_several_tokens_ends_the_text_before_it(
    valkey: Server, tokenizer: Path
) -> None:
    async with AsyncClient(valkey.url) as client, serving(valkey, model_name(tokenizer, step_s=0.002)):
        job = await client.submit("w9", max_tokens=400, stop=["w14 w15", "w30"], stream=True)
        events = [event async for event in client.stream(job.id)]
        result = await client.result(job.id)
    choice = result.choices[0]
    assert (choice.text, choice.finish_reason) == ("w10 w11 w12 w13 ", "stop")
    assert choice.token_ids == (10, 11, 12, 13, 14)  # the space before w14 belongs to its token
    assert result.usage.output_tokens == 5
    deltas = [delta for event in events if isinstance(event, TokenEvent) for delta in event.choices]
    assert "".join(delta.text for delta in deltas) == choice.text
    assert sum((delta.token_ids for delta in deltas), ()) == choice.token_ids


async def test_end_of_sequence_counts_but_is_no_text(valkey: Server, tokenizer: Path) -> None:
    async with AsyncClient(valkey.url) as client, serving(valkey, model_name(tokenizer)):
        ends = await client.submit("w995", max_tokens=50)
        ignores = await client.submit("w995", max_tokens=6, ignore_eos=True)
        stops_at_7 = await client.submit("w4", max_tokens=50, stop_token_ids=[7])
        ended = (await client.wait(ends.id, timeout_s=30)).choices[0]
        ignored = (await client.wait(ignores.id, timeout_s=30)).choices[0]
        stopped = (await client.wait(stops_at_7.id, timeout_s=30)).choices[0]
    assert (ended.text, ended.token_ids, ended.finish_reason) == (
        "w996 w997 w998",
        (996, 997, 998, 999),
        "stop",
    )
    assert ignored.token_ids == (996, 997, 998, 999, 0, 1)
    assert (stopped.text, stopped.token_ids) == ("w5 w6", (5, 6, 7))


async def test_choices_and_logprobs(valkey: Server, tokenizer: Path) -> None:
    async with AsyncClient(valkey.url) as client, serving(valkey, model_name(tokenizer)):
        job = await client.submit("w1", max_tokens=3, n=3, logprobs=True, top_logprobs=2)
        result = await client.wait(job.id, timeout_s=30)
    assert [choice.text for choice in result.choices] == [counted(2 + i, 3) for i in range(3)]
    assert [choice.index for choice in result.choices] == [0, 1, 2]
    assert result.usage.output_tokens == 9
    logprobs = result.choices[1].logprobs
    assert logprobs is not None
    assert [one.token_id for one in logprobs] == [3, 4, 5]
    assert logprobs[0].token == " w3"
    assert [top.token_id for top in logprobs[0].top] == [3, 0]


async def test_token_ids_and_chat_messages(valkey: Server, chat_tokenizer: Path) -> None:
    async with AsyncClient(valkey.url) as client, serving(valkey, model_name(chat_tokenizer)):
        ids = await client.submit(token_ids=[5, 8], max_tokens=2)
        chat = await client.submit(
            messages=[{"role": "system", "content": "w1"}, {"role": "user", "content": "w20"}], max_tokens=2
        )
        asked = await client.submit(
            messages=[{"role": "user", "content": "w20"}], chat_template_kwargs={"last": "w40"}, max_tokens=2
        )
        assert (await client.wait(ids.id, timeout_s=30)).choices[0].text == "w9 w10"
        assert (await client.wait(asked.id, timeout_s=30)).text == "w41 w42"
        result = await client.wait(chat.id, timeout_s=30)
    assert result.choices[0].text == "w21 w22"
    assert result.usage.prompt_tokens == 2


async def test_lanes_of_several_shards_are_all_served(
    server: Server, tokenizer: Path, redis_client: redis.asyncio.Redis
) -> None:
    await open_queue(redis_client, "wide", shards=3)
    async with AsyncClient(server.url, queue="wide") as client:
        async with serving(server, model_name(tokenizer), queue="wide"):
            submitted = await client.submit_many({"prompt": f"w{i}", "max_tokens": 2} for i in range(30))
            results = await client.wait_many([job.id for job in submitted], timeout_s=60)
    assert {job.id.partition("-")[0] for job in submitted} == {"0", "1", "2"}
    assert all(isinstance(result, Result) and result.state is State.COMPLETED for result in results.values())
