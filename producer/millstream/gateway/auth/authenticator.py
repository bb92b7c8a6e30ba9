"""Who calls, by the key in the request's Authorization header."""

from __future__ import annotations

from starlette.requests import Request

from millstream.gateway.auth.api_keys import ANYBODY, ApiKey, ApiKeyStore
from millstream.gateway.gateway_settings import is_loopback
from millstream.gateway.redis.gateway_redis import GatewayRedis
from millstream.openai.api_error import ApiError

_SCHEME = "bearer "


class Authenticator:
    """`open_door`: while the server knows no key at all, everybody on this machine may call: of a gateway on
    loopback only. Keys are looked up for each request, so that a revoked one ends at once.

    Who calls an open door by another name than loopback's is a proxy, which would let the world in, or a web
    page whose name was made to lead here (DNS rebinding).
    """

    def __init__(self, redis: GatewayRedis, *, open_door: bool) -> None:
        self._redis = redis
        self._keys = ApiKeyStore(redis.client)
        self._open_door = open_door

    async def identify(self, request: Request) -> ApiKey:
        """Raises ApiError 401, Unavailable."""
        given = request.headers.get("authorization", "")
        key = given[len(_SCHEME) :].strip() if given.lower().startswith(_SCHEME) else ""
        with self._redis.reach():
            found = await self._keys.find(key)
            if found is None and self._open_door and await self._keys.is_empty():
                return _anybody(request)
        if found is None:
            problem = "unknown or revoked API key" if key else "no API key"
            message = f"{problem}: send `Authorization: Bearer ms-…`; `millstream keys add` makes one"
            raise ApiError(401, message, "invalid_api_key", headers={"www-authenticate": "Bearer"})
        return found


def _anybody(request: Request) -> ApiKey:
    try:
        name = request.url.hostname or ""
    except ValueError:  # no host at all
        name = ""
    if not is_loopback(name):
        message = f"without API keys this gateway is for its own machine, not for {name[:100]!r}; make a key"
        raise ApiError(403, message, "no_api_keys")
    return ANYBODY
