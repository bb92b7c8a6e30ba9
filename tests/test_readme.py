"""The README says what is there: every setting with its default, every file it links to, code that parses."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from millstream_worker.settings import PREFIX, Settings

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def settings_table() -> str:
    """The table between the README's `settings` marks; run this file to print it."""
    rows = [f"| `{PREFIX}…` | default | |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        default = field.default
        shown = (
            "–"
            if default in ("", None)
            else f"`{str(default).lower() if isinstance(default, bool) else default}`"
        )
        rows.append(f"| `{name.upper()}` | {shown} | {field.description or ''} |")
    return "\n".join(rows)


def test_every_setting_stands_in_the_readme() -> None:
    table = re.search(r"<!-- settings -->\n(.*?)\n<!-- /settings -->", README, re.DOTALL)
    assert table is not None
    assert table[1] == settings_table()


def test_every_link_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_promise_names_tests_that_exist() -> None:
    promises = (ROOT / "ops" / "promises.md").read_text("utf-8")
    named = re.findall(r"`(tests/[a-z_/.]+)`", promises)
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_python_examples_parse() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        ast.parse(block)


if __name__ == "__main__":
    print(settings_table())
