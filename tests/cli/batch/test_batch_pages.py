"""`millstream batch pages`, and the run that it prepares."""

from __future__ import annotations

import shlex
import sys

import pytest
from support.batch_files import BatchFiles
from support.commands import assert_refused, invoke
from support.wire.image_files import png
from support.wire.pdf_files import pdf
from support.workers.answering_worker import answering, write_lines
from support.workers.hand_worker import register

from millstream.wire.keys import QueueKeys
from millstream.wire.messages.job_messages import Request
from millstream.wire.versions import TAKEN


def shown(request: Request) -> str:
    assert request.messages
    [image, text] = request.messages[-1].parts
    assert (image.image, text.text) == (0, "read")
    return f"{len(request.images[0].data)} bytes"


def test_from_files_to_documents(batch: BatchFiles) -> None:
    register(batch.server.port, QueueKeys("default").shard(0), version_max=str(TAKEN.high), images="1")
    for shade in (1, 2):
        (batch.folder / f"{shade}.png").write_bytes(png(shade))
    made = invoke("batch", "pages", *batch.folder.glob("?.png"), "--prompt", "read", "-o", batch.source)
    assert made.exit_code == 0
    command = shlex.split(made.stdout)
    assert command[:4] == ["millstream", "batch", "run", str(batch.source)]
    assert command[4:6] == ["--media", str(batch.folder)]
    out = command[-1]
    checked = invoke("batch", "check", batch.source, "--media", batch.folder)
    assert (checked.exit_code, "about 3,014 tokens" in checked.stdout) == (0, True)
    assert "2 cannot" in invoke("batch", "check", batch.source).stdout
    (batch.folder / "2.png").write_bytes(b"")
    with answering(batch.server.url, answer=shown):
        assert invoke(*command[1:], *batch.command[-2:]).exit_code == 0
    joined = invoke("batch", "pages", "--join", out, "--into", batch.folder / "read")
    assert joined.exit_code == 1
    assert "2.png has no answer (invalid_field)" in joined.stderr
    assert (batch.folder / "read" / "1.png.md").read_text() == f"{len(png(1))} bytes\n"


def test_an_unfinished_run_names_what_is_missing(batch: BatchFiles) -> None:
    named = [*(f"a.pdf#page={page}" for page in range(1, 10)), "b.pdf#page=1"]
    batch.write(*({"custom_id": name} for name in named))
    body = {"choices": [{"message": {"content": "text"}}]}
    rows = [
        {"custom_id": f"a.pdf#page={page}", "response": {"body": body}, "error": None} for page in (2, 4, 5)
    ]
    write_lines(batch.out, rows)
    with batch.out.open("a") as file:
        file.write('{"custom_id": "a.pdf#pa')
    write_lines(batch.run_file, [{"in": str(batch.source), "queue": None, "model": None}])
    join = ("batch", "pages", "--join", batch.out)
    told = [line.removeprefix("millstream: warning: ") for line in invoke(*join).stderr.splitlines()]
    assert told == [
        f"{batch.out} ends with a part of a row, which is left out: the run was cut off, or goes on",
        "a.pdf, pages 1, 3, 6-9 have no answer (no_row)",
        "b.pdf, page 1 has no answer (no_row)",
        "start the run again for pages that have no row (no_row), and join then",
    ]
    moved = batch.source.rename(batch.folder / "moved")
    done = invoke(*join)
    assert (done.exit_code, "a.pdf, pages 1, 3 have no answer" in done.stderr) == (1, True)
    assert "the run's lines are away: last pages may be missing" in done.stderr
    assert "b.pdf, page 1 has no answer" in invoke(*join, "--lines", moved).stderr
    assert_refused("--lines: goes with --join", "batch", "pages", "a.png", "--lines", moved)


def test_files_that_are_none(batch: BatchFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    (batch.folder / "a.png").write_bytes(b"no")
    made = invoke("batch", "pages", batch.folder / "a.png", "--prompt", "read", "-o", batch.source)
    assert (made.exit_code, batch.source.read_bytes()) == (1, b"")
    assert "a.png: is no whole PNG" in made.stderr
    assert_refused("give files, --prompt and -o, or --join", "batch", "pages", "a.png")
    assert_refused("takes no FILE", "batch", "pages", "a.png", "--join", batch.out)
    assert_refused("--join", "batch", "pages", "--join", batch.folder / "a.png")
    (batch.folder / "a.pdf").write_bytes(pdf(0.0))
    monkeypatch.setitem(sys.modules, "pypdfium2", None)
    told = 'pip install "millstream[pdf]"'
    assert_refused(told, "batch", "pages", batch.folder / "a.pdf", "--prompt", "read", "-o", batch.source)
