"""The gateway's own scripts, in `lua/` beside this file."""

from __future__ import annotations

from millstream.wire.calls.scripts import Script, script

GATEWAY = "millstream.gateway.redis"


def gateway_script(name: str) -> Script:
    return script(name, GATEWAY)
