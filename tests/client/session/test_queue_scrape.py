"""Reads of a queue for scrapes: few, short, and each trouble shows as a queue that is not up."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from millstream import LaneStatus, QueueStatus
from millstream.client.session import queue_scrape
from millstream.client.session.queue_scrape import QueueScrape, Read, snapshot_of
from millstream.errors import AccessDenied, MillstreamError, ProtocolError, Unavailable
from millstream.wire.keys import Lane
from millstream.wire.state.queue_series import QueueSeries

STATUS = QueueStatus(
    queue="docs", at_ms=1, shards=1, model="m", model_digest="", models=(),
    lanes=(LaneStatus(Lane.INTERACTIVE, 0, 0, None), LaneStatus(Lane.BATCH, 9, 0, None)), delayed=0,
    dead=None, held_bytes=10, fullest_bytes=10, max_bytes=1000, workers=(), tenants={"acme": 3}, unread={},
)  # fmt: skip


class Queue:
    """It answers at once, later, or with an error."""

    def __init__(self, error: MillstreamError | None = None) -> None:
        self.error = error
        self.reads = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def read(self) -> QueueStatus:
        self.reads += 1
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return STATUS


def scrape_of(**queues: Read) -> tuple[QueueScrape, CollectorRegistry]:
    registry = CollectorRegistry()
    return QueueScrape(QueueSeries(registry), queues), registry


def up(registry: CollectorRegistry, queue: str = "docs") -> float | None:
    return registry.get_sample_value("millstream_queue_up", {"queue": queue})


async def test_many_scrapes_cost_one_read_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue()
    scrape, registry = scrape_of(docs=queue.read)
    queue.answers.clear()
    async with asyncio.TaskGroup() as group:
        for _ in range(50):
            group.create_task(scrape.refresh())
        await asyncio.sleep(0)
        queue.answers.set()
    await scrape.refresh()
    assert (queue.reads, up(registry)) == (1, 1)
    monkeypatch.setattr(queue_scrape, "AGAIN_S", 0.0)
    await scrape.refresh()
    assert queue.reads == 2


async def test_a_silent_server_ends_a_scrape_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All queues together, and all that wait for the same reads."""
    monkeypatch.setattr(queue_scrape, "LONGEST_S", 0.1)
    silent, other = Queue(), Queue()
    silent.answers.clear()
    scrape, registry = scrape_of(docs=silent.read, other=silent.read, third=other.read)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(scrape.refresh())
    assert [up(registry, queue) for queue in ("docs", "other")] == [0, 0]
    assert silent.reads == 2


@pytest.mark.parametrize("error", [Unavailable("away"), AccessDenied("no right"), ProtocolError("damaged")])
async def test_a_queue_in_trouble_keeps_none_from_the_others(
    error: MillstreamError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_scrape, "AGAIN_S", 0.0)
    queue, other = Queue(), Queue()
    scrape, registry = scrape_of(docs=queue.read, other=other.read)
    for queue.error, value in ((None, 1), (error, 0), (None, 1)):
        await scrape.refresh()
        assert (up(registry), up(registry, "other")) == (value, 1)


async def test_a_scraper_that_leaves_takes_no_other_along() -> None:
    queue = Queue()
    scrape, registry = scrape_of(docs=queue.read)
    queue.answers.clear()
    first = asyncio.create_task(scrape.refresh())
    await asyncio.sleep(0)
    second = asyncio.create_task(scrape.refresh())
    await asyncio.sleep(0)
    first.cancel()
    queue.answers.set()
    await second
    assert (queue.reads, up(registry)) == (2, 1)


def test_the_age_of_waiting_jobs_may_be_unknown() -> None:
    """0 s is the age of an empty lane: a lane with jobs, whose age nobody told, has none."""
    assert snapshot_of(STATUS).oldest_s == {Lane.INTERACTIVE: 0.0}


def test_a_page_for_everybody_names_no_tenant() -> None:
    private, for_all = snapshot_of(STATUS), snapshot_of(STATUS, open_page=True)
    assert private.numbers is not None
    assert for_all.numbers is not None
    assert (private.numbers.tenants, private.reasons) == ({"acme": 3}, True)
    assert (for_all.numbers.tenants, for_all.reasons) == (None, False)


async def test_many_queues_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after another they would take longer than a scrape may; but not all at once."""
    monkeypatch.setattr(queue_scrape, "LONGEST_S", 1.0)
    reading: list[int] = []
    under_way = 0

    async def read() -> QueueStatus:
        nonlocal under_way
        under_way += 1
        reading.append(under_way)
        await asyncio.sleep(0.05)
        under_way -= 1
        return STATUS

    names = [f"q{number}" for number in range(40)]
    scrape, registry = scrape_of(**dict.fromkeys(names, read))
    await scrape.refresh()
    assert [up(registry, name) for name in names] == [1] * 40
    assert max(reading) == queue_scrape.AT_ONCE


async def test_a_silent_queue_has_its_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_scrape, "LONGEST_READ_S", 0.1)
    silent, other = Queue(), Queue()
    silent.answers.clear()
    scrape, registry = scrape_of(**dict.fromkeys("abcdefgh", silent.read), docs=other.read)
    async with asyncio.timeout(5):
        await scrape.refresh()
    assert (up(registry, "a"), up(registry)) == (0, 1)
