"""Hours of everything at once: two workers at saturation, producers, streaming readers, pollers, cancels,
deadlines, several choices, tiny and huge prompts, and killed engines. Shows whether anything grows.

    python -m ops.bench soak --minutes 30 [--redis-url URL] [--model MODEL]

By default the engine is the tests' counting one, so that a lost or repeated token is a wrong text. Ends by
draining: every job must have ended, nothing may be left in the server but what has a time to live, and that
must go, too. Writes a CSV beside the picture and prints a summary; exit status 1 where something was lost,
wrong or left.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from ops.bench import machine
from ops.bench.command_line import parser_of
from ops.bench.soak.load import QUEUE
from ops.bench.soak.series import MIB, Series, draw
from ops.bench.soak.server import Inspector
from ops.bench.stand_ins.counting import engine_flags

from millstream.cli.embedded.embedded_server import EmbeddedServer

START_S = 120.0
PICTURE = Path("ops/bench/pictures/soak.png")


@dataclass(slots=True)
class Crew:
    """The processes of a soak. The last worker's engine is the one that is killed."""

    workers: list[Process]
    load: Process
    tally: dict[str, float] = field(default_factory=dict)
    kills: list[tuple[float, str]] = field(default_factory=list)

    def memory(self) -> dict[str, float]:
        """Resident memory in MiB of every process that is there."""
        sizes = {"rss producer and readers": _rss_mib(self.load.pid)}
        for number, worker in enumerate(self.workers, start=1):
            sizes[f"rss front {number}"] = _rss_mib(worker.pid)
            engine = _engine(worker.pid)
            sizes[f"rss engine {number}"] = _rss_mib(engine.pid) if engine else float("nan")
        return sizes

    def kill_engine(self, at_s: float) -> None:
        engine = _engine(self.workers[-1].pid)
        if engine is not None:
            engine.kill()
            self.kills.append((at_s, "engine killed"))

    async def listen(self) -> None:
        """Keep the load's last tally, until it ends."""
        assert self.load.stdout is not None
        async for line in self.load.stdout:
            self.tally = json.loads(line)


async def soak(options: argparse.Namespace, url: str, folder: Path) -> int:
    inspector = Inspector(url)
    series = Series()
    async with _crew(options, url, folder) as crew:
        await _wait_for_work(crew)
        before = await inspector.server()
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(crew.listen())
            await _sample(options, crew, inspector, series)
            crew.load.stdin.close()  # type: ignore[union-attr]  # it has one
            await listening
        faults = await _drain(crew)
    faults += await _check_left(inspector, options.result_ttl_s)
    after = await inspector.server()
    await inspector.aclose()
    _report(options, series, crew, before, after, faults)
    return 1 if faults else 0


async def _sample(options: argparse.Namespace, crew: Crew, inspector: Inspector, series: Series) -> None:
    start = time.monotonic()
    next_kill_s = options.kill_every_s
    last_at, last = 0.0, dict(crew.tally)
    while (at := time.monotonic() - start) < options.minutes * 60:
        for worker in crew.workers:
            if worker.returncode is not None:
                raise RuntimeError(f"a worker ended with {worker.returncode}: see its log")
        if crew.load.returncode is not None:
            raise RuntimeError(f"the load ended with {crew.load.returncode}: see its log")
        rates = {
            f"rate {name}": (crew.tally.get(name, 0) - last.get(name, 0)) / max(at - last_at, 1e-9)
            for name in ("completed", "tokens", "streams read")
        }
        series.add(at, crew.memory() | await inspector.server() | rates)
        last_at, last = at, dict(crew.tally)
        if options.kill_every_s and at >= next_kill_s:
            crew.kill_engine(at)
            next_kill_s = at + options.kill_every_s * random.uniform(0.5, 1.5)
        await asyncio.sleep(options.every_s)


async def _drain(crew: Crew) -> list[str]:
    """What was lost or wrong. The load has waited for its jobs; the workers end by SIGTERM."""
    faults = [
        f"{name}: {count:g}"
        for name, count in crew.tally.items()
        if name.startswith(("lost", "wrong", "failed"))
    ]
    if not crew.tally.get("over") or not crew.tally.get("completed"):
        faults.append("the load did not come to its end")
    for worker in crew.workers:
        worker.send_signal(signal.SIGTERM)
    for worker in crew.workers:
        try:
            async with asyncio.timeout(60):
                await worker.wait()
        except TimeoutError:
            faults.append("a worker did not end after SIGTERM")
            continue
        if worker.returncode:
            faults.append(f"a worker ended with status {worker.returncode}")
    return faults


async def _check_left(inspector: Inspector, ttl_s: float) -> list[str]:
    """At once: nothing without its time. When that is over: nothing at all."""
    left = await inspector.left()
    until = time.monotonic() + ttl_s + 30
    while await inspector.passing() and time.monotonic() < until:  # noqa: ASYNC110 - keys that go set no event
        await asyncio.sleep(1)
    passing = await inspector.passing()
    return left + ([f"{passing} keys outlived their time"] if passing else [])


def _report(
    options: argparse.Namespace,
    series: Series,
    crew: Crew,
    before: dict[str, float],
    after: dict[str, float],
    faults: list[str],
) -> None:
    command = f"python -m ops.bench soak {' '.join(sys.argv[1:])}".strip()
    title = [machine.describe(), command]
    options.picture.parent.mkdir(parents=True, exist_ok=True)
    series.write_csv(options.picture.with_suffix(".csv"))
    draw(series, options.picture, title, crew.kills)
    print("\n".join(title))
    print(", ".join(f"{name} {count:,g}" for name, count in sorted(crew.tally.items()) if name != "over"))
    print(f"engines killed: {len(crew.kills)}")
    print("\n| last two thirds | mean | growth per hour |\n|---|---|---|")
    for name in sorted(series.columns):
        slope, mean = series.growth_per_hour(name)
        print(f"| {name} | {mean:,.1f} | {slope:+,.1f} |")
    print("\n| server | at the start | after all had ended |\n|---|---|---|")
    for name in sorted(before):
        print(f"| {name} | {before[name]:,.1f} | {after[name]:,.1f} |")
    print("\n" + ("\n".join(f"FAULT {fault}" for fault in faults) or "nothing lost, wrong or left"))


@contextlib.asynccontextmanager
async def _crew(options: argparse.Namespace, url: str, folder: Path) -> AsyncIterator[Crew]:
    flags = ["--redis-url", url, "--queue", QUEUE, "--result-ttl-s", str(options.result_ttl_s)]
    flags += ["--lease-s", "10", "--renew-s", "2", "--log-level", "warning"]
    if options.model:
        flags += ["--model", options.model, "--max-rows", str(options.rows)]
    else:
        flags += engine_flags(folder, rows=options.rows, step_s=options.step_s)
    workers: list[Process] = []
    load: Process | None = None
    try:
        logs = [folder / f"worker{number}.log" for number in range(1, options.workers + 1)]
        workers += [await _start(log, "millstream_worker", *flags) for log in logs]
        loading = ["--url", url, "--tasks", str(options.tasks), "--result-ttl-s", str(options.result_ttl_s)]
        loading += ["--huge-words", str(options.huge_words)] + (["--any-text"] if options.model else [])
        load = await _start(folder / "load.log", "ops.bench.soak.load", *loading, piped=True)
        yield Crew(workers, load)
    finally:
        for process in (*workers, load):
            if process is not None and process.returncode is None:
                process.kill()
                await process.wait()


async def _start(log: Path, module: str, *arguments: str, piped: bool = False) -> Process:
    with log.open("wb") as file:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, *arguments,
            stdin=PIPE if piped else None, stdout=PIPE if piped else file, stderr=file,
            start_new_session=True,
        )  # fmt: skip


async def _wait_for_work(crew: Crew) -> None:
    """Until the first tally with a completed job."""
    assert crew.load.stdout is not None
    async with asyncio.timeout(START_S):
        while not crew.tally.get("completed"):
            line = await crew.load.stdout.readline()
            if not line:
                raise RuntimeError("the load ended before anything was completed: see its log")
            crew.tally = json.loads(line)


def _engine(front: int | None) -> psutil.Process | None:
    with contextlib.suppress(psutil.Error):
        children = psutil.Process(front).children()
        return children[0] if children else None
    return None


def _rss_mib(pid: int | None) -> float:
    try:
        return float(psutil.Process(pid).memory_info().rss) / MIB
    except psutil.Error:
        return float("nan")


def main(soak: Callable[[argparse.Namespace, str, Path], Coroutine[None, None, int]] = soak) -> int:
    parser = parser_of("soak", __doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--redis-url", help="default: an embedded server")
    parser.add_argument("--model", help="a real model for the workers; default: the counting engine")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=16, help="of each worker's batch")
    parser.add_argument("--step-s", type=float, default=0.01, help="of the counting engine")
    parser.add_argument("--tasks", type=int, default=96, help="jobs under way; saturated above all rows")
    parser.add_argument(
        "--huge-words", type=int, help="of one prompt in a hundred; 20,000, or 300 with --model"
    )
    parser.add_argument("--kill-every-s", type=float, default=60.0, help="an engine; 0: never")
    parser.add_argument("--every-s", type=float, default=5.0, help="between samples")
    parser.add_argument("--result-ttl-s", type=float, default=60.0)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument("--logs", type=Path, help="folder that keeps the processes' logs")
    options = parser.parse_args()
    options.huge_words = options.huge_words or (300 if options.model else 20_000)
    for number in (signal.SIGTERM, signal.SIGINT):  # in the background, too: the processes are taken along
        signal.signal(number, signal.default_int_handler)
    with contextlib.ExitStack() as stack:
        folder = options.logs or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        folder.mkdir(parents=True, exist_ok=True)
        url = options.redis_url or stack.enter_context(EmbeddedServer(folder / "server")).url
        status = 1
        try:
            status = asyncio.run(soak(options, url, folder))
        finally:  # the folder goes
            for log in sorted(folder.glob("*.log")) if status else ():
                print(f"\n{log.name}:\n{log.read_text(errors='replace')[-3000:]}")
        return status


if __name__ == "__main__":
    sys.exit(main())
