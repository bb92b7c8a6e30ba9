"""`millstream queue`: waiting and running jobs, their age, and the workers of a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millstream.cli.display.terminal import answers, plain, print_json, warn
from millstream.cli.display.times import age, local
from millstream.cli.shared.command_run import reported, run_with_client
from millstream.cli.shared.shared_options import AsJson, Queue, RedisUrl
from millstream.client.async_client import AsyncClient
from millstream.client.session.queue_status import LaneStatus, QueueStatus, WorkerStatus
from millstream.errors import Unavailable
from millstream.wire.state.queue_info import SHOWN_DIGEST

REFRESH_S = 2.0
NAMED_TENANTS = 5  # those with the most jobs
NOTHING = "–"


def queue(
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every 2 s, until Ctrl-C.")] = False,
    redis_url: RedisUrl = None,
    queue: Queue = "default",
    as_json: AsJson = False,
    metrics_port: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Serve the queue's figures to Prometheus instead, until Ctrl-C or SIGTERM.",
        ),
    ] = None,
) -> None:
    """Show the queue's waiting and running jobs, their age, and its workers."""
    with reported(as_json, lambda: "stopped"):

        async def work(client: AsyncClient) -> None:
            status = await client.queue_info()
            if not watch:
                _print(status, as_json=as_json)
            elif as_json or not answers.is_terminal:
                await _repeat(client, status, as_json=as_json)
            else:
                await _live(client, status)

        run_with_client(redis_url, queue, work if metrics_port is None else _exporter(queue, metrics_port))


def _exporter(queue: str, address: str) -> Callable[[AsyncClient], Awaitable[None]]:
    from millstream.cli.commands.queue_exporter import (
        export_queue,
    )  # prometheus_client is not for all commands

    return partial(export_queue, queue=queue, address=address)


async def _repeat(client: AsyncClient, status: QueueStatus | None, *, as_json: bool) -> None:
    """Print one status below the other, for a file or a program."""
    while True:
        if status is not None:
            _print(status, as_json=as_json)
            if not as_json:
                answers.out("")
        await asyncio.sleep(REFRESH_S)
        status = await _again(client)


async def _live(client: AsyncClient, status: QueueStatus) -> None:
    with Live(console=answers, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            live.update(_page(status), refresh=True)
            await asyncio.sleep(REFRESH_S)
            status = await _again(client) or status


async def _again(client: AsyncClient) -> QueueStatus | None:
    try:
        return await client.queue_info()
    except Unavailable as error:  # the watcher wants to see the server come back
        warn(str(error))
        return None


def _print(status: QueueStatus, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(status))
    else:
        answers.print(_page(status), soft_wrap=False)


def _page(status: QueueStatus) -> RenderableType:
    parts: list[RenderableType] = [Text(_title(status))]
    if not status.shards:
        parts.append(Text("nobody has used this queue yet: no job was submitted, no worker has served it"))
        return Group(*parts)
    parts += [Text(""), _lanes(status), Text(""), *(Text(line) for line in _lines(status))]
    parts += [_worker(one, status.at_ms) for one in status.workers or ()]
    return Group(*parts)


def _title(status: QueueStatus) -> str:
    words = [f"queue {status.queue}", local(status.at_ms)]
    if status.shards > 1:
        words.insert(1, f"{status.shards} shards")
    return " · ".join(words)


def _lanes(status: QueueStatus) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), show_edge=False)
    table.add_column("lane")
    for name in ("waiting", "running"):
        table.add_column(name, justify="right")
    table.add_column("oldest waiting")
    for lane in status.lanes:
        counts = (NOTHING if count is None else f"{count:,}" for count in (lane.waiting, lane.running))
        table.add_row(lane.lane, *counts, _oldest(lane, status.unread))
    return table


def _oldest(lane: LaneStatus, unread: Mapping[str, str]) -> str:
    if lane.oldest_s is not None:
        return age(lane.oldest_s)
    if lane.waiting is None:
        return f"{NOTHING}  {unread['lanes']}"
    return f"{NOTHING}  {unread['oldest_s']}" if lane.waiting and "oldest_s" in unread else NOTHING


def _lines(status: QueueStatus) -> Iterator[str]:
    def line(name: str, field: str, text: str) -> str:
        missing = status.unread.get(field)
        return f"{name:<16}{text if missing is None else f'{NOTHING}  {missing}'}"

    digest = f" ({status.model_digest[:SHOWN_DIGEST]})" if status.model_digest else ""
    yield line("model", "model", f"{status.model or NOTHING}{digest}")
    if len(status.models) > 1:
        yield f"{'':<16}its workers have {len(status.models)}: {', '.join(status.models)}"
    yield line("delayed retries", "delayed", f"{status.delayed or 0:,}")
    yield line("dead letters", "dead", f"{status.dead or 0:,}")
    of_one = "" if status.shards == 1 else f", {_size(status.fullest_bytes or 0)} in the fullest shard"
    held = f"{_size(status.held_bytes or 0)}{of_one}; a shard takes {_size(status.max_bytes)}"
    yield line("requests held", "held_bytes", held)
    yield line("tenants waiting", "tenants", _tenants(status.tenants or {}))
    alone = "" if status.workers else ": jobs wait until one serves the queue"
    yield line("workers", "workers", f"{len(status.workers or ())}{alone}")


def _tenants(waiting: Mapping[str, int]) -> str:
    """Tenants of the jobs beyond a lane's window: only there tenants take turns."""
    shown = [f"{plain(name) or '(none)'} {count:,}" for name, count in list(waiting.items())[:NAMED_TENANTS]]
    more = len(waiting) - len(shown)
    return ", ".join([*shown, *([f"and {more:,} more"] if more else [])]) or NOTHING


def _worker(one: WorkerStatus, at_ms: int) -> Text:
    """Lines rather than a table: names and models are long, and 80 columns are few."""
    first, last = one.versions
    messages = first if first == last else f"{first} to {last}"
    up = "" if one.started_ms is None else f", up {age((at_ms - one.started_ms) / 1000)}"
    lines = (
        f"{one.name}: {one.state}{up}",
        f"  {one.model or '?'}{f' in {one.weights}' if one.weights else ''} on {one.device or '?'}",
        f"  rows      {_rows(one)}",
        f"  tokens/s  {one.prompt_tokens_per_s:,.1f} prompt, {one.output_tokens_per_s:,.1f} output",
        f"  KV cache  {_cache(one)}",
        f"  version   millstream {one.package or '?'}, messages {messages}",
        *([f"  checked   {one.self_check}"] if one.self_check else []),
        *([f"  slower    {one.fallbacks}"] if one.fallbacks else []),
    )
    return Text("\n".join(plain(line) for line in ("", *lines)))


def _rows(one: WorkerStatus) -> str:
    compiling = f", {one.grammars_waiting:,} jobs' formats being compiled" if one.grammars_waiting else ""
    return f"{one.rows_running:,} of {one.max_rows:,} running, {one.rows_waiting:,} waiting{compiling}"


def _cache(one: WorkerStatus) -> str:
    whole = one.kv_used + one.kv_cached + one.kv_free
    if not whole:
        return NOTHING
    form = f" in {one.kv_format}" if one.kv_format else ""
    parts = [f"{one.kv_used / whole:.0%} used, {one.kv_cached / whole:.0%} cached of {whole:,} tokens{form}"]
    if one.prefix_hit_rate is not None:
        parts.append(f"{one.prefix_hit_rate:.0%} prefix hits")
    return ", ".join(parts)


def _size(count: int) -> str:
    """In binary units."""
    amount, units = float(count), ["bytes", "KiB", "MiB", "GiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        del units[0]
    return f"{amount:,.0f} {units[0]}" if units[0] == "bytes" else f"{amount:,.1f} {units[0]}"
