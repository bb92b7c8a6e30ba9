"""The console script without its extra, and its help."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec

import pytest
from support.commands import invoke

from millstream.__main__ import main


def test_a_missing_extra_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec

    def without_typer(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "typer" else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without_typer)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    expected = "millstream: the command line needs the extra [cli]: in a checkout, pip install '.[cli]'\n"
    assert capsys.readouterr().err == expected


def test_help_lists_commands_and_exit_codes() -> None:
    text = invoke("--help").output
    for command in ("submit", "stream", "result", "cancel", "status", "batch"):
        assert command in text
    assert "130" in text
