"""The engine process' progress, as its beats report it to the front: the phase, and the time since the last
progress in it. A computed layer, a file read, a begun step are progress; that the process lives is not.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable

from millstream_worker.engine.protocol.frames import Beat
from millstream_worker.engine.session_cpu import session_cpu_s

Mark = Callable[[], None]
_LONGEST_GAP_S = 5.0  # between two beats: a longer gap means that the process was suspended, not stuck
# Of the time between two beats: loading code that computes cannot mark its progress. It gets more even of a
# busy machine, or of a container's quota; a hanging download takes as good as nothing.
_BUSY_SHARE = 0.02


class Progress:
    """Marked by the computing thread, read by the beat's thread. Both only set and read single attributes.
    Standing still is measured from beat to beat.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, work: Callable[[], tuple[float, int]] | None = None
    ) -> None:
        """`work`: what the process has done, by default as the system counts it."""
        self._clock = clock
        self._work = work or _spent
        self._phase = "loading"
        self._marked = True  # since the last beat
        self._still_s = 0.0
        self._spent = self._work()
        self._beat_at = clock()

    def mark(self) -> None:
        self._marked = True

    def enter(self, phase: str) -> None:
        self.mark()  # first: a beat in between may take an idle hour for a step's
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
        """Fetching, converting or compiling takes minutes inside of libraries: there CPU time, also of the
        session's other processes, and storage traffic count as progress. A hanging download has none.
        """
        before, self._spent = self._spent, self._work()
        return self._spent[0] - before[0] > _BUSY_SHARE * passed or self._spent[1] > before[1]


def _spent() -> tuple[float, int]:
    """CPU seconds, but for this thread's, and blocks of storage read (of mapped files, too) or written (what
    is fetched)."""
    used, ended = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    seconds = time.process_time() - time.thread_time() + ended.ru_utime + ended.ru_stime
    seconds += session_cpu_s(os.getsid(0), but=os.getpid())  # compilers that torch has started
    return seconds, used.ru_majflt + used.ru_inblock + used.ru_oublock
