"""Durability of an accepted write: WAIT and WAITAOF, sent after it on the same connection.

Both wait for all writes of this connection. They change nothing: a write that is less durable than requested
stays in place.
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

    NONE = "none"  # its memory; its settings decide about more
    AOF = "aof"  # its disk: the append-only file is written and fsynced
    REPLICAS = "replicas"  # its replicas' memory, too


@dataclass(frozen=True, slots=True)
class Reached:
    """`durability` is the requested one, or NONE if it was not reached in time; `replicas` have acknowledged
    (with AOF: on their disks).
    """

    durability: Durability = Durability.NONE
    replicas: int = 0


@dataclass(frozen=True, slots=True)
class Wait:
    """The wait after a write: its durability and its limit."""

    durability: Durability
    replicas: int
    timeout_ms: int

    @property
    def command(self) -> Command:
        """Empty if there is nothing to wait for."""
        match self.durability:
            case Durability.AOF:
                return ("WAITAOF", 1, self.replicas, self.timeout_ms)
            case Durability.REPLICAS:
                return ("WAIT", self.replicas, self.timeout_ms)
            case Durability.NONE:
                return ()

    def read(self, reply: Any) -> Reached:
        """Parse the command's reply; an error is no durability."""
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
    """Check, before anything is written, whether the server supports the durability.

    Raises InvalidRequest if it does not. The number of replicas is not checked: one may come back.
    """
    try:
        # without a time to wait: on an idle connection it returns at once
        await redis.execute_command(*wait.command[:-1], 1)
    except ResponseError as error:
        if "unknown command" in str(error):
            problem = f"this server has no {wait.command[0]!s} (Redis has WAITAOF since 7.2); ask for less"
            raise InvalidRequest("durability", str(wait.durability), problem) from error
        if "appendonly" in str(error):
            problem = "the server keeps no append-only file; set its appendonly to yes, or ask for none"
            raise InvalidRequest("durability", str(wait.durability), problem) from error
        raise
