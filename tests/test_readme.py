"""The examples of the README and of the client's page run, and are typed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.gateway import gateway
from support.pages import ROOT, code_blocks
from support.servers.servers import Server
from support.workers.counting_worker import counted, model_name, serving, write_tokenizer

README = ROOT / "README.md"
WITH_EXAMPLES = (README, ROOT / "ops" / "pages" / "client.md")
SERVER = "redis://127.0.0.1:6379/0"  # in the examples
GATEWAY = "http://127.0.0.1:8000"


TYPED = (*WITH_EXAMPLES, ROOT / "ops" / "pages" / "gateway.md")


def python_blocks(pages: Sequence[Path] = WITH_EXAMPLES) -> list[str]:
    return [block for page in pages for block in code_blocks(page, "python")]


async def test_python_examples_run(
    valkey: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Against a worker that counts: what it does not know is its word w0."""
    blocks = python_blocks()
    assert len(blocks) >= len(WITH_EXAMPLES)
    async with serving(valkey, model_name(write_tokenizer(tmp_path, chat=True))):
        with gateway(valkey.url) as door:
            for block in blocks:
                assert (SERVER in block) != (GATEWAY in block)
                here = block.replace(SERVER, valkey.url).replace(GATEWAY, door.url)
                code = compile(here, "a page", "exec", dont_inherit=True)
                await asyncio.to_thread(exec, code, {"__name__": "__main__"})
    shown = capsys.readouterr().out
    assert counted(1, 60) in shown  # log lines may part streamed ones
    assert counted(1, 40) in shown


@pytest.mark.slow
def test_python_examples_are_typed(tmp_path: Path) -> None:
    """As `mypy --strict` sees them in a program of somebody else's."""
    files = []
    for number, block in enumerate(python_blocks(TYPED)):
        files.append(tmp_path / f"block_{number}.py")
        files[-1].write_text(block)
    command = [sys.executable, "-m", "mypy", "--config-file=", "--strict", f"--cache-dir={tmp_path}", *files]
    done = subprocess.run(
        [str(word) for word in command], env=os.environ | {"MYPYPATH": str(ROOT / "producer")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
