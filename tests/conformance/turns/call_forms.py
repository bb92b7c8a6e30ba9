"""The forms in which models write calls, read by code that shares nothing with the worker's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from conformance.chat_templates import TEMPLATE_OF_NAMES


@dataclass(frozen=True, slots=True)
class RawCalls:
    """`whole`: name and arguments, as JSON text, of each ended call. `begun`: the same of one that was cut in
    its arguments or behind them, with all that follows these.
    """

    whole: list[tuple[str, str]]
    begun: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class CallForm:
    """`template`: a chat template that writes calls so; `marks`: what never stands in an answer's content."""

    name: str
    template: str
    marks: tuple[str, ...]
    read: Callable[[str], RawCalls]


def hermes_calls(text: str) -> RawCalls:
    parts = text.split("<tool_call>\n")[1:]
    whole: list[tuple[str, str]] = []
    begun = None
    for part in parts:
        called, end, _ = part.partition("\n</tool_call>")
        if end:
            read = json.loads(called)
            whole.append((read["name"], json.dumps(read["arguments"])))
        elif cut := re.fullmatch(r'\{"name": "([^"]+)", "arguments": (\{.*)', called, re.DOTALL):
            begun = (cut[1], cut[2])
    return RawCalls(whole, begun)


HERMES = CallForm("hermes", TEMPLATE_OF_NAMES, ("<tool_call>", "</tool_call>"), hermes_calls)
