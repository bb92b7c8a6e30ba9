"""A position in a token log: the id of the last entry that was read, as `<attempt>-<seq>`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from millstream.errors import InvalidRequest

_CURSOR = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """Ordered as the log is: by attempt, then by sequence number."""

    attempt: int = 0
    seq: int = 0

    @classmethod
    def parse(cls, text: object) -> Cursor:
        """The cursor of an event; None is the start of the log. Raises InvalidRequest."""
        if text is None:
            return START
        match = _CURSOR.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise InvalidRequest("cursor", text, "give the cursor of an event of this job, e.g. '1-17'")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.attempt}-{self.seq}"


START = Cursor()
