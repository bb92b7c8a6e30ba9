"""What the tests of README.md and the pages in ops/ read out of a page."""

from __future__ import annotations

import re
import shlex
from itertools import groupby
from pathlib import Path

from support.commands import invoke

ROOT = Path(__file__).parents[2]


def broken_links(page: Path) -> list[str]:
    """Links to files that are not there, or to headings that their page does not have."""
    links = re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text("utf-8"))
    return [f"{path}#{heading}" for path, heading in links if not _leads(page, path, heading)]


def _leads(page: Path, path: str, heading: str) -> bool:
    target = page.parent / path if path else page
    return target.exists() and (not heading or heading in _anchors(target))


def _anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub links to them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def code_blocks(page: Path, language: str = "") -> list[str]:
    """The page's code blocks in a language; without one, those that name none."""
    blocks = re.findall(r"```(\w*)\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    return [block for named, block in blocks if named == language]


def commands(page: Path, program: str) -> list[list[str]]:
    """The arguments of each command line of the program in the page's code blocks."""
    lines = [line for block in code_blocks(page) for line in block.splitlines()]
    words = [shlex.split(line, comments=True) for line in lines if program in line]
    parts = [list(part) for line in words for end, part in groupby(line, ";".__eq__) if not end]
    return [part[1:] for part in parts if part[0] == program]


def refused(given: list[list[str]]) -> list[str]:
    """The output of each `millstream` command that has an unknown word or option."""
    read = [invoke(*words, "--help") for words in given]  # an error is reported before the help
    return [one.output for one in read if one.exit_code]
