"""Who calls, by the key in the request's Authorization header."""

from __future__ import annotations

from starlette.requests import Request

from millstream.gateway.auth.api_keys import ANYBODY, ApiKey, ApiKeyStore
from millstream.gateway.auth.open_door import OpenDoor
from millstream.gateway.redis.gateway_redis import GatewayRedis
from millstream.openai.api_error import ApiError

_SCHEME = "bearer "


class Authenticator:
    """`door`: through it callers come without a key, as long as the server has never had one. Keys are looked
    up for each request, so that a revoked one ends at once.
    """

    def __init__(self, redis: GatewayRedis, door: OpenDoor | None) -> None:
        self._redis = redis
        self._keys = ApiKeyStore(redis.client)
        self._door = door

    async def identify(self, request: Request) -> ApiKey:
        """Raises ApiError 401, 403; Unavailable."""
        given = request.headers.get("authorization", "")
        key = given[len(_SCHEME) :].strip() if given.lower().startswith(_SCHEME) else ""
        with self._redis.reach():
            found = await self._keys.find(key)
            if found is None and self._door is not None and not await self._keys.ever_made():
                self._door.check(request.headers)
                return ANYBODY
        if found is None:
            problem = "unknown or revoked API key" if key else "no API key"
            message = f"{problem}: send `Authorization: Bearer ms-…`; `millstream keys add` makes one"
            raise ApiError(401, message, "invalid_api_key", headers={"www-authenticate": "Bearer"})
        return found
