"""A request of one caller does not keep the loop, and so all others, standing still."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from support.gateway import HELLO, Gateway
from support.standstill import LONGEST_S, shortest_gap

from millstream.batch.rows.batch_lines import BatchLine
from millstream.batch.rows.line_rules import LineRules
from millstream.batch.rows.line_splitter import InputLine
from millstream.client.session.ended_job import EndedJob
from millstream.gateway.auth.api_keys import ANYBODY
from millstream.gateway.batches.records.batch_record import RowKind
from millstream.gateway.batches.runner.finished_rows import UNREADABLE, ended_row
from millstream.gateway.batches.runner.line_reader import read_line
from millstream.gateway.completions.completion_request import read_completion
from millstream.gateway.completions.responders import whole_body
from millstream.gateway.cpu_executor import SHORT_BYTES, CpuExecutor
from millstream.gateway.gateway_metrics import GatewayMetrics
from millstream.openai.api_endpoint import ApiEndpoint
from millstream.wire.messages.choices import Choice, TokenLogprob, TopLogprob
from millstream.wire.messages.codec import encode, pack
from millstream.wire.messages.job_messages import Result, read_request
from millstream.wire.messages.record import JOB_FIELDS, job_record

MOST = 256 * 1024


def tool(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def filled(before: str, unit: str) -> str:
    return before + unit * ((MOST - len(before)) // len(unit))


DIGITS = "{" + "1" * (MOST - 100)
ASKED: dict[str, dict[str, Any]] = {
    "escaped quotes": {"structured_outputs": {"grammar": filled('start: "', r"\"")}},
    "open attributes": {"structured_outputs": {"grammar": filled("start: B\n", "a[\n")}},
    "digits": {"structured_outputs": {"regex": DIGITS}},
    "digits in a schema": {"structured_outputs": {"json": {"pattern": DIGITS}}},
    "digits in a tool": {
        "tools": [tool("f", {"type": "object", "properties": {"a": {"pattern": DIGITS}}})]
    },
    "functions": {
        "tools": [tool(f"f{number}", {"type": "object", "properties": {
            "a": {"type": "number", "multipleOf": 99_991 - number}}}) for number in range(128)]
    },
    "names that look like tokens": {
        "structured_outputs": {"grammar": 'start: A\nA: "a" | /<[1]>/ REST\nREST: /b{9}/'}
    },
}  # fmt: skip


def ended_with(result: bytes) -> EndedJob:
    fields = dict.fromkeys(JOB_FIELDS) | {"state": b"completed", "lane": b"batch", "result": result}
    record = job_record("0-a", list(fields.values()))
    assert record is not None
    return EndedJob(record, ())


@pytest.fixture(scope="module")
def executor() -> Iterator[CpuExecutor]:
    made = CpuExecutor(GatewayMetrics(CollectorRegistry()))
    yield made
    made.close()


LONG = 2 * 1024 * 1024  # in the loop, each took half a second or more; bodies may have eight times as much


def repeated(before: str, unit: str, after: str) -> bytes:
    count = (LONG - len(before) - len(after)) // (len(unit) + 1)
    return f"{before}{','.join([unit] * count)}{after}".encode()


def named(before: str, after: str) -> bytes:
    names = ",".join(f'"{number:x}":1' for number in range(LONG // 10))
    return f"{before}{names}{after}".encode()


CALL = '{"id":"","type":"function","function":{"name":"f","arguments":"%s"}}'
# made when asked for: every process collects them
LONG_ONES: dict[str, Callable[[], bytes]] = {
    "messages": partial(repeated, '{"messages":[', '{"role":"user","content":""}', "]}"),
    "calls": partial(repeated, '{"messages":[{"role":"assistant","tool_calls":[', CALL % "", "]}]}"),
    "deep calls": partial(
        repeated, '{"messages":[{"role":"assistant","tool_calls":[', CALL % ("[" * 66 + "]" * 66), "]}]}"
    ),
    "parts": partial(
        repeated, '{"messages":[{"role":"user","content":[', '{"type":"text","text":""}', "]}]}"
    ),
    "names": partial(named, '{"messages":[{"role":"user","content":"x"}],', "}"),
    "kwargs": partial(named, '{"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{', "}}"),
    "lists": partial(repeated, '{"messages":[{"role":"user","content":"x"}],"a":[', "[]", "]}"),
    "numbers": partial(repeated, '{"messages":[', "1.5", "]}"),
    "token ids": partial(repeated, '{"prompt":[', "0", "]}"),
}


def endpoint_of(raw: bytes) -> ApiEndpoint:
    return ApiEndpoint.COMPLETIONS if raw.startswith(b'{"prompt') else ApiEndpoint.CHAT


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ASKED, *LONG_ONES])
async def test_no_request_keeps_the_loop_of_a_gateway_standing(name: str, executor: CpuExecutor) -> None:
    long = name in LONG_ONES
    raw = LONG_ONES[name]() if long else json.dumps({"messages": HELLO, **ASKED[name]}).encode()
    endpoint = endpoint_of(raw)
    read = partial(executor.run, "acme", len(raw), read_completion, raw, endpoint, ANYBODY)
    assert await shortest_gap(read) < LONGEST_S


@pytest.mark.parametrize("name", ["messages", "token ids"])
async def test_nor_does_a_line_of_a_batch(name: str, executor: CpuExecutor) -> None:
    body = LONG_ONES[name]()
    endpoint = endpoint_of(body)
    line = b'{"custom_id":"a","url":"%s","body":%s}' % (endpoint.encode(), body)
    rules = LineRules(endpoint=endpoint, tenant="acme", encoded=True)
    read = partial(executor.run, "acme", len(line), read_line, InputLine(1, line), rules)
    assert await shortest_gap(read) < LONGEST_S


async def test_nor_do_short_lines_without_number(executor: CpuExecutor) -> None:
    line = json.dumps({"custom_id": "a", "url": "/v1/chat/completions", "body": {"messages": HELLO * 800}})

    rules = LineRules(endpoint="/v1/chat/completions", tenant="acme", encoded=True)

    async def read_many() -> None:
        for _ in range(20):
            data = line.encode()
            await executor.run("acme", len(data), read_line, InputLine(1, data), rules)

    assert len(line) < SHORT_BYTES
    assert await shortest_gap(read_many) < LONGEST_S


def long_end() -> EndedJob:
    top = tuple(TopLogprob(token_id=number, token=" a", logprob=-1.5) for number in range(20))
    one = TokenLogprob(token_id=0, token=" a", logprob=-1.5, top=top)
    choice = Choice(text="a", token_ids=(0,) * 3000, logprobs=(one,) * 3000, finish_reason="length")
    return ended_with(encode(Result(choices=(choice,))))


@pytest.mark.slow
@pytest.mark.parametrize("write", [whole_body, ended_row])
async def test_nor_does_a_long_answer(write: Callable[..., Any], executor: CpuExecutor) -> None:
    ended = long_end()
    assert LONG < ended.size < 2 * LONG
    row = BatchLine(1, "a", ApiEndpoint.CHAT, "default", "0" * 64)
    job_id = ended.record.job_id
    args = ([job_id], [ended], ApiEndpoint.CHAT, {}, {}) if write is whole_body else (row, [ended])
    work = partial(executor.run, "acme", ended.size, write, *args)
    made = await work()
    assert len(made if isinstance(made, bytes) else made.data) > ended.size
    assert await shortest_gap(work) < LONGEST_S


def test_an_unreadable_answer_fails_only_its_own_row() -> None:
    row = BatchLine(1, "a", ApiEndpoint.CHAT, "default", "0" * 64)
    made = ended_row(row, [ended_with(b"\xc1")])
    assert (made.kind, json.loads(made.data)["error"]["code"]) == (RowKind.ERROR, UNREADABLE)


MOST_BYTES = 16 * 1024**2 - 100
LISTS: dict[str, Callable[[], object]] = {
    "one list": lambda: [0] * MOST_BYTES,
    "lists": lambda: [[0] * 2**20] * 15,
    "one map": lambda: {f"{number:x}": 0 for number in range(MOST_BYTES // 10)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LISTS)
async def test_nor_do_the_lists_and_maps_of_one_that_a_thread_reads(name: str) -> None:
    raw = pack({"prompt": "x", "unknown": LISTS[name]()})
    assert len(raw) <= MOST_BYTES + 100
    assert await shortest_gap(partial(asyncio.to_thread, read_request, raw), time.monotonic) < LONGEST_S


def test_the_gateway_tells_its_longest_gap(door: Gateway) -> None:
    page = door.get("/metrics").decode()
    [gap] = re.findall(r"^millstream_gateway_loop_gap_seconds (\S+)$", page, re.MULTILINE)
    assert 0 <= float(gap) < 60
