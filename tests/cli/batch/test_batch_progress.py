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
from millstream.batch.files.input_file import InputFile
from millstream.batch.files.journal import Journal
from millstream.batch.files.spent import Spent
from millstream.batch.run.pace import Work, WorkRates
from millstream.batch.run.run import BatchRun
from millstream.batch.run.run_options import Patience, RunOptions
from millstream.batch.run.tally import Summary, Tally
from millstream.cli.batch.batch_watch import queue_load, watched
from millstream.cli.display.batch_progress import SPARE, QueueLoad, Shown, show_progress
from millstream.cli.embedded.stack import Stack
from millstream.client.session.run_while import run_while
from millstream.errors import MillstreamError, QueueFull
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


class Clock:
    """Of a run that began so long ago, and computed all of its rows at an even pace."""

    def __init__(self, tally: Tally, seconds: float) -> None:
        self.elapsed_s = seconds
        self.earlier = Spent()
        self._tally = tally
        tally.pace.begin(0.0)
        for i in range(tally.completed):
            tally.pace.add(Work(1, 200, 20), (i + 1) * seconds / tally.completed)

    @property
    def spent(self) -> Spent:
        return self._tally.spent(self.elapsed_s)

    @property
    def rates(self) -> WorkRates:
        return self._tally.pace.rates(self.elapsed_s)

    def left_s(self, rows: int, lines: int) -> float | None:
        return self._tally.pace.left_s(rows, lines, self.elapsed_s)


def shown(
    *, total: int = 1000, skipped: int = 0, completed: int = 0, failed: int = 0, seconds: float = 0.0
) -> Shown:
    tally = Tally()
    tally.skipped, tally.completed, tally.failed = skipped, completed, failed
    run: Any = SimpleNamespace(
        tally=tally,
        clock=Clock(tally, seconds),
        lines=SimpleNamespace(under_way=2000, followers=0, unsent=0, queues={"default"}),
        ledger=SimpleNamespace(full=None),
        source=SimpleNamespace(total=total),
    )
    return Shown(run, price_per_hour=36.0)


def test_groups_are_told_beside_the_counts() -> None:
    assert not any("group" in count for count in shown().counts())
    grouped = shown()
    grouped.run.tally.groups, grouped.run.tally.shared_tokens = 1, 2_560
    assert "1 group sharing ~2,560 tokens" in grouped.counts()
    grouped.run.lines.queues.clear()  # answers are reused, or all lines have their rows
    assert not any("group" in count for count in grouped.counts())


@pytest.mark.parametrize(
    ("skipped", "completed", "failed", "seconds", "eta"),
    [
        (0, 0, 0, 0.0, "–"),
        (900, 0, 0, 0.0, "–"),
        (0, 90, 10, 10.0, "~0:01:40"),  # lines that were refused took no time, and say nothing
        (800, 100, 0, 10.0, "~0:00:10"),  # as those that were answered before
        (0, 1000, 0, 10.0, "0:00:00"),
        (0, 9, 0, 100.0, "–"),
        (0, 0, 300, 37.0, "–"),
    ],
)
def test_the_time_left_is_told_from_the_computed_rows(
    skipped: int, completed: int, failed: int, seconds: float, eta: str
) -> None:
    assert shown(skipped=skipped, completed=completed, failed=failed, seconds=seconds).eta() == eta


def test_rates_that_nobody_knows_are_not_zero() -> None:
    blind = shown(seconds=43.0)
    assert blind.speeds() == ["– rows/s", "– prompt tokens/s", "– output tokens/s"]
    blind.load = QueueLoad(workers=1, rows_running=64, output_tokens_per_s=91.3)
    assert blind.speeds()[2] == "~91.3 output tokens/s (workers)"
    known = shown(completed=90, seconds=10.0)
    known.load = blind.load
    assert known.speeds()[:3] == ["9.00 rows/s", "1,800 prompt tokens/s", "180 output tokens/s"]


def test_rows_under_way_are_told_by_what_they_wait_for() -> None:
    some: Any = shown()
    lines = some.run.lines
    lines.under_way, lines.unsent, lines.followers = 400, 145, 5
    assert some.counts()[1:4] == ["250 under way", "145 to be sent", "5 waiting for equal lines"]
    some.load = QueueLoad(workers=2, rows_running=128, output_tokens_per_s=1.0)
    some.run.ledger.full = QueueFull("default", 255, 17_378_725, 1.0)
    assert some.counts()[1:4] == ["128 computing", "122 queued", "145 waiting for room"]
    some.load = QueueLoad(workers=2, rows_running=300, output_tokens_per_s=1.0, shared=True)
    assert some.counts()[1:3] == ["up to 250 computing", "0 queued"]


def test_jobs_ahead_of_the_run_are_shown_until_its_first_result() -> None:
    waits, runs = shown(), shown(completed=1)
    waits.load = runs.load = QueueLoad(behind=1_900)
    assert "waiting behind 1,900 jobs" in waits.counts()
    assert "waiting behind 1,900 jobs" not in runs.counts()


def test_trouble_is_shown_and_no_time_left_with_it() -> None:
    some = shown(completed=90, seconds=10.0)
    some.trouble = lambda: "server does not answer, 12 s"
    assert some.counts()[2:] == ["server does not answer, 12 s", "0:00:10", "ETA –"]


async def test_without_a_terminal_a_line_says_the_same(said: Said) -> None:
    line = "100 of 1,000 lines, 10 failed, 2,000 under way, 0:00:10, ETA ~0:01:40, 9.00 rows"
    some = shown(completed=90, failed=10, seconds=10.0)
    await run_while(show_progress(some, line_every_s=0.0), until(lambda: line in said()))


@pytest.mark.parametrize("width", [44, 80, 120])
def test_no_figure_is_cut_however_narrow_the_terminal_is(width: int) -> None:
    file = io.StringIO()
    console = Console(width=width, file=file, force_terminal=True, color_system=None)
    console.print(shown(total=20_000, completed=6_800, failed=12, seconds=1000.0))
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= width - SPARE
    text = " ".join(file.getvalue().split())
    for figure in (
        "6,812/20,000 12 failed 2,000 under way 0:16:40 ETA ~0:32:19 6.80 rows/s",
        "1,360 prompt tokens/s 136 output tokens/s 1.47 per 1,000 rows 73.53 per million output tokens",
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
    options = RunOptions(patience=Patience(again_s=0.05))
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


async def test_load_of_a_queue_is_read(valkey: Server) -> None:
    async with AsyncClient(valkey.url) as client:
        await client.submit_many([{"prompt": "x", "lane": "interactive"}, *[{"prompt": "x"}] * 4])
        lines = SimpleNamespace(queues={"default"}, under_way=7, followers=5)
        run: Any = SimpleNamespace(lines=lines)
        assert await queue_load(client, run, Lane.BATCH) == QueueLoad(behind=3, shared=True)
        lines.under_way = 10
        assert await queue_load(client, run, Lane.BATCH) == QueueLoad()  # all of them are the run's
        lines.under_way = lines.followers = 0
        assert (await queue_load(client, run, Lane.INTERACTIVE)).behind == 1
        register(valkey.port, QueueKeys("default").shard(0), rows_running="4", output_per_s="91.3")
        load = await queue_load(client, run, Lane.BATCH)
        assert (load.workers, load.rows_running, load.output_tokens_per_s) == (1, 4, 91.3)
    async with AsyncClient(f"redis://127.0.0.1:{free_port()}") as client:
        assert await queue_load(client, run, Lane.BATCH) == QueueLoad()
