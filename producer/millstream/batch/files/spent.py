"""The time that the runs of one output have taken, and what they got for it: the figures of its cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Spent:
    """`rows` and `output_tokens` without those that workers computed while no run was under way."""

    seconds: float = 0.0
    rows: int = 0
    output_tokens: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.seconds + other.seconds, self.rows + other.rows, self.output_tokens + other.output_tokens
        )

    def __sub__(self, other: Spent) -> Spent:
        return self + Spent(-other.seconds, -other.rows, -other.output_tokens)

    def note(self) -> dict[str, Any]:
        """Its row of the run file."""
        return asdict(self) | {"seconds": round(self.seconds, 3)}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Reads a row for which `is_note` is true."""
        return cls(row["seconds"], row["rows"], row["output_tokens"])

    @staticmethod
    def is_note(row: Mapping[str, Any]) -> bool:
        seconds, counts = row.get("seconds"), (row.get("rows"), row.get("output_tokens"))
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < inf:
            return False
        return all(type(count) is int and count >= 0 for count in counts)


NOTHING_SPENT = Spent()
