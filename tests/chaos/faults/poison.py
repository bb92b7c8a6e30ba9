"""Jobs that hurt whoever computes them: the counting engine breaks, in one way or another, at the third token
of their answer (`ENGINE` tells it at which); or whoever reads them. Each must end as failed, and the jobs
beside it must not notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from support.workers.word_answers import counted
from support.workers.words import UNREADABLE

from chaos.arena import Arena
from chaos.faults import Fault
from chaos.ledger import Accepted, Entry, Order

ENGINE = {"poison": 600, "lethal": 610, "hang": 620, "stall": 630, "exhaust": 640, "nan": 650, "refuse": 660}
# A suspect runs alone soon, and an engine that does not go on is found out soon.
SETTINGS: dict[str, Any] = {"max_died": 2, "progress_timeout_s": 2.0, "silence_timeout_s": 2.0}
LENGTH = 8
GIVE_UP_S = 120.0


def _poison(option: str, what: str, code: str = "engine_died") -> Fault:
    """`option` of the counting engine; `code` of the error that its sender gets."""
    return _fault(what, partial(_order, option=option, code=code), lethal=option == "lethal")


def _fault(what: str, order: Callable[[Arena], Order], *, lethal: bool = False) -> Fault:
    async def strike(arena: Arena) -> None:
        alone = arena.random.random() < 0.5
        for _ in range(1 if alone else 2):
            entry = await arena.load.place(order(arena))
            if entry.accepted is not Accepted.YES:
                continue
            client = arena.load.shared(0)
            arena.load.spawn(arena.load.readers.follow(client, entry, "follow"))
            arena.load.spawn(arena.load.readers.wait(client, entry))
            if lethal:
                arena.load.spawn(_replace_victims(arena, entry))

    return Fault(f"poison: {what}", strike)


def _order(arena: Arena, option: str, code: str) -> Order:
    """Two tokens, then the one that hurts; a refused prompt begins with its own."""
    first = ENGINE[option] - (0 if option == "refuse" else 3)
    fields = {"prompt": f" w{first}", "max_tokens": LENGTH, "temperature": 0, "stream": True}
    own_id = f"{option}-{len(arena.ledger)}"
    return Order(own_id, fields, (counted(first, LENGTH).text,), fails=frozenset((code,)))


def _unreadable(arena: Arena) -> Order:
    """Short, or long enough to be read in a thread."""
    notes = {str(place): "x" * 500 for place in range(arena.random.choice((0, 10)))}
    fields = {"prompt": UNREADABLE, "max_tokens": LENGTH, "stream": True, "metadata": notes}
    return Order(f"unreadable-{len(arena.ledger)}", fields, ("",), fails=frozenset(("unreadable_request",)))


async def _replace_victims(arena: Arena, entry: Entry) -> None:
    """Workers that the job took along are hired again, as whatever watches over them would do."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + GIVE_UP_S
    while entry.waiting and loop.time() < give_up:
        for member in arena.crew.members:
            if not member.alive and not member.dismissed:
                member.harm("killed by a job")
                member.dismissed = True
        arena.crew.ensure()
        await asyncio.sleep(0.05)


engine_killed = _poison("poison", "kills the engine")
unreadable = _fault("makes its reader panic", _unreadable)
ALL = (
    engine_killed,
    unreadable,
    _poison("lethal", "kills the worker"),
    _poison("hang", "hangs the engine"),
    _poison("stall", "stops the engine"),
    _poison("exhaust", "finds no memory"),
    _poison("nan", "gives no numbers", "model_error"),
    _poison("refuse", "is refused", "bad_request"),
)
