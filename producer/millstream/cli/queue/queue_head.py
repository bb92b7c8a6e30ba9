"""The head of a queue's page: its lanes and counts, one below the other, or in as few lines as they take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from millstream.cli.display.terminal import plain
from millstream.cli.display.times import age, local
from millstream.cli.queue.cut_text import cut, flow
from millstream.cli.queue.worker_lines import NOTHING, message
from millstream.client.session.queue_status import LaneStatus, QueueStatus, WorkerStatus
from millstream.wire.state.queue_info import SHOWN_DIGEST

NAMED_TENANTS = 5  # those with the most jobs


def whole_head(status: QueueStatus, columns: int) -> list[str]:
    return [
        cut(line, columns) for line in (" · ".join(_title(status)), "", *_lanes(status), "", *_lines(status))
    ]


def short_head(status: QueueStatus, columns: int) -> list[str]:
    """Without what is as it should be."""
    facts = [*_title(status), *(_lane(lane) for lane in status.lanes)]
    if status.delayed:
        facts.append(f"{status.delayed:,} delayed")
    if status.dead:
        facts.append(f"{status.dead:,} dead")
    if status.fullest_bytes:
        facts.append(f"{status.fullest_bytes / status.max_bytes:.0%} full")
    if status.workers is not None and not status.workers:  # None: they may not be read
        facts.append("no worker serves")
    return flow(facts, columns)


def _title(status: QueueStatus) -> list[str]:
    shards = [f"{status.shards} shards"] if status.shards > 1 else []
    return [f"queue {status.queue}", *shards, local(status.at_ms)]


def _lane(lane: LaneStatus) -> str:
    waiting, running = _counts(lane)
    oldest = "" if lane.oldest_s is None else f" ({age(lane.oldest_s)})"
    return f"{lane.lane} {waiting} waiting{oldest}, {running} running"


def _lanes(status: QueueStatus) -> Iterator[str]:
    yield f"{'lane':<11}   {'waiting':>7}   {'running':>7}   oldest waiting"
    for lane in status.lanes:
        waiting, running = _counts(lane)
        yield f"{lane.lane:<11}   {waiting:>7}   {running:>7}   {_oldest(lane, status.unread)}"


def _counts(lane: LaneStatus) -> list[str]:
    return [NOTHING if count is None else f"{count:,}" for count in (lane.waiting, lane.running)]


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
    yield line("model", "model", f"{plain(status.model) or NOTHING}{digest}")
    if len(status.models) > 1:
        yield f"{'':<16}its workers have {len(status.models)}: {plain(', '.join(status.models))}"
    yield line("delayed retries", "delayed", f"{status.delayed or 0:,}")
    yield line("dead letters", "dead", f"{status.dead or 0:,}")
    of_one = "" if status.shards == 1 else f", {_size(status.fullest_bytes or 0)} in the fullest shard"
    held = f"{_size(status.held_bytes or 0)}{of_one}; a shard takes {_size(status.max_bytes)}"
    yield line("requests held", "held_bytes", held)
    yield line("tenants waiting", "tenants", _tenants(status.tenants or {}))
    alone = "" if status.workers else ": jobs wait until one serves the queue"
    yield line("workers", "workers", f"{len(status.workers or ())}{alone}")
    if status.loading:
        yield f"{'':<16}{_loading(status.loading, status.at_ms)}"


def _loading(workers: Sequence[WorkerStatus], at_ms: int) -> str:
    """With the one that began first and still lives."""
    first = min(workers, key=lambda one: (one.late, one.started_ms or at_ms))
    of_them = "" if len(workers) == 1 else ", the first"
    return f"{len(workers)} loading{of_them} {message(first, at_ms)}"


def _tenants(waiting: Mapping[str, int]) -> str:
    """Tenants of the jobs beyond a lane's window: only there tenants take turns."""
    shown = [f"{plain(name) or '(none)'} {count:,}" for name, count in list(waiting.items())[:NAMED_TENANTS]]
    more = len(waiting) - len(shown)
    return ", ".join([*shown, *([f"and {more:,} more"] if more else [])]) or NOTHING


def _size(count: int) -> str:
    """In binary units."""
    amount, units = float(count), ["bytes", "KiB", "MiB", "GiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        del units[0]
    return f"{amount:,.0f} {units[0]}" if units[0] == "bytes" else f"{amount:,.1f} {units[0]}"
