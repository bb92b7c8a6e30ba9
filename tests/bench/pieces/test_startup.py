"""Starts that are timed: a process of a few lines, and an engine up to the frame that says it is ready."""

from __future__ import annotations

import pytest
from ops.bench.pieces.startup import engine, python
from support.workers.fake_engine import COMMAND

from millstream_worker.engine.protocol.config import EngineConfig


def test_a_process_takes_time_of_the_clock_and_of_the_processor() -> None:
    start = python("sum(range(2_000_000))")

    assert start.cpu_s > 0
    assert start.seconds > 0


async def test_an_engine_is_timed_until_it_is_ready() -> None:
    start = await engine(EngineConfig("counting:load_s=0.2"), COMMAND.split())

    assert start.seconds >= 0.2
    assert start.cpu_s > 0


async def test_one_that_cannot_load_says_why() -> None:
    with pytest.raises(SystemExit, match="no such luck"):
        await engine(EngineConfig("counting:broken=no such luck"), COMMAND.split())
