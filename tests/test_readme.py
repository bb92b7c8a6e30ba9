"""The README says what is there: every setting with its default, every file it links to, examples that run,
commands and options that exist."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest
from support.commands import invoke
from support.counting_worker import counted, model_name, serving, write_tokenizer
from support.servers import Server

from millstream_worker.settings import PREFIX, Settings, load

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SERVER = "redis://127.0.0.1:6379/0"  # in the examples


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


def python_blocks() -> list[str]:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    return blocks


async def test_python_examples_run(
    valkey: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Against a worker that counts: what it does not know is its word w0."""
    async with serving(valkey, model_name(write_tokenizer(tmp_path, chat=True))):
        for block in python_blocks():
            assert SERVER in block
            code = compile(block.replace(SERVER, valkey.url), "README.md", "exec")
            await asyncio.to_thread(exec, code, {"__name__": "__main__"})
    shown = capsys.readouterr().out
    assert counted(1, 60) in shown
    assert counted(1, 40) in shown


@pytest.mark.slow
def test_python_examples_are_typed(tmp_path: Path) -> None:
    """As `mypy --strict` sees them in a program of somebody else's."""
    files = []
    for number, block in enumerate(python_blocks()):
        files.append(tmp_path / f"block_{number}.py")
        files[-1].write_text(block)
    command = [sys.executable, "-m", "mypy", "--config-file=", "--strict", f"--cache-dir={tmp_path}", *files]
    done = subprocess.run(
        [str(word) for word in command], env=os.environ | {"MYPYPATH": str(ROOT / "producer")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def commands(program: str) -> list[list[str]]:
    """The arguments of each of the program's command lines in the README."""
    blocks = re.findall(r"```(?:\w*)\n(.*?)```", README, re.DOTALL)
    lines = [
        shlex.split(line, comments=True) for block in blocks for line in block.splitlines() if program in line
    ]
    parts = [list(part) for line in lines for end, part in groupby(line, ";".__eq__) if not end]
    return [words[1:] for words in parts if words[0] == program]


def test_commands_have_the_options_that_the_readme_gives_them() -> None:
    given = commands("millstream")
    assert {"batch", "submit", "status"} <= {words[0] for words in given}
    for words in given:
        read = invoke(*words, "--help")  # a word or an option that there is not goes before the help
        assert read.exit_code == 0, f"{words}: {read.output}"
    assert invoke("submit", "x", "--no-such-option", "--help").exit_code == 2


def test_workers_have_the_settings_that_the_readme_gives_them() -> None:
    given = commands("millstream-worker")
    assert given
    for words in given:
        assert load(words).model_fields_set


if __name__ == "__main__":
    print(settings_table())
