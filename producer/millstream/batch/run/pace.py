"""The work of a run and its speed: rows that were computed while it ran, over the last minute.

A line that was refused, has an equal line's answer, or whose job had ended before the run began, is no work.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from millstream.errors import JobError
from millstream.wire.messages.job_messages import Result

WINDOW_S = 60.0
APART_S = 0.5  # of two moments that are remembered
LEAST_ROWS = 20  # computed, before the time left is estimated; of a short input one row in a hundred


@dataclass(frozen=True, slots=True)
class Work:
    """Rows and tokens that were computed."""

    rows: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.rows + other.rows,
            self.prompt_tokens + other.prompt_tokens,
            self.output_tokens + other.output_tokens,
        )

    def __sub__(self, other: Work) -> Work:
        return self + Work(-other.rows, -other.prompt_tokens, -other.output_tokens)


NO_WORK = Work()


def work_of(end: Result | JobError, since_ms: int) -> Work:
    """The part of an ended job that was computed after `since_ms`, of the server's clock."""
    result = getattr(end, "result", None) if isinstance(end, JobError) else end
    if not isinstance(result, Result) or result.cached:
        return NO_WORK
    usage, timing = result.usage, result.timing
    over_before = timing.finished_ms is not None and timing.finished_ms < since_ms
    if over_before or not usage.prompt_tokens + usage.output_tokens:
        return NO_WORK
    first_ms, last_ms = timing.first_token_ms, timing.last_token_ms
    if first_ms is None or last_ms is None or first_ms >= since_ms:
        return Work(1, usage.prompt_tokens, usage.output_tokens)
    share = (last_ms - since_ms) / (last_ms - first_ms) if last_ms > since_ms else 0.0
    return Work(1, 0, round(usage.output_tokens * share))


@dataclass(frozen=True, slots=True)
class WorkRates:
    """Per second; 0: nothing ended in the last minute."""

    rows: float = 0.0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0


class Pace:
    """Mutable; one per run. Times are seconds of one clock, which only grow."""

    def __init__(self) -> None:
        self.total = Work()
        # moments at which rows ended, with the work until then; the first one is the run's begin, or an end
        # of more than WINDOW_S ago
        self._moments: deque[tuple[float, Work]] = deque()

    def begin(self, now_s: float) -> None:
        if not self._moments:
            self._moments.append((now_s, self.total))

    def add(self, work: Work, now_s: float) -> None:
        self.begin(now_s)
        if not work.rows:
            return
        self.total += work
        if len(self._moments) > 1 and now_s - self._moments[-2][0] < APART_S:
            self._moments.pop()
        self._moments.append((now_s, self.total))
        while self._moments[1][0] <= now_s - WINDOW_S:
            self._moments.popleft()

    def rates(self, now_s: float) -> WorkRates:
        """Over the last minute, or since the run began."""
        if not self._moments:
            return WorkRates()
        began_s, before = self._at(now_s - WINDOW_S)
        seconds = now_s - began_s
        if seconds > WINDOW_S + 2 * APART_S:  # no row ended between that moment and the window
            seconds = WINDOW_S
        done = self.total - before
        if seconds <= 0:
            return WorkRates()
        return WorkRates(done.rows / seconds, done.prompt_tokens / seconds, done.output_tokens / seconds)

    def left_s(self, rows: int, lines: int, now_s: float) -> float | None:
        """The time that so many rows will take, of a run of so many lines; None: nobody knows.

        The speed is that from one end of a row to a later one, a minute or more apart, so that it does not
        depend on the moment between two ends. From the last end on the estimate counts down. It is given up
        when it is over, or when no row has ended for as long as it was derived from.
        """
        if self.total.rows < min(LEAST_ROWS, max(1, lines // 100)):
            return None
        last_s = self._moments[-1][0]
        began_s, before = self._at(last_s - WINDOW_S)
        measured_s, since_s = last_s - began_s, now_s - last_s
        if since_s > max(measured_s, 1.0):
            return None
        left_s = rows * measured_s / (self.total - before).rows - since_s
        return left_s if left_s > 0 else None

    def _at(self, moment_s: float) -> tuple[float, Work]:
        """The last of the moments until then, or the first one."""
        until = [one for one in self._moments if one[0] <= moment_s]
        return until[-1] if until else self._moments[0]
