"""Equal requests with one answer: computed once, kept on the server, and shared while they run."""

from __future__ import annotations

import random
from typing import Any

import pytest
import structlog
from redis.asyncio import Redis
from support.servers.servers import BOTH, Server
from support.workers.counting_worker import Worker, assert_nothing_left, counted, until, until_read
from support.workers.held_reading import HeldReading
from support.workers.work import SHARD, Work, outcome, read_to, rest_of

from millstream import AsyncClient, ClientOptions, JobCancelled, JobFailed, JobFields, Result
from millstream.wire.keys import shard_of
from millstream.wire.messages import codec
from millstream.wire.messages.sampling import SamplingParams
from millstream_worker.jobs.job_phase import JobPhase

CACHE: dict[str, Any] = {"result_cache": 2**20}
LIMITED = (
    SamplingParams(include_stop_str_in_output=True),
    SamplingParams(skip_special_tokens=False),
    SamplingParams(bad_words=("w900",)),
    SamplingParams(allowed_token_ids=range(900)),
)
EXACT: dict[str, Any] = {"temperature": 0.0, "n": 2, "logprobs": True, "stop": "w9 w10"}


def computed(worker: Worker) -> float:
    return worker.metric("generation_tokens_total")


@BOTH
async def test_an_equal_request_gets_the_kept_result(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    """One of another tenant, seed or parameter does not, nor one that asks for its own."""
    async with work(**CACHE) as worker:
        first = await outcome(client, "w1", 20, **EXACT)
        once = computed(worker)
        again = await outcome(client, "w1", 20, **EXACT, stream=True, metadata={"b": "2"})
        assert (first.cached, again.cached) == (False, True)
        assert again.choices == first.choices
        assert again.choices[0].text.endswith("w8 ")
        assert again.usage.output_tokens == first.usage.output_tokens
        assert again.usage.cached_tokens == again.usage.prompt_tokens == 1
        assert again.metadata == {"b": "2"}
        assert computed(worker) == once
        assert worker.metric("result_cache_hits_total") == 1
        apart: list[dict[str, Any]] = [
            {"tenant": "acme"}, {"temperature": 1.0, "seed": 1}, {"temperature": 1.0, "seed": 2}, {"n": 1},
            {"temperature": 1.0}, {"temperature": 1.0}, {"min_tokens": 1}, {"cache": "no-cache"},
            *({"sampling": one} for one in LIMITED),
        ]  # fmt: skip
        others = [await outcome(client, "w1", 20, **EXACT | one) for one in apart]
        assert not any(other.cached for other in others)
        assert (await outcome(client, "w1", 20, **EXACT | {"temperature": 1.0, "seed": 2})).cached
    await assert_nothing_left(redis_client)


async def test_a_result_is_not_kept_where_it_may_not_be(client: AsyncClient, work: Work) -> None:
    """Asked for by its request, forgotten by its owner, without the setting, or cut off by a failure."""
    async with work() as worker:
        await outcome(client, "w1", 5, temperature=0.0)
        assert not (await outcome(client, "w1", 5, temperature=0.0)).cached
        assert worker.metric("result_cache_misses_total") == 0
    async with work(nan=55, **CACHE):
        await outcome(client, "w1", 5, temperature=0.0, cache="no-store")
        kept = await client.submit("w1", max_tokens=5, temperature=0.0)
        assert not (await client.wait(kept.id, timeout_s=30)).cached
        await client.forget(kept.id, keep_cached=True)
        assert (await outcome(client, "w1", 5, temperature=0.0)).cached
        gone = await client.submit("w7", max_tokens=5, temperature=0.0)
        await client.wait(gone.id, timeout_s=30)
        await client.forget(gone.id)
        assert not (await outcome(client, "w7", 5, temperature=0.0)).cached
        for _ in range(2):
            with pytest.raises(JobFailed) as failed:
                await outcome(client, "w50", 20, temperature=0.0)
            assert not failed.value.result.cached


async def test_equal_requests_in_flight_are_computed_once(client: AsyncClient, work: Work) -> None:
    """Each with its own stream, from the tokens so far; one that is cancelled takes nothing from others."""
    work.hold(5)
    async with work(rows=1, **CACHE) as worker:
        sent = [await client.submit("w1", max_tokens=9, temperature=0.0, stream=True) for _ in range(3)]
        streams = [client.stream(job.id) for job in sent]
        for stream in streams:
            await read_to(stream, counted(2, 5))
        late = await client.submit("w1", max_tokens=9, temperature=0.0)
        await client.cancel(sent[0].id)  # the others go on without their leader
        with pytest.raises(JobCancelled):
            await client.wait(sent[0].id, timeout_s=30)
        work.go(5)
        for stream in streams[1:]:
            assert await rest_of(stream) == " " + counted(7, 4)
        results = [await client.wait(job.id, timeout_s=30) for job in (*sent[1:], late)]
        assert [result.text for result in results] == [counted(2, 9)] * 3
        assert sorted(result.cached for result in results) == [False, True, True]
        assert computed(worker) == 9
        assert worker.metric("result_cache_followers_total") == 2


async def test_equal_requests_in_flight_end_at_their_stop_string(client: AsyncClient, work: Work) -> None:
    """Which only the text shows, of each of them."""
    work.hold(3)
    async with work(rows=1, **CACHE) as worker:
        asked = {"max_tokens": 9, "temperature": 0.0, "stop": ["w6"], "stream": True}
        sent = [await client.submit("w1", **asked) for _ in range(3)]
        for job in sent:
            await read_to(client.stream(job.id), counted(2, 3))
        work.go(3)
        results = [await client.wait(job.id, timeout_s=30) for job in sent]
        assert {(result.text, result.choices[0].finish_reason) for result in results} == {
            (counted(2, 4) + " ", "stop")
        }
        assert sorted(result.cached for result in results) == [False, True, True]
        assert worker.metric("result_cache_followers_total") == 2


async def test_an_answer_counts_before_it_is_written(
    client: AsyncClient, redis_client: Redis, work: Work, reading: HeldReading
) -> None:
    """The equal job comes when the first one has ended, and the server takes no writes yet."""
    long: dict[str, Any] = {"prompt": "w1" + " " * 8000, "max_tokens": 9, "temperature": 0.0}
    reading.go_on.set()
    work.hold(5)
    async with work(**CACHE, lease_s=10.0) as worker:
        first = await client.submit(**long, stream=True)
        await read_to(client.stream(first.id), counted(2, 5))
        reading.go_on.clear()
        second = await client.submit(**long)
        await until(lambda: len(reading.jobs) == 2)
        await redis_client.client_pause(20_000, all=False)
        work.go(5)
        await until(lambda: reading.jobs[0].phase is JobPhase.ENDED)
        reading.go_on.set()
        await until(lambda: reading.jobs[1].phase is JobPhase.ENDED)
        assert worker.components.table.holds(reading.jobs[0])
        await redis_client.client_unpause()
        results = [await client.wait(job.id, timeout_s=30) for job in (first, second)]
        assert results[0].choices == results[1].choices
        assert [result.cached for result in results] == [False, True]
        assert (computed(worker), worker.metric("result_cache_hits_total")) == (9, 1)
        await until(lambda: not worker.components.table.answers.of(reading.jobs[1]))


async def test_a_waiting_job_takes_what_another_worker_has_cached(client: AsyncClient, work: Work) -> None:
    """And so do those that follow it."""
    work.hold(7)
    async with work(rows=1, lookahead=2, **CACHE) as full:
        running = await client.submit("w100", max_tokens=9, stream=True)
        await read_to(client.stream(running.id), counted(101, 7))
        waiting = [await client.submit("w1", max_tokens=5, temperature=0.0) for _ in range(2)]
        await until(lambda: len(full.components.queue.followers.leaders) == 1)
        async with work(**CACHE) as other:
            assert not (await outcome(client, "w1", 5, temperature=0.0, cache="no-cache")).cached
            assert computed(other) == 5
            results = [await client.wait(job.id, timeout_s=30) for job in waiting]
        assert [(result.cached, result.text) for result in results] == [(True, counted(2, 5))] * 2
        assert (computed(full), full.metric("result_cache_misses_total")) == (7, 1)
        work.go(7)
        assert (await client.wait(running.id, timeout_s=30)).text == counted(101, 9)


async def test_an_interactive_follower_raises_its_leader(client: AsyncClient, work: Work) -> None:
    work.hold(2)
    # A step takes 50 ms: the engine reads the interactive job before the running one ends.
    async with work(rows=1, step_s=0.05, **CACHE) as worker:
        running = await client.submit("w100", max_tokens=4, stream=True)
        await read_to(client.stream(running.id), counted(101, 2))
        before = await client.submit("w200", max_tokens=2)  # waits before the leader
        leader = await client.submit("w1", max_tokens=2, temperature=0.0)
        queue = worker.components.queue
        await until(lambda: len(queue.rows) == 3)
        raised = await client.submit("w1", max_tokens=2, temperature=0.0, lane="interactive")
        await until(lambda: [job.id for job in queue.followers.leaders] == [raised.id])
        work.go(2)
        results = [await client.wait(job.id, timeout_s=30) for job in (before, leader, raised)]
        assert [result.cached for result in results] == [False, True, False]
        admitted = [result.timing.admitted_ms or 0 for result in results]
        assert admitted[2] < admitted[0]


async def test_a_death_is_charged_to_the_leader_alone(client: AsyncClient, work: Work) -> None:
    work.hold(5, 7)
    async with work(rows=2, **CACHE) as worker:
        sent = [await client.submit("w1", max_tokens=9, temperature=0.0, stream=True) for _ in range(3)]
        for job in sent:
            await read_to(client.stream(job.id), counted(2, 5))
        work.kill_engine()
        work.go(5)
        for job in sent:
            await read_to(client.stream(job.id), counted(2, 7))
        jobs = [worker.components.table.get(job.id) for job in sent]
        assert [job and job.attempt.deaths for job in jobs] == [1, 0, 0]
        work.go(7)
        results = [await client.wait(job.id, timeout_s=30) for job in sent]
        assert [result.text for result in results] == [counted(2, 9)] * 3


@pytest.mark.slow
async def test_what_a_later_attempt_has_finished_is_not_kept(client: AsyncClient, work: Work) -> None:
    """A part of it may be another worker's, which computes in another format."""
    work.hold(5)
    with work.process(**CACHE) as dead:
        job = await client.submit("w1", max_tokens=9, temperature=0.0, stream=True)
        await read_to(client.stream(job.id), counted(2, 5))
        dead.kill()
    work.go(5)
    async with work(**CACHE):
        result = await client.wait(job.id, timeout_s=30)
        assert (result.attempts, result.text) == (2, counted(2, 9))
        assert not (await outcome(client, "w1", 9, temperature=0.0)).cached
        assert (await outcome(client, "w1", 9, temperature=0.0)).cached


async def test_equal_requests_of_two_producers_meet_in_one_shard(server: Server, work: Work) -> None:
    """Only where results are kept: otherwise each job has a shard at random."""
    shards = 4
    asked: list[JobFields] = [{"prompt": f"w{n + 1}", "max_tokens": 5, "temperature": 0.0} for n in range(8)]

    async def both(queue: str, **setting: Any) -> tuple[list[int], list[int], int]:
        """The shards of two producers' jobs, and how many were not computed."""
        options = ClientOptions(shards=shards)
        async with (
            work(queue=queue, shards=shards, **setting),
            AsyncClient(server.url, queue=queue, options=options) as one,
            AsyncClient(server.url, queue=queue, options=options) as other,
        ):
            await until_served(one)
            sent = [[job.id for job in await client.submit_many(asked)] for client in (one, other)]
            results = await one.wait_many([*sent[0], *sent[1]], timeout_s=30)
            cached = sum(isinstance(end, Result) and end.cached for end in results.values())
            first, second = ([shard_of(job_id) for job_id in its] for its in sent)
            return first, second, cached

    async def until_served(client: AsyncClient) -> None:
        await until_read(client.queue_info, lambda queue: queue.workers)

    first, second, cached = await both("kept", **CACHE)
    assert first == second
    assert (len(set(first)) > 1, cached) == (True, len(asked))
    first, second, cached = await both("plain")
    assert first != second
    assert cached == 0


async def test_results_stay_within_their_bytes(client: AsyncClient, redis_client: Redis, work: Work) -> None:
    """The first ones go; one that expires, or is larger than all may be, is not there."""
    async with work(result_cache=2000, result_ttl_s=1):
        for first in range(1, 20):
            await outcome(client, f"w{first}", 5, temperature=0.0)
        [index, size] = SHARD.cache
        held = int(await redis_client.get(size) or 0)
        assert 1000 < held <= 2000
        kept = [key async for key in redis_client.scan_iter(SHARD.cached("*"))]
        assert len(kept) == await redis_client.zcard(index) == held // (held // len(kept))
        assert (await outcome(client, "w19", 5, temperature=0.0)).cached
        assert not (await outcome(client, "w1", 5, temperature=0.0)).cached
        long = {"temperature": 0.0, "logprobs": True}
        assert not (await outcome(client, "w1", 200, **long)).cached
        assert not (await outcome(client, "w1", 200, **long)).cached

        async def expired() -> bool:
            return not [key async for key in redis_client.scan_iter(f"{SHARD.tag}:cache*")]

        await until(expired)


async def test_a_long_result_is_not_kept(
    client: AsyncClient, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream_worker.jobs.equal_jobs.answers.MOST_KEPT_BYTES", 1000)
    async with work(**CACHE):
        for tokens, cached in ((5, True), (200, False)):
            await outcome(client, "w1", tokens, temperature=0.0, logprobs=True)
            assert (await outcome(client, "w1", tokens, temperature=0.0, logprobs=True)).cached is cached


async def test_no_result_passes_between_tenants(client: AsyncClient, work: Work) -> None:
    """Whatever is submitted at once: a tenant's first request of a kind computes, at whichever time."""
    chosen = random.Random(7)
    asked = [(f"t{chosen.randrange(3)}", chosen.randrange(1, 8), chosen.randrange(2)) for _ in range(150)]
    async with work(rows=4, **CACHE) as worker:
        sent = await client.submit_many(
            [
                {"prompt": f"w{word}", "max_tokens": 6, "temperature": 1.0, "seed": seed, "tenant": tenant}
                for tenant, word, seed in asked
            ]
        )
        results: list[Result] = [await client.wait(job.id, timeout_s=60) for job in sent]
        first = {one for one, result in zip(asked, results, strict=True) if not result.cached}
        assert first == set(asked)
        assert [result.text for result in results] == [counted(word + 1, 6) for _, word, _ in asked]
        assert 6 * len(set(asked)) <= computed(worker) < 6 * len(asked)


def kept(*choices: dict[str, Any]) -> bytes:
    return codec.pack({"choices": list(choices)})


WHOLE: dict[str, Any] = {"token_ids": [2], "text": "w2", "finish_reason": "length"}
LOGPROB = {"token_id": 2, "token": "w2", "logprob": -1.0}
DAMAGED: dict[str, bytes] = {
    "no msgpack": b"\xc1", "another type": codec.pack([1]), "no choice": kept(),
    "too many choices": kept(WHOLE, WHOLE | {"index": 1}), "another choice": kept(WHOLE | {"index": 1}),
    "no end": kept(WHOLE | {"finish_reason": None}),
    "calls of tools": kept(WHOLE | {"finish_reason": "tool_calls"}),
    "log-probabilities that nobody asked for": kept(WHOLE | {"logprobs": [LOGPROB]}),
}  # fmt: skip


async def test_a_damaged_kept_result_is_not_used(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    """And counted; the worker and the jobs beside it go on."""
    with structlog.testing.capture_logs() as lines:
        async with work(**CACHE) as worker:
            await outcome(client, "w1", 2, temperature=0.0)
            [name] = [key async for key in redis_client.scan_iter(SHARD.cached("?*"))]
            for count, damaged in enumerate(DAMAGED.values(), 1):
                await redis_client.hset(name, "result", damaged)
                anew = await outcome(client, "w1", 2, temperature=0.0)
                assert (anew.cached, anew.text) == (False, counted(2, 2))
                assert worker.metric("result_cache_damaged_total") == count
            assert worker.metric("unreadable_requests_total") == 0
    told = [line for line in lines if line["event"] == "a kept result is damaged; its job is computed"]
    assert 0 < len(told) < len(DAMAGED)
    assert all("Error" in line["error"] and "  File " in line["trace"] for line in told)


async def test_nor_is_one_with_other_log_probabilities(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    async with work(**CACHE) as worker:
        first = await outcome(client, "w1", 2, temperature=0.0, logprobs=True)
        [name] = [key async for key in redis_client.scan_iter(SHARD.cached("?*"))]
        await redis_client.hset(name, "result", kept(WHOLE))
        anew = await outcome(client, "w1", 2, temperature=0.0, logprobs=True)
        assert (anew.cached, anew.choices) == (False, first.choices)
        assert worker.metric("result_cache_damaged_total") == 1
