"""The gateway's own keys. All of a tenant carry one hash tag, as the scripts of the gateway need."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass

from millstream.errors import InvalidRequest
from millstream.wire.keys import Key

API_KEYS = "{msgw}:keys"  # a hash: SHA-256 of a key in hex -> JSON of whose it is; `made`: there was one
STORE = "{msgw}:store"  # a hash: id of the store of files, since_ms: when it was first seen, swept_ms
FILE_ID = re.compile(r"file-[0-9a-f]{32}")
OPEN_TENANTS = "{msgw}:tenants"  # a sorted set: tenants with open batches, by when their turn is, Unix ms
OPEN_BATCHES = "{msgw}:batches"  # of older versions: `<tenant> <batch id>` of all open batches
BATCH_ID = re.compile(r"batch_[0-9a-z]{1,80}")
TENANT = re.compile(r"[A-Za-z0-9._:@-]{0,100}")


def check_tenant(tenant: str) -> str:
    """Raises InvalidRequest. The empty tenant is that of a gateway without keys."""
    if not TENANT.fullmatch(tenant):
        raise InvalidRequest("tenant", tenant, "at most 100 characters of A-Z a-z 0-9 . _ : @ -")
    return tenant


def coded(tenant: str) -> str:
    """Writes a tenant in letters that mean nothing in a path."""
    return "t" + base64.b32encode(tenant.encode()).decode().rstrip("=").lower()


def decoded(text: str) -> str | None:
    """Reads what `coded` writes; None for any other text."""
    letters = text[1:].upper()
    try:
        tenant = base64.b32decode(letters + "=" * (-len(letters) % 8)).decode()
    except ValueError:
        return None
    return tenant if coded(tenant) == text else None


@dataclass(frozen=True, slots=True)
class TenantKeys:
    tenant: str

    # Hash: requests, tokens: when the bucket is full again, in ms; moved_ms: when that was last moved with
    # the server's clock; enqueued: tokens of requests under way.
    rates = Key("rates")
    # Sorted set: `<tokens> <own id> <queue>` of each job under way, `<tokens> <id>` of each batch, by when it
    # is forgotten.
    enqueued = Key("enqueued")
    # Sorted set: gateways that answer requests of the tenant, by when they were last seen.
    replicas = Key("replicas")
    # Sorted sets: ids of files and of batches, by when they were created, in Unix microseconds, no two the
    # same. Some may have expired.
    files = Key("files")
    batches = Key("batches")
    # Sorted set: ids of batches that have not ended, by when a gateway should look, Unix ms.
    open_batches = Key("open-batches")

    def __post_init__(self) -> None:
        check_tenant(self.tenant)

    @property
    def tag(self) -> str:
        return f"{{msgw:{self.tenant}}}"

    def seen(self, gateway: str) -> str:
        """Hash: server_ms, gateway_ms: the server's clock and the gateway's own, at the gateway's last charge
        of the tenant.
        """
        return f"{self.tag}:seen:{gateway}"

    def posts(self, digest: str) -> str:
        """Hash: own id -> `open | left <replica> <ms> <queue>` of each POST under way of this digest."""
        return f"{self.tag}:posts:{digest}"

    def once(self, digest: str) -> str:
        """Hash: digest, queue of the POST with an Idempotency-Key of this SHA-256; file of an upload."""
        return f"{self.tag}:once:{digest}"

    def file(self, file_id: str) -> str:
        """Hash: filename, purpose, bytes, created_s, expires_s (0: never). It expires with the file."""
        return f"{self.tag}:file:{file_id}"

    def batch(self, batch_id: str) -> str:
        """Hash: what is known of a batch, and who carries it out: holder, until_ms."""
        return f"{self.tag}:batch:{batch_id}"

    def batch_parts(self, batch_id: str) -> str:
        """List: `<output | error> <name> <rows> <bytes>` of each committed part, in that order."""
        return f"{self.tag}:batch-parts:{batch_id}"

    def batch_lines(self, batch_id: str) -> str:
        """List: the numbers of the input's lines in each part, such as `1-5,7`; until the batch ends."""
        return f"{self.tag}:batch-lines:{batch_id}"
