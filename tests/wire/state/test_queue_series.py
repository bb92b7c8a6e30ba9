"""A queue's series: a figure that is not known has none, labels are few, and nothing old is shown."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from millstream.wire.keys import LANES, Lane
from millstream.wire.state.heartbeat import Heartbeat
from millstream.wire.state.queue_counts import LaneNumbers, QueueNumbers
from millstream.wire.state.queue_series import (
    FRESH_S,
    MOST_NAMES,
    MOST_TENANTS,
    OTHERS,
    QueueSeries,
    QueueSnapshot,
)

WORKERS = (
    Heartbeat("a", model="m", state="serving", package="0.2.0"),
    Heartbeat("b", model="m", state="loading", package="0.3.0", fallbacks="no compiler"),
    Heartbeat("c", model="m", state="resting", package="0.3.0", fallbacks="no compiler"),
)
WHOLE = QueueSnapshot(
    lanes={Lane.INTERACTIVE: LaneNumbers(0, 1), Lane.BATCH: LaneNumbers(7, 2)},
    oldest_s={Lane.INTERACTIVE: 0.0, Lane.BATCH: 2.5}, workers=WORKERS, models=1,
    numbers=QueueNumbers(delayed=3, held_bytes=90, fullest_bytes=60, dead=4, tenants={"acme": 5, "": 1}),
    shards=2, shard_limit_bytes=1000, shard_limit_jobs=100,
)  # fmt: skip


class Page:
    """Series of one registry, on a clock that stands still."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.registry = CollectorRegistry()
        self.series = QueueSeries(self.registry, lambda: self.now_s)

    def shown(self, queue: str = "docs") -> dict[str, float]:
        """Values by name and labels, as `name{value}`."""
        found = {}
        for sample in (one for family in self.registry.collect() for one in family.samples):
            labels = dict(sample.labels)
            if labels.pop("queue") == queue:
                name = sample.name.removeprefix("millstream_")
                found[f"{name}{{{','.join(labels.values())}}}" if labels else name] = sample.value
        return found


@pytest.fixture
def page() -> Page:
    return Page()


def test_all_that_is_known_of_a_queue_is_shown(page: Page) -> None:
    page.series.show("docs", WHOLE)
    assert page.shown() == {
        "queue_up": 1, "jobs_queued{interactive}": 0, "jobs_queued{batch}": 7,
        "jobs_running{interactive}": 1, "jobs_running{batch}": 2,
        "oldest_queued_age_seconds{interactive}": 0, "oldest_queued_age_seconds{batch}": 2.5,
        "jobs_delayed": 3, "dead_letters": 4, "tenant_jobs_parked{acme}": 5, "tenant_jobs_parked{}": 1,
        "held_bytes": 90, "fullest_shard_held_bytes": 60, "shards": 2, "shard_limit_bytes": 1000,
        "shard_limit_jobs": 100, "workers": 3, "worker_states{serving}": 1, "worker_states{loading}": 1,
        "worker_states{starting}": 0, "worker_states{draining}": 0, "worker_states{resting}": 1,
        "worker_versions{0.2.0}": 1, "worker_versions{0.3.0}": 2, "worker_fallbacks{no compiler}": 2,
        "queue_models": 1,
    }  # fmt: skip
    assert page.shown("other") == {}


def test_a_queue_without_workers_has_its_series(page: Page) -> None:
    """An alert about a missing worker compares a value: of a series that is not there it would not fire."""
    page.series.show("docs", replace(WHOLE, workers=(), models=0))
    shown = page.shown()
    assert shown["workers"] == shown["worker_states{serving}"] == shown["queue_models"] == 0
    assert shown["jobs_queued{batch}"] == 7
    assert [name for name in shown if name.startswith(("worker_versions", "worker_fallbacks"))] == []


def test_a_figure_that_is_not_known_has_no_series(page: Page) -> None:
    unknown = QueueNumbers(delayed=1, held_bytes=None, fullest_bytes=None, dead=None, tenants=None)
    lanes = {Lane.BATCH: LaneNumbers(5, None)}
    page.series.show("docs", QueueSnapshot(lanes, {}, numbers=unknown))
    assert page.shown() == {"queue_up": 1, "jobs_queued{batch}": 5, "jobs_delayed": 1}
    page.series.show("docs", QueueSnapshot({}, {}))
    assert page.shown() == {"queue_up": 1}


def test_an_unreadable_queue_shows_nothing_old(page: Page) -> None:
    page.series.show("docs", WHOLE)
    page.series.show("other", WHOLE)
    page.series.show("docs", None)
    assert page.shown() == {"queue_up": 0}
    assert page.shown("other")["jobs_queued{batch}"] == 7
    page.now_s = FRESH_S
    assert page.shown("other")["queue_up"] == 1
    page.now_s += 0.1
    assert page.shown("other") == {"queue_up": 0}
    page.series.show("other", WHOLE)
    assert page.shown("other")["workers"] == 3


def test_labels_stay_few_whatever_they_name(page: Page) -> None:
    tenants = {f"tenant-{number:04}": 1000 - number for number in range(1000)}
    workers = [
        Heartbeat(
            f"w{number}", model="m", state=f"s{number}", package=f"p{number}", fallbacks=f"{number}" * 5000
        )
        for number in range(200)
    ]
    numbers = replace(WHOLE.numbers or QueueNumbers(*[None] * 5), tenants=tenants)
    page.series.show("docs", replace(WHOLE, numbers=numbers, workers=workers))
    shown = page.shown()
    of_tenants = {name: value for name, value in shown.items() if name.startswith("tenant_jobs")}
    assert len(of_tenants) == MOST_TENANTS + 1
    assert of_tenants["tenant_jobs_parked{tenant-0000}"] == 1000
    assert sum(of_tenants.values()) == sum(tenants.values())
    for name in ("states", "versions", "fallbacks"):
        found = {one: value for one, value in shown.items() if one.startswith(f"worker_{name}")}
        assert len(found) == MOST_NAMES + 1
        assert f"worker_{name}{{{OTHERS}}}" in found
        assert sum(found.values()) == 200
    assert max(map(len, shown)) < 300


def test_the_names_are_known_before_any_value(page: Page) -> None:
    """The registry refuses two collectors with one name by them."""
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        QueueSeries(page.registry)
    assert set(WHOLE.lanes) == set(LANES)
