"""Marks: short digests of lines, kept in their rows, by which a later run detects changed lines."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

_PREFIX = "batch_req_"
_OF_LINE = "batch_req_line_"
UNKNOWN = b""  # a row without a digest: nothing can be compared


def row_id(digest: str) -> str:
    """The `id` of a row whose line was submitted, or could have been."""
    return f"{_PREFIX}{digest}"


def fault_id(number: int, data: bytes | None) -> str:
    """The `id` of a faulty line's row; without a digest if the line is too long to be held."""
    return f"{_OF_LINE}{number}" + ("" if data is None else f".{_raw_digest(data)}")


def digest_in(row: Mapping[str, Any]) -> str:
    """The digest of the job's line; empty where the row has none."""
    own = row.get("id")
    if not isinstance(own, str) or own.startswith(_OF_LINE) or not own.startswith(_PREFIX):
        return ""
    return own.removeprefix(_PREFIX)


def of_digest(digest: str) -> bytes:
    """Returns 9 bytes: memory holds them for each row, and 64 bits make an undetected change improbable."""
    try:
        return b"=" + bytes.fromhex(digest[:16])
    except ValueError:
        return UNKNOWN


def of_raw(data: bytes) -> bytes:
    """The mark of a faulty line."""
    return b"!" + bytes.fromhex(_raw_digest(data)[:16])


def of_fault(code: str, field: str | None) -> bytes:
    """The mark of a faulty line whose row has no digest."""
    return b"?" + hashlib.sha256(f"{code} {field}".encode("utf-8", "surrogatepass")).digest()[:8]


def of_row(row: Mapping[str, Any]) -> bytes:
    """The mark of the line that the row belongs to."""
    own = row.get("id")
    if not isinstance(own, str):
        return UNKNOWN
    if not own.startswith(_OF_LINE):
        return of_digest(digest_in(row))
    digest = own.partition(".")[2]
    if digest:
        return b"!" + of_digest(digest)[1:]
    return of_fault(str(row["error"]["code"]), row["error"].get("param"))


def is_of_job(mark: bytes) -> bool:
    """True if the line was valid, so that it could be submitted."""
    return mark.startswith(b"=")


def is_of_raw(mark: bytes) -> bool:
    return mark.startswith(b"!")


def _raw_digest(data: bytes) -> str:
    return hashlib.sha256(data.strip()).hexdigest()[:32]
