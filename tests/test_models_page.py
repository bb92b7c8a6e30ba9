"""The tables of the page *Models* are what the engine's own table and check say today."""

from __future__ import annotations

import pytest
from ops.models.tables import tables
from support.pages import ROOT


@pytest.mark.parametrize("name", ["published", "halves", "images", "left_out", "field"])
def test_the_page_of_models_is_up_to_date(name: str) -> None:
    page = (ROOT / "ops/pages/models.md").read_text("utf-8")
    block = f"<!-- {name} -->\n{tables()[name]}\n<!-- /{name} -->"
    assert block in page, "python -m ops.models.tables prints it"
