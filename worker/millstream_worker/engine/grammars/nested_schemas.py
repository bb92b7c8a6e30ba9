"""Changes the JSON schemas in a grammar in Lark. A schema follows a `%json`, unless that stands in a comment,
a text or a pattern for llguidance's lexer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from millstream_worker.engine.grammars.lark_pieces import PIECE

Schema = dict[str, Any]


def with_schemas(lark: str, change: Callable[[Schema], Schema]) -> str:
    """Returns the grammar with each schema replaced by `change(schema)`; lines keep their numbers. Raises
    ValueError for text that is not Lark."""
    made, copied, place = [], 0, 0
    while piece := PIECE.match(lark, place):
        place = piece.end()
        if piece["odd"]:
            raise ValueError(f"has no end of what begins with {lark[piece.start() :]!r:.40}")
        if not piece["keyword"]:
            continue
        schema, end = json.JSONDecoder().raw_decode(lark, place)
        if piece["keyword"] == "json" and (schema is True or isinstance(schema, dict)):
            text = json.dumps(change({} if schema is True else schema))
            made += [lark[copied:place], "{", "\n" * lark.count("\n", place, end), text[1:]]
            copied = end
        place = end
    return "".join([*made, lark[copied:]])
