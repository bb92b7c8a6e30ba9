"""The formats that customers ask for: plain ones of every kind, and some that nobody means well with."""

from __future__ import annotations

import json
import random
from functools import cache

from support.engine.hostile_formats import HOSTILE

from millstream.errors import InvalidRequest
from millstream.wire.messages.response_format import ResponseFormat

HOSTILE_SHARE = 0.1
_RECORD = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green", "blue"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
        "name": {"type": "string", "maxLength": 6},
        "marks": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["colour", "count", "name"],
    "additionalProperties": False,
}
COMMON = (  # by many jobs, so that they are compiled once and guessed from each other's outputs
    ResponseFormat(type="json_schema", text=json.dumps(_RECORD)),
    ResponseFormat(type="json_schema", text=json.dumps(_RECORD), compact=True),
    ResponseFormat(type="json_object"),
    ResponseFormat(type="regex", text=r"( w\d+){3,12}"),
    ResponseFormat(type="regex", text=r"( w[1-4]\d\d){4}( end)?"),
    ResponseFormat(type="grammar", text='start: (line "\\n"){1,3}\nline: " w" /[0-9]{2}/ " = " /[a-f]{1,4}/'),
)


def draw(source: random.Random, first: int) -> ResponseFormat:
    """For the answer to the word `first`; every draw comes from `source`."""
    if source.random() < HOSTILE_SHARE:
        return source.choice(hostile())
    if source.random() < 0.6:
        return source.choice(COMMON)
    texts = {_words(source, first) for _ in range(source.randrange(2, 6))}
    return ResponseFormat(type="choice", text=json.dumps(sorted(texts)))


@cache
def hostile() -> tuple[ResponseFormat, ...]:
    """Those that a client sends."""
    made = []
    for fields in HOSTILE.values():
        try:
            made.append(ResponseFormat(**fields))
        except (ValueError, InvalidRequest):
            continue
    return tuple(made)


def _words(source: random.Random, first: int) -> str:
    return "".join(f" w{first + source.randrange(1, 30)}" for _ in range(source.randrange(1, 12)))
