"""The gateway's calls about files: a file's record, and its place in its tenant's list."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.wire.calls.scripts import ScriptCall, script
from millstream.wire.tenant_keys import TenantKeys


def add_file(
    keys: TenantKeys, file_id: str, fields: Mapping[str, str], *, expires_ms: int
) -> ScriptCall[None]:
    """`expires_ms`: in Unix milliseconds; 0: never."""
    pairs = [text for pair in fields.items() for text in pair]
    return ScriptCall(
        script("add_file"),
        (keys.files, keys.file(file_id)),
        (file_id, expires_ms, *pairs),
        lambda _: None,
    )


def remove_file(keys: TenantKeys, file_id: str) -> ScriptCall[bool]:
    """Whether the file had a record."""
    return ScriptCall(script("remove_file"), (keys.files, keys.file(file_id)), (file_id,), bool)
