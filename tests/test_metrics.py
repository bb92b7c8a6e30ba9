"""Names, units and labels of all series follow Prometheus' conventions, and each stands on its page. Run this
file to print the page's tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_series
from prometheus_client.parser import text_string_to_metric_families as text_series

from millstream.gateway.gateway_metrics import GatewayMetrics
from millstream.wire.keys import LANES
from millstream.wire.metrics_page import encoded
from millstream.wire.state.heartbeat import Heartbeat
from millstream.wire.state.queue_counts import LaneNumbers, QueueNumbers
from millstream.wire.state.queue_series import QueueSeries, QueueSnapshot
from millstream_worker.engine.protocol.config import EngineInfo
from millstream_worker.observe.metrics import Metrics

PAGE = Path(__file__).parents[1] / "ops" / "pages" / "metrics.md"
PREFIX = "millstream_"
# As promtool's linter has them.
BASE_UNITS = {
    "amperes", "bytes", "celsius", "grams", "joules", "kelvin", "meters", "metres", "seconds", "volts",
}  # fmt: skip
PREFIXES = {
    "pico", "nano", "micro", "milli", "centi", "deci", "deca", "hecto", "kilo", "kibi", "mega", "mibi",
    "giga", "gibi", "tera", "tebi", "peta", "pebi",
}  # fmt: skip
OTHER_UNITS = {
    "minutes", "hours", "days", "weeks", "kelvins", "fahrenheit", "rankine", "inches", "yards", "miles",
    "bits", "calories", "pounds", "ounces", *(prefix + unit for prefix in PREFIXES for unit in BASE_UNITS),
}  # fmt: skip
ABBREVIATIONS = {"s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "pb", "m", "h", "d"}
TYPES = {"counter", "gauge", "summary", "histogram"}
LABELS = {
    "attempt", "architecture", "attention", "device", "dtype", "field", "kv_format", "lane", "model", "queue",
    "reason", "result", "route", "state", "status", "tenant", "version", "weights",
}  # fmt: skip


def of_queues(registry: CollectorRegistry) -> None:
    worker = Heartbeat("w", model="m", package="1", fallbacks="no compiler")
    QueueSeries(registry).show(
        "docs",
        QueueSnapshot(
            dict.fromkeys(LANES, LaneNumbers(1, 1)),
            dict.fromkeys(LANES, 1.0),
            workers=[worker],
            models=1,
            numbers=QueueNumbers(delayed=1, held_bytes=1, fullest_bytes=1, dead=1, tenants={"acme": 1}),
            shards=1,
            shard_limit_bytes=1,
            shard_limit_jobs=1,
        ),
    )


def of_workers(registry: CollectorRegistry) -> None:
    metrics = Metrics(registry)
    texts = dict.fromkeys(("model", "architecture", "dtype", "device", "attention", "tokenizer"), "x")
    counts = ("vocab_size", "context_length", "block_size", "blocks", "max_rows", "kv_bytes_per_token")
    info = EngineInfo(**texts, **dict.fromkeys(counts, 1), parameters=1, eos_ids=(), fallbacks=("x",))
    metrics.engine_gone()
    metrics.engine_ready(info)


def of_gateways(registry: CollectorRegistry) -> None:
    metrics = GatewayMetrics(registry)
    metrics.answered("/healthz", 200, 0.1)
    metrics.count_rows({"completed": 1})
    metrics.count_ignored(["user"])


OWNERS = {"queue": of_queues, "worker": of_workers, "gateway": of_gateways}


def families(owner: str) -> list[Metric]:
    """The series that this owner has, those of queues on its own page."""
    disable_created_metrics()
    registry = CollectorRegistry()
    OWNERS[owner](registry)
    found = list(registry.collect())
    return found if owner == "queue" else [one for one in found if one.name != f"{PREFIX}queue_up"]


def faults(family: Metric) -> Iterator[str]:
    """What promtool would say of it, and what we ask for besides."""
    name = family.name
    words = name.split("_")
    if not re.fullmatch(rf"{PREFIX}[a-z0-9_]+", name):
        yield f"{name}: a name has the prefix {PREFIX}, small letters, figures and underscores"
    yield from (f"{name}: {word} is no base unit" for word in words if word in OTHER_UNITS)
    yield from (f"{name}: {word} abbreviates a unit" for word in words[1:] if word in ABBREVIATIONS)
    yield from (f"{name}: {word} is a type" for word in words if word in TYPES)
    if family.type != "counter" and name.endswith("_total"):
        yield f"{name}: no counter"
    if name.endswith(("_bucket", "_count", "_sum", "_created", "_info")) and name != f"{PREFIX}engine_info":
        yield f"{name}: its end belongs to another type"
    if not re.fullmatch(r"[A-Z1].*[^.]", family.documentation):
        yield f"{name}: its help is one sentence without a stop: {family.documentation!r}"
    yield from (f"{name}: unknown label {label}" for label in sorted(labels(family) - LABELS))
    if not family.samples:
        yield f"{name}: no sample"


def labels(family: Metric) -> set[str]:
    return {label for sample in family.samples for label in sample.labels} - {"le"}


@pytest.mark.parametrize("owner", OWNERS)
def test_names_and_units_follow_the_conventions(owner: str) -> None:
    found = families(owner)
    assert len(found) >= 10
    assert [fault for family in found for fault in faults(family)] == []


def test_a_wrong_name_is_found() -> None:
    registry = CollectorRegistry()
    wrong = {
        "millstream_wait_milliseconds": "milliseconds is no base unit",
        "millstream_engine_bits_per_weight": "bits is no base unit",
        "millstream_wait_ms": "ms abbreviates a unit",
        "millstream_rows_gauge": "gauge is a type",
        "millstream_jobs_total": "no counter",
        "millstream_jobs_count": "its end belongs to another type",
        "jobs": "a name has the prefix",
    }
    for name in wrong:
        Gauge(name, "Something", registry=registry).set(1)
    Counter("millstream_jobs_seen", "", ("job_id",), registry=registry).labels("1").inc()
    found = {family.name: " ".join(faults(family)) for family in registry.collect()}
    assert [name for name, fault in wrong.items() if fault not in found[name]] == []
    assert "its help is one sentence" in found["millstream_jobs_seen"]
    assert "unknown label job_id" in found["millstream_jobs_seen"]


@pytest.mark.parametrize("owner", OWNERS)
def test_the_parsers_of_both_formats_read_all_series(owner: str) -> None:
    disable_created_metrics()
    registry = CollectorRegistry()
    OWNERS[owner](registry)
    samples = {sample.name for family in registry.collect() for sample in family.samples}
    for accept, parse in (("text/plain", text_series), ("application/openmetrics-text", open_series)):
        page, content_type = encoded(registry, accept)
        assert content_type.startswith(accept)
        assert {sample.name for family in parse(page.decode()) for sample in family.samples} == samples


def table(owner: str) -> str:
    rows = [f"| `{PREFIX}…` | labels | type | |", "|---|---|---|---|"]
    for one in families(owner):
        name = one.name.removeprefix(PREFIX) + ("_total" if one.type == "counter" else "")
        shown = ", ".join(f"`{label}`" for label in sorted(labels(one) - {"queue"})) or "–"
        rows.append(f"| `{name}` | {shown} | {one.type} | {one.documentation} |")
    return "\n".join(rows)


@pytest.mark.parametrize("owner", OWNERS)
def test_every_series_stands_on_its_page(owner: str) -> None:
    page = PAGE.read_text("utf-8")
    found = re.search(rf"<!-- {owner} -->\n(.*?)\n<!-- /{owner} -->", page, re.DOTALL)
    assert found is not None
    assert found[1] == table(owner)


def test_pages_name_series_that_exist() -> None:
    """With what a histogram adds to its name; `millstream_x_…` is the beginning of some."""
    known = {f"{one.name}{'_total' * (one.type == 'counter')}" for owner in OWNERS for one in families(owner)}
    known |= {f"{name}{end}" for name in known for end in ("_bucket", "_count", "_sum")}
    pages = [PAGE.parents[2] / "README.md", *PAGE.parent.glob("*.md")]
    named = {
        name
        for page in pages
        for name in re.findall(r"\b(millstream_[a-z0-9_]+?)_?(?![a-z0-9_])", page.read_text("utf-8"))
    }
    known |= {name.rpartition("_")[0] for name in known} | {"millstream_worker"}
    assert len(named) > 15
    assert sorted(named - known) == []


if __name__ == "__main__":
    print("\n\n".join(f"<!-- {owner} -->\n{table(owner)}\n<!-- /{owner} -->" for owner in OWNERS))
