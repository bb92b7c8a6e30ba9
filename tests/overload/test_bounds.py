"""Whatever has a bound says so to its sender: the field, what was given, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from support.servers.servers import Server
from support.workers.counting_worker import assert_nothing_left, counted, streamed_text, write_tokenizer
from support.workers.work import SHARD, Work, outcome

from millstream import AsyncClient, JobFailed, State
from millstream.client.streaming.reader import StreamReader
from millstream.wire.messages import codec
from millstream.wire.messages.choices import ChoiceDelta, Delta
from millstream.wire.messages.record import DELTA, read_log
from millstream.wire.messages.script_replies import LogEntry
from millstream_worker.jobs import encoding, output
from millstream_worker.jobs.output import ChoiceOutput
from millstream_worker.text.model import TextModel

SIZES = {"max_prompt_tokens": 8, "max_result_bytes": 2**16}
LOGPROBS = {"logprobs": True, "top_logprobs": 20}
LENGTH = "sampling.max_tokens"
BOUNDED: list[tuple[dict[str, int], dict[str, Any], str, str]] = [
    (SIZES, {"prompt": "w1 " * 9}, "prompt", "MAX_PROMPT_TOKENS.*got '9 tokens'"),
    (SIZES, {"token_ids": [1] * 9}, "token_ids", "inputs of 8 tokens"),
    (SIZES, {"prompt": "w1", "n": 16, "max_tokens": 5000}, LENGTH, "80000 bytes"),
    (SIZES, {"prompt": "w1", "max_tokens": 200} | LOGPROBS, LENGTH, "MAX_RESULT_BYTES.*got 200"),
    ({"max_output_tokens": 8}, {"prompt": "w1", "max_tokens": 9}, LENGTH, "gives 8 tokens.*got 9"),
]


async def test_an_operators_bounds_are_answered_at_admission(
    valkey: Server, tokenizer: Path, tmp_path: Path
) -> None:
    """An answer whose length is not asked for ends at its bound."""
    work = Work(valkey, tokenizer, tmp_path, context=10_000, blocks=1000)
    async with AsyncClient(valkey.url) as client:
        for settings in (SIZES, {"max_output_tokens": 8}):
            async with work(**settings):
                for _, fields, field, says in (one for one in BOUNDED if one[0] == settings):
                    bad = await client.submit(**fields)
                    with pytest.raises(JobFailed, match=says) as failed:
                        await client.wait(bad.id, timeout_s=30)
                    assert failed.value.reason == "bad_request"
                    assert failed.value.result.error.field == field
                assert (await outcome(client, "w1 " * 8, 8)).usage.output_tokens == 8
                if settings is not SIZES:
                    result = await client.wait((await client.submit("w1")).id, timeout_s=30)
                    assert (result.text, result.choices[0].finish_reason) == (counted(2, 8), "length")


async def test_a_result_that_grows_too_large_fails_with_its_text(
    server: Server, redis_client: Redis, work: Work
) -> None:
    """Its size cannot be known before: the length is not given, and how much its log-probabilities take."""
    async with AsyncClient(server.url) as client, work(context=10_000, blocks=1000, max_result_bytes=2**16):
        large = await client.submit("w1", logprobs=True, top_logprobs=2, ignore_eos=True, stream=True)
        small = await outcome(client, "w1", 50, logprobs=True, top_logprobs=2)
        assert small.usage.output_tokens == 50
        with pytest.raises(JobFailed, match=r"may take 65536; ask for fewer tokens") as failed:
            await client.wait(large.id, timeout_s=30)
        text = await streamed_text(client, large.id)
        stored = await redis_client.hstrlen(SHARD.job(large.id), "result")
    assert failed.value.reason == "result_too_large"
    assert failed.value.result.text == text
    assert text.startswith(counted(2, 100))
    assert 2**16 - 2**14 < stored < 2**16 + 2**14
    await assert_nothing_left(redis_client)


async def test_much_at_once_is_told_in_pieces(
    server: Server, tmp_path: Path, redis_client: Redis, work: Work
) -> None:
    """A minute of many choices' log-probabilities would be an entry that no reader takes."""
    ending = "x" * 1000  # of words, of which each log-probability has three
    words = write_tokenizer(tmp_path, ending=ending)
    async with AsyncClient(server.url) as client, work(tokenizer=words, log_flush_s=600):
        job = await client.submit(f"w1{ending}", max_tokens=300, n=4, logprobs=True, top_logprobs=2)
        result = await client.wait(job.id, timeout_s=30)
        text = await streamed_text(client, job.id)
    log = [entry for entry in await read_log(redis_client, SHARD, job.id) if entry.kind == DELTA]
    assert len(log) > 3
    assert (
        max(len(entry.body) for entry in log[:-1]) < 4.1 * output.PIECE_BYTES
    )  # with the last comes the text
    assert len(log[-1].body) < 4.1 * output.PIECE_BYTES + 300 * 4 * len(ending)
    assert text.replace(ending, "") == counted(2, 300)
    texts = [choice.text.replace(ending, "") for choice in result.choices]
    assert texts == [counted(2 + n, 300) for n in range(4)]
    assert all(len(choice.logprobs or ()) == 300 for choice in result.choices)


def test_an_end_that_took_much_along_is_read() -> None:
    """What found no room in a full server goes with the end as one delta, whatever its size."""
    part = ChoiceDelta(text="x" * (17 * 2**20), token_ids=(1,))
    body = codec.encode(Delta(choices=(part,)))
    [event] = StreamReader("0-a").tail([LogEntry(1, 1, DELTA, body)], State.COMPLETED)
    assert len(event.text) == 17 * 2**20


def test_a_row_knows_its_size(tokenizer: Path) -> None:
    """What it says is what its part of the result takes, to a few bytes."""
    text = TextModel.load(tokenizer)
    row = ChoiceOutput(0, text.detokenizer())
    row.logprobs = []
    for token in range(200, 400):
        row.ids.append(token)
        row.add_logprob(
            encoding.token_logprob(
                encoding.top_logprob(token, f"w{token}", -0.5), [encoding.top_logprob(1, "w1", -1.0)]
            )
        )
        if token % 50 == 0:
            row.take()
    row.reason = "length"
    while row.take() is not None:
        pass
    taken = len(encoding.delta([row.choice()]))
    assert 0.9 * taken < row.size < 1.2 * taken


def test_the_least_size_of_logprobs_is_that_of_the_smallest() -> None:
    for top in (0, 1, 20):
        smallest = encoding.token_logprob(
            encoding.top_logprob(0, "", 0.0), [encoding.top_logprob(0, "", 0.0)] * top
        )
        assert 0 <= len(smallest) - encoding.least_logprob_bytes(top) <= 2
