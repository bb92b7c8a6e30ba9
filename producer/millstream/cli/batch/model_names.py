"""Reports, before anything is loaded, that one model answers all lines although their body.model names
others.
"""

from __future__ import annotations

from collections.abc import Mapping

from millstream.batch.prepare_run import listed
from millstream.cli.display.terminal import say


def say_who_answers(models: Mapping[str, int], model: str, queue: str) -> None:
    """Report the other names, if there are any."""
    others = {name: count for name, count in models.items() if name not in ("", model, queue)}
    if others:
        say(f"body.model {listed(others)}: answered by {model}, which answers all lines of this run")
