"""Slow is not stuck: an engine that gets on is left alone however long it takes; one that does not is killed,
and its jobs go on in the next."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import psutil
import pytest
import structlog
from support.workers.counting_worker import counted, until
from support.workers.work import Work, answer, outcome

from millstream import AsyncClient, JobFailed
from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.frames import Beat, LastWords
from millstream_worker.engine.protocol.request import EngineRequest
from millstream_worker.engine_link.link import LOOK_S, EngineLink, EnginePort, Silence
from millstream_worker.engine_link.supervisor import EngineLaunch, EngineLimits, Supervisor
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.observe.watchdog import LoopWatch


@pytest.mark.slow
async def test_a_slow_engine_loses_neither_its_life_nor_a_job(client: AsyncClient, work: Work) -> None:
    """A step and a load longer than the limits and than a lease, with another worker there; also after the
    engine was killed."""
    limits = {"progress_timeout_s": 1, "silence_timeout_s": 2, "lease_s": 1, "renew_s": 0.25}
    async with work(step_s=2, load_s=2.5, **limits) as first:
        job = await client.submit("w1", max_tokens=2, stream=True)
        assert (await anext(client.stream(job.id))).text == "w2"
        assert first.metric("engine_restarts_total") == 0
        work.kill_engine()
        async with work(lease_s=1, renew_s=0.25) as second:
            result = await client.wait(job.id, timeout_s=60)
            assert (result.text, result.attempts) == ("w2 w3", 1)
            assert first.metric("engine_restarts_total") == 1
            assert second.metric("jobs_reclaimed_total") == 0


@pytest.mark.slow
async def test_an_engine_without_progress_is_killed_and_jobs_go_on(client: AsyncClient, work: Work) -> None:
    """It beats all the while; in the end only the job that makes it hang is given up."""
    quick = {"progress_timeout_s": 1, "engine_restarts": 9, "max_died": 1, "max_died_alone": 1}
    with structlog.testing.capture_logs() as lines:
        async with work(hang=666, step_s=0.01, **quick):
            mate = asyncio.create_task(outcome(client, "w1", 60))
            with pytest.raises(JobFailed, match="died 2 times computing this job, 1 times alone"):
                await outcome(client, "w640", 60)
            result = await mate
            assert (result.text, result.attempts) == (counted(2, 60), 1)
    killed = [line for line in lines if line["event"] == "engine makes no progress; it is killed"]
    assert [line["phase"] for line in killed] == ["step", "step"]


@pytest.mark.slow
async def test_an_engine_out_of_memory_or_unsound_says_so_and_restarts(
    client: AsyncClient, work: Work
) -> None:
    with structlog.testing.capture_logs() as lines:
        async with work(exhaust=666, step_s=0.002, engine_restarts=9) as worker:
            mate = asyncio.create_task(answer(client, "w1", 60))
            with pytest.raises(JobFailed, match="the last time by exit status 1"):
                await outcome(client, "w650", 60)
            assert await mate == counted(2, 60)
            assert worker.metric("engine_restarts_total") == 4
        async with work(leaks=1) as worker:
            assert await answer(client, "w1", 3) == counted(2, 3)
            await until(lambda: worker.metric("engine_restarts_total") == 1)
            assert await answer(client, "w5", 3) == counted(6, 3)
    assert {line["reason"] for line in lines if line["event"] == "engine ends"} == {
        "out of memory: no memory for token 666",
        "a broken invariant: 7 KV blocks are held by no row",
    }


@pytest.mark.slow
async def test_an_engine_whose_front_is_killed_while_it_loads_ends(work: Work) -> None:
    with work.process(load_s=600) as front:
        engines: list[psutil.Process] = []

        async def started() -> bool:
            engines[:] = psutil.Process(front.pid).children()
            return any(engine.num_threads() >= 3 for engine in engines)  # it beats: so it loads

        await until(started)
        [engine] = engines
        front.kill()
        await until(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE)


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


SILENT = [sys.executable, "-c", "import time; time.sleep(600)"]


async def test_silence_is_told_until_the_end() -> None:
    link = await EngineLink.start(SILENT, EngineConfig("m"))
    heard = []
    async for frame in link.frames():
        heard.append(frame)
        if len(heard) == 2:
            link.kill()
    assert heard[:2] == [Silence(LOOK_S), Silence(2 * LOOK_S)]
    assert (await link.reap()).signal == 9


async def test_an_engine_that_sends_what_is_no_frame_is_killed() -> None:
    garbage = "import os, sys, time; os.write(int(sys.argv[-1]), bytes([0, 0, 0, 1, 193])); time.sleep(600)"
    link = await EngineLink.start([sys.executable, "-c", garbage], EngineConfig("m"))
    heard = [frame async for frame in link.frames() if not isinstance(frame, Silence)]
    assert [type(frame) for frame in heard] == [LastWords]
    assert "not a frame" in heard[0].message
    assert (await link.reap()).signal == 9


async def test_an_engine_that_does_not_read_holds_nobody_for_ever() -> None:
    link = await EngineLink.start(SILENT, EngineConfig("m"))
    port = EnginePort()
    assert await port.writable(600)  # nobody to wait for
    port.plug(link)
    assert await port.writable(600)
    port.add(EngineRequest(1, tuple(range(3_000_000)), 1))
    assert not await port.writable(0.01)
    link.kill()
    assert await port.writable(600)
    await link.reap()
