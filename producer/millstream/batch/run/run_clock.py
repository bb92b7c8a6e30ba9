"""The times of one run, its speed, and what it has spent, which its run file keeps."""

from __future__ import annotations

import contextlib
import time

from millstream.batch.files.journal import Journal, WriteFailed
from millstream.batch.files.spent import Spent
from millstream.batch.run.pace import NO_WORK, Work, WorkRates
from millstream.batch.run.tally import Tally

NOTED_S = 30.0  # between two notes of what was spent: a killed run loses no more


class RunClock:
    """Begins with the first submission. May be read at any time."""

    def __init__(self, tally: Tally, journal: Journal) -> None:
        self.earlier = journal.notes.spent  # by the runs before this one
        self._tally = tally
        self._journal = journal
        self._begun_s: float | None = None
        self._last_s = 0.0
        self._noted, self._noted_s = Spent(), 0.0

    def begin(self) -> None:
        if self._begun_s is None:
            self._begun_s = self._noted_s = time.monotonic()
            self._tally.pace.begin(self._begun_s)

    def tick(self, work: Work = NO_WORK) -> None:
        """A row has ended, with so much work. Raises WriteFailed."""
        self._last_s = time.monotonic()
        self._tally.pace.add(work, self._last_s)
        if self._last_s >= self._noted_s + NOTED_S:
            self._note()

    def stop(self) -> None:
        """Record the rest of what was spent, if the disk takes it: that it does not has ended the run."""
        with contextlib.suppress(WriteFailed):
            self._note()

    def _note(self) -> None:
        spent = self._tally.spent(self.elapsed_s)
        if spent != self._noted:
            self._journal.notes.spends(spent - self._noted)
            self._noted, self._noted_s = spent, time.monotonic()

    @property
    def seconds(self) -> float:
        """From the first submission to the latest end."""
        return 0.0 if self._begun_s is None else max(0.0, self._last_s - self._begun_s)

    @property
    def elapsed_s(self) -> float:
        """From the first submission until now."""
        return 0.0 if self._begun_s is None else time.monotonic() - self._begun_s

    @property
    def spent(self) -> Spent:
        """By all runs of this output until now."""
        return self.earlier + self._tally.spent(self.elapsed_s)

    @property
    def rates(self) -> WorkRates:
        return self._tally.pace.rates(time.monotonic())

    def left_s(self, rows: int, lines: int) -> float | None:
        """As `Pace` estimates it."""
        return self._tally.pace.left_s(rows, lines, time.monotonic())
