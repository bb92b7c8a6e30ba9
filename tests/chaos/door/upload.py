"""One file that a client uploads: its form, in pieces, and what came of it."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import cached_property

BOUNDARY = "chaos-boundary"
PIECE = 256 * 1024
PURPOSE = "user_data"
_HEAD = (
    f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n{PURPOSE}\r\n'
    f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="%s"\r\n\r\n'
)
_TAIL = f"\r\n--{BOUNDARY}--\r\n".encode()


class Left(Exception):
    """The client has gone in the middle."""


@dataclass(eq=False)
class Upload:
    """`key`: its Idempotency-Key. `sent`: how often its last byte was sent, perhaps. `ids`: of the file, as
    each acknowledgement said.
    """

    name: str
    size: int
    key: str | None
    sent: int = 0
    ids: list[str] = field(default_factory=list)
    deleted: set[str] = field(default_factory=set)

    @property
    def content(self) -> bytes:
        """Follows from the name: nothing is kept."""
        return random.Random(self.name).randbytes(self.size)

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def headers(self) -> dict[str, str]:
        once = {} if self.key is None else {"Idempotency-Key": self.key}
        return {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"} | once

    @property
    def length(self) -> int:
        """Of the form, in bytes."""
        return len(self._head) + self.size + len(_TAIL)

    async def pieces(self, pause_s: float, left_after: int | None) -> AsyncIterator[bytes]:
        """`left_after`: so many pieces Left is raised; None: never."""
        content = self.content
        yield self._head
        for number, start in enumerate(range(0, self.size, PIECE)):
            if number == left_after:
                raise Left
            yield content[start : start + PIECE]
            await asyncio.sleep(pause_s)
        self.sent += 1
        yield _TAIL

    @property
    def _head(self) -> bytes:
        return (_HEAD % self.name).encode()
