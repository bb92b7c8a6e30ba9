"""The versions of the protocol's messages: which one this build writes, and which it takes.

A new version is for what an older reader must not ignore. What it may ignore is a new field, under the same
version: every reader passes over fields that it does not know.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_VERSION = 1  # that of a message which names none
WIRE_VERSION = 1  # that clients of this build write


@dataclass(frozen=True, slots=True)
class Versions:
    """A window of versions, both ends included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not FIRST_VERSION <= self.low <= self.high:
            raise ValueError(f"no window of versions: {self.low} to {self.high}")

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high

    def covers(self, other: Versions) -> bool:
        return other.low in self and other.high in self

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low} to {self.high}"


TAKEN = Versions(FIRST_VERSION, WIRE_VERSION)  # that workers and readers of this build understand
