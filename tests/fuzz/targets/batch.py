"""A batch run's files: lines of the input, answers, and what an earlier run has left."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from fuzz import valid
from fuzz.mutation import damage, mutate
from fuzz.target import Target, check, folder
from fuzz.targets.codec import body
from fuzz.values import blob, jsonable, subset, text, weighted
from millstream.batch.files.input_file import InputFile
from millstream.batch.files.journal import Journal
from millstream.batch.input_comparison import Survey
from millstream.batch.rows import output_rows
from millstream.batch.rows.batch_lines import BatchLine, custom_id_of, parse, read_row
from millstream.batch.rows.faults import LineFault
from millstream.batch.rows.line_splitter import LineSplitter
from millstream.batch.run.pace import work_of
from millstream.batch.run.run_options import RunOptions
from millstream.batch.run.tally import Tally
from millstream.client.submit.requests import draft
from millstream.errors import InvalidRequest, JobFailed, ProtocolError
from millstream.openai.prompt_list import listed_id, own_ids
from millstream.wire.keys import Lane
from millstream.wire.messages import codec
from millstream.wire.messages.job_messages import Result

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def openai_body(chance: Random, url: str) -> dict[str, Any]:
    common = valid.sampling(chance)
    common.pop("logprobs", None)
    common.pop("top_logprobs", None)
    more: dict[str, Any] = {
        "model": "default", "stop": chance.choice(("w1", ["w1", "w2"], None)), "metadata": {"expected": "w1"},
        "user": "u", "stream": False, "best_of": 1, "tools": [], "guided_choice": ["w1", "w2"],
        "response_format": chance.choice(({"type": "text"}, {"type": "json_object"})),
        "prediction": {"type": "content", "content": chance.choice(("w1", []))}, "of_a_newer_api": 1,
    }  # fmt: skip
    if url == COMPLETIONS:
        given: dict[str, Any] = {"prompt": weighted(chance, (2, valid.words), (1, valid.token_ids))}
        more |= {"logprobs": 3, "echo": False, "suffix": ""}
    else:
        given = {"messages": valid.messages(chance)}
        if chance.random() < 0.2:
            given["messages"][0]["content"] = [{"type": "text", "text": text} for text in ("w1", "w2")]
        if chance.random() < 0.2:
            given["messages"][-1] = {"role": "user", "content": valid.content(chance)}
        more |= {"max_completion_tokens": 5, "logprobs": True, "tool_choice": "none"}
        more["chat_template_kwargs"] = {"enable_thinking": False}
    return common | given | subset(chance, more, 0.2)


def _fields(chance: Random) -> dict[str, Any]:
    url = chance.choice((CHAT, COMPLETIONS))
    return {"custom_id": "a", "method": "POST", "url": url, "body": openai_body(chance, url)}


def line(chance: Random) -> bytes:
    """A line of the input: right, changed, or damaged."""
    return weighted(
        chance,
        (2, lambda c: _json(_fields(c))),
        (6, lambda c: _json(mutate(c, _fields(c), jsonable))),
        (4, lambda c: damage(c, _json(_fields(c)))),
        (1, lambda c: _json(jsonable(c, 3))),
        (1, blob),
        (0.2, _nest),
    )


def _nest(chance: Random) -> bytes:
    """Lists or objects in each other."""
    start, end = chance.choice(((b"[", b"]"), (b'{"a":', b"}")))
    depth = chance.choice((9, 300, 900, 950, 990, 2000, 50_000))
    inner = start * depth + b"1" + (end * depth if chance.random() < 0.9 else b"")
    name = chance.choice((b"more", b"stop", b"metadata"))
    return b'{"custom_id":"a","url":"/v1/completions","body":{"prompt":"x","%b":%b}}' % (name, inner)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def read_line(data: bytes) -> None:
    """As a run does: a row that the client takes or refuses, or a fault, each with its row in a file."""
    try:
        row = _row(data)
    except LineFault as fault:
        _writable(output_rows.fault_row(1, fault))
        raise
    try:
        for request, own_id in zip(row.requests, own_ids(listed_id("run", row.prompts)), strict=True):
            draft({"request": request, "id": own_id}, 1, 2**20)
    except InvalidRequest as error:
        _writable(output_rows.refusal_row(row, error))
        raise


def _row(data: bytes) -> BatchLine:
    fields = parse(data)
    return read_row(1, custom_id_of(fields), fields, lane=Lane.BATCH, tenant="")


def _writable(row: dict[str, Any]) -> None:
    """A row of a JSON lines file that any reader takes."""
    text = json.dumps(row, ensure_ascii=False, allow_nan=False)
    assert json.loads(text.encode()) == row


# --- answers


@cache
def _good_rows() -> tuple[BatchLine, BatchLine]:
    chat = {"custom_id": "a", "url": CHAT, "body": {"messages": [{"role": "user", "content": "x"}]}}
    completion = {"custom_id": "é", "url": COMPLETIONS, "body": {"prompt": "x"}}
    return _row(_json(chat)), _row(_json(completion))


def _answer(data: bytes) -> None:
    result = codec.decode(Result, data)
    for row in _good_rows():
        _writable(output_rows.answer_row(row, "0-a", result))
        _writable(output_rows.failure_row(row, "0-a", JobFailed("0-a", "reason", "message", result)))
    tally = Tally()
    tally.add(result, "w1", work_of(result, since_ms=1_000_000))
    json.dumps(asdict(tally.summary(1.0)), allow_nan=False)


# --- files


def _journal_files(chance: Random) -> dict[str, bytes]:
    row: dict[str, Any] = {"id": "b", "custom_id": "a", "response": {"status_code": 200}, "error": None}
    failed = {"custom_id": "c", "response": None, "error": {"code": "x", "line": 3}}
    twice = {"code": "duplicate_custom_id", "line": 3}
    answered = {"custom_id": "d", "response": {"status_code": 500}, "error": twice}
    files: dict[str, tuple[Any, ...]] = {
        "out.jsonl": (row, row | {"custom_id": "b"}),
        "out.errors.jsonl": (failed, failed | {"custom_id": None}, answered),
        "out.run.jsonl": (
            {"run": "0123456789abcdef", "model": "m", "out": "out.jsonl"},
            {"in": "/in.jsonl", "queue": None, "model": "m"},
            {"queue": "default", "model": "m", "model_digest": "ef" * 16},
            {"queue": "default", "jobs": ["ab" * 16, f"{'cd' * 16}.1"]},
            {"again": ["ab" * 16]},
            {"retried": "c"},
        ),
    }
    kept = {name: _file(chance, rows) for name, rows in files.items() if chance.random() < 0.85}
    return kept | {"in.jsonl": _input(chance)}


def _file(chance: Random, rows: tuple[Any, ...]) -> bytes:
    lines = [mutate(chance, one, jsonable) if chance.random() < 0.05 else one for one in rows]
    data = b"".join(_json(one) + b"\n" for one in lines)
    return damage(chance, data) if chance.random() < 0.1 else data


def _open_journal(case: dict[str, bytes]) -> None:
    """Open it, answer a line, try the failed ones again, open what that has left, and compare an input."""
    place = folder() / "journal"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name, data in case.items():
        (place / name).write_bytes(data)
    out = place / "out.jsonl"
    with Journal(out, "m") as journal:
        journal.write([{"custom_id": "new", "response": {"status_code": 200}, "error": None}], [])
        journal.retry(journal.failures(failed=True, incomplete=True))
        own_id = journal.notes.own_id("digest")
    with Journal(out, "m") as journal:
        assert journal.has_id("new"), "a row that was written is not found again"
        assert journal.notes.own_id("digest") == own_id, "the next run makes other jobs of the same lines"
        journal.drop(_survey(place, journal).changed)
    with Journal(out, "m") as journal:
        assert not _survey(place, journal).changed, "lines whose rows were dropped are told again"


def _survey(place: Path, journal: Journal) -> Survey:
    survey = Survey(journal, RunOptions())
    with InputFile(place / "in.jsonl") as source:
        survey.take(source)
    return survey


def _input(chance: Random) -> bytes:
    lines = [line(chance) for _ in range(chance.randrange(4))]
    data = chance.choice((b"\n", b"\r\n", b"\n\n", b"\r")).join(lines)
    starts = (b"", b"", b"", b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\x00")
    return chance.choice(starts) + data + chance.choice((b"", b"\n", text(chance).encode()))


def _read_input(data: bytes) -> None:
    path = folder() / "input.jsonl"
    path.write_bytes(data)
    with InputFile(path, max_line_bytes=200) as source:
        lines = list(source)
        assert [one.number for one in lines] == sorted({one.number for one in lines})
        assert all(one.data is None or len(one.data) <= 200 for one in lines)
    middle, splitter = len(data) // 2, LineSplitter(200)
    assert [*splitter.feed(data[:middle]), *splitter.feed(data[middle:]), *splitter.end()] == lines
    assert splitter.lines == data.count(b"\n") + bool(data.rsplit(b"\n")[-1])
    for one in lines:
        if one.data is not None:
            parse_or_fault(one.data)


def parse_or_fault(data: bytes) -> None:
    try:
        _row(data)
    except LineFault as fault:
        check(fault.message, "a fault without a word")


TARGETS = (
    Target("batch-lines", line, read_line, (LineFault, InvalidRequest), share=3),
    Target("batch-answers", lambda chance: body(chance, valid.result), _answer, (ProtocolError,), share=1),
    Target("batch-journals", _journal_files, _open_journal, (InvalidRequest,), share=0.25),
    Target("batch-files", _input, _read_input, (InvalidRequest,), share=0.5),
)
