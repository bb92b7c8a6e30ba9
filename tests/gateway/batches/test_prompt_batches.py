"""Lines of /v1/batches with lists of prompts: a job each, one row."""

from __future__ import annotations

import openai
from support.batches import Line, files_of, finished, made
from support.workers.answering_worker import completion
from support.workers.counting_worker import until_read
from support.workers.hand_worker import HandJob, HandWorker

from millstream import ErrorInfo, State

COMPLETIONS = "/v1/completions"
LINES = [completion("a", ["x", "y", "z"], model="default"), completion("b", [[1, 2]], model="default")]


async def taken(worker: HandWorker, count: int) -> dict[str, HandJob]:
    """So many jobs, by the ends of their ids."""
    jobs = [await worker.take() for _ in range(count)]
    return {job.id.partition("-")[2].partition("-")[2]: job for job in jobs}


def choices(row: Line) -> list[tuple[int, str]]:
    return [(one["index"], one["text"]) for one in row["response"]["body"]["choices"]]


async def test_a_line_of_prompts_is_one_row(worker: HandWorker, client: openai.AsyncOpenAI) -> None:
    batch = await made(client, LINES, endpoint=COMPLETIONS)
    jobs = await taken(worker, 4)
    for name in ("2", "1-1", "1-2", "1-0"):
        await jobs[name].end(last=name)
    done = await finished(client, batch.id)
    rows = {row["custom_id"]: row for row in (await files_of(client, done))[0]}
    assert choices(rows["a"]) == [(0, "1-0"), (1, "1-1"), (2, "1-2")]
    assert choices(rows["b"]) == [(0, "2")]
    assert done.to_dict()["usage"]["total_tokens"] == 4 + len("1-01-11-22")
    await until_read(lambda: states(worker), lambda left: not left)


async def states(worker: HandWorker) -> list[bytes]:
    keys = await worker.redis.keys(worker.keys.job("*"))
    return [await worker.redis.hget(key, "state") for key in keys]


async def test_a_failed_prompt_is_the_error_of_its_line(
    worker: HandWorker, client: openai.AsyncOpenAI
) -> None:
    too_long = ErrorInfo(code="bad_request", message="prompt: too long", field="prompt")
    batch = await made(client, LINES[:1], endpoint=COMPLETIONS)
    jobs = await taken(worker, 2)  # the third one is cancelled where it waits
    await jobs["1-1"].end(State.FAILED, error=too_long)
    await jobs["1-0"].end(last="done before it was told to stop")
    [row] = (await files_of(client, await finished(client, batch.id)))[1]
    assert row["error"]["param"] == "body.prompt[1]"
    assert row["response"]["status_code"] == 400


async def test_a_failed_prompt_has_its_place_at_the_close(
    worker: HandWorker, client: openai.AsyncOpenAI
) -> None:
    too_long = ErrorInfo(code="bad_request", message="prompt: too long", field="prompt")
    batch = await made(client, LINES[:1], endpoint=COMPLETIONS)
    jobs = await taken(worker, 2)
    await client.batches.cancel(batch.id)
    await until_read(lambda: states(worker), lambda found: b"cancelled" in found)  # that which waits
    await jobs["1-1"].end(State.FAILED, error=too_long)
    await jobs["1-0"].end(State.CANCELLED)
    [row] = (await files_of(client, await finished(client, batch.id)))[1]
    assert row["error"]["param"] == "body.prompt[1]"


async def test_a_cancelled_batch_cancels_all_prompts(worker: HandWorker, client: openai.AsyncOpenAI) -> None:
    batch = await made(client, LINES[:1], endpoint=COMPLETIONS)
    await (await worker.take()).end(last="one of three")
    await client.batches.cancel(batch.id)
    done = await finished(client, batch.id)
    [row] = (await files_of(client, done))[1]
    assert row["error"]["code"] == "batch_cancelled"
    assert b"queued" not in await states(worker)
