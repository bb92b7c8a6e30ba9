"""Reads the file of `--schema`, whose keys keep their order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millstream.errors import InvalidRequest
from millstream.openai.structured_outputs import format_of_schema

OPTION = "--schema"


def schema_text(path: Path) -> str:
    """Raises InvalidRequest if it cannot be read."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(OPTION, str(path), f"cannot be read: {error}") from error


def openai_schema(path: Path) -> dict[str, Any] | None:
    """As the `response_format` of a batch line. Raises InvalidRequest if it is no JSON schema."""
    return format_of_schema(schema_text(path), OPTION)
