"""What operators look at: metrics and their values, health and readiness, warnings about the server."""

from __future__ import annotations

import asyncio
import importlib.metadata
import random
import re
import socket
from pathlib import Path

import pytest
import structlog
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis
from redis.exceptions import ResponseError
from support.http import fetch
from support.servers.proxy import Line, Proxy, Weather
from support.servers.servers import Server, free_port
from support.workers.counting_worker import until, until_read
from support.workers.work import Work, outcome

from millstream import AsyncClient, JobFailed, State
from millstream.wire.keys import Lane, QueueKeys
from millstream.wire.state.heartbeat import Heartbeat, read_workers
from millstream.wire.state.queue_info import read_queue
from millstream_worker.observe.health import Health, HealthServer
from millstream_worker.observe.server_check import ServerUnfit, advice, check_server, warnings
from millstream_worker.observe.watchdog import Watchdog
from millstream_worker.service.service import CannotServe


async def test_queue_time_ends_where_the_first_step_begins(client: AsyncClient, work: Work) -> None:
    async with work(step_s=0.4) as worker:
        timing = (await outcome(client, "w1", 1)).timing
        queued_s = worker.metric("request_queue_time_seconds_sum", lane="batch")
    assert timing.first_token_ms - timing.admitted_ms >= 390
    assert queued_s == pytest.approx((timing.admitted_ms - timing.submitted_ms) / 1000, abs=0.002)


async def test_a_worker_reports_its_load_and_the_queue_s(redis_client: Redis, work: Work) -> None:
    """One job runs, one waits in the engine, and three in the queue, since their first was submitted."""
    shard = QueueKeys("docs").shard(0)
    work.hold(1)
    async with (
        AsyncClient(work.server.url, queue="docs") as client,
        work(rows=1, queue="docs", lookahead=1) as worker,
    ):
        await client.submit("w0 w1", max_tokens=9)
        await until(lambda: worker.metric("rows_running") == 1)
        rest = [await client.submit("w0 w1", max_tokens=9) for _ in range(4)]
        oldest_ms = (await client.status(rest[1].id)).submitted_ms
        beats: list[Heartbeat] = []

        async def settled() -> bool:
            beats[:] = await read_workers(redis_client, shard)  # none while a loaded machine delays the next
            told = [(beat.rows_waiting, beat.oldest_ms("batch")) for beat in beats]
            counts = [worker.metric(f"jobs_{name}", lane="batch") for name in ("queued", "running")]
            return told == [(1, oldest_ms)] and counts == [3, 2]

        await until(settled)
        assert worker.metric("queue_up") == 1
        assert worker.metric("workers") == 1
        assert worker.metric("worker_states", state="serving") == 1
        assert worker.metric("worker_versions", version=importlib.metadata.version("millstream")) == 1
        assert worker.metric("jobs_queued", lane="interactive") == 0
        [beat] = beats
        assert (beat.model, beat.device, beat.state, beat.rows_running) == ("counting", "cpu", "serving", 1)
        assert (beat.max_rows, beat.kv_used > 0) == (1, True)
        assert beat.context_length == 512
        assert beat.kv_used + beat.kv_cached + beat.kv_free == beat.token_capacity
        assert (beat.package, beat.oldest_ms("interactive")) == (importlib.metadata.version("millstream"), 0)
        assert abs(beat.started_ms - oldest_ms) < 60_000

        async def recorded() -> bool:
            info = await read_queue(redis_client, "docs")
            return info is not None and info.model == "counting"

        await until(recorded)

        async def draining() -> bool:
            return [one.state for one in await read_workers(redis_client, shard)] == ["draining"]

        worker.service.drain()
        await until(draining)
        worker.service.drain()  # at once: the job that runs never ends


@pytest.mark.parametrize("stream", [True, False])
async def test_a_job_has_the_same_times_wherever_they_are_read(
    client: AsyncClient, work: Work, stream: bool
) -> None:
    """Of two jobs the second one waits for the only row: it is taken long before it enters the batch."""
    names = ("submitted_ms", "started_ms", "admitted_ms", "first_token_ms", "finished_ms")
    async with work(step_s=0.05, rows=1):
        first = await client.submit("w1", max_tokens=6)
        job = await client.submit("w1", max_tokens=9, stream=stream)

        await until_read(lambda: client.status(job.id), lambda job: job.first_token_ms is not None)
        running = await client.status(job.id)
        timing = (await client.wait(job.id, timeout_s=30)).timing
        ended = await client.status(job.id)
        earlier = (await client.wait(first.id)).timing
    assert running.state is State.RUNNING
    assert timing.admitted_ms - timing.started_ms >= 100
    assert timing.admitted_ms >= (earlier.last_token_ms or 0) - 50
    for name in names:
        assert getattr(ended, name) == getattr(timing, name), name
        assert name == "finished_ms" or getattr(running, name) == getattr(timing, name), name


async def test_metrics_count_what_happened(work: Work) -> None:
    """And a worker that is well starts without a warning."""
    port = free_port()
    with structlog.testing.capture_logs() as lines:
        async with (
            AsyncClient(work.server.url, queue="docs") as client,
            work(step_s=0.001, queue="docs", metrics_port=port) as worker,
        ):
            states = [
                f'requests_total{{queue="docs",state="{state}"}} 0.0' for state in State if state.terminal
            ]
            await until(lambda: worker.service.health.problem == "")
            _, blank = await asyncio.to_thread(fetch, port)
            assert [state for state in states if f"millstream_{state}" not in blank] == []
            lanes: tuple[Lane, ...] = (Lane.INTERACTIVE, *[Lane.BATCH] * 3)
            jobs = [await client.submit("w1 w2 w3", max_tokens=5, stream=True, lane=lane) for lane in lanes]
            for job in jobs:
                await client.wait(job.id, timeout_s=30)
            warned = [line["event"] for line in lines if line["log_level"] not in ("debug", "info")]
            bad = await client.submit(token_ids=[4000])
            with pytest.raises(JobFailed):
                await client.wait(bad.id, timeout_s=30)
            await until(lambda: worker.metric("requests_total", state="failed") == 1)
            status, page = await asyncio.to_thread(fetch, port)
            ready = await asyncio.to_thread(fetch, port, "/readyz")
            alive = await asyncio.to_thread(fetch, port, "/healthz")
            missing = await asyncio.to_thread(fetch, port, "/")
            assert worker.metric("kv_blocks", state="free") == 512
    assert all(event.startswith("appendonly is no") for event in warned), warned
    assert next(line for line in lines if line["event"] == "job ended")["job_id"] == jobs[0].id
    assert status == 200
    series = [line.split(" ")[0] for line in page.splitlines() if not line.startswith("#")]
    assert 'millstream_time_to_first_token_seconds_count{lane="interactive",queue="docs"}' in series
    assert [one for one in series if one.startswith("millstream_") and 'queue="docs"' not in one] == []
    assert [one for one in series if "_created" in one] == []
    assert "process_resident_memory_bytes" in series
    assert re.search(r'millstream_engine_info\{.*model="counting".*queue="docs"', page)
    assert 'millstream_engine_weight_bytes{queue="docs"} 9.0' in page
    assert 'millstream_engine_parameters{queue="docs"} 8.0' in page
    assert (alive, missing[0], ready[0]) == ((200, "ok\n"), 404, 200)
    assert re.fullmatch(
        r"ok\nlast read: \d+\.\d s ago\nlast renewal: (never|\d+\.\d s ago)\nlast step: \d+\.\d s ago\n",
        ready[1],
    )
    assert worker.metric("requests_total", state="completed") == 4
    assert worker.metric("prompt_tokens_total") == 12
    assert worker.metric("generation_tokens_total") == 20
    assert worker.metric("prompt_tokens_computed_total") == 12
    for histogram in (
        "request_queue_time_seconds",
        "time_to_first_token_seconds",
        "e2e_request_latency_seconds",
    ):
        counts = [worker.metric(f"{histogram}_count", lane=lane) for lane in ("interactive", "batch")]
        assert counts == [1, 3], histogram
    assert worker.metric("time_per_output_token_seconds_count") == 4
    assert 0 < worker.metric("e2e_request_latency_seconds_sum", lane="batch") < 60
    assert worker.metric("step_tokens_sum") == 20
    assert worker.metric("rows_running") == 0
    assert 0 <= worker.metric("loop_gap_seconds") < 60
    assert worker.metric("kv_blocks", state="free") == 0  # there is no engine any more


async def test_the_times_of_a_streamed_job_are_in_order(client: AsyncClient, work: Work) -> None:
    """All tokens are drawn before the first is published: the last comes no sooner to its reader."""
    async with (
        Proxy(work.server.port, random.Random(0)) as proxy,
        work(step_s=0.01, redis_url=proxy.url) as worker,
    ):
        proxy.turn(Weather(Line.DELAY, delay_s=0.03))
        times = (await outcome(client, "w1", 4, stream=True)).timing
        await until(lambda: worker.metric("e2e_request_latency_seconds_count", lane="batch") == 1)
        assert proxy.seen[Line.DELAY] > 0
        assert times.submitted_ms < times.first_token_ms <= times.last_token_ms <= times.finished_ms
        parts = worker.metric("time_to_first_token_seconds_sum", lane="batch") + 3 * worker.metric(
            "time_per_output_token_seconds_sum"
        )
        assert worker.metric("e2e_request_latency_seconds_sum", lane="batch") == pytest.approx(parts)


@pytest.mark.slow
async def test_readiness_tells_that_the_server_is_away(tokenizer: Path, tmp_path: Path) -> None:
    with Server("valkey") as server:
        async with Work(server, tokenizer, tmp_path)() as worker:
            health = worker.service.health
            await until(lambda: health.problem == "")
            server.kill()
            await until(lambda: "onnect" in health.problem)
            server.start()
            await until(lambda: health.problem == "")


async def test_what_keeps_a_worker_from_serving_is_named(redis_client: Redis, work: Work) -> None:
    """A port in use, a server that can lose jobs, damaged metadata."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CannotServe, match=f"metrics_port {port} of 127.0.0.1: .*choose another"):
            await work.service(metrics_port=port).run()
    await redis_client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(CannotServe) as refused:
            await work.service(server_check="strict").run()
    finally:
        await redis_client.config_set("maxmemory-policy", "noeviction")
    for says in ("maxmemory-policy is allkeys-lru", "appendonly is no", "MILLSTREAM_SERVER_CHECK"):
        assert says in str(refused.value)
    await redis_client.hset(QueueKeys("default").meta, mapping={"shards": "many", "pubsub": "plain"})
    with pytest.raises(CannotServe, match="metadata is damaged"):
        await work.service().run()


def test_readiness_and_liveness_tell_what_is_wrong() -> None:
    watchdog = Watchdog(2.0)
    health = Health(watchdog)
    server = HealthServer("127.0.0.1", 0, CollectorRegistry(), health)
    writer = watchdog.watch("writer")
    try:
        never = "last read: never\nlast renewal: never\nlast step: never\n"
        assert fetch(server.port, "/readyz") == (503, f"starting\n{never}")
        health.problem = ""
        assert fetch(server.port, "/readyz") == (200, f"ok\n{never}")
        writer.turn()
        for _ in range(3):
            assert fetch(server.port, "/healthz") == (200, "ok\n")
            watchdog.look(1.0)
        status, problem = fetch(server.port, "/healthz")
        assert status == 503
        assert re.fullmatch(r"writer has made no turn since \d{4}-\d\d-\d\dT\S+\n", problem)
        writer.turn()
        watchdog.look(1.0)
        assert fetch(server.port, "/healthz") == (200, "ok\n")
    finally:
        server.close()


def test_only_dangerous_server_settings_are_named() -> None:
    safe = {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction"}
    buffers = "client-output-buffer-limit"
    for stored, says in (
        ({"maxmemory-policy": "allkeys-lru"}, "maxmemory-policy is allkeys-lru"),
        ({"appendonly": "no"}, "appendonly is no"),
        ({"appendonly": "yes", "appendfsync": "no"}, "appendfsync is no"),
        ({buffers: "normal 0 0 0 pubsub 0 0 0"}, "client-output-buffer-limit pubsub"),
    ):
        [warning] = warnings(stored)
        assert says in warning
    assert warnings(safe | {buffers: "normal 0 0 0 pubsub 33554432 8388608 60"}) == []
    assert warnings({"maxmemory": "0"}) == [], "this is advice, and no reason to refuse"
    assert "the server grows" in advice({"maxmemory": "0"})[0]
    assert advice({"maxmemory": "4294967296"}) == []


class Forbidding:
    async def config_get(self, name: str) -> dict[str, str]:
        raise ResponseError("NOPERM this user has no permissions to run the 'config|get' command")


async def test_only_a_strict_worker_minds_that_it_may_not_look() -> None:
    with structlog.testing.capture_logs() as lines:
        await check_server(Forbidding(), "warn")
        await check_server(Forbidding(), "off")
    assert lines == []
    with pytest.raises(ServerUnfit, match=r"does not let its settings be read .*allow \+config\|get"):
        await check_server(Forbidding(), "strict")
