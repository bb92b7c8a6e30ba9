"""Everything around the engine: front, Redis protocol, detokenizer, clients. The engine is a stand-in that
draws random tokens in a given rhythm; all else is real, and shares this machine's cores.

    python -m ops.bench front [--tokenizer FOLDER] [--jobs 256] [--tokens 2048] [--short-jobs 10000]

Jobs that nobody streams, jobs with a streaming reader each (in another process), jobs with subscribers that
never read, and short jobs end to end with their producer. Beside each rate stand the CPU seconds that each
process took for it, and the rate at which these would keep all cores busy. Without a rhythm tokens come in
large pieces, which is easier: the paced runs are what an engine of that speed would ask for.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psutil
from ops.bench import children, machine
from ops.bench.command_line import parser_of
from ops.bench.models.tokenizer import bench_tokenizer

from millstream import AsyncClient, JobError, JobFields, NotFound, Result, TokenEvent
from millstream.cli.embedded.embedded_server import EmbeddedServer
from millstream.wire.keys import QueueKeys
from millstream_worker.engine.runner.device.cgroup import ControlGroups

QUEUE = "bench"
READERS = 256
DEAF = 50  # subscribers that never read


@dataclass(frozen=True, slots=True)
class Stack:
    """A server and a worker with the stand-in engine, as processes."""

    url: str
    steps_s: float
    processes: dict[str, psutil.Process]

    def cpu_s(self) -> dict[str, float]:
        return children.cpu_s(self.processes)


Measure = Callable[[AsyncClient, Stack, argparse.Namespace], Awaitable[None]]


def main() -> None:
    options = _options()
    if options.read:
        asyncio.run(_read_streams(options.url))
        return
    print(machine.describe())
    print("| run | offered | reached | the cores' limit | CPU seconds: where the time goes |")
    print("|---|---|---|---|---|")
    for steps_s in options.steps_s:
        for measure in (_unread, _streamed, _stalled):
            with _stack(options, steps_s) as stack:
                asyncio.run(_run(measure, stack, options))
    with _stack(options, 0.0) as stack:
        asyncio.run(_run(_short, stack, options))


async def _run(measure: Measure, stack: Stack, options: argparse.Namespace) -> None:
    async with AsyncClient(stack.url, queue=QUEUE) as client:
        await _drain(client, await _submit(client, 8, 64))  # warm
        await measure(client, stack, options)


async def _unread(client: AsyncClient, stack: Stack, options: argparse.Namespace) -> None:
    jobs, tokens = options.jobs, options.tokens
    with _row(stack, f"{jobs} jobs x {tokens} tokens, nobody streams", jobs * tokens, "tokens/s"):
        await _drain(client, await _submit(client, jobs, tokens))


async def _streamed(client: AsyncClient, stack: Stack, options: argparse.Namespace) -> None:
    jobs, tokens = options.jobs, options.tokens
    name = f"{jobs} jobs x {tokens} tokens, {jobs} streaming readers in another process"
    async with _readers(stack) as readers:
        with _row(stack, name, jobs * tokens, "tokens/s") as extra:
            ids = await _submit(client, jobs, tokens, stream=True)
            extra["readers"] = await _read_elsewhere(readers, ids, jobs * tokens)


async def _stalled(client: AsyncClient, stack: Stack, options: argparse.Namespace) -> None:
    """Jobs whose tokens are published: to nobody, then to subscribers that have stopped reading."""
    jobs, tokens = options.jobs, options.tokens
    for count in (0, DEAF):
        with contextlib.ExitStack() as sockets:
            name = f"{jobs} jobs x {tokens} tokens published, {count} subscribers that never read"
            own = [f"0-{uuid4().hex}" for _ in range(jobs)]
            for job_id in own[:count]:
                sockets.enter_context(_deaf(stack.url, QueueKeys(QUEUE).shard(0).events(job_id)))
            with _row(stack, name, jobs * tokens, "tokens/s"):
                ids = await _submit(client, jobs, tokens, stream=True, own_ids=[one[2:] for one in own])
                assert ids == own
                await _drain(client, ids)


@contextlib.contextmanager
def _deaf(url: str, channel: str) -> Iterator[None]:
    """Subscribers that stop reading."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.connect(url.removeprefix("unix://"))
        peer.sendall(f"SUBSCRIBE {channel}\r\n".encode())
        assert peer.recv(4096)
        yield


async def _short(client: AsyncClient, stack: Stack, options: argparse.Namespace) -> None:
    """Submit in windows and collect, as a batch run does, one window ahead."""
    jobs, window = options.short_jobs, 1000
    with _row(stack, f"{jobs} jobs x 4 tokens, with their producer", jobs, "jobs/s"):
        async with asyncio.TaskGroup() as group:
            collecting: asyncio.Task[None] | None = None
            for start in range(0, jobs, window):
                ids = await _submit(client, min(window, jobs - start), 4)
                if collecting is not None:
                    await collecting
                collecting = group.create_task(_drain(client, ids))


async def _submit(
    client: AsyncClient, jobs: int, tokens: int, *, stream: bool = False, own_ids: Sequence[str] = ()
) -> list[str]:
    work: list[JobFields] = [
        {"prompt": f"document {n}", "max_tokens": tokens, "ignore_eos": True, "stream": stream}
        for n in range(jobs)
    ]
    for fields, own_id in zip(work, own_ids, strict=False):
        fields["id"] = own_id
    outcomes = await client.submit_many(work)
    refused = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert not refused, refused[0]
    return [outcome.id for outcome in outcomes if not isinstance(outcome, Exception)]


async def _drain(client: AsyncClient, ids: list[str]) -> None:
    async for job_id, outcome in client.as_completed(ids):
        _check(job_id, outcome)


@contextlib.asynccontextmanager
async def _readers(stack: Stack) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process with a connected client, waiting for the ids it shall read."""
    command = [sys.executable, "-m", "ops.bench.pieces.front", "--read", "--url", stack.url]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    yield process
    await process.wait()


async def _read_elsewhere(readers: asyncio.subprocess.Process, ids: list[str], tokens: int) -> float:
    """Read all streams to their end; returns the CPU seconds of reading."""
    answer, _ = await readers.communicate(json.dumps(ids).encode() + b"\n")
    read = json.loads(answer)
    assert read["tokens"] == tokens, f"the readers saw {read['tokens']} of {tokens} tokens"
    return float(read["cpu_s"])


async def _read_streams(url: str) -> None:
    async with AsyncClient(url, queue=QUEUE) as client:
        with contextlib.suppress(NotFound):
            await client.status("0-connect")
        print("ready", flush=True)
        ids = json.loads(await asyncio.to_thread(sys.stdin.readline))
        before = time.process_time()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_read(client, job_id)) for job_id in ids]
        tokens = sum(task.result() for task in tasks)
    print(json.dumps({"tokens": tokens, "cpu_s": time.process_time() - before}))


async def _read(client: AsyncClient, job_id: str) -> int:
    tokens = 0
    async for event in client.stream(job_id):
        if isinstance(event, TokenEvent):
            tokens += sum(len(choice.token_ids) for choice in event.choices)
    return tokens


def _check(job_id: str, outcome: Result | JobError) -> None:
    assert isinstance(outcome, Result), f"{job_id}: {outcome}"


@contextlib.contextmanager
def _row(stack: Stack, name: str, count: int, unit: str) -> Iterator[dict[str, float]]:
    """Time the block and print a table row; the block adds CPU seconds of other processes to the dict."""
    extra: dict[str, float] = {}
    before, start = stack.cpu_s(), time.perf_counter()
    yield extra
    seconds = time.perf_counter() - start
    spent = {part: used - before[part] for part, used in stack.cpu_s().items()} | extra
    where = ", ".join(f"{part} {used:.1f}" for part, used in sorted(spent.items(), key=lambda pair: -pair[1]))
    offered = f"{stack.steps_s * READERS:,.0f} tokens/s" if stack.steps_s else "no limit"
    reached, most = count / seconds, cores_limit(count, spent.values(), _cores())
    print(
        f"| {name} | {offered} | {reached:,.0f} {unit} | {most:,.0f} | {where} of {seconds:.1f} s |",
        flush=True,
    )


def cores_limit(count: int, cpu_s: Iterable[float], cores: float) -> float:
    """The rate of work with these CPU seconds, if all cores were busy with nothing else."""
    return count * cores / sum(cpu_s)


def _cores() -> float:
    return min(len(os.sched_getaffinity(0)), ControlGroups().cpu_quota() or math.inf)


@contextlib.contextmanager
def _stack(options: argparse.Namespace, steps_s: float) -> Iterator[Stack]:
    tokenizer = options.tokenizer or bench_tokenizer()
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder:
        with EmbeddedServer(Path(folder)) as server:
            engine = f"{sys.executable} -m ops.bench.stand_ins.paced --steps-s {steps_s}"
            command = [sys.executable, "-m", "millstream_worker", "--redis-url", server.url, "--queue", QUEUE]
            command += ["--model", str(tokenizer), "--engine-command", engine, "--log-level", "warning"]
            command += ["--max-rows", str(READERS), "--lookahead", "512"]
            worker = subprocess.Popen(command, start_new_session=True)
            try:
                yield Stack(server.url, steps_s, _processes(worker))
            finally:
                worker.terminate()
                worker.wait(timeout=60)


def _processes(worker: subprocess.Popen[bytes]) -> dict[str, psutil.Process]:
    return {
        "front": psutil.Process(worker.pid),
        "engine stand-in": children.engine_of(worker, 60.0),
        "server": children.embedded_server(),
        "producer": psutil.Process(),
    }


def _options() -> argparse.Namespace:
    parser = parser_of("front", __doc__)
    parser.add_argument(
        "--tokenizer", type=Path, help="folder with tokenizer.json; default: the demo model's"
    )
    parser.add_argument("--jobs", type=int, default=READERS)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--steps-s", type=float, nargs="+", default=[200.0, 0.0], help="0: no rhythm")
    parser.add_argument("--short-jobs", type=int, default=10_000)
    parser.add_argument("--read", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
