"""The bound on lists and maps inside of each other, in all that a request brings as JSON: what reads them
later recurses.
"""

from __future__ import annotations

import json
from typing import Any

MAX_DEPTH = 64


def is_deeper(value: Any, most: int = MAX_DEPTH) -> bool:
    """Whether lists and maps are inside of each other more than `most` times."""
    level = [value] if isinstance(value, dict | list | tuple) else []
    for _ in range(most):
        inner = (value for one in level for value in (one.values() if isinstance(one, dict) else one))
        level = [value for value in inner if isinstance(value, dict | list | tuple)]
    return bool(level)


def is_deeper_json(text: str, most: int = MAX_DEPTH) -> bool:
    """The same of a text, which need not be JSON: then it is not."""
    if text.count("{") + text.count("[") <= most:
        return False
    try:
        return is_deeper(json.loads(text), most)
    except RecursionError:
        return True
    except ValueError:
        return False
