"""What can be done to a queue, its workers and its servers. A fault strikes one arena once, undoes what has
to be undone, and returns when it is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from chaos.arena import Arena


class Fault(Protocol):
    """Choices are drawn from `arena.random` alone, before anything is waited for: a seed gives one schedule.

    One that a worker's lease need not survive says so by `Member.harm` or `Crew.harm`; one that may cost
    acknowledged writes by `Ledger.wipe` or `Ledger.risk`.
    """

    @property
    def name(self) -> str: ...

    async def strike(self, arena: Arena) -> None: ...
