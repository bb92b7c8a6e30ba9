"""Recognizes a run's own rows in OUT and in the error file, and finds the line of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.batch.files.runfile import identity
from millstream.batch.rows.faults import INCOMPLETE_OUTPUT, FaultCode


def key_of(row: Mapping[str, Any]) -> bytes | int:
    """The key that connects a row and its line: the custom_id or, without one of its own, the line number."""
    if row["custom_id"] is None or (row.get("error") or {}).get("code") == FaultCode.DUPLICATE_CUSTOM_ID:
        return int(row["error"]["line"])
    return identity(row["custom_id"])


def is_answer(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("custom_id"), str) and bool(row.get("response")) and row.get("error") is None


def is_cut(row: Mapping[str, Any]) -> bool:
    """True if the failure is an answer that was cut."""
    return bool(row["error"]["code"] == INCOMPLETE_OUTPUT)


def is_failure(row: Mapping[str, Any]) -> bool:
    error, named = row.get("error"), isinstance(row.get("custom_id", 0), str | None)
    placed = isinstance(error, dict) and "code" in error and isinstance(error.get("line"), int)
    return named and placed and "response" in row
