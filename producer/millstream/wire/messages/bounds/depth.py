"""Bounds the nesting of lists and maps in the JSON of a request, before code that recurses reads it."""

from __future__ import annotations

import json
from typing import Any

MAX_DEPTH = 64


def is_deeper(value: Any, most: int = MAX_DEPTH) -> bool:
    """True if lists and maps are nested more than `most` deep."""
    level = [value] if isinstance(value, dict | list | tuple) else []
    for _ in range(most):
        inner = (value for one in level for value in (one.values() if isinstance(one, dict) else one))
        level = [value for value in inner if isinstance(value, dict | list | tuple)]
    return bool(level)


def is_deeper_json(text: str, most: int = MAX_DEPTH) -> bool:
    """True if the text is JSON that is nested more than `most` deep."""
    if text.count("{") + text.count("[") <= most:
        return False
    try:
        return is_deeper(json.loads(text), most)
    except RecursionError:
        return True
    except ValueError:
        return False
