"""What a worker says of itself: rates between two heartbeats, and a line a minute while it works."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import structlog
from support.engine.ready import INFO

from millstream.wire.state.model_facts import ModelFacts
from millstream_worker.engine.protocol.outputs import EngineStats
from millstream_worker.engine_link.link import EnginePort
from millstream_worker.intake.capacity import Capacity
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.jobs.served_model import ModelSlot, ServedModel
from millstream_worker.jobs.table import JobTable
from millstream_worker.service.report import LINE_S, Report


class Clock:
    now = 1000.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def capacity() -> Capacity:
    queue = EngineQueue(EnginePort())
    return Capacity(JobTable(queue), queue, ModelSlot(), lookahead=4)


@pytest.fixture
def report(capacity: Capacity, clock: Clock) -> Report:
    return Report("host-1", capacity, EnginePort(), ModelSlot(), started_ms=5, monotonic=lambda: clock.now)


async def test_rates_are_those_since_the_heartbeat_before(
    report: Report, capacity: Capacity, clock: Clock
) -> None:
    def rates(prompt: int, output: int, seconds: float) -> tuple[float, float]:
        capacity.update(EngineStats(prompt_computed_total=prompt, output_total=output))
        clock.now += seconds
        beat = report.heartbeat()
        return beat.prompt_per_s, beat.output_per_s

    assert rates(100, 10, 2.0) == (50.0, 5.0)
    assert rates(100, 40, 4.0) == (0.0, 7.5)
    assert rates(20, 5, 1.0) == (20.0, 5.0)  # another engine, which counts from 0


async def test_a_worker_logs_a_line_a_minute_and_none_while_idle(
    report: Report, capacity: Capacity, clock: Clock
) -> None:
    blocks = {"blocks_used": 45, "blocks_cached": 20, "blocks_free": 35}
    with structlog.testing.capture_logs() as lines:
        for second in range(int(10 * LINE_S)):
            clock.now += 1.0
            if second < 150:
                capacity.update(EngineStats(rows_running=3, output_total=2 * second, **blocks))
            else:
                capacity.update(EngineStats(output_total=300, **blocks))
            report.log_line()
    assert [line["rows_running"] for line in lines] == [3, 3, 0]  # the last one is of its last half minute
    assert (lines[1]["event"], lines[1]["output_tokens_per_s"]) == ("working", 2.0)
    shares = {"kv_used": "45%", "kv_cached": "20%", "prefix_hits": "0%"}
    assert {name: lines[1][name] for name in shares} == shares


def test_a_heartbeat_and_a_result_carry_the_models_facts(capacity: Capacity) -> None:
    unused: Any = None
    model = ModelSlot()
    report = Report("host-1", capacity, EnginePort(), model, started_ms=5)
    assert report.heartbeat().facts() == ModelFacts().facts()
    info = replace(
        INFO, digest="d", weights="int8", kv_format="bfloat16", self_check="off by 0.1", fallbacks=("a", "b")
    )
    served = ServedModel(unused, info)
    model.publish(served)
    assert served.facts == ModelFacts(
        model="m", device="cpu", weights="int8", kv_format="bfloat16", model_digest="d", context_length=512,
        max_rows=4, self_check="off by 0.1", fallbacks="a; b",
    )  # fmt: skip
    assert report.heartbeat().facts() == served.facts.facts()
    told = {"model": "m", "weights": "int8", "kv_format": "bfloat16", "model_digest": "d"}
    assert served.facts.of_result() == told
