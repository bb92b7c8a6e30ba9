"""Programs that nobody here wrote before the gateway, a table of requests before it and before vLLM, and
schemas before the worker's compiler: `PYTHONPATH=tests python -m conformance [NAME…]`; without a name, all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

from support.models.spelling import WORDS

from conformance.clients_run import check, commands, image_commands, openai_commands
from conformance.loops_run import loop_commands, watched
from conformance.schemas.schemas_run import are_taken
from conformance.stands import CONTEXT_OF_LOOPS, Stand, counting_model, tiny_model, vision_model
from conformance.table_run import is_met
from conformance.turns.call_forms import FORMS, HERMES
from conformance.turns.turns_run import agent_turns

Check = Callable[[Stand], bool]
ALONE: Mapping[str, Callable[[], bool]] = {"schemas": are_taken}
STANDS: tuple[tuple[Callable[[], AbstractContextManager[Stand]], Mapping[str, Check]], ...] = (
    (counting_model, {name: partial(check, command) for name, command in openai_commands().items()}),
    (tiny_model, {name: partial(check, command) for name, command in commands().items()} | {"table": is_met}),
    (vision_model, {name: partial(check, command) for name, command in image_commands().items()}),
    (
        partial(tiny_model, HERMES.template, CONTEXT_OF_LOOPS),
        {name: partial(watched, command, HERMES.marks) for name, command in loop_commands().items()},
    ),
    *(
        (
            # Where rows share a prefix, sums are made in another order: a draw at a near tie may differ.
            partial(
                tiny_model, form.template, CONTEXT_OF_LOOPS, set(form.marks) - set(WORDS), prefix_cache=False
            ),
            {f"agent-turns-{form.name}": partial(agent_turns, form=form)},
        )
        for form in FORMS
    ),
)


def main(asked: Sequence[str]) -> int:
    known = [*ALONE, *(name for _, checks in STANDS for name in checks)]
    if unknown := set(asked) - set(known):
        print(f"no checks named {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        return 2
    alone = {name: one for name, one in ALONE.items() if not asked or name in asked}
    failed = [name for name, one in alone.items() if not passed(name, one)]
    for make_stand, checks in STANDS:
        chosen = {name: one for name, one in checks.items() if not asked or name in asked}
        if chosen:
            with make_stand() as stand:
                failed += [name for name, one in chosen.items() if not passed(name, partial(one, stand))]
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return bool(failed)


def passed(name: str, one: Callable[[], bool]) -> bool:
    print(f"--- {name}", flush=True)
    return one()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
