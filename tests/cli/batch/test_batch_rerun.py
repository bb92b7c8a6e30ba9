"""`millstream batch run` again after an edit, and over inputs and outputs that are no plain files."""

from __future__ import annotations

import gzip
import importlib
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis
from support.batch_files import BatchFiles, alike, answers_of, capitals, documents
from support.batches import chat
from support.commands import assert_refused, environment, invoke, process
from support.servers.servers import free_port
from support.workers.answering_worker import CUT, UNFIT, answering, completion, read_rows, write_lines
from support.workers.hand_worker import UNFIT_CALL

from millstream.batch.files import compressed

EARLIER = Path(__file__).parents[2] / "batch" / "earlier_run"


def test_a_rerun_after_an_edit_stops_and_says_how_to_go_on(batch: BatchFiles) -> None:
    with answering(batch.server.url) as worker:
        assert invoke(*batch.command).exit_code == 0
        lines = documents(60)
        lines[0], lines[7] = completion("doc-0", "edited"), completion("doc-7", "too")
        batch.write(*lines)
        with redis.Redis(port=batch.server.port) as client:
            before = client.info("stats")["total_connections_received"]
            stopped = invoke(*batch.command)
            assert client.info("stats")["total_connections_received"] == before
        assert stopped.exit_code == 2
        assert "IN: 2 lines have changed since they were answered (1, 8)." in stopped.stderr
        for way in ("--redo-changed", "--keep-answers", "choose another OUT"):
            assert way in stopped.stderr
        assert invoke(*batch.command, "--keep-answers").exit_code == 0
        assert len(worker.answered) == 60
        done = invoke(*batch.command, "--redo-changed")
        assert done.exit_code == 0, done.output
        assert len(worker.answered) == 62
    assert batch.answers() == answers_of(60) | {"doc-0": "EDITED", "doc-7": "TOO"}


def test_a_schema_for_all_lines_and_answers_that_were_cut(batch: BatchFiles) -> None:
    schema = batch.folder / "schema.json"
    schema.write_text('{"type": "object", "properties": {"b": {}, "a": {}}}')
    own = [completion("old", "other", guided_regex="x")]
    own.append(completion("free", f"text{CUT}", response_format={"type": "text"}))
    batch.write(completion("whole"), completion("cut", f"hello{CUT}"), *own)
    command = (*batch.command, "--schema", schema)
    with answering(batch.server.url) as worker:
        done = invoke(*command)
        assert done.exit_code == 0, done.stderr
        assert "1 × the answer was cut before it was whole" in done.stderr
        assert "taken as structured_outputs, in so many lines: guided_regex (1)" in done.stderr
        ways = "(--retry-failed tries these lines again, --retry-incomplete those whose answers were cut)"
        assert ways in done.stdout
        formats = {one.prompt: one.response_format for one in worker.requests.values()}
        assert [one.type for one in formats.values() if one is not None].count("json_schema") == 2
        cut = formats[f"hello{CUT}"]
        assert cut is not None
        assert cut.text == '{"type":"object","properties":{"b":{},"a":{}}}'
        invoke(*command, "--retry-failed")
        assert len(worker.answered) == 4
        batch.write(completion("whole"), completion("cut", "mended"), *own)
        again = invoke(*command, "--retry-incomplete")
        assert len(worker.answered) == 5
        assert "trying 1 line again" in again.stderr
        schema.write_text('{"type": "object", "properties": {"a": {}, "b": {}}}')
        assert_refused("2 lines have changed", *command)
    answers = {"whole": "HELLO", "cut": "MENDED", "old": "OTHER", "free": f"TEXT{CUT}"}
    assert batch.answers() == answers
    assert batch.faults() == []


def test_calls_that_do_not_fit_are_error_rows_to_retry(batch: BatchFiles) -> None:
    tool = {"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}

    texts = ("hello", f"oats{UNFIT}")
    lines = [chat(number, text, 9) for number, text in enumerate(texts, 1)]
    batch.write(*(one | {"body": one["body"] | {"tools": [tool]}} for one in lines))
    with answering(batch.server.url) as worker:
        done = invoke(*batch.command)
        assert done.exit_code == 0, done.stderr
        assert "1 × the arguments of get do not fit" in done.stderr
        [row] = read_rows(batch.errors)
        [choice] = row["response"]["body"]["choices"]
        assert (row["error"]["code"], row["error"]["param"]) == ("schema_mismatch", None)
        assert row["error"]["message"].startswith(f"line 2: {UNFIT_CALL['schema_error']}; ")
        assert (choice["complete"], choice["schema_error"]) == (False, UNFIT_CALL["schema_error"])
        assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"a": "x"}'
        invoke(*batch.command, "--retry-incomplete")
        assert len(worker.answered) == 2
        again = invoke(*batch.command, "--retry-failed")
        assert len(worker.answered) == 3
        assert "trying 1 line again" in again.stderr


def test_a_rerun_that_names_an_unknown_queue_leaves_all_rows(batch: BatchFiles) -> None:
    batch.write(*documents(3), completion("hot", temperature="hot"))
    kept = [batch.out, batch.errors, batch.run_file]
    with answering(batch.server.url):
        assert invoke(*batch.command).exit_code == 0
        before = [path.read_bytes() for path in kept]
        edited = completion("doc-0", "edited", model="gpt-4o-mini")
        batch.write(edited, *documents(3)[1:], completion("hot", "mended"))
        again = (*batch.command, "--redo-changed", "--retry-failed")
        assert_refused("this server does not have: 'gpt-4o-mini' in 1 line", *again)
        assert [path.read_bytes() for path in kept] == before
        assert invoke(*batch.command, "--redo-changed", "--queue", "default").exit_code == 0
    assert batch.answers() == answers_of(3) | {"doc-0": "EDITED", "hot": "MENDED"}


def test_nothing_is_started_for_a_rerun_that_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an output that an earlier version has written, too: neither a server nor a model."""
    monkeypatch.setenv("MILLSTREAM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MILLSTREAM_REDIS_URL", raising=False)
    shutil.copytree(EARLIER, tmp_path, dirs_exist_ok=True)
    lines = (tmp_path / "in.jsonl").read_text().replace('"one"', '"another"')
    (tmp_path / "in.jsonl").write_text(lines)
    done = invoke(
        "batch", "run", tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl", "--model", "no-such-model"
    )
    assert (done.exit_code, (tmp_path / "home").exists()) == (2, False)
    assert "IN: 1 line has changed since it was answered (1)" in done.stderr


HAS_ZSTD = any(importlib.util.find_spec(name) for name in ("compression", "backports"))
NO_ZSTD = pytest.mark.skipif(not HAS_ZSTD, reason="there is no zstd")
PACKINGS = [".gz", pytest.param(".zst", marks=[NO_ZSTD, pytest.mark.slow])]


def packed(path: Path) -> bytes:
    plain = compressed.open_plain(path)
    try:
        return plain.file.read()
    finally:
        plain.close()


def custom_ids(rows: bytes) -> list[str]:
    return [json.loads(line)["custom_id"] for line in rows.splitlines()]


@pytest.mark.parametrize("ending", PACKINGS)
def test_compressed_files(batch: BatchFiles, ending: str) -> None:
    lines = alike(60, 7) if ending == PACKINGS[0] else documents(60)
    batch.write(*lines)
    named, out = batch.folder / f"named{ending}", batch.folder / f"out.jsonl{ending}"
    compressed.pack(batch.source, named, compressed.FileCompression(ending))
    unnamed = named.rename(batch.folder / "whatever")
    command = ("batch", "run", unnamed, "-o", out, "--redis-url", batch.server.url)
    with answering(batch.server.url) as worker:
        worker.after = 25
        with process(*command) as running:
            assert worker.full_stop.wait(30)
            running.kill()
        assert not out.exists()
        part = batch.folder / f"out.jsonl{ending}.part"
        part.write_bytes(part.read_bytes()[:-7])  # and its last row was torn
        worker.gate.set()
        assert invoke(*command).exit_code == 0
        whole = packed(out)
        assert sorted(custom_ids(whole)) == sorted(capitals(lines))
        assert not part.exists()
        assert "60 answered before" in invoke(*command).stdout
        assert packed(out) == whole
        batch.write(*lines, completion("more"))
        assert invoke(*command[:2], batch.source, *command[3:]).exit_code == 0
        assert worker.computed_once() == 61
    assert len(packed(out).splitlines()) == 61
    assert sorted(path.name for path in batch.folder.iterdir()) == [
        "in.jsonl", "out.errors.jsonl", out.name, "out.run.jsonl", "whatever",
    ]  # fmt: skip


def test_an_extra_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_lines(tmp_path / "in.jsonl", documents(1))

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(compressed.importlib, "import_module", missing)
    command = ("batch", "run", source, "--redis-url", f"redis://127.0.0.1:{free_port()}", "-o")
    assert_refused("'.[cli]'", *command, tmp_path / "out.zst")
    source.write_bytes(b"\x28\xb5\x2f\xfd")
    assert_refused("'.[cli]'", *command, tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("packing", [gzip.compress, bytes])
def test_standard_input_is_kept_until_the_run_has_ended(batch: BatchFiles, packing: Any) -> None:
    kept = batch.folder / "out.run.stdin"
    command = tuple("-" if part == batch.source else part for part in batch.command)
    lines = alike(60, 7) if packing is bytes else documents(60)
    batch.write(*lines)
    data = packing(batch.source.read_bytes())
    with answering(batch.server.url) as worker:
        worker.after = 25
        with subprocess.Popen(
            [sys.executable, "-m", "millstream", *map(str, command)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment(),
        ) as running:  # fmt: skip
            assert running.stdin is not None
            running.stdin.write(data)
            running.stdin.close()
            assert worker.full_stop.wait(30)
            running.kill()
            assert running.stderr is not None
            assert f"standard input is kept in {kept}".encode() in running.stderr.read()
        assert kept.read_bytes() == data
        worker.gate.set()
        done = run_with(command, data if packing is bytes else b"")  # the same, or nothing: the kept one
        assert done.returncode == 0, done.stderr
        assert batch.answers() == capitals(lines)
        assert worker.computed_once() == 60
        assert not kept.exists()
        other = run_with(command, json.dumps(completion("doc-0", "edited")).encode())
    assert other.returncode == 2
    assert b"1 line has changed" in other.stderr


def run_with(command: tuple[object, ...], data: bytes) -> subprocess.CompletedProcess[bytes]:
    arguments = [sys.executable, "-m", "millstream", *map(str, command)]
    return subprocess.run(
        arguments, input=data, capture_output=True, env=environment(), check=False, timeout=60
    )


def test_rows_to_standard_output(batch: BatchFiles) -> None:
    """Whatever was killed before: the run that ends has written each line's row once, and nothing else."""
    journal = batch.folder / "journal"
    to_journal = ("-o", "-", "--journal", journal)
    command = ("batch", "run", batch.source, *to_journal, "--redis-url", batch.server.url)
    with answering(batch.server.url) as worker:
        worker.after = 25
        with process(*command) as running:
            assert worker.full_stop.wait(30)
            assert running.stdout is not None
            assert running.stdout.readline()
            running.send_signal(signal.SIGKILL)
            killed, _ = running.communicate(timeout=30)
        assert len(killed.splitlines()) < 25
        worker.gate.set()
        done = invoke(*command)
        assert done.exit_code == 0, done.stderr
        assert sorted(custom_ids(done.stdout_bytes)) == sorted(answers_of(60))
        assert " answered before" in done.stderr
        assert invoke(*command).stdout_bytes == done.stdout_bytes
        assert worker.computed_once() == 60
    assert done.stdout_bytes == journal.read_bytes()
