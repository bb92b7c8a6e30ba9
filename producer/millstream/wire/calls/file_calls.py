"""The gateway's calls about files: a file's record, its place in its tenant's list, and the store of all."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.wire.calls.scripts import ScriptCall, positive, script
from millstream.wire.tenant_keys import STORE, TenantKeys


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


def know_store(own_id: str | None) -> ScriptCall[tuple[str, int]]:
    """The id of the store that all gateways use, this one's if it is the first; and since when it is known,
    in Unix milliseconds. Empty: there is none.
    """
    return ScriptCall(
        script("know_store"), (STORE,), (own_id or "",), lambda reply: (reply[0].decode(), int(reply[1]))
    )


def claim_sweep(*, while_ms: int) -> ScriptCall[bool]:
    """Whether the caller is the one to sweep the store, once in so long."""
    return ScriptCall(script("claim_sweep"), (STORE,), (positive("while_ms", while_ms),), bool)
