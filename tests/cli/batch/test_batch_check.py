"""`millstream batch check`, and what `batch run` tells before its first job."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import redis
from support.batch_files import BatchFiles, documents
from support.commands import assert_refused, invoke
from support.servers.servers import free_port
from support.workers.answering_worker import answering, completion, read_rows
from support.workers.counting_worker import model_name, worker_thread

PAGE = (Path(__file__).parents[3] / "ops" / "pages" / "batch.md").read_text("utf-8")
NOWHERE = f"redis://127.0.0.1:{free_port()}"


def await_worker(batch: BatchFiles, queue: str) -> None:
    """Until one serves, and tells its context."""
    with redis.Redis(port=batch.server.port) as client:
        until = time.monotonic() + 30
        while not any(
            client.hget(key, "context_length") for key in client.keys(f"{{ms:{queue}:0}}:worker:*")
        ):
            assert time.monotonic() < until
            time.sleep(0.02)


def test_a_good_file_passes_and_the_bad_lines_are_told(batch: BatchFiles) -> None:
    done = invoke("batch", "check", batch.source)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "lines     60 can run, 0 cannot",
        "prompts   about 60 tokens (estimated)",
        "output    at most 960 output tokens",
    ]
    batch.write(*documents(3), "{bad", completion("hot", temperature="hot"), completion("doc-1"))
    bad = invoke("batch", "check", batch.source)
    assert bad.exit_code == 2
    told = bad.stdout.splitlines()
    assert told[0].startswith("line 4: not JSON")
    assert told[1].startswith("line 5: body.temperature: ")
    assert told[2].startswith("line 6: custom_id: 'doc-1' stands on an earlier line")
    assert told[3] == "lines     3 can run, 3 cannot"


def test_a_check_for_programs(batch: BatchFiles) -> None:
    batch.write(*documents(2), "{bad", completion("t", tempo=1, max_tokens=4))
    done = invoke("batch", "check", batch.source, "--json")
    found = json.loads(done.stdout)
    assert done.exit_code == 2
    assert (found["lines"], found["bad"], found["unknown_fields"]) == (4, 1, {"tempo": 1})
    assert [(fault["line"], fault["code"]) for fault in found["faults"]] == [(3, "invalid_json")]
    assert found["most_output_tokens"] == 2 * 16 + 4
    assert [name for name in found if f"`{name}`" not in PAGE] == []


def test_unknown_fields_are_errors_only_if_asked(batch: BatchFiles) -> None:
    batch.write(completion("a", max_token=4))
    told = "fields that nothing reads: max_token in 1 line (did you mean max_tokens?)"
    lax = invoke("batch", "check", batch.source)
    assert (lax.exit_code, told in lax.stderr) == (2, True)
    assert "line 1: body.max_token: no such field; did you mean max_tokens?" in lax.stdout
    problem = "has unknown fields: max_token in 1 line (did you mean max_tokens?)"
    strict = invoke("batch", "check", batch.source, "--strict-fields")
    assert (strict.exit_code, problem in strict.stderr, "nothing reads" in strict.stderr) == (2, True, False)
    assert "0 can run, 1 cannot" in strict.stdout
    strict = invoke("batch", "check", batch.source, "--strict-fields", "--json")
    found, refused = (json.loads(line) for line in strict.stdout.splitlines())
    assert (found["bad"], problem in refused["error"]["message"], strict.exit_code) == (1, True, 2)
    with answering(batch.server.url) as worker:
        assert_refused(problem, *batch.command, "--strict-fields")
        assert not worker.answered
        assert invoke(*batch.command).exit_code == 1  # its one line is an error row


def test_a_field_without_effect_is_no_error(batch: BatchFiles) -> None:
    batch.write(completion("a", user="u"))
    for more in ((), ("--strict-fields",)):
        done = invoke("batch", "check", batch.source, *more)
        assert (done.exit_code, "fields that nothing reads: user in 1 line\n" in done.stderr) == (0, True)


def test_findings_are_told_before_a_server_is_needed(batch: BatchFiles) -> None:
    line = completion("a", tempo=1) | {"url": "/v1/chat/completions"}
    line["body"] = {"messages": [{"role": "user", "content": "hi"}], "max_token": 9}
    batch.write(*documents(2), line)
    done = invoke("batch", "run", batch.source, "-o", batch.out, "--redis-url", NOWHERE)
    assert done.exit_code == 3
    told = done.stderr.splitlines()
    assert "fields that nothing reads: max_token in 1 line (did you mean max_tokens?)" in told[0]
    assert "1 line has no max_tokens: its answer may go on to the end of the model's context" in told[1]
    assert (
        "3 lines to run: about 7 prompt tokens (estimated), at most 32 output tokens and those of" in told[2]
    )


def test_only_lines_without_a_row_are_told_again(batch: BatchFiles) -> None:
    batch.write(completion("a", tempo=1))
    with answering(batch.server.url):
        invoke(*batch.command)
        again = invoke(*batch.command)
        batch.write(completion("a", tempo=2, max_tokens=3))
        changed = invoke(*batch.command, "--redo-changed")
    assert "tempo" not in again.stderr
    assert "tempo in 1 line" in changed.stderr


def test_a_csv_writes_no_rows(batch: BatchFiles) -> None:
    batch.write(*(f"{i},question,answer" for i in range(30)))
    for command in (batch.command, ("batch", "check", batch.source)):
        assert_refused("this is no JSONL: line 1 is '0,question,answer'", *command)
    assert read_rows(batch.out) == read_rows(batch.errors) == []


def test_standard_input_is_checked_too() -> None:
    done = invoke("batch", "check", "-", text=json.dumps(completion("a")) + "\n{bad\n")
    assert done.exit_code == 2
    assert "1 can run, 1 cannot" in done.stdout


def test_a_check_with_a_server_knows_its_queues(batch: BatchFiles) -> None:
    batch.write(completion("a", model="nobody"), "{bad")
    server = ("--redis-url", batch.server.url)
    check = ("batch", "check", batch.source)
    refused = invoke(*check, *server)
    assert "names a queue that this server does not have: 'nobody' in 1 line" in refused.stderr
    assert (refused.exit_code, "line 2: not JSON" in refused.stdout) == (2, True)
    batch.write(completion("a", model="nobody"))
    done = invoke(*check, *server, "--queue", "typo")
    assert (done.exit_code, invoke(*check).exit_code) == (0, 0)
    assert "no worker serves the queue 'typo' now; its prompts are estimated until one does" in done.stderr
    with redis.Redis(port=batch.server.port) as client:
        assert client.keys("*typo*") == []


def test_a_file_without_lines_is_told(batch: BatchFiles) -> None:
    batch.source.write_text("\n")
    done = invoke("batch", "check", batch.source)
    assert (done.exit_code, "has no lines; there is nothing to do" in done.stderr) == (0, True)


@pytest.mark.slow
def test_workers_count_the_prompts_of_a_check(batch: BatchFiles, tokenizer: Path) -> None:
    """In more chunks than one, and refuse what they would refuse in a run."""
    good = [completion(f"n{n}", "w1 " * (n % 5 + 1), max_tokens=3) for n in range(600)]
    good.insert(100, completion("long", "w1 " * 70, max_tokens=3))
    batch.write(*good, completion("twice"), completion("twice"))
    check = ("batch", "check", batch.source, "--redis-url", batch.server.url, "--queue", "counts")
    before = invoke(*check)
    assert "tokens (estimated)" in before.stdout
    model = model_name(tokenizer, context=64)
    with worker_thread(batch.server, model, queue="counts"):
        await_worker(batch, "counts")
        done = invoke(*check)
        lines = invoke(*check, "--json").stdout.splitlines()
        [found] = [json.loads(line) for line in lines if line.startswith('{"lines"')]
        with redis.Redis(port=batch.server.port) as client:
            assert client.keys("*:job:*") == []
    told = [line for line in done.stdout.splitlines() if line[:2] != "20"]  # the worker logs there, too
    assert told[0].startswith("line 101: prompt: ")
    assert "length is 64 tokens" in told[0]
    assert told[1].startswith("line 603: custom_id: 'twice' stands on an earlier line")
    assert told[2:] == [
        "lines     601 can run, 2 cannot",
        f"prompts   {600 * 3 + 1:,} tokens",
        f"output    at most {600 * 3 + 16:,} output tokens",
    ]
    assert done.exit_code == 2
    assert (found["prompt_tokens"], found["estimated"], found["bad"]) == (600 * 3 + 1, False, 2)


def test_a_run_tells_lines_that_may_be_too_long(batch: BatchFiles, tokenizer: Path) -> None:
    batch.write(*documents(2), completion("long", "w1 " * 400, max_tokens=3))
    with worker_thread(batch.server, model_name(tokenizer, context=64)):
        await_worker(batch, "default")
        done = invoke(*batch.command)
    assert "1 line may be too long for the model (estimated): it holds 64 tokens" in done.stderr
