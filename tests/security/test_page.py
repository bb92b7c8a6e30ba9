"""The security page names tests and files; they are there."""

from __future__ import annotations

import re
from pathlib import Path

from millstream_worker.settings import PREFIX, Settings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ops" / "pages" / "security.md").read_text()


def test_every_claim_has_its_test() -> None:
    rows = [line for line in PAGE.partition("## What shows it")[2].splitlines() if line.startswith("| ")][1:]
    named = [re.findall(r"`(tests/[^`]+)`", row) for row in rows]
    assert all(named)
    assert [path for paths in named for path in paths if not (ROOT / path).is_file()] == []


def test_settings_are_called_by_their_names() -> None:
    names = set(re.findall(rf"{PREFIX}([A-Z_]+)\b(?!_PASSWORD)", PAGE))
    settings = {name.lower() for name in names if not name.endswith("PASSWORD")}
    assert {"prefix_scope", "server_check", "redis_url"} <= settings <= set(Settings.model_fields)
    for name in ("result_ttl_s", "log_payloads", "metrics_host"):
        assert f"`{name.upper()}`" in PAGE
        assert name in Settings.model_fields
