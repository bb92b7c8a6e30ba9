"""A row of the table: a request, the part of it that it is about, and whose API has that part."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
OPENAI, VLLM, BOTH, NOBODY = {"openai"}, {"vllm"}, {"openai", "vllm"}, set[str]()
BASE: dict[str, dict[str, Any]] = {
    CHAT: {
        "model": "default",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 4,
        "temperature": 0,
    },
    COMPLETIONS: {"model": "default", "prompt": "hello", "max_tokens": 4, "temperature": 0},
}


@dataclass(frozen=True, slots=True)
class Row:
    """`name`: first the path of the part, such as `messages[0].name`, then words that tell one shape of it
    from another. `holds`: the reason why its wish is met without a trace in the job; empty: it leaves one.
    """

    name: str
    path: str
    body: dict[str, Any] = field(compare=False)
    known: frozenset[str]
    holds: str = ""

    @property
    def part(self) -> str:
        return self.name.split()[0]

    @property
    def field(self) -> str:
        return field_of(self.name)

    def without_part(self) -> dict[str, Any]:
        """The body as it would be, had nobody asked for the part."""
        body = copy.deepcopy(self.body)
        if self.part in BASE[self.path]:
            return body | {self.part: BASE[self.path][self.part]}
        at: Any = body
        *above, last = [int(step) if step.isdigit() else step for step in re.findall(r"[^.\[\]]+", self.part)]
        for step in above:
            at = at[step]
        at.pop(last, None)
        return body


def field_of(name: str) -> str:
    return re.split(r"[.\[ ]", name)[0]


def rows(
    path: str,
    known: set[str],
    values: Mapping[str, Any],
    beside: Mapping[str, Any] | None = None,
    holds: str = "",
) -> tuple[Row, ...]:
    """`values`: by the name of the row, the value of its whole field; `beside`: other fields of the body."""
    return tuple(
        Row(name, path, {**BASE[path], **(beside or {}), field_of(name): value}, frozenset(known), holds)
        for name, value in values.items()
    )


def on_both(
    known: set[str],
    values: Mapping[str, Any],
    beside: Mapping[str, Any] | None = None,
    holds: str = "",
) -> tuple[Row, ...]:
    """Rows of the same fields for chat and for completions."""
    return rows(CHAT, known, values, beside, holds) + rows(COMPLETIONS, known, values, beside, holds)
