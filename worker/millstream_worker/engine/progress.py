"""How far the engine process has come, as its beats tell the front: the phase, and how long ago it last got
any further. A layer computed, a file read, a step begun are progress; that the process lives is none.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

from millstream_worker.engine.protocol.frames import Beat

Mark = Callable[[], None]
_LONGEST_GAP_S = 5.0  # between two beats: beyond it the process was stopped, not stuck
_BUSY_SHARE = 0.1  # of the time between two beats: loading code that computes, and cannot say how far it is


class Progress:
    """Marked by whoever computes, read by the beat's thread. Both only set and read single attributes. To
    stand still is measured from beat to beat.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._phase = "loading"
        self._marked = True  # since the last beat
        self._still_s = 0.0
        self._spent = _spent()
        self._beat_at = clock()

    def mark(self) -> None:
        self._marked = True

    def enter(self, phase: str) -> None:
        self.mark()  # first: a beat between the two may take an idle hour for a step's
        self._phase = phase

    def beat(self) -> Beat:
        now = self._clock()
        passed, self._beat_at = now - self._beat_at, now
        if self._phase == "loading" and self._has_worked(passed):
            self.mark()
        marked, self._marked = self._marked, False
        self._still_s = 0.0 if marked else self._still_s + min(passed, _LONGEST_GAP_S)
        return Beat(self._phase, self._still_s)

    def _has_worked(self, passed: float) -> bool:
        """Fetching or converting a checkpoint takes minutes inside of libraries: there the process' own work
        has to do. A download that hangs, or a lock, does none."""
        before, self._spent = self._spent, _spent()
        return self._spent[0] - before[0] > _BUSY_SHARE * passed or self._spent[1] > before[1]


def _spent() -> tuple[float, int]:
    """CPU seconds, and blocks of storage read (of mapped files, too) or written (what is fetched)."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, used.ru_majflt + used.ru_inblock + used.ru_oublock
