"""Loops of calls with a model that calls by chance: each is run until it has ended twice and called once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

MOST_RUNS = 30
TURNS = 6  # of a run
TOKENS = 400  # of an answer
OWN: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}  # it would think until it is cut
QUESTION = "which mill?"
Short = Annotated[str, Field(max_length=5)]


class Mill(BaseModel, extra="forbid"):  # the model would write keys until it is cut
    """A mill."""

    kind: Literal["wind", "water"]
    sails: Annotated[int, Field(ge=2, le=8)]


class OutOfTurns(Exception):
    """The model has called in each turn."""


def tried(what: str, run: Callable[[list[object]], object], *cut: type[Exception]) -> None:
    """`run` gets a list for the calls that it has made, and checks its answer. With `cut` a client says that
    an answer was cut, or that the model went on calling. Raises AssertionError if no run ended.
    """
    calls: list[object] = []
    left: dict[str, int] = {}
    ended = 0
    while ended + sum(left.values()) < MOST_RUNS and (ended < 2 or not calls):
        try:
            run(calls)
            ended += 1
        except (OutOfTurns, *cut) as error:
            said = f"{type(error).__name__}: {str(error).partition(chr(10))[0]:.90}"
            left[said] = left.get(said, 0) + 1
    runs = ended + sum(left.values())
    print(f"  {what}: {ended} of {runs} runs ended, with {len(calls) or 'no'} calls in all", flush=True)
    for said, count in left.items():
        print(f"    {count} cut: {said}")
    assert ended, f"no run of {what} has ended"
