"""A request of one caller does not keep the loop, and so all others, standing still."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from support.gateway import HELLO, Gateway

from millstream.batch.bodies.request_body import BatchEndpoint, read_body
from millstream.errors import InvalidRequest
from millstream.gateway.web.json_body import json_object
from millstream.wire.keys import Lane
from millstream.wire.loop_gaps import TICK_S, LoopGaps
from millstream.wire.messages.codec import pack
from millstream.wire.messages.messages import read_request

LONGEST_S = 0.2
TRIES = 3  # a busy machine has gaps of its own
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


async def gap_of(read: Callable[[], object]) -> float:
    """Of a loop that reads one message."""
    gaps = LoopGaps()
    watching = asyncio.create_task(gaps.watch())
    await asyncio.sleep(0)
    with suppress(InvalidRequest):
        read()
    await asyncio.sleep(2 * TICK_S)
    watching.cancel()
    return gaps.longest_s


async def shortest_gap(read: Callable[[], object]) -> float:
    found = []
    while len(found) < TRIES and min(found, default=LONGEST_S) >= LONGEST_S:
        found.append(await gap_of(read))
    return min(found)


@pytest.mark.parametrize("name", ASKED)
async def test_no_format_keeps_the_loop_of_a_gateway_standing(name: str) -> None:
    raw = json.dumps({"messages": HELLO, **ASKED[name]}).encode()

    def read() -> object:
        return read_body(BatchEndpoint.CHAT, json_object(raw), lane=Lane.BATCH, tenant="", queue="default")

    assert await shortest_gap(read) < LONGEST_S


@pytest.mark.parametrize("name", ["escaped quotes", "open attributes", "digits"])
async def test_nor_that_of_a_worker_to_which_it_came_by_hand(name: str) -> None:
    [(kind, text)] = ASKED[name]["structured_outputs"].items()
    form = {"type": kind, "text": text}
    raw = pack({"version": 3, "prompt": "x", "response_format": form})
    assert await shortest_gap(lambda: read_request(raw)) < LONGEST_S


def test_the_gateway_tells_its_longest_gap(door: Gateway) -> None:
    page = door.raw(b"GET /metrics HTTP/1.0\r\n\r\n").decode()
    [gap] = re.findall(r"^millstream_gateway_loop_gap_seconds (\S+)$", page, re.MULTILINE)
    assert 0 <= float(gap) < 60
