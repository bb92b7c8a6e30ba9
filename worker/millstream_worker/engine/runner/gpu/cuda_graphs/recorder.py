"""Defines the interface that records device work and replays it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

Replay = Callable[[], None]


class CannotRecord(Exception):
    """This work cannot be recorded; the message says why."""


class Recorder(Protocol):
    """Records the operations between `begin` and `end`. Replaying does the same to the same memory: tensors
    that live on from before are read anew, values of the host are as they were when it was recorded.

    All recordings share the memory for what they compute in between: a tensor made in one is valid only
    until the next one is replayed.
    """

    def apart(self) -> AbstractContextManager[None]:
        """Surrounds all recording and what warms up for it: apart from the device's other work."""
        ...

    def strict(self) -> AbstractContextManager[None]:
        """Raises `CannotRecord` where the host waits for a value of the device, which no recording can."""
        ...

    def begin(self) -> None: ...

    def end(self) -> Replay: ...

    def drop(self) -> None:
        """End a recording that something has gone wrong in, if there is one."""
        ...

    def free_bytes(self) -> int:
        """Returns the bytes of the device's memory for other work than recordings."""
        ...

    def start_over(self) -> None:
        """Free what gone recordings have computed in. Later ones share no memory with those that are left."""
        ...
