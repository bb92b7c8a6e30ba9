"""Work is done in the loop or in a process: what comes of it is the same, whatever it does."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest
import structlog
from prometheus_client import CollectorRegistry

from millstream.batch.rows.faults import LineFault
from millstream.gateway.cpu_executor import PROCESSES, SHORT_BYTES, CpuExecutor, UnexpectedError
from millstream.gateway.gateway_metrics import GatewayMetrics
from millstream.openai.api_error import ApiError

SHORT, LONG = b"x", b"x" * (SHORT_BYTES + 1)
SECRET = "w7777"
METRIC = "millstream_gateway_unreadable_requests_total"


class Panic(BaseException):
    pass


def process_of(data: bytes, more: int = 0) -> int:
    return os.getpid() + more


def panics(data: bytes) -> None:
    raise Panic(SECRET)


def ends(data: bytes) -> None:
    os._exit(3)


def returns(data: bytes, error: Exception) -> Exception:
    return error


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def executor(registry: CollectorRegistry) -> Iterator[CpuExecutor]:
    made = CpuExecutor(GatewayMetrics(registry))
    yield made
    made.close()


async def test_what_is_long_is_read_in_a_process(executor: CpuExecutor) -> None:
    assert await executor.run("", len(SHORT), process_of, SHORT, 5) == os.getpid() + 5
    assert await executor.run("", len(LONG), process_of, LONG) != os.getpid()
    own = [
        await executor.run("", len(data), returns, data, ApiError(400, "m", "c", "p", {"h": "1"}))
        for data in (SHORT, LONG)
    ]
    assert [(vars(one), str(one)) for one in own] == [(vars(own[0]), "m")] * 2
    faults = [
        await executor.run("", len(data), returns, data, LineFault("c", "m", "f", "i", "t"))
        for data in (SHORT, LONG)
    ]
    assert [(vars(one), str(one)) for one in faults] == [(vars(faults[0]), "m")] * 2


@pytest.mark.parametrize("data", [SHORT, LONG], ids=["short", "long"])
async def test_what_reading_raises_is_told_once_a_kind_and_counted(
    data: bytes, executor: CpuExecutor, registry: CollectorRegistry
) -> None:
    with structlog.testing.capture_logs() as lines:
        for _ in range(2):
            with pytest.raises(UnexpectedError, match=r"^raised Panic, "):
                await executor.run("", len(data), panics, data)
    assert registry.get_sample_value(METRIC) == 2
    [line] = lines
    assert line["log_level"] == "error"
    assert "in panics" in line["trace"]
    assert SECRET not in str(line)


@pytest.mark.slow
async def test_a_body_that_ends_its_process_is_refused_alone(executor: CpuExecutor) -> None:
    for _ in range(2):
        with pytest.raises(UnexpectedError, match="raised an end of its process"):
            await executor.run("", len(LONG), ends, LONG)
        assert await executor.run("", len(LONG), process_of, LONG) != os.getpid()


async def test_a_tenant_has_one_long_body_there_at_a_time(executor: CpuExecutor) -> None:
    ended: list[str] = []
    processes: set[int] = set()
    while len(processes) < PROCESSES:  # until all have started
        processes |= set(
            await asyncio.gather(*(executor.run(one, len(LONG), process_of, LONG) for one in "abcd"))
        )

    async def read(tenant: str) -> None:
        await executor.run(tenant, len(LONG), process_of, LONG)
        ended.append(tenant)

    await asyncio.gather(*(read(tenant) for tenant in ["flood"] * 50 + ["other"]))
    assert ended.index("other") < 10
