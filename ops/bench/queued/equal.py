"""What equal requests save: two producers submit the same distinct requests, each in an order of its own,
to workers that keep results, and to workers that do not, in turn; then requests that are all distinct, which
look for results in vain.

    python -m ops.bench equal --model smol135m --requests 300 --shards 1 4 --turns 3

Each turn has a server, workers and a queue of its own. Its time is that from the first submit to the last
answer, with all of the producers' work, and without the start of workers. Ids of equal requests are drawn
in one shard; while they run, equal requests meet only on one worker: so the more requests wait, the more are
cached.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from ops.bench import machine
from ops.bench.models.checkpoints import checkpoint
from ops.bench.models.shapes import SHAPES
from ops.bench.models.size import size_of
from ops.bench.models.tokenizer import with_tokenizer

from millstream import AsyncClient, ClientOptions, JobFields, Result
from millstream.cli.embedded.embedded_server import EmbeddedServer

QUEUE = "bench"
START_S = 120.0
CACHE = 64 * 2**20  # bytes
WORKERS = 2
PARTS = ("twice", "distinct")


@dataclass(frozen=True, slots=True)
class Turn:
    seconds: float
    cpu_s: float  # of server, workers and their engines
    cached: float  # share of the jobs


def main() -> None:
    options = _options()
    print(f"{machine.describe()}; {WORKERS} workers of one thread, medians of {options.turns} turns\n")
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as scratch:
        model = with_tokenizer(checkpoint(options.model, "cpu"), Path(scratch, "model"))
        vocabulary = size_of(model).vocab_size
        work = _requests(options.requests, vocabulary, options)
        print("| shards | requests | without | time, of that without | CPU time | cached | can be cached |")
        print("|---|---|---|---|---|---|---|", flush=True)
        for shards in options.shards if "twice" in options.parts else ():
            again = random.Random(shards).sample(work, len(work))
            print(_row(model, shards, [work, again], f"{shards} | each twice", 0.5, options), flush=True)
        if "distinct" in options.parts:
            distinct = [_requests(options.requests, vocabulary, options, seed=seed) for seed in (1, 2)]
            print(_row(model, 1, distinct, "1 | all distinct", 0.0, options))


def _row(
    model: Path,
    shards: int,
    work: Sequence[Sequence[JobFields]],
    title: str,
    expected: float,
    options: argparse.Namespace,
) -> str:
    pairs = []
    for turn in range(options.turns):
        sizes = (0, CACHE) if turn % 2 == 0 else (CACHE, 0)  # neither is always the first
        runs = {size: asyncio.run(_turn(model, shards, work, size)) for size in sizes}
        pairs.append((runs[CACHE], runs[0]))
    without_s = statistics.median(without.seconds for _, without in pairs)
    times = _shown([kept.seconds / without.seconds for kept, without in pairs])
    spent = _shown([kept.cpu_s / without.cpu_s for kept, without in pairs])
    cached = statistics.median(kept.cached for kept, _ in pairs)
    return f"| {title} | {without_s:.1f} s | {times} | {spent} | {cached:.0%} | {expected:.0%} |"


def _shown(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"


def _cpu_s() -> float:
    times = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return sum(spent.user + spent.system for spent in times)


async def _turn(model: Path, shards: int, work: Sequence[Sequence[JobFields]], cache_bytes: int) -> Turn:
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer(Path(folder)) as server:
        options = ClientOptions(shards=shards)
        async with AsyncClient(server.url, queue=QUEUE, options=options) as client:
            async with _workers(server.url, model, shards, cache_bytes):
                for warm in range(4 * WORKERS):
                    await _answers(client, [{"prompt": f"warm {warm}", "max_tokens": 8}])
                begun, used = time.perf_counter(), _cpu_s()
                results = await asyncio.gather(*(_answers(client, one) for one in work))
                seconds, used = time.perf_counter() - begun, _cpu_s() - used
    flat = [result for one in results for result in one]
    return Turn(seconds, used, sum(result.cached for result in flat) / len(flat))


@asynccontextmanager
async def _workers(url: str, model: Path, shards: int, cache_bytes: int) -> AsyncIterator[None]:
    flags = ["--redis-url", url, "--queue", QUEUE, "--shards", str(shards), "--model", str(model)]
    flags += ["--threads", "1", "--log-level", "warning", "--result-cache", str(cache_bytes)]
    flags += ["--kv-memory", "512MiB", "--compile-model", "off", "--max-rows", "16"]
    command = ("-m", "millstream_worker", *flags)
    crew = [
        await asyncio.create_subprocess_exec(sys.executable, *command, start_new_session=True)
        for _ in range(WORKERS)
    ]
    try:
        await _until_all_serve(url)
        yield
    finally:
        for worker in crew:
            worker.terminate()
        for worker in crew:
            await worker.wait()


async def _until_all_serve(url: str) -> None:
    async with AsyncClient(url, queue=QUEUE) as client, asyncio.timeout(START_S):
        while True:
            workers = (await client.queue_info()).workers or ()
            if sum(worker.state == "serving" for worker in workers) == WORKERS:
                return
            await asyncio.sleep(0.1)


async def _answers(client: AsyncClient, work: Sequence[JobFields]) -> list[Result]:
    outcomes = await client.submit_many(work)
    ids = [one.id for one in outcomes if not isinstance(one, Exception)]
    assert len(ids) == len(work), next(one for one in outcomes if isinstance(one, Exception))
    results = [end async for _, end in client.as_completed(ids)]
    return [result for result in results if isinstance(result, Result)]


def _requests(count: int, vocabulary: int, options: argparse.Namespace, seed: int = 0) -> list[JobFields]:
    draw = random.Random(seed)
    return [
        JobFields(
            token_ids=[draw.randrange(10, vocabulary) for _ in range(options.prompt_tokens)],
            max_tokens=options.output_tokens,
            temperature=0.0,
            ignore_eos=True,
        )
        for _ in range(count)
    ]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m ops.bench equal", description=__doc__)
    parser.add_argument("--model", default="smol135m", help=f"{', '.join(SHAPES)}, or a checkpoint's folder")
    parser.add_argument("--requests", type=int, default=300, help="of each producer")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
