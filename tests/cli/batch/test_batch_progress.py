"""What stands on the screen while a batch runs."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from rich.console import Console
from support.batch_files import BatchFiles
from support.servers.servers import Server, free_port
from support.workers.answering_worker import answering
from support.workers.counting_worker import until
from support.workers.hand_worker import register

from millstream import AsyncClient
from millstream.batch.files.input_lines import InputFile
from millstream.batch.files.journal import Journal
from millstream.batch.run.run import BatchRun
from millstream.batch.run.run_options import RunOptions
from millstream.batch.run.submit_lines import Patience
from millstream.batch.run.tally import Summary, Tally
from millstream.cli.batch.batch_watch import jobs_before, watched
from millstream.cli.display.batch_progress import SPARE, Shown, show_progress
from millstream.cli.embedded.stack import Stack
from millstream.client.session.run_while import run_while
from millstream.errors import MillstreamError
from millstream.wire.keys import Lane, QueueKeys

Said = Callable[[], str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """All that stands on standard error so far."""
    parts: list[str] = []

    def read() -> str:
        parts.append(capsys.readouterr().err)
        return "".join(parts)

    return read


def shown(
    *, total: int = 1000, skipped: int = 0, completed: int = 0, failed: int = 0, seconds: float = 0.0
) -> Shown:
    tally = Tally()
    tally.skipped, tally.completed, tally.failed = skipped, completed, failed
    tally.prompt_tokens, tally.output_tokens = 200 * completed, 20 * completed
    source = SimpleNamespace(total=total)
    run: Any = SimpleNamespace(tally=tally, elapsed_s=seconds, under_way=2000, source=source)
    return Shown(run, price_per_hour=36.0)


@pytest.mark.parametrize(
    ("skipped", "completed", "failed", "seconds", "eta"),
    [
        (0, 0, 0, 0.0, "–"),
        (900, 0, 0, 0.0, "–"),
        (0, 90, 10, 10.0, "0:01:30"),
        (800, 100, 0, 10.0, "0:00:10"),  # lines that were answered before took no time, and say nothing
        (0, 1000, 0, 10.0, "0:00:00"),
        (0, 1, 0, 100.0, "27:45:00"),
    ],
)
def test_the_time_left_is_told_from_the_lines_of_this_run(
    skipped: int, completed: int, failed: int, seconds: float, eta: str
) -> None:
    assert shown(skipped=skipped, completed=completed, failed=failed, seconds=seconds).eta() == eta


def test_jobs_ahead_of_the_run_are_shown_until_its_first_result() -> None:
    waits, runs = shown(), shown(completed=1)
    waits.behind = runs.behind = 1_900
    assert "waiting behind 1,900 jobs" in waits.counts()
    assert "waiting behind 1,900 jobs" not in runs.counts()


async def test_without_a_terminal_a_line_says_the_same(said: Said) -> None:
    line = "100 of 1,000 lines, 10 failed, 2,000 under way, 0:00:10, ETA 0:01:30, 10.0 rows"
    some = shown(completed=90, failed=10, seconds=10.0)
    await run_while(show_progress(some, line_every_s=0.0), until(lambda: line in said()))


@pytest.mark.parametrize("width", [44, 80, 120])
def test_no_figure_is_cut_however_narrow_the_terminal_is(width: int) -> None:
    file = io.StringIO()
    console = Console(width=width, file=file, force_terminal=True, color_system=None)
    console.print(shown(total=20_000, completed=6_790, failed=12, seconds=1000.0))
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= width - SPARE
    text = " ".join(file.getvalue().split())
    for figure in (
        "6,802/20,000 12 failed 2,000 under way 0:16:40 ETA 0:32:20 6.80 rows/s",
        "1,358 prompt tokens/s 136 output tokens/s 1.47 per 1,000 rows 73.64 per million output tokens",
    ):
        assert figure in text


async def watch(batch: BatchFiles, stack: Stack | None = None, options: RunOptions | None = None) -> Summary:
    """As the command does, which looks seldom."""
    with InputFile(batch.source) as source, Journal(batch.out) as journal:
        async with AsyncClient(batch.server.url) as client:
            run = BatchRun(source, journal, client, options)
            stack = stack or Stack(batch.server.url)
            return await watched(stack, Shown(run), client, Lane.BATCH, look_s=0.05)


async def test_a_server_without_room_is_told_and_waited_for(batch: BatchFiles, said: Said) -> None:
    options = RunOptions(patience=Patience(room_s=0.05, again_s=0.05))
    looks: list[str] = []

    class Away(Stack):
        async def has_worker(self, queue: str) -> bool:
            looks.append(queue)
            raise MillstreamError("away")

    with redis.Redis(port=batch.server.port) as direct, answering(batch.server.url):
        async with AsyncClient(batch.server.url) as client:
            await client.wait((await client.submit("x")).id)
        direct.config_set("maxmemory", "1")
        running = asyncio.create_task(watch(batch, Away(batch.server.url), options))
        await until(lambda: "maxmemory" in said())
        looks.clear()
        await until(lambda: len(looks) > 1)
        direct.config_set("maxmemory", "0")
        assert (await running).completed == 60
    [full] = [line for line in said().splitlines() if "maxmemory" in line]
    assert full.endswith("the run waits until there is room")


async def test_a_queue_that_no_worker_serves_is_told_once(batch: BatchFiles, said: Said) -> None:
    warning = "no worker serves the queue 'default' now; its jobs wait until one does"
    with answering(batch.server.url) as worker:  # it says nothing of itself, as a worker would
        worker.gate.clear()
        running = asyncio.create_task(watch(batch))
        await until(lambda: warning in said())
        worker.gate.set()
        await running
    assert said().count("warning") == 1


async def test_a_served_queue_is_not_warned_of(batch: BatchFiles, said: Said) -> None:
    register(batch.server.port, QueueKeys("default").shard(0))
    looks: list[str] = []

    class Looked(Stack):
        async def has_worker(self, queue: str) -> bool:
            looks.append(queue)
            if len(looks) == 1:
                raise MillstreamError("a server that is away for a moment ends nothing")
            return await super().has_worker(queue)

    with answering(batch.server.url) as worker:
        worker.gate.clear()
        running = asyncio.create_task(watch(batch, Looked(batch.server.url)))
        await until(lambda: len(looks) == 2)
        worker.gate.set()
        await running
    assert looks == ["default"] * 2
    assert "warning" not in said()


async def test_jobs_of_others_that_wait_are_counted(valkey: Server) -> None:
    async with AsyncClient(valkey.url) as client:
        await client.submit_many([{"prompt": "x", "lane": "interactive"}, *[{"prompt": "x"}] * 4])
        run: Any = SimpleNamespace(queues={"default"}, under_way=7, followers=5)
        assert await jobs_before(client, run, Lane.BATCH) == 3
        run.under_way = run.followers = 0
        assert await jobs_before(client, run, Lane.INTERACTIVE) == 1
    async with AsyncClient(f"redis://127.0.0.1:{free_port()}") as client:
        assert await jobs_before(client, run, Lane.BATCH) == 0
