"""One part of a batch's rows: an object in the store, copied to one of the batch's files at its end. Its name
says whose it is, so that it can be deleted when its batch is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self
from uuid import uuid4

from millstream.errors import ProtocolError
from millstream.gateway.batches.records.batch_record import FOLDER, RowKind
from millstream.gateway.redis.tenant_keys import BATCH_ID, coded, decoded


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


def part_name(tenant: str) -> str:
    """Returns a name of no other part, of this gateway or another."""
    return f"{uuid4().hex}-{coded(tenant)}"


def owner_of_part(path: str) -> tuple[str, str] | None:
    """Returns tenant and batch id of a part's path; None if it is no part's, or an older version's."""
    match path.split("/"):
        case [folder, batch_id, name] if folder == FOLDER and BATCH_ID.fullmatch(batch_id):
            _, _, letters = name.partition("-")
            tenant = decoded(letters)
            return None if tenant is None else (tenant, batch_id)
    return None
