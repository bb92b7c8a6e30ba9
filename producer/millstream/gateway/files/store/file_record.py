"""Describes one file, and shows it as OpenAI's API does."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from millstream.errors import ProtocolError
from millstream.gateway.redis.tenant_keys import FILE_ID, coded, decoded

FOLDER = "files"
UPLOAD_PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
OUTPUT_PURPOSE = "batch_output"  # of both files of a batch
PURPOSES = (*UPLOAD_PURPOSES, OUTPUT_PURPOSE)


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file. Its times are Unix seconds; `expires_s` None: it stays until it is deleted."""

    id: str
    tenant: str
    filename: str
    purpose: str
    bytes: int
    created_s: int
    expires_s: int | None = None

    @classmethod
    def new(
        cls, tenant: str, *, id: str, filename: str, purpose: str, bytes: int, lasts_s: int | None
    ) -> FileRecord:
        """Makes the record of a file created now. `lasts_s`: how long it is kept; None: for ever."""
        now_s = int(time.time())
        return cls(id, tenant, filename, purpose, bytes, now_s, now_s + lasts_s if lasts_s else None)

    @classmethod
    def of(cls, tenant: str, id: str, fields: Mapping[str, str]) -> FileRecord:
        """Reads a file from its hash. Raises ProtocolError."""
        try:
            size, created_s, expires_s = (int(fields[name]) for name in ("bytes", "created_s", "expires_s"))
            name, purpose = fields["filename"], fields["purpose"]
        except (KeyError, ValueError) as error:
            raise ProtocolError(f"the record of {id} is damaged: {error!s:.100}") from None
        return cls(id, tenant, name, purpose, size, created_s, expires_s or None)

    @property
    def path(self) -> str:
        """The path of its object in the store."""
        return object_path(self.tenant, self.id)

    def to_api(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created_s,
            "expires_at": self.expires_s,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


def new_file_id() -> str:
    return f"file-{uuid4().hex}"


def object_path(tenant: str, file_id: str) -> str:
    """Returns a path with the tenant, to look the record up."""
    return f"{FOLDER}/{coded(tenant)}/{file_id}"


def owner_of(path: str) -> tuple[str, str] | None:
    """Tenant and file id of an object's path; None if it is no file's."""
    match path.split("/"):
        case [folder, letters, file_id] if folder == FOLDER and FILE_ID.fullmatch(file_id):
            tenant = decoded(letters)
            return None if tenant is None else (tenant, file_id)
    return None
