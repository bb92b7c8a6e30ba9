"""What the HTTP gateway adds to the queue, and what one process of it bears. Server, worker and gateway are
real; the engine is a stand-in that draws tokens in a given rhythm.

    python -m ops.bench gateway [--parts ttft events idle] [--idle 10000] [--streams 100 200 300]

`ttft`: turns of the native client and of streams over HTTP at the same arrivals; the HTTP connection is there
already, as with a client that keeps it. `events`: server-sent events of one gateway, a row for each number of
streams, with the CPU seconds of all processes. `idle`: streams that wait for a busy worker, and the gateway's
resident memory; one request above `--max-requests` is refused.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable

from ops.bench import machine
from ops.bench.command_line import parser_of
from ops.bench.load.arrivals import poisson
from ops.bench.measures import percentiles
from ops.bench.queued.counted_stream import HOST, CountedStream
from ops.bench.queued.gateway_stack import QUEUE, GatewayStack, Readers, gateway_stack

from millstream import AsyncClient, TokenEvent

MIB = 2**20
TTFT_STEPS_S, TTFT_ROWS, TTFT_TOKENS = 200.0, 64, 16
EVENT_STEPS_S = 20.0  # a worker flushes a stream every 40 ms at most: each token is an event
LONG = 8000  # tokens of streams that shall not end
SETTLE_S = 3.0
READERS = 2

Way = Callable[[], Awaitable[float]]  # seconds to the first token


def main() -> None:
    options = _options()
    print(f"{machine.describe()}; load average {os.getloadavg()[0]:.1f}\n")
    for part in options.parts:
        {"ttft": print_ttft, "events": print_events, "idle": print_idle}[part](options)


# --- TTFT


def print_ttft(options: argparse.Namespace) -> None:
    with gateway_stack(TTFT_STEPS_S, TTFT_ROWS) as stack:
        native, gateway = asyncio.run(ttft(stack, options))
    print(f"{options.rate:g} requests/s in {options.turns} turns of {options.turn_requests} each\n")
    print("| TTFT ms | p50 | p99 |\n|---|---|---|")
    for name, values in (("native client", native), ("HTTP", gateway)):
        print(f"| {name} | {' | '.join(f'{1000 * value:.1f}' for value in percentiles(values, (50, 99)))} |")
    pairs = zip(percentiles(native, (50, 99)), percentiles(gateway, (50, 99)), strict=True)
    print(f"| added | {' | '.join(f'{1000 * (over - alone):.1f}' for alone, over in pairs)} |\n", flush=True)


async def ttft(stack: GatewayStack, options: argparse.Namespace) -> tuple[list[float], list[float]]:
    native: list[float] = []
    gateway: list[float] = []
    async with AsyncClient(stack.redis_url, queue=QUEUE) as client:
        for seed in range(-1, options.turns):  # the first turn warms up
            times_s = poisson(options.rate, options.turn_requests, seed)
            one = await _turn(times_s, lambda: _native(client))
            other = await _turn(times_s, lambda: _over_http(stack.port))
            if seed >= 0:
                native += one
                gateway += other
    return native, gateway


async def _turn(times_s: list[float], way: Way) -> list[float]:
    start = time.perf_counter()

    async def at(due_s: float) -> float:
        await asyncio.sleep(start + due_s - time.perf_counter())
        return await way()

    return await asyncio.gather(*map(at, times_s))


async def _native(client: AsyncClient) -> float:
    start, first_s = time.perf_counter(), None
    job = await client.submit("w1", max_tokens=TTFT_TOKENS, ignore_eos=True, stream=True, lane="interactive")
    async for event in client.stream(job.id):
        if first_s is None and isinstance(event, TokenEvent):
            first_s = time.perf_counter() - start
    assert first_s is not None, f"{job.id} has no tokens"
    return first_s


async def _over_http(port: int) -> float:
    stream = await CountedStream.connect(port)
    start = time.perf_counter()
    stream.ask(TTFT_TOKENS)
    first_s = await stream.first - start
    await stream.ended
    stream.close()
    return first_s


# --- events


def print_events(options: argparse.Namespace) -> None:
    print(f"{EVENT_STEPS_S:g} tokens/s of each stream; shares of one core\n")
    print("| streams | events/s offered | events/s | per CPU second of the gateway | gateway | others |")
    print("|---|---|---|---|---|---|")
    for streams in options.streams:
        with gateway_stack(EVENT_STEPS_S, streams, "--disconnect-grace-s", "0") as stack:
            print(events_row(stack, streams, options.seconds), flush=True)
    print()


def events_row(stack: GatewayStack, streams: int, seconds: float) -> str:
    with Readers(stack.port, streams, LONG, READERS) as readers:
        time.sleep(SETTLE_S)
        begun, before, first = time.perf_counter(), stack.cpu_s(), readers.ask()
        time.sleep(seconds)
        took, after, last = time.perf_counter() - begun, stack.cpu_s(), readers.ask()
        assert last["going"] == streams, f"only {last['going']} of {streams} streams went on"
    spent = {name: after[name] - before[name] for name in after}
    spent["readers"] = last["cpu_s"] - first["cpu_s"]
    events, gateway_s = last["events"] - first["events"], spent.pop("gateway")
    others = ", ".join(f"{name} {used / took:.0%}" for name, used in spent.items())
    return (
        f"| {streams} | {streams * EVENT_STEPS_S:,.0f} | {events / took:,.0f} | {events / gateway_s:,.0f} "
        f"| {gateway_s / took:.0%} | {others} |"
    )


# --- idle streams


def print_idle(options: argparse.Namespace) -> None:
    print("| idle streams | gateway MiB before | with them | KiB of a stream | opened in | CPU | one more |")
    print("|---|---|---|---|---|---|---|")
    with gateway_stack(1.0, 1, "--max-requests", str(options.idle)) as stack:
        print(idle_row(stack, options.idle, options.seconds), "\n", flush=True)


def idle_row(stack: GatewayStack, streams: int, seconds: float) -> str:
    before, start = stack.gateway.memory_info().rss, time.perf_counter()
    with Readers(stack.port, streams, LONG, READERS) as readers:
        opened_s = time.perf_counter() - start
        spent_s = stack.cpu_s()["gateway"]
        time.sleep(seconds)
        share = (stack.cpu_s()["gateway"] - spent_s) / seconds
        resident = stack.gateway.memory_info().rss
        refusal = _refusal(stack.port)
        going = readers.ask()["going"]
        assert going == streams, f"only {going} of {streams} streams went on"
    return (
        f"| {streams:,} | {before / MIB:,.0f} | {resident / MIB:,.0f} "
        f"| {(resident - before) / 1024 / streams:,.0f} | {opened_s:.0f} s | {share:.0%} | {refusal} |"
    )


def _refusal(port: int) -> str:
    """Status and code of one more request."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/v1/models", timeout=30) as answer:
            return str(answer.status)
    except urllib.error.HTTPError as error:
        return f"{error.code} `{json.load(error)['error']['code']}`"


def _options() -> argparse.Namespace:
    parser = parser_of("gateway", __doc__)
    parts = ("ttft", "events", "idle")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--rate", type=float, default=20.0, help="requests per second")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--turn-requests", type=int, default=150)
    parser.add_argument("--streams", type=int, nargs="+", default=[100, 200, 300], help="that get events")
    parser.add_argument(
        "--seconds", type=float, default=8.0, help="of a measurement of events or idle streams"
    )
    parser.add_argument("--idle", type=int, default=1000, help="idle streams")
    return parser.parse_args()


if __name__ == "__main__":
    main()
