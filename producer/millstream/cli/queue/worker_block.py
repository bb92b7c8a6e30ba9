"""All that is known of a worker, in some lines."""

from __future__ import annotations

from collections.abc import Iterator

from millstream.cli.display.terminal import plain
from millstream.cli.display.times import age
from millstream.cli.queue.cut_text import wrapped
from millstream.cli.queue.worker_lines import NOTHING, message
from millstream.client.session.queue_status import WorkerStatus
from millstream.wire.state.heartbeat import LOADING


def worker_block(one: WorkerStatus, at_ms: int, columns: int) -> list[str]:
    """Lines rather than a table: names, models and reasons are long, and 80 columns are few."""
    return [part for line in _lines(one, at_ms) for part in wrapped(plain(line), columns)]


def _lines(one: WorkerStatus, at_ms: int) -> Iterator[str]:
    first, last = one.versions
    messages = first if first == last else f"{first} to {last}"
    up = "" if one.started_ms is None else f", up {age((at_ms - one.started_ms) / 1000)}"
    yield f"{one.name}: {one.state}{up}"
    if said := message(one, at_ms):
        yield f"  now       {said}"
    if one.state != LOADING:
        yield f"  {one.model or '?'}{f' in {one.weights}' if one.weights else ''} on {one.device or '?'}"
        yield f"  rows      {_rows(one)}"
        yield f"  tokens/s  {one.prompt_tokens_per_s:,.1f} prompt, {one.output_tokens_per_s:,.1f} output"
        yield f"  KV cache  {_cache(one)}"
    yield f"  version   millstream {one.package or '?'}, messages {messages}"
    if one.self_check:
        yield f"  checked   {one.self_check}"
    if one.fallbacks:
        yield f"  slower    {one.fallbacks}"


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
