"""What surrounds a run through the queue: a worker's flags, a table's row, events counted as bytes come."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from ops.bench.engines.adapters import Setup
from ops.bench.measures import Run, Timing
from ops.bench.queued import comparison, fleet
from ops.bench.queued.comparison import Queued
from ops.bench.queued.counted_stream import CountedStream, StreamFailed
from ops.bench.queued.stack import worker_flags
from support.servers.servers import Server

from millstream_worker.settings import load

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNKS = b'20\r\ndata: {"a": 1}\n\ndata: {"b": 2}\n\n\r\n8\r\n: ping\n\n\r\ne\r\ndata: [DONE]\n\n\r\n'


def test_the_worker_gets_the_engine_settings_as_valid_flags(tiny: Path) -> None:
    settings = "prefix_cache=off,shared_attention=on,compile_model=off"
    setup = Setup(str(tiny), "cpu", 1, 64, kv_tokens=1024, longest_row=16, rows=3, settings=settings)
    chosen = load(worker_flags(setup, "redis://127.0.0.1", tiny))
    assert (chosen.prefix_cache, chosen.shared_attention, chosen.compile_model) == (False, True, "off")
    assert (chosen.max_rows, chosen.threads) == (256, 1)


def test_a_row_compares_the_best_of_either_side() -> None:
    alone = [Run(seconds, (Timing(0.1, seconds, 100),)) for seconds in (2.0, 1.0)]
    around = [
        Queued(Run(seconds, (Timing(0.3, seconds, 100),)), {"engine": seconds, "front": 9.0})
        for seconds in (1.25, 5.0)
    ]
    line = comparison.row("tiny14m A", alone, around, least_s=0.5)
    assert line == "| tiny14m A | 100 | 80 | 80.0% | 200 | 0.30/0.30 | front 9.0, engine 1.2 of 1.2 s |"


async def test_a_fleet_leaves_nothing_on_its_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, few in {"RUNNING": 160, "SUBMITS": 8, "TAKES": 2}.items():
        monkeypatch.setattr(fleet, name, few)
    version, costs = await fleet.measured(server.url, (2, 5), rounds=1)
    assert version.startswith(("valkey ", "redis "))
    assert [min(cost) > 0 for cost in costs.values()] == [True, True]
    with contextlib.closing(server.admin()) as admin:
        assert admin.dbsize() == 0


def test_the_growth_is_from_the_fewest_to_the_most() -> None:
    assert fleet.growth({100: (1.0, 1.0), 4: (2.0, 10.0), 1000: (3.0, 10.0)}) == [1.5, 1.0]


def heard(*parts: bytes) -> CountedStream:
    stream = CountedStream()
    for part in parts:
        stream.data_received(part)
    return stream


async def test_events_are_counted_wherever_the_bytes_are_cut() -> None:
    whole = HEAD + CHUNKS
    for cut in range(len("HTTP/1.1 200 "), len(whole)):
        stream = heard(whole[:cut], whole[cut:])
        assert (stream.events, stream.ended.done()) == (3, True), cut
        await stream.first
    assert heard(HEAD, *(bytes([byte]) for byte in CHUNKS)).events == 3


async def test_a_refused_request_and_a_stream_error_are_not_events() -> None:
    for sent in (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", HEAD + b'15\r\ndata: {"error": {}}\n\n\r\n'):
        with pytest.raises(StreamFailed):
            await heard(sent).ended
