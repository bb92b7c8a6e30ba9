"""Dead letters: records in the `dead` stream of a shard, of jobs that were given up and of entries that were
no jobs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from millstream.wire.calls.scripts import ScriptCall, positive, script
from millstream.wire.keys import ShardKeys
from millstream.wire.messages import codec
from millstream.wire.messages.job_messages import Request
from millstream.wire.versions import FIRST_VERSION

_LETTER_ID = re.compile(r"([0-9]{1,9})@([0-9]{1,20}-[0-9]{1,20})")


@dataclass(frozen=True, slots=True)
class Place:
    """A letter's shard and entry; as a text `<shard>@<entry>`, which differs from every job id."""

    shard: int
    entry: str

    def __str__(self) -> str:
        return f"{self.shard}@{self.entry}"

    @property
    def age(self) -> tuple[int, int]:
        """Greater: newer."""
        milliseconds, _, number = self.entry.partition("-")
        return int(milliseconds), int(number)

    @classmethod
    def of(cls, letter: DeadLetter) -> Place:
        shard, _, entry = letter.id.partition("@")
        return cls(int(shard), entry)

    @classmethod
    def parse(cls, letter_id: object) -> Place | None:
        """None for a text that is no letter's id."""
        found = _LETTER_ID.fullmatch(letter_id) if isinstance(letter_id, str) else None
        return cls(int(found[1]), found[2]) if found else None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """`job_id` is None if the entry named no job: a foreign program wrote it. `payload` is the request as it
    was sent, or its beginning; `size` is its full size in bytes.
    """

    id: str
    job_id: str | None
    reason: str
    lane: str
    version: int
    attempts: int
    died: int  # attempts that killed their engine or worker
    dead_ms: int  # Unix time of the server's clock
    size: int
    payload: bytes

    @property
    def request(self) -> Request:
        """Raises ProtocolError if the payload is not a whole request."""
        return codec.decode(Request, self.payload)


def list_dead(
    keys: ShardKeys, *, shard: int, before: Place | None, count: int, most_bytes: int
) -> ScriptCall[list[DeadLetter]]:
    """A page, the newest first; `before` is the last letter of the page before. Requests are cut at
    `most_bytes`.
    """
    return ScriptCall(
        script("list_dead"),
        (keys.dead,),
        (f"({before.entry}" if before else "+", positive("count", count), most_bytes),
        lambda reply: [_letter(shard, entry.decode(), size, fields) for entry, size, fields in reply],
    )


async def read_letter(redis: Any, keys: ShardKeys, place: Place) -> DeadLetter | None:
    """The whole letter; None if it is gone."""
    for _, fields in await redis.xrange(keys.dead, place.entry, place.entry):
        flat = [part for pair in fields.items() for part in pair]
        return _letter(place.shard, place.entry, len(fields.get(b"b", b"")), flat)
    return None


def _letter(shard: int, entry: str, size: int, flat: list[bytes]) -> DeadLetter:
    """Anybody may write a stream: fields that are missing or not numbers become 0, "" or None."""
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    place = Place(shard, entry)
    return DeadLetter(
        id=str(place),
        job_id=_text(fields, b"id") or None,
        reason=_text(fields, b"reason"),
        lane=_text(fields, b"lane"),
        version=_number(fields, b"v") or FIRST_VERSION,
        attempts=_number(fields, b"attempts"),
        died=_number(fields, b"died"),
        dead_ms=place.age[0],
        size=size,
        payload=fields.get(b"b", b""),
    )


def _text(fields: dict[bytes, bytes], name: bytes) -> str:
    return fields.get(name, b"").decode(errors="replace")


def _number(fields: dict[bytes, bytes], name: bytes) -> int:
    value = fields.get(name, b"")
    return int(value) if value.isdigit() and len(value) < 10 else 0
