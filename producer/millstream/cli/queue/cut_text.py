"""Texts that have to fit into so many columns of a terminal: cut in the middle, or wrapped."""

from __future__ import annotations

from collections.abc import Iterable

from rich.cells import cell_len, chop_cells
from rich.text import Text

from millstream.cli.display.terminal import answers

_CUT = "…"
_INDENT = " " * 12  # of what does not fit into a worker's line: below its value


def cut(text: str, columns: int) -> str:
    """Cut in the middle, as names and models differ at their ends."""
    if cell_len(text) <= columns:
        return text
    if columns <= 1:
        return _CUT[:columns]
    tail = (columns - 1) // 2
    return _first(text, columns - 1 - tail) + _CUT + _first(text[::-1], tail)[::-1]


def pad(text: str, columns: int) -> str:
    """Cut, or filled with spaces."""
    short = cut(text, columns)
    return short + " " * (columns - cell_len(short))


def flow(facts: Iterable[str], columns: int) -> list[str]:
    """As many of them in a line as it takes."""
    lines: list[str] = []
    for fact in facts:
        if lines and cell_len(longer := f"{lines[-1]} · {fact}") <= columns:
            lines[-1] = longer
        else:
            lines.append(cut(fact, columns))
    return lines


def wrapped(line: str, columns: int) -> list[str]:
    columns = max(columns, 2 * len(_INDENT))
    if cell_len(line) <= columns:
        return [line]
    first = Text(line).wrap(answers, columns)[0].plain
    rest = Text(line[len(first) :].lstrip()).wrap(answers, columns - len(_INDENT))
    return [first.rstrip(), *(_INDENT + part.plain.rstrip() for part in rest)]


def _first(text: str, columns: int) -> str:
    return chop_cells(text, columns)[0] if columns else ""
