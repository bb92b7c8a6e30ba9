"""A batch run on the screen: a progress bar with figures, or an occasional line without a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.text import Text

from millstream.batch.run.run import BatchRun
from millstream.batch.run.tally import cost
from millstream.cli.display.terminal import counted, errors, say

REFRESH_S = 0.2
LINE_EVERY_S = 15.0
GAP = "  "
SPARE = 3  # columns: the ^C that a terminal shows must not wrap the line, or the bar would appear twice
LEAST_BAR = 10
NOTHING = "–"  # nobody knows
BESIDE = 60  # columns from which on the bar is beside its counts and not above them


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """The run's queues, as their workers said last. `behind`: jobs of others that wait and are served no
    later; `shared`: the queues hold jobs of others.
    """

    workers: int = 0
    rows_running: int = 0
    output_tokens_per_s: float = 0.0
    behind: int = 0
    shared: bool = False


@dataclass(slots=True)
class Shown:
    """The state of a run to show, after its lines were counted. `trouble`: of the server, in a few words."""

    run: BatchRun
    price_per_hour: float | None = None
    load: QueueLoad = QueueLoad()
    trouble: Callable[[], str | None] = lambda: None

    @property
    def most(self) -> int:
        """Total lines; the input may have grown since they were counted."""
        return max(self.run.source.total or 0, self.run.tally.done)

    def counts(self) -> list[str]:
        """The counts beside the number of finished lines."""
        trouble = self.trouble()
        return [
            f"{self.run.tally.failed:,} failed",
            *self._under_way(),
            *self._behind(),
            *self._groups(),
            *([trouble] if trouble else []),
            span(self.run.clock.elapsed_s),
            f"ETA {NOTHING if trouble else self.eta()}",
        ]

    def _under_way(self) -> Iterator[str]:
        """The rows that were read and have not ended, by what they wait for."""
        run = self.run.lines
        sent = run.under_way - run.followers - run.unsent
        if not self.load.workers or not sent:
            yield f"{sent:,} under way"
        else:
            computing = min(sent, self.load.rows_running)
            yield f"{'up to ' if self.load.shared and computing else ''}{computing:,} computing"
            yield f"{sent - computing:,} queued"
        if run.unsent:
            yield f"{run.unsent:,} {'waiting for room' if self.run.ledger.full else 'to be sent'}"
        if run.followers:
            yield f"{run.followers:,} waiting for equal lines"

    def _behind(self) -> Iterator[str]:
        if (jobs := self.load.behind) and not self.run.tally.ended:
            yield f"waiting behind {counted(jobs, 'job')}"

    def _groups(self) -> Iterator[str]:
        if (groups := self.run.tally.groups) and self.run.lines.queues:  # lines were sent
            yield told_groups(groups, self.run.tally.shared_tokens)

    def speeds(self) -> list[str]:
        """Rates of the last minute, and the cost."""
        rates = self.run.clock.rates
        shown = [
            f"{rate(rates.rows)} rows/s",
            f"{rate(rates.prompt_tokens)} prompt tokens/s",
            f"{rate(rates.output_tokens)} output tokens/s",
        ]
        if not rates.output_tokens and self.load.output_tokens_per_s:
            shown[-1] = f"~{rate(self.load.output_tokens_per_s)} output tokens/s (workers)"
        return [*shown, *self._costs()]

    def eta(self) -> str:
        """The estimated time left: lines of earlier runs, and refused ones, took none."""
        left = self.most - self.run.tally.done
        if not left:
            return span(0)
        seconds = self.run.clock.left_s(max(0, left - self.run.lines.followers), self.most)
        return NOTHING if seconds is None else f"~{span(seconds)}"

    def _costs(self) -> Iterator[str]:
        if self.price_per_hour is None:
            return
        spent = self.run.clock.spent
        units = ((spent.rows / 1e3, "1,000 rows"), (spent.output_tokens / 1e6, "million output tokens"))
        for count, unit in units:
            if price := cost(self.price_per_hour, spent.seconds, count):
                yield f"{money(price)} per {unit}"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As many lines as the figures need: none is cut."""
        done, most = self.run.tally.done, self.most
        width = max(LEAST_BAR, options.max_width - SPARE)
        taken = LEAST_BAR + len(GAP) if width >= BESIDE else 0
        first, *more = _wrapped([f"{done:,}/{most:,}", *self.counts()], width - taken)
        bar = width - len(first) - len(GAP) if taken else width
        yield ProgressBar(total=most or None, completed=done, width=bar)
        yield Segment(GAP) if taken else Segment.line()
        for line in (first, *more, *_wrapped(self.speeds(), width)):
            yield Text(line)


async def show_progress(shown: Shown, line_every_s: float = LINE_EVERY_S) -> None:
    """Until cancelled."""
    if errors.is_terminal:
        await _bar(shown)
    else:
        await _lines(shown, line_every_s)


async def _bar(shown: Shown) -> None:
    with Live(shown, console=errors, auto_refresh=False) as live:
        while True:
            live.refresh()
            await asyncio.sleep(REFRESH_S)


async def _lines(shown: Shown, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        done = f"{shown.run.tally.done:,} of {shown.most:,} lines"
        say(", ".join([done, *shown.counts(), *shown.speeds()]))


def _wrapped(parts: Sequence[str], width: int) -> list[str]:
    """The parts, wrapped into lines."""
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(GAP) + len(part) <= width:
            lines[-1] += GAP + part
        else:
            lines.append(part)
    return lines


def told_groups(groups: int, tokens: int) -> str:
    """Groups of lines that begin alike, and the tokens of prompts that need not be computed for each line."""
    return f"{counted(groups, 'group')} sharing ~{tokens:,} tokens"


def rate(value: float) -> str:
    """The value with three digits; 0: nobody knows it."""
    if not value:
        return NOTHING
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def money(value: float) -> str:
    return f"{value:,.2f}" if value >= 1 else f"{value:.2g}"


def span(seconds: float) -> str:
    """Hours, minutes, seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
