"""Settings of the server under which accepted jobs or streams can be lost: looked at once, at start, and
warned of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog
from redis.exceptions import ResponseError

_log = structlog.get_logger(__name__)
_NAMES = ("maxmemory", "maxmemory-policy", "appendonly", "appendfsync", "client-output-buffer-limit")


async def warn_of_server_settings(redis: Any) -> None:
    """Log a line for each. Says nothing where the server does not let us look."""
    try:
        answers = [await redis.config_get(name) for name in _NAMES]
    except ResponseError:  # CONFIG is often forbidden to clients, or renamed
        return
    stored = {_text(name): _text(value) for answer in answers for name, value in answer.items()}
    for warning in warnings(stored):
        _log.warning(warning)


def warnings(stored: Mapping[str, str]) -> list[str]:
    found = []
    policy = stored.get("maxmemory-policy", "noeviction")
    if policy != "noeviction":
        found.append(f"maxmemory-policy is {policy}: the server may throw away jobs; set it to noeviction")
    if stored.get("appendonly") == "no":
        found.append(
            "appendonly is no: jobs accepted since the last snapshot are lost in a crash; set it to yes"
        )
    elif stored.get("appendfsync") == "no":
        found.append(
            "appendfsync is no: jobs of the last half minute may be lost in a crash; set it to everysec"
        )
    words = stored.get("client-output-buffer-limit", "").split()
    if "pubsub" in words and words[words.index("pubsub") + 1] == "0":
        found.append(
            "client-output-buffer-limit pubsub is 0: a reader that hangs can take all memory; set a limit"
        )
    return found


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
