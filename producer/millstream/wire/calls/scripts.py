"""Loads and sends Lua scripts, as they ship with the package.

A script is one file in a folder `lua/`; a line `-- include: part, …` stands for files of `lua/parts/`. A
script's file documents it; `calls` gives its arguments and its reply in Python.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Generic, TypeVar

from redis.exceptions import NoScriptError

from millstream.errors import ProtocolError
from millstream.wire.connection import is_cluster
from millstream.wire.connection.slots import places_by, slot_of

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Command = tuple[str | bytes | int, ...]
_INCLUDE = "-- include:"


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    source: str
    sha1: str


@dataclass(frozen=True, slots=True)
class ScriptCall(Generic[R_co]):
    """One script with its arguments, and the parser of its reply. Nothing is sent yet."""

    script: Script
    keys: tuple[str, ...]
    args: tuple[str | bytes | int, ...]
    parse: Callable[[Any], R_co]

    @property
    def by_digest(self) -> Command:
        return ("EVALSHA", self.script.sha1, len(self.keys), *self.keys, *self.args)

    @property
    def by_source(self) -> Command:
        """Run the script on a server that does not know it yet, and load it there."""
        return ("EVAL", self.script.source, len(self.keys), *self.keys, *self.args)


PROTOCOL = "millstream.wire"


def script_paths(package: str = PROTOCOL) -> dict[str, str]:
    """The paths of a package's scripts in its folder `lua/`, by their names."""
    folder = files(package).joinpath("lua")
    found: dict[str, str] = {}
    for entry in folder.iterdir():
        if entry.name.endswith(".lua"):
            found[entry.name.removesuffix(".lua")] = entry.name
        elif entry.is_dir() and entry.name != "parts":
            names = [file.name.removesuffix(".lua") for file in entry.iterdir()]
            found |= {name: f"{entry.name}/{name}.lua" for name in names}
    return found


@cache
def script(name: str, package: str = PROTOCOL) -> Script:
    """A package's script of this name, with its parts: of the package itself, or of the protocol."""
    folder = files(package).joinpath("lua")
    source = _expand(folder, script_paths(package)[name], set())
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def _expand(folder: Any, path: str, seen: set[str]) -> str:
    lines: list[str] = []
    if not (file := folder.joinpath(path)).is_file():
        file = files(PROTOCOL).joinpath("lua", path)
    for line in file.read_text("utf-8").splitlines():
        if line.startswith(_INCLUDE):
            parts = [part.strip() for part in line.removeprefix(_INCLUDE).split(",")]
            new = [part for part in parts if part not in seen]
            seen.update(new)
            lines += [_expand(folder, f"parts/{part}.lua", seen) for part in new]
        elif not line.startswith("--"):
            lines.append(line)
    return "\n".join(lines)


def positive(name: str, value: int) -> int:
    """Check an argument that a server would misread below 1 (PEXPIRE 0 deletes), or that overflows when added
    to a time: the script would fail after its first writes.
    """
    if not 1 <= value <= 2**52:
        raise ValueError(f"{name} must be at least 1 and at most {2**52} (got {value})")
    return value


async def run(redis: Any, call: ScriptCall[R]) -> R:
    """Send one call. The client must not decode responses. Raises redis-py's errors, and ProtocolError for a
    reply that is not the script's."""
    try:
        reply = await redis.execute_command(*call.by_digest)
    except NoScriptError:
        reply = await redis.execute_command(*call.by_source)
    return _parsed(call, reply)


async def run_many(redis: Any, calls: Sequence[ScriptCall[R]]) -> list[R | Exception]:
    """Send many calls in one round trip, not as a transaction; each returns or fails by itself.

    A lost connection raises: it is unknown which of the calls arrived, and all of them may be sent again.
    """
    return [outcome for outcome, _ in await run_many_then(redis, calls, ())]


async def run_many_then(
    redis: Any, calls: Sequence[ScriptCall[R]], last: Command
) -> list[tuple[R | Exception, Any]]:
    """Send many calls, followed by the command `last` on the same connection: each outcome comes with the
    reply of the `last` sent after it. Raises what `run_many` raises.
    """
    replies = await _send(redis, [call.by_digest for call in calls], last)
    unknown = [i for i, (reply, _) in enumerate(replies) if isinstance(reply, NoScriptError)]
    if unknown:
        repeated = await _send(redis, [calls[i].by_source for i in unknown], last)
        for i, reply in zip(unknown, repeated, strict=True):
            replies[i] = reply
    return [(_outcome(call, reply), behind) for call, (reply, behind) in zip(calls, replies, strict=True)]


async def _send(redis: Any, commands: Sequence[Command], last: Command) -> list[tuple[Any, Any]]:
    """Each command's reply, with that of `last`; None if there is no such command. In a Cluster `last` is
    sent after each slot's commands.
    """
    if not commands:
        return []
    places = places_by(map(slot_of, commands)) if last and is_cluster(redis) else [range(len(commands))]
    async with redis.pipeline(transaction=False) as pipeline:
        for group in places:
            for command in (*(commands[place] for place in group), *([last] if last else ())):
                pipeline.execute_command(*command)
        replies = iter(await pipeline.execute(raise_on_error=False))
    found: dict[int, tuple[Any, Any]] = {}
    for group in places:
        own = [next(replies) for _ in group]
        behind = next(replies) if last else None
        found |= {place: (reply, behind) for place, reply in zip(group, own, strict=True)}
    return [found[place] for place in range(len(commands))]


def _outcome(call: ScriptCall[R], reply: Any) -> R | Exception:
    if isinstance(reply, Exception):
        return reply
    try:
        return _parsed(call, reply)
    except ProtocolError as error:
        return error


def _parsed(call: ScriptCall[R], reply: Any) -> R:
    try:
        return call.parse(reply)
    except (ValueError, TypeError, IndexError, AttributeError) as error:
        # not the reply itself, which may contain somebody's prompt
        raise ProtocolError(
            f"script {call.script.name} returned {type(reply).__name__}: {error!s:.100}"
        ) from None


def texts(reply: Any) -> dict[str, str]:
    """HGETALL's reply, as a client (a mapping) or a script (a flat list) returns it. Raises ProtocolError."""
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    try:
        return {name.decode(): value.decode() for name, value in pairs}
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a hash of the queue holds bytes that are not text: {error}") from error
