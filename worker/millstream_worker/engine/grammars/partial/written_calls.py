"""Finds the calls of functions in an answer's text, in the form to which the grammar of tools keeps it."""

from __future__ import annotations

import re
from functools import cache


def calls_in(text: str, begin: str, end: str) -> list[tuple[str, str]]:
    """Returns name and arguments, as JSON text, of each whole call between the marks."""
    return _call(begin, end).findall(text)


def without_calls(text: str, begin: str, end: str) -> str:
    return _call(begin, end).sub("", text)


@cache
def _call(begin: str, end: str) -> re.Pattern[str]:
    """JSON has no bare line feed in a string: the first end of a call is its own."""
    name, arguments = r'"([A-Za-z0-9_.:/-]+)"', "(.*?)"
    form = rf'\n\{{"name": {name}, "arguments": {arguments}\}}\n'
    return re.compile(re.escape(begin) + form + re.escape(end), re.DOTALL)
