"""A Prometheus-style scrape: plain HTTP, read by the formats' own parsers."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from support.commands import process
from support.servers.servers import free_port
from support.workers.counting_worker import until

OPEN_METRICS = "application/openmetrics-text"


def scrape(port: int, accept: str = "") -> tuple[str, dict[str, float]]:
    """The content type, and Millstream's values by name and labels, as `jobs_queued{batch,docs}`: in the
    order of the labels' names.
    """
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=15) as answer:
        content_type, page = answer.headers["Content-Type"], answer.read().decode()
    is_open = content_type.startswith(OPEN_METRICS)
    parse = openmetrics.text_string_to_metric_families if is_open else text_string_to_metric_families
    samples = [sample for family in parse(page) for sample in family.samples]
    return content_type, {
        f"{one.name.removeprefix('millstream_')}{{{','.join(_values(one.labels))}}}": one.value
        for one in samples
        if one.name.startswith("millstream_")
    }


def _values(labels: dict[str, str]) -> list[str]:
    return [labels[name] for name in sorted(labels)]


async def until_shown(port: int, wanted: dict[str, float]) -> dict[str, float]:
    """Scrapes until these have these values; answers all."""
    seen: dict[str, float] = {}

    async def shown() -> bool:
        _, now = await asyncio.to_thread(scrape, port)
        seen.clear()
        seen.update(now)
        return seen.items() >= wanted.items()

    try:
        await until(shown)
    except TimeoutError:
        raise AssertionError(seen) from None
    return seen


@contextmanager
def queue_exporter(url: str, *arguments: object) -> Iterator[int]:
    """The port of `millstream queue --metrics-port`, which SIGTERM ends."""
    port = free_port()
    with process("queue", "--metrics-port", port, *arguments, MILLSTREAM_REDIS_URL=url) as running:
        assert running.stderr is not None
        assert f"http://127.0.0.1:{port}/metrics" in running.stderr.readline()
        yield port
        running.terminate()
        assert running.wait(30) == 0
