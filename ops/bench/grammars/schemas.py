"""Schemas of records with bounded fields of every kind; the same for a seed."""

from __future__ import annotations

import json
import random
from typing import Any

from millstream_worker.engine.protocol.request import GrammarSpec

_WORDS = (
    "invoice", "customer", "delivery", "address", "total", "currency", "status", "created", "due",
    "country", "city", "street", "number", "item", "amount", "tax", "weight", "colour", "size", "vendor",
    "contract", "owner", "phone", "email", "branch", "account", "period", "rate", "discount", "note",
)  # fmt: skip


def record(fields: int, seed: int = 0) -> GrammarSpec:
    """A record of so many required fields, 30 at most."""
    draw = random.Random(seed)
    names = draw.sample(_WORDS, fields)
    properties = {name: _field(draw, place) for place, name in enumerate(names)}
    schema = {
        "type": "object",
        "properties": properties,
        "required": names,
        "additionalProperties": False,
    }
    return GrammarSpec("json_schema", json.dumps(schema))


def _field(draw: random.Random, place: int) -> dict[str, Any]:
    kinds: tuple[dict[str, Any], ...] = (
        {"type": "string", "maxLength": draw.randint(8, 24)},
        {"type": "integer", "minimum": 0, "maximum": 10 ** draw.randint(2, 6)},
        {"enum": draw.sample(_WORDS, 4)},
        {"type": "boolean"},
        {"type": "string", "format": "date"},
        {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    )
    return kinds[place % len(kinds)]
