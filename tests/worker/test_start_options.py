"""The options of a worker's start."""

from __future__ import annotations

import pytest

from millstream_worker.__main__ import main


def test_the_help_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    for name in ("--check", "--models", "--version", "--replace-model", "--model", "--no-burst"):
        assert f"\n  {name} " in said or f", {name}" in said


def test_the_models_are_listed_without_a_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "llama                       as published" in lines
    assert "lfm2                        as published    on CPUs only so far" in lines
    assert "gemma3                      its text half" in lines
    assert any(line.startswith("mamba ") and "left out" in line and "keeps state" in line for line in lines)


def test_one_that_is_cut_short_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """It would serve, where a page was wanted."""
    with pytest.raises(SystemExit) as ended:
        main(["--model", "m", "--chec"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --chec" in capsys.readouterr().err
