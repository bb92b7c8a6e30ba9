"""What a type checker makes of the public API. Never run: mypy reads it, expected errors included."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any, assert_never, assert_type

from pydantic import BaseModel

import millstream as ms


class Page(BaseModel):
    title: str


async def asynchronous(client: ms.AsyncClient) -> None:
    job = await client.submit("Hello", max_tokens=20, stop="\n", lane="interactive", deadline_s=5)
    assert_type(job, ms.Submitted)
    assert_type(job.id, str)
    await client.submit(messages=[{"role": "user", "content": "Hi"}], sampling=ms.SamplingParams(n=2))
    parts = [{"type": "text", "text": "Hi"}]
    await client.submit(
        messages=[{"role": "user", "content": parts}], chat_template_kwargs={"thinking": False}
    )
    await client.submit("Hello", max_tokens="20")  # type: ignore[arg-type]
    await client.submit("Hello", max_token=20)  # type: ignore[call-arg]
    assert_type(
        await client.submit_many([{"prompt": "a", "id": "1", "temperature": 0.5}]),
        list[ms.Submitted | ms.MillstreamError],
    )
    await client.submit_many([{"prompt": 5}])  # type: ignore[typeddict-item]
    assert_type(client.stream(job.id), AsyncGenerator[ms.TokenEvent | ms.RewindEvent | ms.EndEvent, None])
    async for event in client.stream(job.id, cursor=None):
        assert_type(event.text, str)
        match event:
            case ms.TokenEvent(choices=choices):
                assert_type(choices, tuple[ms.ChoiceDelta, ...])
            case ms.RewindEvent(seq=seq):
                assert_type(seq, int)
            case ms.EndEvent(state=state):
                assert_type(state, ms.State)
            case _:
                assert_never(event)
    assert_type(await client.result(job.id), ms.Result)
    assert_type((await client.wait(job.id, timeout_s=1)).text, str)
    await client.submit("Hello", response_format=Page)
    await client.submit("Hello", prediction={"type": "content", "content": "Hi"})
    await client.submit("Hello", prediction=5)  # type: ignore[arg-type]
    await client.submit("Hello", response_format={"type": "json_object"})
    await client.submit("Hello", structured_outputs={"json": Page})
    await client.submit("Hello", response_format=5)  # type: ignore[arg-type]
    assert_type((await client.wait(job.id)).parse(Page), Page)
    assert_type((await client.wait(job.id)).choices[0].parse(Page), Page)
    assert_type((await client.wait(job.id)).parse(), Any)
    assert_type(await ms.run_batch(client, "in.jsonl", Path("out.jsonl")), ms.BatchSummary)
    await ms.run_batch(client, "in.jsonl", "out.jsonl", schema=Page, window=9, on_progress=progressed)
    await ms.run_batch(client, "in.jsonl", "out.jsonl", windows=9)  # type: ignore[call-arg]
    async for row in ms.batch_rows(client, "in.jsonl", "out.jsonl"):
        assert_type(row, dict[str, Any])
    assert_type(await client.wait_many([job.id]), dict[str, ms.Result | ms.JobError])
    async for done in client.as_completed([job.id]):
        assert_type(done, tuple[str, ms.Result | ms.JobError])
    assert_type(await client.cancel(job.id), ms.CancelOutcome)
    assert_type(await client.cancel_many(["own"]), dict[str, ms.CancelOutcome])
    assert_type((await client.status(job.id)).finished_ms, int | None)
    queue = await client.queue_info()
    assert_type(queue, ms.QueueStatus)
    assert_type([lane.waiting for lane in queue.lanes], list[int | None])
    assert_type(queue.workers, tuple[ms.WorkerStatus, ...] | None)
    sure = await client.submit("Hello", durability="aof")
    assert_type(sure.durability, ms.Durability)
    assert_type(await client.forget(job.id), bool)
    assert_type(await client.forget_many([job.id]), dict[str, bool | ms.JobError])
    async for letter in client.dead_letters(limit=10):
        assert_type(letter, ms.DeadLetter)
        assert_type((await client.dead_letter(letter.id)).request, ms.Request)
        assert_type(await client.requeue(letter.id), ms.Submitted)
        await client.drop_dead(letter.id)
    async with client.with_queue("other") as other:
        assert_type(other, ms.AsyncClient)


def progressed(progress: ms.BatchProgress) -> None:
    assert_type(progress.done, int)


def synchronous() -> None:
    with ms.Client("redis://localhost", queue="docs", options=ms.ClientOptions(max_entries=5)) as client:
        assert_type(client, ms.Client)
        job = client.submit("Hello", top_k=5)
        assert_type(job, ms.Submitted)
        client.submit("Hello", max_token=20)  # type: ignore[call-arg]
        assert_type(ms.run_batch_blocking(client, "in.jsonl", "out.jsonl"), ms.BatchSummary)
        assert_type(client.stream(job.id), Iterator[ms.TokenEvent | ms.RewindEvent | ms.EndEvent])
        assert_type(client.wait(job.id), ms.Result)
        assert_type(client.queue_info(), ms.QueueStatus)
        assert_type(client.queue_model(), ms.ModelIdentity)
        assert_type(client.dead_letters(), Iterator[ms.DeadLetter])
        assert_type(client.as_completed([job.id]), Iterator[tuple[str, ms.Result | ms.JobError]])


def errors(error: ms.MillstreamError) -> None:
    match error:
        case ms.InvalidRequest(field=field):
            assert_type(field, str)
        case ms.QueueFull(retry_after_s=retry_after_s, reason=reason):
            assert_type((retry_after_s, reason), tuple[float, str])
        case ms.JobFailed(job_id=job_id, reason=reason):
            assert_type((job_id, reason), tuple[str, str])
        case _:
            pass
