"""What body.model of a run's lines means, told before anything is loaded or submitted: the name of a queue,
and nothing where one model answers all lines."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.batch.preparing import listed
from millstream.cli.display.terminal import say


def say_who_answers(models: Mapping[str, int], model: str, queue: str) -> None:
    """One model answers all lines: said once, where they name others."""
    others = {name: count for name, count in models.items() if name not in ("", model, queue)}
    if others:
        say(f"body.model {listed(others)}: answered by {model}, which answers all lines of this run")
