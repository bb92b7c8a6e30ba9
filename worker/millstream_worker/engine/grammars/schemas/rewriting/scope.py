"""The schema as a whole, as its parts see it: its references, its draft, and the work that is left for it."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from millstream_worker.engine.grammars.schemas.subschemas import Part, Schema

MOST_STEPS = 20_000  # of all rules for one schema: each step makes or compares one part


class Unknown(Exception):
    """A rule cannot say what the schema means, or may take no more steps."""


class Scope:
    """Resolves references, by pointers into the schema; Unknown for all others."""

    def __init__(self, schema: Schema) -> None:
        self._root = schema
        self._left = MOST_STEPS
        draft = str(schema.get("$schema", ""))
        self.is_early = any(f"draft-0{number}" in draft for number in (3, 4, 6, 7))
        self._bases = _count_bases(schema)

    def step(self) -> None:
        """Raises Unknown if there were too many."""
        self._left -= 1
        if self._left < 0:
            raise Unknown

    def resolve(self, reference: object) -> Part:
        """Raises Unknown."""
        self.step()
        if not isinstance(reference, str) or not reference.startswith("#") or self._bases:
            raise Unknown
        part: Any = self._root
        if reference not in ("#", "#/"):
            if not reference.startswith("#/"):
                raise Unknown
            for name in unquote(reference[2:]).split("/"):
                part = _inside(part, name.replace("~1", "/").replace("~0", "~"))
        if not isinstance(part, dict | bool):
            raise Unknown
        return part

    def followed(self, part: Part) -> Part:
        """Returns the part without references that stand alone. Raises Unknown."""
        while isinstance(part, dict) and isinstance(part.get("$ref"), str):
            if set(part) - ANNOTATIONS - {"$ref"} and not self.is_early:
                raise Unknown
            part = self.resolve(part["$ref"])
        return part


ANNOTATIONS = frozenset(
    {
        "$anchor", "$comment", "$defs", "$id", "$schema", "contentEncoding", "contentMediaType", "default",
        "definitions", "deprecated", "description", "examples", "id", "readOnly", "title", "writeOnly",
    }
)  # fmt: skip


def _inside(part: Any, name: str) -> Any:
    try:
        return part[int(name)] if isinstance(part, list) else part[name]
    except (LookupError, TypeError, ValueError):
        raise Unknown from None


def _count_bases(schema: Any) -> int:
    """The parts with an identifier of their own, below which a reference means another place."""
    count, open_parts = 0, list(schema.values())
    while open_parts:
        part = open_parts.pop()
        if isinstance(part, dict):
            count += isinstance(part.get("$id"), str)
            open_parts += part.values()
        elif isinstance(part, list):
            open_parts += part
    return count
