"""Checks the server's settings once, at start, for those that can lose accepted jobs or streams. It warns of
them, or refuses to start with `strict`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import structlog
from redis.exceptions import ResponseError

_log = structlog.get_logger(__name__)
_NAMES = ("maxmemory", "maxmemory-policy", "appendonly", "appendfsync", "client-output-buffer-limit")


class ServerUnfit(Exception):
    """The server's settings can lose jobs; the message names each with its remedy."""


async def check_server(redis: Any, how: Literal["warn", "strict", "off"]) -> None:
    """Log a line for each finding, or raise ServerUnfit with all of them. If the server does not show its
    settings, only `strict` reports that.
    """
    if how == "off":
        return
    try:
        replies = [await redis.config_get(name) for name in _NAMES]
    except ResponseError as error:  # CONFIG is often forbidden to clients, or renamed
        found = [f"the server does not let its settings be read ({error}): allow +config|get"]
        replies = []
    else:
        stored = {_text(name): _text(value) for reply in replies for name, value in reply.items()}
        found = warnings(stored)
        for line in advice(stored):
            _log.info(line)
    if found and how == "strict":
        raise ServerUnfit(
            "the server can lose accepted jobs: "
            + "; ".join(found)
            + ". Or set MILLSTREAM_SERVER_CHECK to warn"
        )
    for warning in found if replies else ():
        _log.warning(warning)


def warnings(stored: Mapping[str, str]) -> list[str]:
    found = []
    policy = stored.get("maxmemory-policy", "noeviction")
    if policy != "noeviction":
        found.append(f"maxmemory-policy is {policy}: the server may evict jobs; set it to noeviction")
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


def advice(stored: Mapping[str, str]) -> list[str]:
    """Settings that lose nothing by themselves: a server without a bound is right on a machine of its own."""
    if stored.get("maxmemory") == "0":
        return [
            "maxmemory is 0: the server grows until the machine's memory is full; with a bound submits are "
            "refused in time"
        ]
    return []


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
