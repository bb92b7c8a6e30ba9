"""The page *Clients*: the names of all requests that we refuse, in the first column of its table of them."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "ops" / "pages" / "clients.md"


def refused_names() -> set[str]:
    """The names of rows as the page has them, between its two marks."""
    found = re.search(r"<!-- refused -->\n(.*?)\n<!-- /refused -->", PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None, f"{PAGE} has no table of what is refused"
    columns = [line.split("|")[1] for line in found[1].splitlines()[2:]]
    return {name for column in columns for name in re.findall(r"`([^`]+)`", column)}
