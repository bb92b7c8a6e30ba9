"""The token log of a job as it is written: body i has sequence number i + 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from millstream.wire.messages import codec
from millstream_worker.jobs import encoding
from millstream_worker.jobs.output import ChoiceOutput

MOST_REFUSALS = 8  # of one job's writes in a row, after which its keys count as damaged


@dataclass(slots=True, eq=False)
class TokenLog:
    written: list[bytes] = field(default_factory=list)
    acknowledged: int = 0
    next_flush: float = 0.0  # monotonic seconds
    not_before: float = 0.0  # the same: the server had trouble with its last write
    refusals: int = 0  # writes in a row that the server can never accept

    @property
    def is_acknowledged(self) -> bool:
        return self.acknowledged == len(self.written)

    def take_delta(self, rows: Sequence[ChoiceOutput]) -> None:
        """Put new output into the next body, or several if it is much."""
        while parts := [part for row in rows if (part := row.take()) is not None]:
            self.written.append(encoding.delta(parts))

    def merge_open(self) -> None:
        """Merge all unacknowledged bodies into one. Only if it is certain that the log has none of them."""
        open_bodies = self.written[self.acknowledged :]
        if len(open_bodies) > 1:
            parts = [part for body in open_bodies for part in codec.unpack(body)["choices"]]
            self.written[self.acknowledged :] = [codec.pack({"choices": parts})]
