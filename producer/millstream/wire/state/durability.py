"""Durability of an accepted write: WAIT and WAITAOF, sent behind it on the same connection.

Both wait for all that this connection has written. They change nothing: a write that is not as sure as asked
is in place all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from redis.exceptions import ResponseError

from millstream.errors import InvalidRequest
from millstream.wire.calls.scripts import Command


class Durability(StrEnum):
    """The part of the server that must have an accepted job before `submit` returns."""

    NONE = "none"  # its memory; what its settings make of that is up to them
    AOF = "aof"  # its disk: the append-only file is written and fsynced
    REPLICAS = "replicas"  # its replicas' memory, too


@dataclass(frozen=True, slots=True)
class Reached:
    """`durability` is what was asked for, or NONE where that was not reached in time; `replicas` have
    acknowledged (with AOF: have it on their disks)."""

    durability: Durability = Durability.NONE
    replicas: int = 0


@dataclass(frozen=True, slots=True)
class Wait:
    """The wait behind a write: for which durability, and how long at most."""

    durability: Durability
    replicas: int
    timeout_ms: int

    @property
    def command(self) -> Command:
        """Empty where there is nothing to wait for."""
        match self.durability:
            case Durability.AOF:
                return ("WAITAOF", 1, self.replicas, self.timeout_ms)
            case Durability.REPLICAS:
                return ("WAIT", self.replicas, self.timeout_ms)
            case Durability.NONE:
                return ()

    def read(self, reply: Any) -> Reached:
        """The command's reply; an error is nothing reached."""
        match self.durability, reply:
            case Durability.AOF, [int(local), int(replicas)]:
                reached = local >= 1
            case Durability.REPLICAS, int(replicas):
                reached = True
            case _:
                return Reached()
        return Reached(
            self.durability if reached and replicas >= self.replicas else Durability.NONE, replicas
        )


async def check_durability(redis: Any, wait: Wait) -> None:
    """Ask the server, before anything is written, whether it can do that at all.

    Raises InvalidRequest where it cannot. How many replicas there are is not looked at: one may come back.
    """
    try:
        await redis.execute_command(*_probe(wait))
    except ResponseError as error:
        if "unknown command" in str(error):
            problem = f"this server has no {wait.command[0]!s} (Redis has WAITAOF since 7.2); ask for less"
            raise InvalidRequest("durability", str(wait.durability), problem) from error
        if "appendonly" in str(error):
            problem = "the server keeps no append-only file; set its appendonly to yes, or ask for none"
            raise InvalidRequest("durability", str(wait.durability), problem) from error
        raise


def _probe(wait: Wait) -> Command:
    """The same command, without the time to wait: on an idle connection it answers at once."""
    return (*wait.command[:-1], 1)
