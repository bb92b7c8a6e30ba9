"""The page *Models* is what the engine's own table and check say today."""

from __future__ import annotations

from ops.models.page import PAGE, page


def test_the_page_of_models_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == page(), "write it anew: python -m ops.models.page"
