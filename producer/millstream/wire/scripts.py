"""The Lua scripts of the protocol as they ship with the package, and how a call reaches a server.

A script is one file of `lua/`; a line `-- include: part, …` stands for files of `lua/parts/`.
What a script means is said in its file; what it takes and answers in Python is said in `calls`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Generic, TypeVar, cast

from redis.exceptions import NoScriptError

from millstream.errors import ProtocolError

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
_INCLUDE = "-- include:"


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    source: str
    sha1: str


@dataclass(frozen=True, slots=True)
class Call(Generic[R_co]):
    """One script with its arguments, and the reader of its reply. Nothing is sent yet."""

    script: Script
    keys: tuple[str, ...]
    args: tuple[str | bytes | int, ...]
    parse: Callable[[Any], R_co]

    @property
    def by_digest(self) -> tuple[str | bytes | int, ...]:
        return ("EVALSHA", self.script.sha1, len(self.keys), *self.keys, *self.args)

    @property
    def by_source(self) -> tuple[str | bytes | int, ...]:
        """Runs the script where the server does not know it yet, and makes it known."""
        return ("EVAL", self.script.source, len(self.keys), *self.keys, *self.args)


@cache
def script(name: str) -> Script:
    """The script `lua/<name>.lua` with its parts."""
    source = _expand(files("millstream.wire").joinpath("lua"), f"{name}.lua", set())
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def _expand(folder: Any, path: str, seen: set[str]) -> str:
    lines: list[str] = []
    for line in folder.joinpath(path).read_text("utf-8").splitlines():
        if line.startswith(_INCLUDE):
            parts = [part.strip() for part in line.removeprefix(_INCLUDE).split(",")]
            new = [part for part in parts if part not in seen]
            seen.update(new)
            lines += [_expand(folder, f"parts/{part}.lua", seen) for part in new]
        elif not line.startswith("--"):
            lines.append(line)
    return "\n".join(lines)


def positive(name: str, value: int) -> int:
    """An argument that a server would read as something else if it were below 1 (PEXPIRE 0 deletes), or that
    no time can be added to: the script would fail after its first writes."""
    if not 1 <= value <= 2**52:
        raise ValueError(f"{name} must be at least 1 and at most {2**52} (got {value})")
    return value


async def run(redis: Any, call: Call[R]) -> R:
    """Send one call. The client must not decode responses. Raises redis-py's errors, and ProtocolError for a
    reply that is not the script's."""
    try:
        reply = await redis.execute_command(*call.by_digest)
    except NoScriptError:
        reply = await redis.execute_command(*call.by_source)
    return _parsed(call, reply)


async def run_many(redis: Any, calls: Sequence[Call[R]]) -> list[R | Exception]:
    """Send many calls in one round trip, not as a transaction; each answers or fails for itself.

    A lost connection raises: which of the calls got through is unknown, and all of them may be sent again.
    """
    replies = await _send(redis, [call.by_digest for call in calls])
    unknown = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
    if unknown:
        repeated = await _send(redis, [calls[i].by_source for i in unknown])
        for i, reply in zip(unknown, repeated, strict=True):
            replies[i] = reply
    outcomes: list[R | Exception] = []
    for call, reply in zip(calls, replies, strict=True):
        if isinstance(reply, Exception):
            outcomes.append(reply)
            continue
        try:
            answer = _parsed(call, reply)
        except ProtocolError as error:
            outcomes.append(error)
        else:
            outcomes.append(answer)
    return outcomes


async def _send(redis: Any, commands: Sequence[tuple[str | bytes | int, ...]]) -> list[Any]:
    if not commands:
        return []
    async with redis.pipeline(transaction=False) as pipeline:
        for command in commands:
            pipeline.execute_command(*command)
        return cast(list[Any], await pipeline.execute(raise_on_error=False))


def _parsed(call: Call[R], reply: Any) -> R:
    try:
        return call.parse(reply)
    except (ValueError, TypeError, IndexError, AttributeError) as error:
        raise ProtocolError(f"script {call.script.name} answered {reply!r:.200}: {error}") from error


def texts(reply: Any) -> dict[str, str]:
    """HGETALL's reply, as a client (a mapping) or a script (a flat list) gives it."""
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {name.decode(): value.decode() for name, value in pairs}
