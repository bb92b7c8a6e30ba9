"""One reader's bounded buffer of published messages: a slow reader overruns it, and blocks nobody."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from millstream.wire.timing import within

MAX_BYTES = 4 * 1024**2  # of messages that wait for one reader
MAX_ALL_BYTES = 64 * 1024**2  # the same for all readers of a client


class Mail(NamedTuple):
    payloads: list[bytes]
    lost: bool  # messages may be missing before these
    rejoined: bool = False  # since the mail before, and perhaps at another server


@dataclass(slots=True, eq=False)
class Mailroom:
    """Counts the bytes and the streams of all mailboxes of one client."""

    streams: int = 0  # being followed
    held_bytes: int = 0


class Mailbox:
    """One channel's messages for one reader. When `limit` are waiting, or MAX_BYTES, or MAX_ALL_BYTES in the
    whole room, it drops all its messages, and `take` returns `lost`. Counts as a stream of the room until
    `close`.
    """

    __slots__ = ("_arrived", "_held_bytes", "_limit", "_lost", "_payloads", "_ready", "_rejoined", "_room")

    def __init__(self, limit: int, room: Mailroom | None = None) -> None:
        self._limit = limit
        self._room = room or Mailroom()
        self._room.streams += 1
        self._payloads: deque[bytes] = deque()
        self._held_bytes = 0
        self._lost = self._rejoined = False
        self._arrived = asyncio.Event()
        self._ready = asyncio.Event()

    def deliver(self, channel: str, payload: bytes) -> None:
        size = len(payload)
        if len(self._payloads) >= self._limit or self._held_bytes + size > MAX_BYTES:
            self._empty(lost=True)
        self._arrived.set()
        if self._room.held_bytes + size > MAX_ALL_BYTES:
            self._empty(lost=True)
            return
        self._payloads.append(payload)
        self._held_bytes += size
        self._room.held_bytes += size

    def subscribed(self, channel: str) -> None:
        self._empty(lost=True)
        self._rejoined = True
        self._ready.set()
        self._arrived.set()

    async def ready(self, timeout_s: float) -> bool:
        """Wait for the first acknowledgement, and empty the mailbox: a later read of the log includes all
        messages before it.

        False: it did not come in time; the reader polls, and is informed when it comes.
        """
        if not await within(self._ready, timeout_s):
            return False
        self._empty(lost=False)
        self._arrived.clear()
        return True

    async def take(self, timeout_s: float) -> Mail | None:
        """Return all messages that have arrived; waits up to `timeout_s`. None if there are none."""
        if not await within(self._arrived, timeout_s):
            return None
        mail = Mail(list(self._payloads), self._lost, self._rejoined)
        self._empty(lost=False)
        self._arrived.clear()
        return mail

    def close(self) -> None:
        """End the mailbox: nothing more is delivered to it."""
        self._empty(lost=True)
        self._room.streams -= 1

    def _empty(self, *, lost: bool) -> None:
        self._payloads.clear()
        self._room.held_bytes -= self._held_bytes
        self._held_bytes = 0
        self._lost = lost
        self._rejoined = lost and self._rejoined
