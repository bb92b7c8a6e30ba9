"""A line for each worker, as a queue of twenty has to fit one screen; or all that is known of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from millstream.cli.display.terminal import plain
from millstream.cli.display.times import age
from millstream.cli.queue.cut_text import cut, pad, wrapped
from millstream.client.session.queue_status import QueueStatus, WorkerStatus
from millstream.wire.state.heartbeat import DRAINING, LOADING, STARTING

NOTHING = "–"
_GAP = "  "
_SLOWER = "slower"
_REASON = 24  # columns from which it is worth its place
_ROOMY = 100  # columns from which prompt tokens have a column of their own


def all_workers(status: QueueStatus) -> list[WorkerStatus]:
    """Those that serve and those that load, by name."""
    return sorted((*(status.workers or ()), *(status.loading or ())), key=lambda one: one.name)


def worker_lines(workers: Sequence[WorkerStatus], at_ms: int, columns: int) -> list[str]:
    """A head and a line for each. Too long names, models, steps and reasons are cut in the middle."""
    if not workers:
        return []
    figures = _figures(workers, with_prompt=columns >= _ROOMY)
    head = _Line("worker", "state", "model", figures[0])
    lines = [head, *(_line(*pair, at_ms) for pair in zip(workers, figures[1:], strict=True))]
    name, model, last = _widths(lines, columns)
    state = max(cell_len(line.state) for line in lines)
    return [
        cut(
            _GAP.join(
                (pad(line.name, name), pad(line.state, state), pad(line.model, model), line.last(last))
            ),
            columns,
        )
        for line in lines
    ]


def rest_line(workers: Sequence[WorkerStatus]) -> str:
    """One line for those that have none of their own."""
    rows, most = (sum(getattr(one, name) for one in workers) for name in ("rows_running", "max_rows"))
    output = sum(one.output_tokens_per_s for one in workers)
    return f"and {len(workers):,} more: {rows:,} of {most:,} rows, {output:,.0f} output tokens/s"


def by_trouble(one: WorkerStatus) -> int:
    """Sorts workers: first those that somebody may have to look at."""
    states = (LOADING, STARTING, DRAINING)
    if one.late:
        return 0
    return states.index(one.state) + 1 if one.state in states else 4 if one.fallbacks else 5


def message(one: WorkerStatus, at_ms: int) -> str:
    """Says why a worker has no figures: it may be gone, or it loads; empty for one that has."""
    if one.late and one.heartbeat_s is not None:
        return f"last seen {age(one.heartbeat_s)} ago"
    step = plain(one.step)
    if one.state == LOADING and one.started_ms is not None:
        return f"for {age((at_ms - one.started_ms) / 1000)}: {step}"
    return step


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    state: str
    model: str
    figures: str
    slower: str = ""  # the reason
    message: str = ""  # in the place of figures

    def last(self, columns: int) -> str:
        """Figures and reason in so many columns: that there is a reason is not cut."""
        if self.message or not self.slower:
            return cut(self.message or self.figures, columns)
        room = columns - cell_len(self.figures + _GAP)
        reason = cut(f"{_SLOWER}: {self.slower}", room) if room >= _REASON else _SLOWER
        return f"{self.figures}{_GAP}{reason}"

    @property
    def least(self) -> int:
        return 0 if self.message else cell_len(self.figures) + (len(_GAP + _SLOWER) if self.slower else 0)

    @property
    def wanted(self) -> int:
        whole = f"{self.figures}{_GAP}{_SLOWER}: {self.slower}" if self.slower else self.figures
        return cell_len(self.message or whole)


def _line(one: WorkerStatus, figures: str, at_ms: int) -> _Line:
    said = message(one, at_ms)
    return _Line(
        plain(one.name), plain(one.state), plain(one.model) or NOTHING, figures, plain(one.fallbacks), said
    )


def _widths(lines: Sequence[_Line], columns: int) -> tuple[int, int, int]:
    """Columns of name, model and figures. What does not fit is taken from the last first, then from all."""
    name, state, model = (
        max(map(cell_len, column))
        for column in zip(*((line.name, line.state, line.model) for line in lines), strict=True)
    )
    room = columns - state - 3 * len(_GAP)
    least = max(line.least for line in lines)
    last = min(max(line.wanted for line in lines), max(least, room - name - model))
    left = max(room - last, 2)
    model = min(model, max(left - name, left * 2 // 5))
    return min(name, left - model), model, last


def _figures(workers: Sequence[WorkerStatus], *, with_prompt: bool) -> list[str]:
    """Under each other, below their heads."""
    rows = [("rows", "prompt/s", "output/s", "KV"), *map(_row, workers)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    shown = [0, 1, 2, 3] if with_prompt else [0, 2, 3]
    return [_GAP.join(row[n].rjust(widths[n]) for n in shown) for row in rows]


def _row(one: WorkerStatus) -> tuple[str, str, str, str]:
    whole = one.kv_used + one.kv_cached + one.kv_free
    used = f"{one.kv_used / whole:.0%}" if whole else NOTHING
    rates = (f"{rate:,.0f}" for rate in (one.prompt_tokens_per_s, one.output_tokens_per_s))
    return f"{one.rows_running:,}/{one.max_rows:,}", *rates, used  # type: ignore[return-value]


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
        form, images = f" in {one.weights}" if one.weights else "", ", reads images" if one.images else ""
        yield f"  {one.model or '?'}{form} on {one.device or '?'}{images}"
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
