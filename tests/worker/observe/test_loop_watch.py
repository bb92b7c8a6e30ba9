"""A worker that is stuck knows it: which loop stands still, since when, and that it has to end. One that was
stopped, or whose server is away, is not stuck."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from prometheus_client import CollectorRegistry
from support.http import fetch
from support.servers.servers import free_port
from support.workers.counting_worker import flags_of, until
from support.workers.jobs import SHARD, IdleEngine
from support.workers.work import Work, outcome

from millstream import AsyncClient
from millstream.wire.connection import Endpoint
from millstream.wire.messages.script_replies import LaneEntry
from millstream_worker.jobs.consumer import Consumer
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.jobs.table import JobTable
from millstream_worker.leases.renewal import Leases
from millstream_worker.observe.metrics import Metrics
from millstream_worker.observe.watchdog import EXIT_STUCK, LoopWatch, Watchdog, WatchdogThread

# A worker one of whose tasks blocks the event loop for good, once a file is there.
BLOCKING = """
import os, sys, time
from millstream_worker.upkeep.queue_metrics import QueueFigures

async def block(figures):
    if os.path.exists({flag!r}):
        time.sleep(3600)

QueueFigures.measure = block
from millstream_worker.__main__ import main
sys.exit(main())
"""


def test_a_loop_is_stuck_after_looks_without_a_turn() -> None:
    watchdog = Watchdog(3.0)
    writer, renewal = watchdog.watch("writer"), watchdog.watch("renewal", waits_s=10.0)
    for _ in range(9):
        watchdog.look(1.0)
    assert watchdog.problem == ""  # neither has begun
    with writer:
        renewal.turn()
        for _ in range(3):
            assert watchdog.problem == ""
            watchdog.look(1.0)
        assert watchdog.problem == ""  # the first look saw the last turn
        watchdog.look(1.0)
        assert watchdog.problem.startswith("writer has made no turn since 20")
        writer.turn()
        watchdog.look(1.0)
        assert watchdog.problem == ""
    for _ in range(8):
        watchdog.look(1.0)
    assert watchdog.problem == ""  # the writer has ended, and the renewal waits longer by its nature
    watchdog.look(1.0)
    assert watchdog.problem.startswith("renewal ")


def test_the_looker_calls_for_the_end_once_the_grace_is_over() -> None:
    watchdog = Watchdog(0.02)
    ends: list[str] = []
    over = threading.Event()

    def end(problem: str) -> None:
        ends.append(problem)
        over.set()

    watch = watchdog.watch("writer")
    watchdog_thread = WatchdogThread(watchdog, 0.05, end, look_s=0.01)
    watchdog_thread.start()
    watch.turn()
    assert over.wait(20)
    watchdog_thread.stop()
    assert ends == [str(watch)]


def test_the_last_success_of_several_loops_is_of_the_slowest() -> None:
    watchdog = Watchdog(1.0)
    first, second = watchdog.watch("read"), watchdog.watch("read")
    first.succeed()
    assert dict(watchdog.last()) == {"read": None}
    second.succeed()
    [(_, ago)] = watchdog.last()
    assert ago is not None
    assert 0 <= ago < 60


async def test_a_renewal_whose_answers_are_swallowed_goes_on_turning() -> None:
    """The server is away, however it is: that is an outage, and told as one; lateness grows."""
    swallowed = asyncio.Event()

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(4096):
            swallowed.set()
        writer.close()

    async with await asyncio.start_server(swallow, "127.0.0.1", 0) as hole:
        port = hole.sockets[0].getsockname()[1]
        redis = Endpoint.of(f"redis://127.0.0.1:{port}").commands("w", timeout_s=0.1)
        table, registry = JobTable(EngineQueue(IdleEngine())), CollectorRegistry()
        table.expect(SHARD, [LaneEntry("batch", "1-1", "0-a", 1, b"")])
        watch = LoopWatch("renewal", 60)
        leases = Leases(Consumer(redis, "w"), table, Metrics(registry), 0.05, watch)

        async def late() -> bool:
            name = "millstream_lease_renewal_lateness_seconds"
            late_s = registry.get_sample_value(name, {"queue": "default"}) or 0
            return watch.turns >= 5 and late_s > 0.1

        async with asyncio.TaskGroup() as group:
            group.create_task(leases.run())
            await until(late)
            leases.stop()
        await redis.aclose()
    assert swallowed.is_set()
    assert watch.succeeded_at is None


@pytest.mark.slow
async def test_a_loop_that_hangs_is_named_while_the_others_turn(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed = asyncio.Event()

    async def hang(leases: Leases) -> None:
        await freed.wait()

    monkeypatch.setattr(Leases, "renew", hang)
    async with work(stuck_s=1, stuck_grace_s=600) as worker:
        watchdog = worker.service.health.watchdog
        await until(lambda: "renewal has made no turn since" in watchdog.problem)
        others = {watch.name for watch in watchdog.all if not watch.stuck}
        freed.set()
    assert others >= {"event loop", "read", "writer", "upkeep", "step", "quarantine"}


@pytest.mark.slow
async def test_a_worker_whose_event_loop_is_blocked_ends_itself(
    client: AsyncClient, work: Work, tmp_path: Path
) -> None:
    flag, port = tmp_path / "block", free_port()
    chosen = work.settings(metrics_port=port, stuck_s=2, stuck_grace_s=1)
    command = [sys.executable, "-c", BLOCKING.format(flag=str(flag)), *flags_of(chosen)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:  # noqa: ASYNC220
        try:
            await outcome(client, "w1", 1)
            os.kill(process.pid, signal.SIGSTOP)
            await asyncio.sleep(4)  # longer than a loop may stand still and the grace together
            os.kill(process.pid, signal.SIGCONT)
            assert await asyncio.to_thread(fetch, port, "/healthz") == (200, "ok\n")
            flag.touch()

            async def told() -> bool:
                return (await asyncio.to_thread(fetch, port, "/healthz"))[0] == 503

            await until(told)
            _, output = await asyncio.to_thread(process.communicate, timeout=30)
        finally:
            process.kill()
    assert process.returncode == EXIT_STUCK
    assert b"millstream-worker is stuck and ends itself: " in output
    assert b"upkeep has made no turn since 20" in output
    assert b"in block\n" in output  # where it stands
    [engine] = work.engines()
    await until(
        lambda: not psutil.pid_exists(engine) or psutil.Process(engine).status() == psutil.STATUS_ZOMBIE
    )
