"""Slow is not stuck: an engine that gets on is left alone however long it takes; one that does not is killed,
and its jobs go on in the next.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import structlog
from support.servers.servers import Server
from support.workers.counting_worker import counted, model_name, serving, until, worker_process

from millstream import AsyncClient, JobFailed
from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.frames import Beat
from millstream_worker.engine_link import EnginePort, Silence
from millstream_worker.engine_link.supervisor import EngineLaunch, EngineLimits, Supervisor
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.observe.watchdog import LoopWatch


async def answer(client: AsyncClient, prompt: str, count: int) -> tuple[str, int]:
    job = await client.submit(prompt, max_tokens=count)
    result = await client.wait(job.id, timeout_s=60)
    return result.choices[0].text, result.attempts


@pytest.mark.slow
async def test_a_step_longer_than_the_limit_lives_while_it_gets_on(valkey: Server, tokenizer: Path) -> None:
    model = model_name(tokenizer, step_s=1.5, load_s=2.5)
    async with AsyncClient(valkey.url) as client:
        async with serving(valkey, model, progress_timeout_s=1, silence_timeout_s=2) as worker:
            assert await answer(client, "w1", 2) == ("w2 w3", 1)
            assert worker.metric("engine_restarts_total") == 0


@pytest.mark.slow
async def test_no_job_is_taken_from_a_worker_whose_engine_is_slow(
    valkey: Server, tokenizer: Path, tmp_path: Path
) -> None:
    """Neither in a step nor while the next engine loads, both twice as long as a lease."""
    model = model_name(tokenizer, step_s=2, load_s=2, pids=tmp_path)

    def pids() -> list[int]:
        return [int(path.name) for path in tmp_path.iterdir()]

    async with AsyncClient(valkey.url) as client, serving(valkey, model, lease_s=1, renew_s=0.25) as first:
        job = await client.submit("w1", max_tokens=2, stream=True)
        text = (await anext(client.stream(job.id))).text
        assert text == "w2"
        async with serving(valkey, model_name(tokenizer), lease_s=1, renew_s=0.25) as second:
            [pid] = pids()
            os.kill(pid, signal.SIGKILL)
            result = await client.wait(job.id, timeout_s=60)
            assert (result.choices[0].text, result.attempts) == ("w2 w3", 1)
            assert first.metric("engine_restarts_total") == 1
            assert second.metric("jobs_reclaimed_total") == 0


async def test_an_engine_that_gets_no_further_is_killed_and_its_jobs_go_on(
    valkey: Server, tokenizer: Path
) -> None:
    """It beats all the while; in the end only the job that makes it hang is given up."""
    model = model_name(tokenizer, hang=666, step_s=0.01)
    quick = {"progress_timeout_s": 1, "engine_restarts": 9, "max_died": 1, "max_died_alone": 1}
    with structlog.testing.capture_logs() as lines:
        async with AsyncClient(valkey.url) as client, serving(valkey, model, **quick):
            mate = asyncio.create_task(answer(client, "w1", 60))
            hanging = await client.submit("w640", max_tokens=60)
            with pytest.raises(JobFailed, match="died 2 times computing this job, 1 times alone"):
                await client.wait(hanging.id, timeout_s=60)
            assert await mate == (counted(2, 60), 1)
    killed = [line for line in lines if line["event"] == "engine makes no progress; it is killed"]
    assert [line["phase"] for line in killed] == ["step", "step"]


async def test_an_engine_that_runs_out_of_memory_says_so_and_its_jobs_go_on(
    valkey: Server, tokenizer: Path
) -> None:
    model = model_name(tokenizer, exhaust=666, step_s=0.002)
    with structlog.testing.capture_logs() as lines:
        async with AsyncClient(valkey.url) as client, serving(valkey, model, engine_restarts=9) as worker:
            mate = asyncio.create_task(answer(client, "w1", 60))
            greedy = await client.submit("w650", max_tokens=60)
            with pytest.raises(JobFailed, match="the last time by exit status 1"):
                await client.wait(greedy.id, timeout_s=60)
            assert await mate == (counted(2, 60), 1)
            assert worker.metric("engine_restarts_total") == 4
    said = {line["reason"] for line in lines if line["event"] == "engine ends"}
    assert said == {"out of memory: no memory for token 666"}


async def test_an_engine_whose_front_is_killed_while_it_loads_ends(valkey: Server, tokenizer: Path) -> None:
    with worker_process(valkey, model_name(tokenizer, load_s=600)) as front:
        engines: list[psutil.Process] = []

        async def started() -> bool:
            engines[:] = psutil.Process(front.pid).children()
            return any(engine.num_threads() >= 3 for engine in engines)  # it beats: so it loads

        await until(started)
        [engine] = engines
        front.kill()
        await until(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE)


async def test_an_engine_whose_audit_fails_is_replaced(valkey: Server, tokenizer: Path) -> None:
    async with AsyncClient(valkey.url) as client:
        async with serving(valkey, model_name(tokenizer, leaks=1)) as worker:
            assert await answer(client, "w1", 3) == (counted(2, 3), 1)
            with structlog.testing.capture_logs() as lines:
                await until(lambda: worker.metric("engine_restarts_total") == 1)
            assert await answer(client, "w5", 3) == (counted(6, 3), 1)
    assert {"a broken invariant: 7 KV blocks are held by no row"} == {
        line["reason"] for line in lines if line["event"] == "engine ends"
    }


class Killed:
    """Stands for a link: only whether it is killed matters."""

    def __init__(self) -> None:
        self.killed = False

    def kill(self) -> None:
        self.killed = True


@pytest.mark.parametrize(
    ("frame", "killed"),
    [
        (Beat("step", 119.0), False),
        (Beat("step", 121.0), True),
        (Beat("loading", 121.0), True),
        (Beat("idle", 86_400.0), False),
        (Silence(119.0), False),  # it is not ready: importing may keep its beats back
        (Silence(121.0), True),
    ],
)
async def test_what_counts_as_stuck(frame: Any, killed: bool) -> None:
    engine = EnginePort()
    queue = EngineQueue(engine)
    callbacks: Any = None  # none is called

    limits = EngineLimits(restarts=5, progress_timeout_s=120, silence_timeout_s=60)
    launch = EngineLaunch([], EngineConfig("m"))
    supervisor = Supervisor(launch, engine, queue, callbacks, LoopWatch("step", 60), limits)
    link: Any = Killed()
    await supervisor._take(link, frame)
    assert link.killed == killed
