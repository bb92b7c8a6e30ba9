"""What sharing prefixes does under load: requests of 200 shared tokens, 30 of their own and 50 to draw arrive
at a rising rate until the engine falls behind, once with the prefix shared and once without.

    python -m ops.bench prefix [--model tiny14m] [--modes engine queue] [--loads 10 15 25]

Arrivals are Poisson's and an open loop: latency and first token count from the scheduled arrival. What is
done counts over the time to the last end: a short run shows less than was offered. `engine` is the batch loop
alone, in this process; `queue` a real server, a real worker and clients that stream, which share this
machine's cores. A machine that does less than 10 requests/s gets loads in the same proportion to what it can,
and the table says so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.bench import machine, plots
from ops.bench.command_line import add_engine, parsed, parser_of
from ops.bench.limits.rates import requests_s
from ops.bench.load import engine, queue
from ops.bench.load.arrivals import Arrival, LoadPoint, Prompts, Served
from ops.bench.load.prefix_report import PUBLISHED, SHARING, draw, table_rows
from ops.bench.machine import Limits
from ops.bench.models.checkpoints import checkpoint
from ops.bench.models.size import ModelSize, size_of
from ops.bench.models.tokenizer import with_tokenizer
from ops.bench.plots import Row

PUBLISHED_LOADS = (10.0, 15.0, 25.0)
PUBLISHED_MOST = 19.81  # requests/s that the sources' own machine did with sharing, when 25 were offered
IN_PROPORTION = "under 10 requests/s are possible here: loads are the published ones in proportion to that"
RISE = 1.4
MOST_LOADS = 12
BURST = 64  # requests at once, to measure the capacity
BURST_S = 600.0

Drive = Callable[[Sequence[Arrival], float], Awaitable[list[Served]]]


@dataclass(frozen=True, slots=True)
class Experiment:
    folder: Path
    model: ModelSize
    prompts: Prompts
    options: argparse.Namespace

    async def point(self, drive: Drive, rate_s: float, seed: int) -> LoadPoint:
        """`seconds` of arrivals at this rate, cut off when they have taken four times as long."""
        seconds = self.options.seconds
        count = max(20, round(rate_s * seconds))
        arrivals = self.prompts.arrivals(rate_s, count, vocab=self.model.vocab_size, seed=seed)
        limit_s = max(4 * arrivals[-1].at_s, 20.0)
        served = await drive(arrivals, limit_s)
        return LoadPoint.of(rate_s, served, warm=count // 10, cut_s=limit_s)

    async def capacity(self, drive: Drive) -> float:
        """Requests/s of a burst, once the shared prefix is in the cache."""
        taken_s = 0.0
        for seed in (-1, -2):
            burst = self.prompts.arrivals(1e6, BURST, vocab=self.model.vocab_size, seed=seed)
            taken_s = max(one.end_s or BURST_S for one in await drive(burst, BURST_S))
        return BURST / taken_s

    def kv_memory(self) -> str:
        """Twice the memory of a full batch's rows: preemption is not measured here."""
        if self.options.device != "cpu":
            return "0.8"
        tokens = self.prompts.shared + self.prompts.own + self.prompts.output + 16
        return str(2 * self.options.rows * tokens * self.model.kv_token_bytes)


@contextlib.asynccontextmanager
async def engine_alone(experiment: Experiment, shared: bool) -> AsyncIterator[Drive]:
    from millstream_worker.engine.assembly import build
    from millstream_worker.engine.protocol.config import EngineConfig

    options = experiment.options
    config = EngineConfig(
        str(experiment.folder),
        device=options.device,
        threads=options.threads,
        kv_memory=experiment.kv_memory(),
        max_rows=options.rows,
        prefix_cache=shared,
        compile_model=options.compile_model,
        speculate="off",  # random weights repeat themselves
    )
    built, _ = build(config, lambda message: None)

    driven = 0

    async def drive(arrivals: Sequence[Arrival], limit_s: float) -> list[Served]:
        nonlocal driven
        first, driven = driven, driven + len(arrivals)
        return engine.drive(built, arrivals, limit_s=limit_s, first=first)

    yield drive


@contextlib.asynccontextmanager
async def through_queue(experiment: Experiment, shared: bool) -> AsyncIterator[Drive]:
    options = experiment.options
    flags = ["--model", str(experiment.folder), "--device", options.device]
    flags += ["--max-rows", str(options.rows), "--compile-model", options.compile_model]
    flags += ["--threads", str(options.threads), "--kv-memory", experiment.kv_memory()]
    flags += ["--speculate", "off"]  # as above
    flags += ["--prefix-cache" if shared else "--no-prefix-cache"]
    async with queue.worker(*flags) as client:

        async def drive(arrivals: Sequence[Arrival], limit_s: float) -> list[Served]:
            return await queue.drive(queue.streaming(client), arrivals, limit_s=limit_s)

        yield drive


MODES: Mapping[str, Any] = {"engine": engine_alone, "queue": through_queue}


def rising(capacity_s: float) -> Iterator[float]:
    """The published loads, or the same shares of this machine's capacity; then rising further."""
    scale = 1.0 if capacity_s >= PUBLISHED_LOADS[0] else capacity_s / PUBLISHED_MOST
    rate_s = 0.0
    for published in PUBLISHED_LOADS:
        rate_s = published * scale
        yield rate_s
    while True:
        rate_s *= RISE
        yield rate_s


async def measure(
    mode: str, experiment: Experiment, loads: list[float], modes: Mapping[str, Any] = MODES
) -> dict[bool, list[LoadPoint]]:
    """Each way of sharing over rising loads, to the first from the published ones on that saturates it.
    `loads` are chosen by what is measured first, and put there, where there are none."""
    points: dict[bool, list[LoadPoint]] = {}
    for shared in SHARING:
        found = points[shared] = []
        async with modes[mode](experiment, shared) as drive:
            capacity_s = await experiment.capacity(drive)
            print(f"{mode}, {SHARING[shared]}: {capacity_s:.3g} requests/s of a burst", flush=True)
            if not loads:
                rates = rising(capacity_s)
                loads += [next(rates) for _ in range(MOST_LOADS)]
            for seed, rate_s in enumerate(loads):
                found.append(await experiment.point(drive, rate_s, seed))
                if found[-1].saturated and (found[-1].unfinished or seed >= len(PUBLISHED_LOADS) - 1):
                    break
    return points


def run(options: argparse.Namespace, folder: Path, model: ModelSize, limits: Limits) -> list[Row]:
    """All modes, printed and drawn; returns the table."""
    experiment = Experiment(folder, model, Prompts(*options.shape), options)
    limits_s = {
        shared: requests_s(model, experiment.prompts, options.rows, shared, limits) for shared in SHARING
    }
    notes = [*plots.caption("prefix", options.device), f"{options.model}, {limits}"]
    print("\n".join(notes))
    table: list[Row] = []
    loads: list[float] = list(options.loads)
    for mode in options.modes:
        points = asyncio.run(measure(mode, experiment, loads))
        aside = [] if options.loads or loads[0] == PUBLISHED_LOADS[0] else [IN_PROPORTION]
        table += table_rows(mode, points, limits_s)
        draw(options.pictures / f"prefix_{mode}.png", mode, points, limits_s, [*notes, *aside])
        print("\n".join([f"\n{plots.markdown(table_rows(mode, points, limits_s))}", *aside]), flush=True)
    return table


def main() -> None:
    options = _options()
    plain = checkpoint(options.model, options.device)
    model, limits = size_of(plain), machine.measure(options.threads, options.device)
    with tempfile.TemporaryDirectory(prefix="millstream-prefix-") as scratch:
        folder = with_tokenizer(plain, Path(scratch) / "model") if "queue" in options.modes else plain
        table = run(options, folder, model, limits)
    plots.write_csv(options.pictures / "prefix.csv", table)
    print(f"\n{PUBLISHED}")


def _options() -> argparse.Namespace:
    parser = parser_of("prefix", __doc__)
    parser.add_argument("--model", default="tiny14m", help="a shape's name, a folder or a hub id")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--loads", nargs="+", type=float, default=[], help="requests/s, in rising order")
    parser.add_argument("--seconds", type=float, default=20.0, help="of arrivals at each load")
    parser.add_argument("--shape", nargs=3, type=int, default=[200, 30, 50], help="shared, own, output")
    parser.add_argument("--rows", type=int, default=64)
    add_engine(parser)
    parser.add_argument("--pictures", type=Path, default=plots.FOLDER)
    return parsed(parser)


if __name__ == "__main__":
    main()
