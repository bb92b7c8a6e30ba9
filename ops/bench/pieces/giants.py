"""What prompts that are far too long cost a worker's front, and those who come behind them. The engine is a
stand-in that has room for everything; server, protocol and front are real.

    python -m ops.bench giants [--messages 16] [--tenants 4] [--tokenizer FOLDER] [--context 8192 …]

Messages of 16 MiB, the most that there can be, wait in the batch lane, from several tenants, while the worker
is stopped. It goes on, and its front's resident memory is watched until all of them are answered, and after
that; meanwhile another tenant sends interactive jobs, one after the other. With a small context the bytes of
a prompt tell that it is too long; with a large one its tokens are counted. Figures of memory hold on a busy
machine; waits do not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from ops.bench import machine, memory
from ops.bench.models.tokenizer import bench_tokenizer

from millstream import AsyncClient, ClientOptions, JobFailed
from millstream.cli.embedded.embedded_server import EmbeddedServer
from millstream.wire.messages.codec import MAX_MESSAGE_BYTES

QUEUE = "bench"
MIB = 2**20
CHARACTERS = 4 * MIB - 64  # nearly the most that a prompt may have
# Letters and signs of four bytes, so that these are 16 MiB; the first with places to cut, the others without.
TEXTS = {"words": "𐐨𐐩𐐪𐐫𐐬𐐭𐐮𐐯𐐰𐐱𐐲𐐳 ", "letters": "𐐨", "emoji": "🙂", "ascii": "the quick brown fox. "}
OPTIONS = ClientOptions(max_payload_bytes=MAX_MESSAGE_BYTES)
LIMITS = "| peak at most +200, after at most +64 | | | | | |"


@dataclass(frozen=True, slots=True)
class Figures:
    """The front's resident memory, in MiB; seconds."""

    idle: float
    peak: float
    after: float
    answered_s: float
    waits_s: list[float]

    @property
    def row(self) -> str:
        waits = f"{statistics.median(self.waits_s):.2f} / {max(self.waits_s):.2f}"
        growth = f"+{self.peak - self.idle:,.0f} | {self.after - self.idle:+,.0f}"
        return f"{self.idle:,.0f} | {growth} | {self.answered_s:.1f} | {waits}"


async def measure(
    url: str, text: str, context: int, options: argparse.Namespace, characters: int = CHARACTERS
) -> Figures:
    with _worker(url, context, options.tokenizer or bench_tokenizer()) as front:
        async with AsyncClient(url, queue=QUEUE, options=OPTIONS) as client:
            await _small(client)
            idle = _resident(front)
            front.send_signal(signal.SIGSTOP)
            ids = await _submit(client, TEXTS[text], characters, options)
            memory.reset_peak_of(front.pid)
            front.send_signal(signal.SIGCONT)
            start = time.perf_counter()
            answering = asyncio.create_task(_refusals(client, ids))
            waits = [await _small(client)]
            while not answering.done():
                waits.append(await _small(client))
            refused = answering.result()
            seconds = time.perf_counter() - start
            assert refused == len(ids), f"{refused} of {len(ids)} were refused"
            peak = memory.peak_of(front.pid) / MIB
            await asyncio.sleep(options.rest_s)
            return Figures(idle, peak, _resident(front), seconds, waits)


async def _submit(
    client: AsyncClient, pattern: str, characters: int, options: argparse.Namespace
) -> list[str]:
    prompt = pattern * (characters // len(pattern))
    return [
        (await client.submit(prompt, max_tokens=1, tenant=f"giant-{number % options.tenants}")).id
        for number in range(options.messages)
    ]


async def _refusals(client: AsyncClient, ids: list[str]) -> int:
    ends = await client.wait_many(ids, timeout_s=1200)
    return sum(isinstance(end, JobFailed) and end.reason == "bad_request" for end in ends.values())


async def _small(client: AsyncClient) -> float:
    """An interactive job of another tenant: seconds from its submission to its result."""
    start = time.perf_counter()
    job = await client.submit("hello", max_tokens=1, lane="interactive", tenant="small")
    await client.wait(job.id, timeout_s=1200)
    return time.perf_counter() - start


@contextlib.contextmanager
def _worker(url: str, context: int, tokenizer: Path) -> Iterator[psutil.Process]:
    engine = f"{sys.executable} -m ops.bench.stand_ins.paced --context {context}"
    command = [sys.executable, "-m", "millstream_worker", "--redis-url", url, "--queue", QUEUE]
    command += ["--model", str(tokenizer), "--engine-command", engine, "--log-level", "error"]
    worker = subprocess.Popen(command, start_new_session=True)
    try:
        yield psutil.Process(worker.pid)
    finally:
        worker.send_signal(signal.SIGCONT)
        worker.terminate()
        worker.wait(timeout=60)


def _resident(front: psutil.Process) -> float:
    return float(front.memory_info().rss) / MIB


def main() -> None:
    options = _options()
    print(machine.describe())
    print(f"load average {os.getloadavg()[0]:.1f}; {options.messages} messages, {options.tenants} tenants\n")
    print("| prompt, context | idle MiB | peak | after | all answered s | interactive median / most s |")
    print("|---|---|---|---|---|---|")
    for context in options.context:
        for text in options.text:
            with tempfile.TemporaryDirectory(prefix="giants-") as folder:
                with EmbeddedServer(Path(folder)) as server:
                    figures = asyncio.run(measure(server.url, text, context, options))
            print(f"| {text}, {context:,} | {figures.row} |", flush=True)
    print(LIMITS)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m ops.bench giants", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=16)
    parser.add_argument("--tenants", type=int, default=4)
    parser.add_argument("--text", nargs="+", choices=sorted(TEXTS), default=sorted(TEXTS))
    parser.add_argument("--context", type=int, nargs="+", default=[8192, 131_072])
    parser.add_argument("--rest-s", type=float, default=2.0, help="before what stays is measured")
    parser.add_argument(
        "--tokenizer", type=Path, help="folder with tokenizer.json; default: the demo model's"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
