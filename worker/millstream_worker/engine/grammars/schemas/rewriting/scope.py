"""The schema as a whole, as its parts see it: its references, its draft, and the work that is left for it."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

from millstream_worker.engine.grammars.schemas.shapes import is_well_formed
from millstream_worker.engine.grammars.schemas.subschemas import Part, Schema

MOST_WORK = 2_000_000  # of all rules for one schema: about a second, and as many characters
_STEP = 50  # the work of one call

ANNOTATIONS = frozenset(
    {
        "$anchor", "$comment", "$defs", "$id", "$schema", "contentEncoding", "contentMediaType", "default",
        "definitions", "deprecated", "description", "examples", "id", "readOnly", "title", "writeOnly",
    }
)  # fmt: skip


class Unknown(Exception):
    """A rule cannot say what the schema means, or may do no more work."""


class Scope:
    """Resolves references, by pointers into the schema; Unknown for all others."""

    def __init__(self, schema: Schema) -> None:
        draft = str(schema.get("$schema", ""))
        self.is_oldest = "draft-03" in draft or "draft-04" in draft  # without `const`
        self.is_early = self.is_oldest or "draft-06" in draft or "draft-07" in draft
        self.has_prefix_items = not self.is_early and "2019-09" not in draft
        self.negations: dict[
            int, tuple[Part, Part]
        ] = {}  # by identity: the part, which lives on, and its own
        self._root = schema
        self._left = MOST_WORK
        self._named = ("$id", "id") if self.is_oldest else ("$id",)
        self._has_bases = _has_bases(schema, self._named)
        self._well_formed: dict[int, bool] = {}  # by identity, of parts of the schema

    def step(self) -> None:
        """Raises Unknown if there were too many."""
        self.spend(_STEP)

    def spend(self, work: int) -> None:
        self._left -= work
        if self._left < 0:
            raise Unknown

    def visit(self, part: Schema) -> None:
        """As a step, with the size of what the part itself says."""
        said = [part[name] for name in ("const", "enum", "required", "pattern", "type") if name in part]
        self.spend(_STEP + sum(len(json.dumps(value)) for value in said))

    def resolve(self, reference: object) -> Part:
        """Raises Unknown."""
        self.step()
        if not isinstance(reference, str) or not reference.startswith("#") or self._has_bases:
            raise Unknown
        part: Any = self._root
        if reference != "#":
            if not reference.startswith("#/"):
                raise Unknown
            for name in unquote(reference[2:]).split("/"):
                part = _inside(part, name.replace("~1", "/").replace("~0", "~"))
        if not isinstance(part, bool) and not self._is_well_formed(part):
            raise Unknown
        return part  # type: ignore[no-any-return]

    def followed(self, part: Part) -> Part:
        """Returns the part without references that stand alone. Raises Unknown."""
        while isinstance(part, dict) and isinstance(part.get("$ref"), str):
            if set(part) - ANNOTATIONS - {"$ref"} and not self.is_early:
                raise Unknown
            part = self.resolve(part["$ref"])
        return part

    def _is_well_formed(self, part: Any) -> bool:
        """A reference may lead to what is no schema of the whole."""
        if id(part) not in self._well_formed:
            self._well_formed[id(part)] = isinstance(part, dict) and is_well_formed(part)
        return self._well_formed[id(part)]


def _inside(part: Any, name: str) -> Any:
    if isinstance(part, list) and not name.isdecimal():
        raise Unknown
    try:
        return part[int(name)] if isinstance(part, list) else part[name]
    except (LookupError, TypeError):
        raise Unknown from None


def _has_bases(schema: Any, names: tuple[str, ...]) -> bool:
    """True if a part has an identifier of its own, below which a reference means another place."""
    open_parts = list(schema.values())
    while open_parts:
        part = open_parts.pop()
        if isinstance(part, dict):
            if any(isinstance(part.get(name), str) for name in names):
                return True
            open_parts += part.values()
        elif isinstance(part, list):
            open_parts += part
    return False
