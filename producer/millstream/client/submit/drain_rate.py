"""Measures how fast a queue empties, to estimate when a full queue has room again."""

from __future__ import annotations

SHARE = 0.01  # of the bound that should be free before the next try
FIRST_S, LEAST_S, MOST_S = 1.0, 0.05, 60.0


class DrainRate:
    """Observes the backlog that each submit returns; times are seconds of any monotonic clock."""

    __slots__ = ("_added", "_entries", "_per_s", "_since_s")

    def __init__(self) -> None:
        self._entries: int | None = None  # at `_since_s`
        self._since_s = 0.0
        self._added = 0  # by this client since then
        self._per_s: float | None = None  # finished entries

    def saw(self, entries: int, now_s: float, *, added: int = 0) -> None:
        """Record that the queue holds `entries`, of which this submit added `added`."""
        self._added += added
        if self._entries is None:
            self._restart(entries, now_s)
        elif now_s - self._since_s >= 1.0:
            done = max(0, self._entries + self._added - entries)
            rate = done / (now_s - self._since_s)
            self._per_s = rate if self._per_s is None else (self._per_s + rate) / 2
            self._restart(entries, now_s)

    def _restart(self, entries: int, now_s: float) -> None:
        self._entries, self._since_s, self._added = entries, now_s, 0

    def retry_after_s(self, max_entries: int) -> float:
        """Seconds until a hundredth of the bound is free; one second if the rate is unknown."""
        if self._per_s is None:
            return FIRST_S
        wanted = max(1.0, SHARE * max_entries)
        return min(MOST_S, max(LEAST_S, wanted / self._per_s)) if self._per_s else MOST_S
