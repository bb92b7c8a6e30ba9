"""Many pages through one worker, whose engine counts: what they cost the server, the front, and text jobs.

    python -m ops.bench page_queue [--parts run bound text]

`run`: `millstream batch run --media` over so many pages; peak memory of server, front and command, and that
of the second half beside the first's. `bound`: more pages than a queue holds, submitted at once: how many are
refused, and when they may come again. `text`: seconds to the first token of text jobs alone, beside a flood
of texts, for which a step is under way when a job comes, and beside one of pages, in turns.

A page is a picture of noise of 0.6 MB, each its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
from ops.bench import children, plots
from ops.bench.command_line import parser_of
from ops.bench.models.vision_checkpoint import vision_checkpoint
from ops.bench.plots import Row
from PIL import Image
from redis import Redis

from millstream import AsyncClient, MillstreamError, QueueFull, TokenEvent
from millstream.cli.embedded.embedded_server import EmbeddedServer

PARTS = ("run", "bound", "text")
QUEUE = "bench"
ENGINE = "support.workers.image_engine"
SIDE = 450  # pixels
MB = 1e6
PROMPT = "What does this page say?"


def page(number: int) -> bytes:
    """A file of an image."""
    file, draw = io.BytesIO(), np.random.default_rng(number)
    pixels = draw.integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    Image.fromarray(pixels).save(file, "PNG", compress_level=0)
    return file.getvalue()


class Stack:
    """A server and a worker, or the server alone."""

    def __init__(self, folder: Path, url: str, step_s: float, worker: bool = True) -> None:
        self.url = url
        self.processes = {"server": children.embedded_server()}
        self._worker: subprocess.Popen[bytes] | None = None
        if worker:
            model = vision_checkpoint()
            command = [sys.executable, "-m", "millstream_worker", "--redis-url", url, "--queue", QUEUE]
            command += ["--model", f"counting:tokenizer={model},rows=32,blocks=16384,step_s={step_s}"]
            command += ["--image-options", json.dumps({"size": {"longest_edge": 512}})]
            command += ["--engine-command", f"env PYTHONPATH=tests {sys.executable} -m {ENGINE}"]
            command += ["--log-level", "warning", "--grace-s", "0"]
            self._worker = subprocess.Popen(command, start_new_session=True)
            self.processes["front"] = psutil.Process(self._worker.pid)

    def end(self) -> None:
        if self._worker is not None:
            children.end(self._worker)


@contextlib.contextmanager
def stack(step_s: float = 0.002, worker: bool = True) -> Iterator[tuple[Stack, Path]]:
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder:
        with EmbeddedServer(Path(folder) / "server") as server:
            made = Stack(Path(folder), server.url, step_s, worker)
            try:
                yield made, Path(folder)
            finally:
                made.end()


class Watch:
    """Resident memory of processes, each second."""

    def __init__(self, processes: dict[str, psutil.Process]) -> None:
        self.sizes: dict[str, list[float]] = {name: [] for name in processes}
        self._processes = processes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(1.0):
            for name, process in self._processes.items():
                with contextlib.suppress(psutil.NoSuchProcess):
                    self.sizes[name].append(process.memory_info().rss / MB)


def run(options: argparse.Namespace) -> Iterator[Row]:
    with stack() as (made, folder):
        media = folder / "media"
        media.mkdir()
        lines = folder / "lines.jsonl"
        with lines.open("w") as file:
            for number in range(options.pages):
                (media / f"{number}.png").write_bytes(page(number))
                file.write(json.dumps(_line(number)) + "\n")
        begun, out = time.perf_counter(), folder / "out.jsonl"
        command = [sys.executable, "-m", "millstream", "batch", "run", str(lines), "--media", str(media)]
        command += ["-o", str(out), "--redis-url", made.url, "--queue", QUEUE]
        ran = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with Watch({**made.processes, "command": psutil.Process(ran.pid)}) as watch:
            code = ran.wait()
        seconds = time.perf_counter() - begun
        with out.open() as rows:
            done = sum(1 for row in rows if json.loads(row).get("error") is None)
        used = Redis.from_url(made.url).info("memory")["used_memory_peak"] / MB
        yield {"what": f"{done} of {options.pages} pages answered, status {code}", "MB": 0.0, "later": 0.0,
               "pages/s": done / seconds}  # fmt: skip
        for name, sizes in watch.sizes.items():
            half = len(sizes) // 2
            peak = max([*sizes, used] if name == "server" else sizes)
            yield {"what": f"{name}, peak", "MB": peak, "later": max(sizes[half:]) / max(sizes[: half or 1]),
                   "pages/s": 0.0}  # fmt: skip


def _line(number: int) -> dict[str, object]:
    parts = [{"type": "image_url", "image_url": {"url": f"{number}.png"}}, {"type": "text", "text": PROMPT}]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 16}
    return {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}


def bound(options: argparse.Namespace) -> Iterator[Row]:
    with stack(worker=False) as (made, _):
        outcomes = asyncio.run(_submit(made.url, options.at_once))
    refused = [one for one in outcomes if isinstance(one, QueueFull)]
    others = [one for one in outcomes if isinstance(one, Exception) and not isinstance(one, QueueFull)]
    waits = [one.retry_after_s for one in refused]
    yield {
        "pages": len(outcomes),
        "accepted": len(outcomes) - len(refused) - len(others),
        "refused": len(refused),
        "other errors": len(others),
        "reason": refused[0].reason if refused else "",
        "retry after, s": f"{min(waits):.1f} to {max(waits):.1f}" if waits else "",
    }


async def _submit(url: str, count: int) -> list[object]:
    found: list[object] = []
    async with AsyncClient(url, queue=QUEUE) as client:
        for first in range(0, count, 50):
            calls = (_one(client, number) for number in range(first, min(first + 50, count)))
            found += await asyncio.gather(*calls)
    return found


async def _one(client: AsyncClient, number: int) -> object:
    parts = [{"type": "image", "image": page(number)}, {"type": "text", "text": PROMPT}]
    try:
        return await client.submit(messages=[{"role": "user", "content": parts}], max_tokens=16)
    except MillstreamError as error:
        return error


def text(options: argparse.Namespace) -> Iterator[Row]:
    with stack(step_s=0.01) as (made, _):
        found = asyncio.run(_first_tokens(made.url, options))
    for name, times in found.items():
        p50, p95 = np.percentile(times, (50, 95))
        alone = np.percentile(found["alone"], (50, 95))
        yield {"text jobs": name, "count": len(times), "TTFT p50, ms": 1e3 * p50, "p95, ms": 1e3 * p95,
               "p50 ratio": p50 / alone[0], "p95 ratio": p95 / alone[1]}  # fmt: skip


async def _first_tokens(url: str, options: argparse.Namespace) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"alone": [], "beside texts": [], "beside pages": []}
    async with AsyncClient(url, queue=QUEUE) as client:
        await client.wait((await client.submit("Hello", max_tokens=4)).id, timeout_s=120)
        for _ in range(options.turns):
            found["alone"] += await _asked(client, options.texts)
            for others in ("texts", "pages"):
                with _flooded(url, others):
                    found[f"beside {others}"] += await _asked(client, options.texts)
    return found


async def flood(url: str, others: str) -> None:
    """Pages that others wait for, or texts, 16 of them under way, until the process ends."""
    files = [page(number) for number in range(64)]
    async with AsyncClient(url, queue=QUEUE) as client:

        async def one(place: int) -> None:
            for turned in range(place, 1_000_000, 16):
                # another text each time: the same request would be answered once
                question = {"type": "text", "text": f"{turned}, {time.monotonic()}?"}
                content = [{"type": "image", "image": files[turned % 64]}, question][others == "texts" :]
                job = await client.submit(
                    messages=[{"role": "user", "content": content}], max_tokens=32, lane="batch"
                )
                await client.wait(job.id, timeout_s=120)

        await asyncio.gather(*map(one, range(16)))


@contextlib.contextmanager
def _flooded(url: str, others: str) -> Iterator[None]:
    called = f"flood({url!r}, {others!r})"
    command = f"import asyncio; from ops.bench.queued.page_queue import flood; asyncio.run({called})"
    process = subprocess.Popen([sys.executable, "-c", command], stderr=subprocess.DEVNULL)
    try:
        time.sleep(5)  # until it is one
        yield
    finally:
        process.terminate()
        process.wait()


async def _asked(client: AsyncClient, count: int) -> list[float]:
    """Seconds to the first token, of jobs that come one after the other."""
    times = []
    for number in range(count):
        begun = time.perf_counter()
        job = await client.submit(f"Text {number}", max_tokens=4, stream=True)
        async for event in client.stream(job.id):
            if isinstance(event, TokenEvent):
                times.append(time.perf_counter() - begun)
                break
        await client.wait(job.id, timeout_s=60)
    return times


def main() -> None:
    options = _options()
    print("\n".join(plots.caption("page_queue")), end="\n\n")
    for part, rows in (("run", run), ("bound", bound), ("text", text)):
        if part in options.parts:
            print(plots.markdown(list(rows(options))), end="\n\n", flush=True)


def _options() -> argparse.Namespace:
    parser = parser_of("page_queue", __doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--pages", type=int, default=10_000, help="of `run`")
    parser.add_argument("--at-once", type=int, default=2000, help="pages of `bound`")
    parser.add_argument("--texts", type=int, default=100, help="of each turn of `text`")
    parser.add_argument("--turns", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
