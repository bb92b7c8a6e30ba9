"""The scripts with another window than the protocol has, so that few jobs are enough to park some."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TypeVar

import redis
from redis.exceptions import NoScriptError

from millstream.wire.calls import ScriptCall
from millstream.wire.calls.scripts import Script, script

R = TypeVar("R")
LINE = "local WINDOW = 128\n"
assert LINE in script("submit").source


def windowed(call: ScriptCall[R], window: int) -> ScriptCall[R]:
    source = call.script.source.replace(LINE, f"local WINDOW = {window}\n")
    sha1 = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return replace(call, script=Script(call.script.name, source, sha1))


def send(client: redis.Redis, call: ScriptCall[R], window: int) -> R:
    call = windowed(call, window)
    try:
        return call.parse(client.execute_command(*call.by_digest))
    except NoScriptError:
        return call.parse(client.execute_command(*call.by_source))
