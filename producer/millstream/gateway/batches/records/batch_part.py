"""One part of a batch's rows: an object in the store, copied to one of the batch's files at its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from millstream.errors import ProtocolError
from millstream.gateway.batches.records.batch_record import RowKind


@dataclass(frozen=True, slots=True)
class BatchPart:
    kind: RowKind
    name: str
    rows: int
    bytes: int

    def text(self) -> str:
        """As it stands in the list of parts."""
        return f"{self.kind} {self.name} {self.rows} {self.bytes}"

    @classmethod
    def of(cls, text: str) -> Self:
        """Raises ProtocolError."""
        try:
            kind, name, rows, size = text.split(" ")
            return cls(RowKind(kind), name, int(rows), int(size))
        except ValueError as error:
            raise ProtocolError(f"a part of a batch is damaged: {error!s:.100}") from None
