"""What can be done to a queue, its workers and its servers. A fault strikes one arena once, undoes what has
to be undone, and returns when it is over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from chaos.arena import Arena


@dataclass(frozen=True, slots=True)
class Fault:
    """Choices are drawn from `arena.random` alone, before anything is waited for: a seed gives one schedule.

    One that a worker's lease need not survive says so by `Member.harm` or `Crew.harm`; one that may cost
    acknowledged writes by `Ledger.wipe` or `Ledger.risk`.
    """

    name: str
    strike: Callable[[Arena], Awaitable[None]]


def fault(name: str) -> Callable[[Callable[[Arena], Awaitable[None]]], Fault]:
    return lambda strike: Fault(name, strike)
