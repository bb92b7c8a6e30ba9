"""The console script without its extra, and with settings that are wrong."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec

import pytest

from millstream_worker.__main__ import main


@pytest.mark.parametrize("missing", ["torch", "pydantic_settings"])
def test_a_missing_extra_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    find = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == missing else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    assert main(["--model", "x"]) == 2
    expected = (
        "millstream-worker: the worker needs the extra [worker]: in a checkout, pip install '.[worker]'\n"
    )
    assert capsys.readouterr().err == expected


def test_every_bad_setting_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "", "--max-rows", "-1", "--lease-s", "soon"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1].strip() for line in lines] == ["model", "max_rows", "lease_s"]
    assert all("MILLSTREAM_" in line for line in lines)
