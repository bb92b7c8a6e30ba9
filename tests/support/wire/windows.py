"""The scripts with another window than the protocol has, so that few jobs are enough to park some."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cache
from typing import TypeVar

import redis
from redis.exceptions import NoScriptError

from millstream.wire.calls import ScriptCall
from millstream.wire.calls.scripts import Script, script

R = TypeVar("R")
LINE = "local WINDOW = 128\n"
assert LINE in script("submit").source


@cache
def windowed(one: Script, window: int) -> Script:
    source = one.source.replace(LINE, f"local WINDOW = {window}\n")
    sha1 = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(one.name, source, sha1)


def send(client: redis.Redis, call: ScriptCall[R], window: int) -> R:
    call = replace(call, script=windowed(call.script, window))
    try:
        return call.parse(client.execute_command(*call.by_digest))
    except NoScriptError:
        return call.parse(client.execute_command(*call.by_source))
