"""Jobs with images through a whole worker: a real server, processes that prepare images, and an engine
process that answers with what it saw."""

from __future__ import annotations

import io
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from support.models.vision_checkpoints import picture
from support.workers.counting_worker import Worker, assert_nothing_left, until, until_running
from support.workers.image_engine import MEMORY
from support.workers.image_jobs import asked, png, submit
from support.workers.work import Work

from millstream import AsyncClient, JobCancelled, JobFailed, Result
from millstream.wire.messages.job_messages import ErrorInfo

ONE, TWO = png(1), png(2, 200, 40)


def frames(folder: Path) -> Counter[str]:
    log = folder / "frames"
    lines = log.read_text().splitlines() if log.exists() else []
    return Counter(line.split()[0] for line in lines)


async def result_of(client: AsyncClient, name: str) -> Result:
    return await client.wait(f"0-{name}", timeout_s=60)


async def first_token(client: AsyncClient, name: str) -> int:
    return (await result_of(client, name)).choices[0].token_ids[0]


async def failure_of(client: AsyncClient, name: str) -> ErrorInfo:
    try:
        await result_of(client, name)
    except JobFailed as error:
        found: ErrorInfo = error.result.error
        return found
    raise AssertionError(f"{name} was not refused")


async def test_an_answer_is_about_the_images_of_its_request(
    client: AsyncClient, redis_client: Redis, seeing: Work, tmp_path: Path
) -> None:
    async with seeing() as worker:
        for name, files in {"a": [ONE], "b": [TWO], "ab": [ONE, TWO], "again": [ONE]}.items():
            await submit(redis_client, name, asked(*files))
        seen = {name: await first_token(client, name) for name in ("a", "b", "ab", "again")}
        usage = (await result_of(client, "ab")).usage
        assert worker.metric("images_prepared_total") >= 2
        assert worker.metric("image_bytes_total") > 0
        beats = await client.queue_info()
    assert len({seen["a"], seen["b"], seen["ab"]}) == 3
    assert (seen["ab"] - 1) % 700 == (seen["a"] + seen["b"] - 2) % 700
    assert seen["again"] == seen["a"]
    assert usage.image_tokens == 28 + 16
    assert [worker.images for worker in beats.workers] == [True]
    assert frames(tmp_path)["hold"] == frames(tmp_path)["drop"] > 0
    await assert_nothing_left(redis_client)


@pytest.mark.slow
async def test_a_page_asked_ten_questions_is_prepared_once(
    client: AsyncClient, redis_client: Redis, seeing: Work, tmp_path: Path
) -> None:
    """By one tenant, as long as any of its jobs is under way; another one's has nothing of it."""
    seeing.hold(1)
    async with seeing(rows=16) as worker:
        names = [f"q{number}" for number in range(10)]
        for name in names:
            await submit(redis_client, name, asked(ONE, text=f"question {name}"))
        await submit(redis_client, "other", asked(ONE, tenant="other"))
        await until_rows(worker, 11, tokens=1)
        assert worker.metric("images_prepared_total") == 2
        seeing.go(1)
        assert len({await first_token(client, name) for name in (*names, "other")}) == 1
    assert frames(tmp_path) == {"hold": 2, "drop": 2}


async def test_a_job_that_loses_its_engine_sees_its_images_again(
    client: AsyncClient, redis_client: Redis, seeing: Work, tmp_path: Path
) -> None:
    seeing.hold(2)
    async with seeing() as worker:
        await submit(redis_client, "a", asked(ONE, TWO, stream=True))
        await submit(redis_client, "b", asked(TWO, tenant="b"))
        await until_rows(worker, 2, tokens=2)
        seeing.kill_engine()
        await until(lambda: frames(tmp_path)["hold"] == 6)
        seeing.go(2)
        results = [await result_of(client, name) for name in "ab"]
    for result in results:
        ids = result.choices[0].token_ids
        assert ids == tuple(range(ids[0], ids[0] + 4))
        assert result.attempts == 1
    await assert_nothing_left(redis_client)


async def until_rows(worker: Worker, jobs: int, tokens: int) -> None:
    def come() -> bool:
        if worker.service.session is None:
            return False
        table = worker.components.table
        return len(table) == jobs and all(job.outputs.tokens == tokens for job in table)

    await until(come)


@pytest.mark.slow
async def test_a_suspect_with_images_runs_isolated(
    client: AsyncClient, redis_client: Redis, seeing: Work, tmp_path: Path
) -> None:
    """Two engines died with it, which may be its fault."""
    seeing.hold(1)
    async with seeing(engine_restarts=9) as worker:
        await submit(redis_client, "a", asked(ONE))
        for deaths in range(2):
            await until_rows(worker, 1, tokens=1)
            await until(
                lambda deaths=deaths: frames(tmp_path)["hold"] == deaths + 1 and len(seeing.engines()) == 1
            )
            seeing.kill_engine()
        await until(lambda: any(job.attempt.alone for job in worker.components.table))
        await submit(redis_client, "b", asked(TWO))
        await until(lambda: frames(tmp_path)["hold"] == 3)
        seeing.go(1)
        ids = (await result_of(client, "a")).choices[0].token_ids
        assert ids == tuple(range(ids[0], ids[0] + 4))
        await result_of(client, "b")


@pytest.mark.slow
async def test_the_nursery_may_die(client: AsyncClient, redis_client: Redis, seeing: Work) -> None:
    async with seeing() as worker:
        await submit(redis_client, "a", asked(ONE))
        first = await first_token(client, "a")
        for number in range(2):
            os.kill(worker.components.pool.pids[0], signal.SIGKILL)
            await submit(redis_client, f"a{number}", asked(ONE))
            assert await first_token(client, f"a{number}") == first
        assert worker.metric("image_processes_killed_total") == 0


@pytest.mark.slow
async def test_cancelled_and_ended_jobs_hold_no_images(
    client: AsyncClient, redis_client: Redis, seeing: Work, tmp_path: Path
) -> None:
    seeing.hold(1)
    async with seeing() as worker:
        await submit(redis_client, "running", asked(ONE))
        await until_rows(worker, 1, tokens=1)
        await submit(redis_client, "late", asked(TWO, deadline_ms=1))
        [nursery] = worker.components.pool.pids
        os.kill(nursery, signal.SIGSTOP)
        await submit(redis_client, "preparing", asked(png(3)))
        await until_running(client, "0-preparing")
        for name in ("preparing", "running"):
            await client.cancel(f"0-{name}")
            with pytest.raises(JobCancelled):
                await result_of(client, name)
        os.kill(nursery, signal.SIGCONT)
        await until(lambda: len(worker.components.table) == 0)
        held = worker.components.queue.images
        assert (held.bytes, held.reserved_bytes) == (0, 0)
    assert frames(tmp_path) == {"hold": 1, "drop": 1}


def gif(frames: int) -> bytes:
    out = io.BytesIO()
    images = [picture(seed, 16, 16) for seed in range(frames)]
    images[0].save(out, "GIF", save_all=True, append_images=images[1:])
    return out.getvalue()


def in_parts(*parts: dict[str, Any], files: int = 1, **fields: Any) -> dict[str, Any]:
    return asked(*[ONE] * files, **fields) | {"messages": [{"role": "user", "parts": list(parts)}]}


IMAGE, TEXT = {"image": 0}, {"text": "read"}
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "cut": (asked(ONE, ONE[:200]), "messages[0].parts[1]", "is no whole PNG, JPEG, WebP, GIF, BMP or TIFF"),
    "text": (asked(b"no image"), "images[0].data", "is no whole PNG, JPEG, WebP, GIF, BMP or TIFF image"),
    "frames": (asked(gif(12)), "messages[0].parts[0]", "has 12 pages or frames; send one image for each"),
    "pixels": (asked(png(1, 400, 400)), "messages[0].parts[0]", "has 400 x 400 pixels and may have 100,000"),
    "placeholder": (
        in_parts(IMAGE, {"text": "an <image> here"}),
        "messages[0].parts[1]",
        "contains the model's own image placeholder <image>; remove it",
    ),
    "system": (
        asked(ONE) | {"messages": [{"role": "system", "content": "a <image>"}, *asked(ONE)["messages"]]},
        "messages[0].content",
        "contains the model's own image placeholder <image>; remove it",
    ),
    "truncated": (
        asked(ONE) | {"sampling": {"truncate_prompt_tokens": 5}},
        "sampling.truncate_prompt_tokens",
        "cannot cut a prompt with images; leave it out",
    ),
    "absent": (in_parts({"image": 3}), "messages[0].parts[0]", "3"),
    "unused": (in_parts(TEXT), "images", ""),
    "long": (
        in_parts(*[IMAGE] * 20, TEXT),
        "messages",
        "with its 20 images (940 tokens) the prompt has 963 tokens; the model holds 511; send fewer images",
    ),
    "large": (
        asked(*[png(seed, 96, 96) for seed in range(5)]),
        "messages[0].parts[0]",
        "its 5 images take more than 0 MB when prepared, and this worker has 0 MB (its "
        "MILLSTREAM_IMAGE_MEMORY); send fewer",
    ),
}


async def test_images_are_refused_in_words_for_their_sender(
    client: AsyncClient, redis_client: Redis, seeing: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MEMORY, "150000")
    async with seeing(max_image_pixels=100_000) as worker:
        for name, (request, _, _) in REFUSED.items():
            await submit(redis_client, name, request)
        await submit(redis_client, "good", asked(ONE))
        for name, (_, field, words) in REFUSED.items():
            reason = await failure_of(client, name)
            assert reason.field is not None
            assert (name, reason.field.startswith(field)) == (name, True), reason
            assert words in reason.message, (name, reason)
        await result_of(client, "good")
        held = worker.components.queue.images
        await until(lambda: held.bytes == held.reserved_bytes == 0)
        assert worker.metric("images_refused_total", reason="damaged") == 1
        assert worker.metric("images_refused_total", reason="memory") == 1


async def test_a_worker_of_texts_refuses_images(
    client: AsyncClient, redis_client: Redis, seeing: Work
) -> None:
    async with seeing(images="off") as worker:
        await submit(redis_client, "a", asked(ONE))
        reason = await failure_of(client, "a")
        assert worker.components.pool.pids == []
        assert [one.images for one in (await client.queue_info()).workers] == [False]
    assert (reason.code, reason.field) == ("bad_request", "messages[0].parts[0]")
    assert "this queue's model, counting, reads text only; send the page's text, or" in reason.message


@pytest.mark.slow
async def test_more_images_than_the_engine_holds_take_turns(
    client: AsyncClient, redis_client: Redis, seeing: Work, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(MEMORY, "50000")  # two of them
    async with seeing() as worker:
        held, seen = worker.components.queue.images if worker.service.session else None, []
        for seed in range(12):
            await submit(redis_client, str(seed), asked(png(seed), tenant=f"t{seed % 3}"))
        for seed in range(12):
            seen.append(await first_token(client, str(seed)))
            held = held or worker.components.queue.images
            assert held.reserved_bytes <= 50_000
    assert len(set(seen)) > 10
    assert frames(tmp_path) == {"hold": 12, "drop": 12}


@pytest.mark.slow
async def test_a_drain_leaves_unprepared_jobs_to_others(
    client: AsyncClient, redis_client: Redis, seeing: Work
) -> None:
    """Those that wait for their images when it begins, and one that loses its engine then, with its images:
    at once, not when the grace period is over.
    """
    seeing.hold(2)
    async with seeing(grace_s=300.0) as worker:
        await submit(redis_client, "lost", asked(ONE, TWO, stream=True))
        await until_rows(worker, 1, tokens=2)
        os.kill(worker.components.pool.pids[0], signal.SIGSTOP)
        await submit(redis_client, "left", asked(TWO, tenant="b"))
        await until(lambda: bool(worker.components.table.to_prepare()))
        worker.service.drain()
        await until(lambda: worker.metric("jobs_released_total") == 1)
        seeing.kill_engine()
        await until(lambda: worker.metric("jobs_released_total") == 2, wait_s=15.0)
    seeing.go(2)
    async with seeing():
        for name, images in {"left": 1, "lost": 2}.items():
            result = await result_of(client, name)
            ids = result.choices[0].token_ids
            assert ids == tuple(range(ids[0], ids[0] + 4))
            assert (result.attempts, result.usage.output_tokens) == (2, 4)
            assert (result.usage.image_tokens > 16) is (images == 2)
    await assert_nothing_left(redis_client)


@pytest.mark.slow
async def test_messages_beyond_what_is_kept_are_fetched_again(
    client: AsyncClient, redis_client: Redis, seeing: Work
) -> None:
    """Large files of several tenants, more than are kept beside the loop."""
    noise = os.urandom(1_100_000)
    files = [png(seed) + noise for seed in range(12)]  # behind its end a PNG may have anything
    async with seeing():
        for number, data in enumerate(files):
            await submit(redis_client, str(number), asked(data, tenant=f"t{number % 4}"))
        seen = [await first_token(client, str(number)) for number in range(len(files))]
    assert len(set(seen)) > 10


@pytest.mark.slow
async def test_equal_jobs_are_those_with_equal_images(
    client: AsyncClient, redis_client: Redis, seeing: Work
) -> None:
    async with seeing(result_cache=2**20) as worker:
        for name, data in {"a": ONE, "b": png(5), "again": ONE}.items():
            await submit(redis_client, name, asked(data))
            await result_of(client, name)
        results = {name: await result_of(client, name) for name in ("a", "b", "again")}
        assert worker.metric("result_cache_hits_total") == 1
    assert results["again"].cached
    assert not results["b"].cached
    assert results["again"].choices[0].token_ids == results["a"].choices[0].token_ids
    assert results["b"].choices[0].token_ids != results["a"].choices[0].token_ids
