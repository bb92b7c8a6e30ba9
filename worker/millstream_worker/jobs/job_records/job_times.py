"""The times of a job, over all attempts."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.wire.messages.job_messages import Timing

_TIMES = tuple(Timing.model_fields)  # in the order in which they come


@dataclass(slots=True, eq=False)
class JobTimes:
    timing: Timing
    first_token_out: bool = False  # its time is fixed, by this attempt or an earlier one

    def __post_init__(self) -> None:
        self.first_token_out = self.timing.first_token_ms is not None

    def set(self, name: str, at_ms: int) -> None:
        """Never before an earlier time of the job: the server's clock is known here to some milliseconds
        only.
        """
        earlier = (getattr(self.timing, other) or 0 for other in _TIMES[: _TIMES.index(name)])
        self.timing = self.timing.model_copy(update={name: max(at_ms, *earlier)})

    def set_once(self, name: str, at_ms: int) -> None:
        """Unless an earlier attempt has set it."""
        if getattr(self.timing, name) is None:
            self.set(name, at_ms)

    def send_first_token(self, now_ms: int) -> None:
        """It is sent now; if that fails it is sent again, with the time of the last try."""
        if not self.first_token_out:
            self.set("first_token_ms", now_ms)

    def confirm_first_token(self) -> bool:
        """It was sent. False if it was confirmed before, or there is none."""
        if self.first_token_out or self.timing.first_token_ms is None:
            return False
        self.first_token_out = True
        return True
