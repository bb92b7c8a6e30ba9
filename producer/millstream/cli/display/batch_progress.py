"""A batch run on the screen: a progress bar with figures, or an occasional line without a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.text import Text

from millstream.batch.run.run import BatchRun
from millstream.batch.run.tally import cost, per_second
from millstream.cli.display.terminal import errors, say

REFRESH_S = 0.2
LINE_EVERY_S = 15.0
GAP = "  "
SPARE = 3  # columns: the ^C that a terminal shows must not wrap the line, or the bar would appear twice
LEAST_BAR = 10
BESIDE = 60  # columns from which on the bar is beside its counts and not above them


@dataclass(slots=True)
class Shown:
    """The state of a run to show, after its lines were counted."""

    run: BatchRun
    price_per_hour: float | None = None
    behind: int = 0  # jobs of others that wait, while none of this run has ended

    @property
    def most(self) -> int:
        """Total lines; the input may have grown since they were counted."""
        return max(self.run.source.total or 0, self.run.tally.done)

    def counts(self) -> list[str]:
        """The counts beside the number of finished lines."""
        return [
            f"{self.run.tally.failed:,} failed",
            f"{self.run.under_way:,} under way",
            *([f"waiting behind {self.behind:,} jobs"] if self.behind and not self.run.tally.ended else []),
            span(self.run.elapsed_s),
            f"ETA {self.eta()}",
        ]

    def speeds(self) -> list[str]:
        """Rates and their cost."""
        tally, elapsed_s = self.run.tally, self.run.elapsed_s
        rates = (
            (tally.ended, "rows/s"),
            (tally.prompt_tokens, "prompt tokens/s"),
            (tally.output_tokens, "output tokens/s"),
        )
        shown = [f"{rate(per_second(count, elapsed_s))} {unit}" for count, unit in rates]
        return [*shown, *self._costs(elapsed_s)]

    def eta(self) -> str:
        """Estimated from this run's own rows: those of earlier runs took no time."""
        ended, elapsed_s = self.run.tally.ended, self.run.elapsed_s
        if not ended or not elapsed_s:
            return "–"
        return span((self.most - self.run.tally.done) * elapsed_s / ended)

    def _costs(self, elapsed_s: float) -> Iterator[str]:
        tally = self.run.tally
        units = ((tally.completed / 1e3, "1,000 rows"), (tally.output_tokens / 1e6, "million output tokens"))
        for count, unit in units:
            if self.price_per_hour is not None and (price := cost(self.price_per_hour, elapsed_s, count)):
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


def rate(value: float) -> str:
    """The value with three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def money(value: float) -> str:
    return f"{value:,.2f}" if value >= 1 else f"{value:.2g}"


def span(seconds: float) -> str:
    """Hours, minutes, seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
