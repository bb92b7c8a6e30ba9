"""Another model takes a queue over: its workers take the place of the old ones under load. What an old worker
leaves unfinished begins anew.
"""

from __future__ import annotations

from chaos.arena import Arena
from chaos.crew import Member
from chaos.faults import fault
from chaos.faults.versions import until_ready


@fault("replace model")
async def replace_model(arena: Arena) -> None:
    """A new worker replaces the model; then the old ones are killed, or finish what they run."""
    old, crew = list(arena.crew.alive), arena.crew
    killed = [arena.random.random() < 0.5 for _ in old]
    arena.ledger.begin_anew()
    crew.settings = dict(crew.settings) | {"model": f"{arena.model},name=model-{len(crew.members)}"}
    await until_ready(arena, crew.hire(launcher=(*crew.launcher, "--replace-model")))
    arena.ledger.begin_anew()
    for member, is_killed in zip(old, killed, strict=True):
        member.harm("replaced")
        if is_killed:
            member.kill()
        else:
            member.dismissed = True
            arena.load.spawn(_gives_way(arena, member))
    crew.ensure()


async def _gives_way(arena: Arena, member: Member) -> None:
    status = await member.ended(60.0)
    if status != 1:
        arena.ledger.note(f"{member.name} ended with {status} after its model was replaced")
