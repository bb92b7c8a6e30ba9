"""The gateway's benchmark: its readers count what comes, and its parts run on a real gateway."""

from __future__ import annotations

import argparse
import asyncio
import re

import pytest
from ops.bench.queued.counted_stream import CountedStream, StreamFailed
from ops.bench.queued.gateway import EVENT_STEPS_S, events_row, idle_row, ttft
from ops.bench.queued.gateway_stack import gateway_stack

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNKS = b'20\r\ndata: {"a": 1}\n\ndata: {"b": 2}\n\n\r\n8\r\n: ping\n\n\r\ne\r\ndata: [DONE]\n\n\r\n'


async def test_events_are_counted_wherever_the_bytes_are_cut() -> None:
    whole = HEAD + CHUNKS
    for cut in range(len("HTTP/1.1 200 "), len(whole)):
        stream = CountedStream()
        for part in (whole[:cut], whole[cut:]):
            stream.data_received(part)
        assert (stream.events, stream.ended.done()) == (3, True), cut
        await stream.first
    one_by_one = CountedStream()
    one_by_one.data_received(HEAD)
    for byte in CHUNKS:
        one_by_one.data_received(bytes([byte]))
    assert one_by_one.events == 3


async def test_a_refused_request_and_a_stream_error_are_not_events() -> None:
    for sent in (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", HEAD + b'15\r\ndata: {"error": {}}\n\n\r\n'):
        stream = CountedStream()
        stream.data_received(sent)
        with pytest.raises(StreamFailed):
            await stream.ended


@pytest.mark.slow
def test_each_part_measures_a_real_gateway() -> None:
    options = argparse.Namespace(rate=50.0, turns=1, turn_requests=5)
    with gateway_stack(EVENT_STEPS_S, 8, "--max-requests", "5", "--disconnect-grace-s", "0") as stack:
        native, over_http = asyncio.run(ttft(stack, options))
        events = events_row(stack, 4, seconds=0.5)
        idle = idle_row(stack, 5, seconds=0.5)
    assert [len(native), len(over_http)] == [5, 5]
    assert min(*native, *over_http) > 0
    assert re.match(r"\| 4 \| 80 \| [1-9]\d* \| [\d,]+ \| \d+% \| front", events)
    assert idle.endswith("| 503 `overloaded` |")
