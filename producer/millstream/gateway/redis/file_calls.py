"""The gateway's calls about files: a file's record, its place in its tenant's list, and the store of all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from millstream.gateway.redis.gateway_calls import OnceOutcome, gateway_script
from millstream.gateway.redis.tenant_keys import STORE, TenantKeys
from millstream.wire.calls.scripts import ScriptCall, positive


@dataclass(frozen=True, slots=True)
class OnceFile:
    """An upload with an Idempotency-Key. `key`, of the key, and `digest`, of the upload, are SHA-256 in hex;
    the key is remembered for `ttl_ms`.
    """

    key: str
    digest: str
    ttl_ms: int


def add_file(
    keys: TenantKeys,
    file_id: str,
    fields: Mapping[str, str],
    *,
    expires_ms: int,
    once: OnceFile | None = None,
) -> ScriptCall[tuple[OnceOutcome, str]]:
    """Adds a file's record. `expires_ms`: in Unix milliseconds; 0: never. Returns the id of the file that has
    the key, too: only if the outcome is NEW, it is this one.
    """
    pairs = [text for pair in fields.items() for text in pair]
    digest, ttl_ms = ("", 0) if once is None else (once.digest, positive("ttl_ms", once.ttl_ms))
    return ScriptCall(
        gateway_script("add_file"),
        (keys.files, keys.file(file_id), *(() if once is None else (keys.once(once.key),))),
        (file_id, expires_ms, digest, ttl_ms, *pairs),
        lambda reply: (OnceOutcome(reply[0].decode()), reply[1].decode()),
    )


def remove_file(keys: TenantKeys, file_id: str) -> ScriptCall[bool]:
    """Removes a file's record; True if it had one."""
    return ScriptCall(gateway_script("remove_file"), (keys.files, keys.file(file_id)), (file_id,), bool)


def register_store(own_id: str | None) -> ScriptCall[tuple[str, int]]:
    """Returns the id of the store that all gateways use, this one's if it is the first, and since when it is
    known, in Unix milliseconds. Empty: there is none.
    """
    return ScriptCall(
        gateway_script("register_store"),
        (STORE,),
        (own_id or "",),
        lambda reply: (reply[0].decode(), int(reply[1])),
    )


class Sweep(StrEnum):
    """Objects of the store that are looked through together, by the field that says when they were last."""

    FILES = "swept_ms"
    PARTS = "parts_swept_ms"


def claim_sweep(kind: Sweep, *, while_ms: int) -> ScriptCall[bool]:
    """True for one caller per `while_ms`: it deletes objects that nobody needs."""
    return ScriptCall(gateway_script("claim_sweep"), (STORE,), (kind, positive("while_ms", while_ms)), bool)
