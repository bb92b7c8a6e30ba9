"""API keys: `ms-` and 32 random bytes. The server keeps the SHA-256 of each, and what it may do."""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from millstream.errors import InvalidRequest, ProtocolError
from millstream.gateway.redis.gateway_calls import Limits
from millstream.gateway.redis.tenant_keys import API_KEYS, check_tenant
from millstream.wire.keys import Lane, QueueKeys
from millstream.wire.messages.validation_errors import invalid_request

PREFIX = "ms-"
_ID = 12  # hexadecimal digits of the digest
_LONGEST = 128  # bytes of a text that may be a key
_MADE = "made"  # a field beside the digests, which stays: a server that has had a key is open to nobody again

Bound = Annotated[int, Field(ge=0, lt=2**40)]


class ApiKey(BaseModel):
    """The rights of one key. Without queues or lanes it may use all of the gateway's. A limit of 0: none."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    tenant: str
    queues: tuple[str, ...] = ()
    lanes: tuple[Lane, ...] = ()
    requests_per_min: Bound = 0
    tokens_per_min: Bound = 0
    max_enqueued_tokens: Bound = 0
    created_ms: int = 0

    @property
    def limits(self) -> Limits:
        return Limits(self.requests_per_min, self.tokens_per_min, self.max_enqueued_tokens)

    @property
    def is_limited(self) -> bool:
        return self.limits != Limits()

    def may_use(self, queue: str) -> bool:
        return not self.queues or queue in self.queues


ANYBODY = ApiKey(tenant="")  # the caller of a gateway without keys


class ApiKeyStore:
    """The keys on one server. `redis` must not decode replies; its errors pass."""

    def __init__(self, redis: Any) -> None:
        self._redis = redis

    async def add(self, tenant: str, **fields: Any) -> tuple[str, str]:
        """Returns the id of a new key, and the key, which cannot be read again. Raises InvalidRequest."""
        key = PREFIX + base64.urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode()
        granted = _granted(tenant, fields | {"created_ms": time.time_ns() // 1_000_000})
        digest = _digest(key)
        await self._redis.hset(API_KEYS, mapping={digest: granted.model_dump_json(), _MADE: 1})
        return digest[:_ID], key

    async def find(self, key: str) -> ApiKey | None:
        """Returns the key's rights; None if it is unknown. Raises ProtocolError."""
        if not key.startswith(PREFIX) or len(key) > _LONGEST:
            return None
        stored = await self._redis.hget(API_KEYS, _digest(key))
        return None if stored is None else _read(stored)

    async def ever_made(self) -> bool:
        """True once a key was made on this server, whatever became of it."""
        return bool(await self._redis.exists(API_KEYS))

    async def all(self) -> list[tuple[str, ApiKey]]:
        """Returns the ids and rights of all keys, the oldest first."""
        rows = {field.decode(): stored for field, stored in (await self._redis.hgetall(API_KEYS)).items()}
        found = [(digest[:_ID], _read(stored)) for digest, stored in rows.items() if digest != _MADE]
        return sorted(found, key=lambda pair: (pair[1].created_ms, pair[0]))

    async def revoke(self, name: str) -> bool:
        """Delete the key of this id, or the key itself. False: there is none."""
        wanted = _digest(name) if name.startswith(PREFIX) else name
        rows = {field.decode() for field in await self._redis.hkeys(API_KEYS)} - {_MADE}
        found = [digest for digest in rows if wanted in (digest, digest[:_ID])]
        if not found:
            return False
        return bool(await self._redis.hdel(API_KEYS, *found))


def _granted(tenant: str, fields: dict[str, Any]) -> ApiKey:
    if not tenant:
        raise InvalidRequest(
            "tenant", tenant, "give a name; the empty tenant is that of a gateway without keys"
        )
    for queue in fields.get("queues") or ():
        QueueKeys(queue)
    try:
        return ApiKey(tenant=check_tenant(tenant), **fields)
    except ValidationError as error:
        raise invalid_request(error) from None


def _read(stored: bytes) -> ApiKey:
    try:
        return ApiKey.model_validate_json(stored)
    except ValidationError as error:
        raise ProtocolError(f"an API key's record is damaged: {error!s:.200}") from error


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
