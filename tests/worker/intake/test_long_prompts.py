"""Prompts that are long, or far too long, beside the work of others."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis
from support.engine.ready import INFO
from support.models.tokenizers import build
from support.servers.servers import BOTH
from support.wire.image_files import png
from support.workers.counting_worker import assert_nothing_left, counted, until, until_running
from support.workers.held_reading import HeldReading
from support.workers.jobs import held_job
from support.workers.work import LANE, Work, answer, record_of
from transformers import PreTrainedTokenizerFast

from millstream import AsyncClient, JobCancelled, JobFailed, State
from millstream.errors import InvalidRequest
from millstream.wire.messages import codec
from millstream.wire.messages.job_messages import Request
from millstream.wire.messages.script_replies import StartReply
from millstream_worker.intake import admission
from millstream_worker.intake.preparation.job_bounds import JobBounds
from millstream_worker.intake.preparation.outline import outline
from millstream_worker.intake.preparation.prepare_job import forget_input, prepare
from millstream_worker.text.model import TextModel

LONG = "w1 " * 30_000  # 90 kB: read beside the others
BOUNDS = JobBounds(0, 0, 2**26)
MESSAGE = {"role": "user", "content": "w1"}
CONTEXT = {"context": 40_000, "blocks": 10_000}


@pytest.fixture
def held(reading: HeldReading) -> HeldReading:
    """Only what is read beside the others waits."""
    reading.passes = 64 * 1024
    return reading


def tenants(held: HeldReading) -> list[str]:
    return [job.request.tenant for job in held.jobs]


@BOTH
async def test_nobody_waits_for_a_long_prompt_of_another_tenant(
    client: AsyncClient, redis_client: Redis, work: Work, held: HeldReading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the tenant's own short job. Other tenants' long ones have their turn, each after its own. Of
    the requests that wait unread nothing is known, and nothing in the log."""
    monkeypatch.setattr(admission, "_MOST_KEPT_BYTES", 200_000)  # two of them; the others are fetched again
    shorts = (("interactive", "small"), ("batch", "small"), ("batch", "giant"))
    with structlog.testing.capture_logs() as lines:
        async with work(log_payloads=True, **CONTEXT):
            giants = [await client.submit(LONG, max_tokens=2, tenant="giant") for _ in range(4)]
            other = await client.submit(LONG, max_tokens=2, tenant="other")
            await until(lambda: held.begun)
            for lane, tenant in shorts:
                assert await answer(client, "w7", 2, tenant=tenant, lane=lane) == counted(8, 2)
            assert tenants(held)[:2] == ["giant", "other"]
            assert tenants(held)[2:] == [], "one at a time of each tenant"
            held.go_on.set()
            for job in (*giants, other):
                result = await client.wait(job.id, timeout_s=30)
                assert (result.usage.prompt_tokens, result.text) == (30_000, counted(2, 2))
                assert result.attempts == 1
    shown = [line for line in lines if line["event"] == "job started" and "request" in line]
    assert len(shown) == len(shorts)
    await assert_nothing_left(redis_client)


@pytest.mark.parametrize("end", ["cancelled", "deleted"])
async def test_a_job_that_waits_to_be_read_ends_like_any_other(
    client: AsyncClient,
    redis_client: Redis,
    work: Work,
    held: HeldReading,
    monkeypatch: pytest.MonkeyPatch,
    end: str,
) -> None:
    """Cancelled where it waits, and told where its entry is gone."""
    monkeypatch.setattr(admission, "_MOST_KEPT_BYTES", 0)
    async with work(**CONTEXT):
        first = await client.submit(LONG, max_tokens=2)
        waiting = await client.submit(LONG, max_tokens=2, metadata={"page": "7"})
        await until(lambda: held.begun)
        await until_running(client, first, waiting)
        if end == "cancelled":
            await client.cancel(waiting.id)
            with pytest.raises(JobCancelled) as cancelled:
                await client.wait(waiting.id, timeout_s=20)
            assert cancelled.value.result.metadata == {"page": "7"}
            held.go_on.set()
        else:
            [_, (entry_id, _)] = await redis_client.xrange(LANE)
            await redis_client.xdel(LANE, entry_id)
            held.go_on.set()
            with pytest.raises(JobFailed, match=r"deleted from its lane .*another id") as failed:
                await client.wait(waiting.id, timeout_s=20)
            assert failed.value.reason == "entry_lost"
        assert (await client.wait(first.id, timeout_s=20)).usage.prompt_tokens == 30_000
    await assert_nothing_left(redis_client)


async def test_a_drain_waits_for_no_long_prompt(
    client: AsyncClient, redis_client: Redis, work: Work, held: HeldReading
) -> None:
    """What is being read and what waits for it is given back uncharged while short jobs have their grace. One
    that was cancelled while it was read ends as cancelled."""
    model = CONTEXT | {"step_s": 0.05}
    async with work(grace_s=30.0, **model) as worker:
        read, gone = [await client.submit(LONG, max_tokens=2, tenant=name) for name in "ab"]
        waits = await client.submit(LONG, max_tokens=2, tenant="a")
        short = await client.submit("w7", max_tokens=20)
        await until(lambda: len(tenants(held)) == 2 and worker.metric("rows_running") == 1)
        await client.cancel(gone.id)
        worker.service.drain()
        assert (await client.wait(short.id, timeout_s=20)).text == counted(8, 20)
    assert not held.go_on.is_set()
    assert worker.metric("jobs_released_total") == 3
    for job in (read, waits):
        record = await record_of(redis_client, job.id)
        assert (record.state, record.died) == (State.QUEUED, 0)
    held.go_on.set()
    await work.burst(**model)
    for job in (read, waits):
        assert (await client.result(job.id)).text == counted(2, 2)
    with pytest.raises(JobCancelled):
        await client.result(gone.id)
    await assert_nothing_left(redis_client)


@pytest.mark.slow
async def test_a_process_ends_while_it_reads_a_long_prompt(
    client: AsyncClient, redis_client: Redis, work: Work, chat_tokenizer: Path
) -> None:
    """One whose reading takes longer than the process is given here to end."""
    giant = [MESSAGE | {"content": "w1 " * 1_390_000}] * 2
    job = await client.submit(messages=giant, max_tokens=2)
    model = {"tokenizer": chat_tokenizer, "context": 6_000_000, "blocks": 400_000}
    with work.process(grace_s=30.0, **model) as process:
        await until_running(client, job)
        process.terminate()
        assert await asyncio.to_thread(process.wait, 5) == 0
    record = await record_of(redis_client, job.id)
    assert (record.state, record.died, record.owner) == (State.QUEUED, 0, "")


FAR_TOO_LONG: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": "w1 " * 400_000}, "prompt", "length is 512 tokens\\. .*got 'more than [0-9]{4,5} tokens'"),
    ({"token_ids": [1] * 70_000}, "token_ids", "is 512 tokens.*got '70000 tokens'"),
    ({"messages": [MESSAGE] * 9000}, "messages", "reduce the length.*'9000 messages'"),
    ({"messages": [MESSAGE | {"content": LONG}]}, "messages", "reduce the length.*'more than [0-9]+ tokens'"),
]
BOUNDED: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": LONG}, "prompt", "takes inputs of 8 tokens.*'more than")
]


async def test_what_is_far_too_long_is_refused_with_its_size(
    client: AsyncClient, work: Work, chat_tokenizer: Path
) -> None:
    """By the context, or by what the operator allows."""
    bounds: tuple[dict[str, int], ...] = ({}, {"max_prompt_tokens": 8})
    for bound, refused in zip(bounds, (FAR_TOO_LONG, BOUNDED), strict=True):
        jobs = [await client.submit(**fields, metadata={"page": "7"}) for fields, _, _ in refused]
        async with work(tokenizer=chat_tokenizer, **bound):
            for job, (_, field, says) in zip(jobs, refused, strict=True):
                with pytest.raises(JobFailed, match=says) as failed:
                    await client.wait(job.id, timeout_s=30)
                assert failed.value.reason == ("bad_request" if bound else "context_length_exceeded")
                assert failed.value.result.error.field == field
                assert failed.value.result.metadata == {"page": "7"}


def test_bytes_that_cannot_fit_are_refused_undecoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is unpacked without its text, of which nothing is kept."""
    unpacked: list[int] = []
    decode = codec.decode

    def watching(kind: Any, data: bytes, *rest: int) -> Any:
        unpacked.append(len(data))
        return decode(kind, data, *rest)

    monkeypatch.setattr(codec, "decode", watching)
    text = TextModel(PreTrainedTokenizerFast(tokenizer_object=build("byte-level")))
    job = held_job(payload=codec.encode(Request(prompt="x" * 2**20, tenant="a", metadata={"page": "7"})))
    with pytest.raises(InvalidRequest, match=r"is 512 tokens.*got '1048576 bytes of text'") as refused:
        prepare(job, StartReply(True), text, replace(INFO, context_length=512), BOUNDS)
    assert refused.value.field == "prompt"
    assert max(unpacked) < 100
    forget_input(job)
    assert (job.request.prompt, job.request.tenant, job.request.metadata) == (None, "a", {"page": "7"})
    assert job.entry.payload == b""


def test_a_giant_prompt_in_a_huge_context_is_tokenized_exactly() -> None:
    tokenizer = build("byte-level")
    text = TextModel(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    prompt = "the quick brown fox jumps over the lazy dog, déjà vu. " * 8000
    job = held_job(payload=codec.encode(Request(prompt=prompt)))
    prepare(job, StartReply(True), text, replace(INFO, context_length=2**24, blocks=2**20), BOUNDS)
    assert job.input.prompt == tuple(tokenizer.encode(prompt).ids)


NAMES = st.text(max_size=3)
REQUESTS = st.fixed_dictionaries(
    {
        "tenant": st.text(max_size=9),
        "metadata": st.dictionaries(NAMES, st.text(max_size=40), max_size=20),
        "later_field": st.recursive(st.integers(-5, 5), st.lists, max_leaves=5),
    }
)
INPUTS = st.one_of(
    st.tuples(st.just("prompt"), st.text(min_size=1, max_size=300)),
    st.tuples(st.just("token_ids"), st.lists(st.integers(0, 70_000), min_size=1, max_size=40)),
    st.tuples(st.just("messages"), st.lists(st.just(MESSAGE), min_size=1, max_size=20)),
)


@given(fields=REQUESTS, given_input=INPUTS, place=st.integers(0, 3), data=st.data())
def test_an_outline_is_the_request_without_its_input(
    fields: dict[str, Any], given_input: tuple[str, Any], place: int, data: st.DataObject
) -> None:
    name, value = given_input
    pairs = list(fields.items())
    payload = codec.pack(
        dict([*pairs[:place], (name, value), *pairs[place:]])
        | {"messages" if name == "prompt" else "prompt": None}
    )
    found = outline(payload)
    assert found is not None
    assert (found.field, found.size) == (name, len(value.encode() if name == "prompt" else value))
    whole = codec.decode(Request, payload)
    assert found.request.model_copy(update={name: getattr(whole, name)}) == whole
    cut = data.draw(st.integers(0, len(payload) - 1))
    assert outline(payload[:cut]) is None
    assert outline(payload + b"\0") is None
    assert outline(codec.pack({"prompt": "a", "token_ids": [1]})) is None


def test_an_outline_has_no_images() -> None:
    shown = {"messages": [{"role": "user", "parts": [{"image": 0}]}], "images": [{"data": png()}]}
    found = outline(codec.pack(shown | {"tenant": "t"}))
    assert found is not None
    assert (found.size, found.request.tenant, found.request.images) == (1, "t", ())
