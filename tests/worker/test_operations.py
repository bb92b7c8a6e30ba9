"""What operators look at: metrics and their values, health and readiness, warnings about the server, logs."""

from __future__ import annotations

import asyncio
import importlib.metadata
import io
import json
import logging
import random
import re
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Literal

import pytest
import redis.asyncio
import structlog
from prometheus_client import CollectorRegistry
from redis.exceptions import ResponseError
from support.servers.proxy import Line, Proxy, Weather
from support.servers.servers import Server, free_port
from support.workers.counting_worker import model_name, serving, settings, until

from millstream import AsyncClient, JobFailed, State
from millstream.wire.keys import QueueKeys
from millstream.wire.state.heartbeat import Heartbeat, read_workers
from millstream_worker.observe import logs
from millstream_worker.observe.health import Health, HealthServer
from millstream_worker.observe.server_check import ServerUnfit, advice, check_server, warnings
from millstream_worker.observe.watchdog import Watchdog
from millstream_worker.service.service import CannotServe, Service


def fetch(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def test_queue_time_ends_where_the_first_step_begins(valkey: Server, tokenizer: Path) -> None:
    async with (
        AsyncClient(valkey.url) as client,
        serving(valkey, model_name(tokenizer, step_s=0.4)) as worker,
    ):
        job = await client.submit("w1", max_tokens=1)
        timing = (await client.wait(job.id, timeout_s=30)).timing
        queued_s = worker.metric("request_queue_time_seconds_sum")
    assert timing.admitted_ms is not None
    assert timing.first_token_ms is not None
    assert timing.first_token_ms - timing.admitted_ms >= 390
    assert queued_s == pytest.approx((timing.admitted_ms - timing.submitted_ms) / 1000, abs=0.002)


async def test_a_worker_reports_its_load_and_the_queue_s(valkey: Server, tokenizer: Path, gate: Path) -> None:
    """One job runs, one waits in the engine, and three in the queue, since their first was submitted."""
    shard = QueueKeys("docs").shard(0)
    (gate / "1").touch()
    model = model_name(tokenizer, gate=gate, rows=1)
    async with (
        redis.asyncio.Redis.from_url(valkey.url) as direct,
        AsyncClient(valkey.url, queue="docs") as client,
        serving(valkey, model, queue="docs", lookahead=1) as worker,
    ):
        await client.submit("w0 w1", max_tokens=9)
        await until(lambda: worker.metric("rows_running") == 1)
        rest = [await client.submit("w0 w1", max_tokens=9) for _ in range(4)]

        async def settled() -> bool:
            beats = await read_workers(direct, shard)
            return [one.rows_waiting for one in beats] == [1] and worker.metric(
                "jobs_queued", lane="batch"
            ) == 3

        await until(settled)
        assert worker.metric("workers") == 1
        assert worker.metric("jobs_queued", lane="interactive") == 0
        oldest_ms = (await client.status(rest[1].id)).submitted_ms

        reported: list[Heartbeat] = []

        async def reports_oldest() -> bool:
            reported[:] = await read_workers(direct, shard)  # none while a loaded machine delays the next
            return [beat.oldest_ms("batch") for beat in reported] == [oldest_ms]

        await until(reports_oldest)
        [beat] = reported
        assert (beat.model, beat.device, beat.state, beat.rows_running) == ("counting", "cpu", "serving", 1)
        assert (beat.max_rows, beat.kv_used > 0) == (1, True)
        assert beat.kv_used + beat.kv_cached + beat.kv_free == beat.token_capacity
        assert (beat.package, beat.oldest_ms("interactive")) == (importlib.metadata.version("millstream"), 0)
        assert abs(beat.started_ms - oldest_ms) < 60_000

        async def draining() -> bool:
            return [one.state for one in await read_workers(direct, shard)] == ["draining"]

        worker.service.drain()
        await until(draining)
        worker.service.drain()  # at once: the job that runs never ends


@pytest.mark.parametrize("stream", [True, False])
async def test_a_job_has_the_same_times_wherever_they_are_read(
    valkey: Server, tokenizer: Path, stream: bool
) -> None:
    """Of two jobs the second one waits for the only row: it is taken long before it enters the batch."""
    names = ("submitted_ms", "started_ms", "admitted_ms", "first_token_ms", "finished_ms")
    async with (
        AsyncClient(valkey.url) as client,
        serving(valkey, model_name(tokenizer, step_s=0.05, rows=1)),
    ):
        first = await client.submit("w1", max_tokens=6)
        job = await client.submit("w1", max_tokens=9, stream=stream)

        async def has_tokens() -> bool:
            return (await client.status(job.id)).first_token_ms is not None

        await until(has_tokens)
        running = await client.status(job.id)
        timing = (await client.wait(job.id, timeout_s=30)).timing
        ended = await client.status(job.id)
        earlier = (await client.wait(first.id)).timing
    assert running.state is State.RUNNING
    assert timing.started_ms is not None
    assert timing.admitted_ms is not None
    assert timing.admitted_ms - timing.started_ms >= 100
    assert timing.admitted_ms >= (earlier.last_token_ms or 0) - 50
    assert {name: getattr(ended, name) for name in names} == {name: getattr(timing, name) for name in names}
    assert {name: getattr(running, name) for name in names[:-1]} == {
        name: getattr(timing, name) for name in names[:-1]
    }


async def test_metrics_count_what_happened(valkey: Server, tokenizer: Path) -> None:
    port = free_port()
    async with AsyncClient(valkey.url, queue="docs") as client:
        model = model_name(tokenizer, step_s=0.001)
        async with serving(valkey, model, queue="docs", metrics_port=port) as worker:
            states = [
                f'requests_total{{queue="docs",state="{state}"}} 0.0' for state in State if state.terminal
            ]
            await until(lambda: worker.service.health.problem == "")
            _, blank = await asyncio.to_thread(fetch, port, "/metrics")
            assert [state for state in states if f"millstream_{state}" not in blank] == []
            jobs = [await client.submit("w1 w2 w3", max_tokens=5, stream=True) for _ in range(4)]
            for job in jobs:
                await client.wait(job.id, timeout_s=30)
            bad = await client.submit(token_ids=[4000])
            with pytest.raises(JobFailed):
                await client.wait(bad.id, timeout_s=30)
            await until(lambda: worker.metric("requests_total", state="failed") == 1)
            status, page = await asyncio.to_thread(fetch, port, "/metrics")
            ready = await asyncio.to_thread(fetch, port, "/readyz")
            alive = await asyncio.to_thread(fetch, port, "/healthz")
            missing = await asyncio.to_thread(fetch, port, "/")
            assert worker.metric("kv_blocks", state="free") == 512
    assert status == 200
    series = [line.split(" ")[0] for line in page.splitlines() if not line.startswith("#")]
    assert 'millstream_time_to_first_token_seconds_count{queue="docs"}' in series
    assert [one for one in series if one.startswith("millstream_") and 'queue="docs"' not in one] == []
    assert [one for one in series if "_created" in one] == []
    assert "process_resident_memory_bytes" in series
    assert re.search(r'millstream_engine_info\{.*model="counting".*queue="docs"', page)
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
        "time_per_output_token_seconds",
        "e2e_request_latency_seconds",
    ):
        assert worker.metric(f"{histogram}_count") == 4, histogram
    assert 0 < worker.metric("e2e_request_latency_seconds_sum") < 60
    assert worker.metric("step_tokens_sum") == 20
    assert worker.metric("rows_running") == 0
    assert worker.metric("kv_blocks", state="free") == 0  # there is no engine any more


async def test_the_times_of_a_streamed_job_are_in_order(valkey: Server, tokenizer: Path) -> None:
    """All tokens are drawn before the first is published: the last comes no sooner to its reader."""
    async with (
        Proxy(valkey.port, random.Random(0)) as proxy,
        AsyncClient(valkey.url) as client,
        serving(valkey, model_name(tokenizer, step_s=0.01), redis_url=proxy.url) as worker,
    ):
        proxy.turn(Weather(Line.DELAY, delay_s=0.03))
        job = await client.submit("w1", max_tokens=4, stream=True)
        times = (await client.wait(job.id, timeout_s=30)).timing
        await until(lambda: worker.metric("e2e_request_latency_seconds_count") == 1)
        assert times.submitted_ms < times.first_token_ms <= times.last_token_ms <= times.finished_ms
        end_to_end = worker.metric("e2e_request_latency_seconds_sum")
        parts = worker.metric("time_to_first_token_seconds_sum") + 3 * worker.metric(
            "time_per_output_token_seconds_sum"
        )
        assert end_to_end == pytest.approx(parts)


async def test_a_worker_starts_without_a_warning(valkey: Server, tokenizer: Path) -> None:
    with structlog.testing.capture_logs() as lines:
        async with AsyncClient(valkey.url) as client, serving(valkey, model_name(tokenizer)):
            job = await client.submit("w1", max_tokens=1)
            await client.wait(job.id, timeout_s=30)
    warned = [line["event"] for line in lines if line["log_level"] not in ("debug", "info")]
    assert all(event.startswith("appendonly is no") for event in warned), warned
    assert next(line for line in lines if line["event"] == "job ended")["job_id"] == job.id


async def test_readiness_tells_that_the_server_is_away(tokenizer: Path) -> None:
    server = Server("valkey").start()
    try:
        async with serving(server, model_name(tokenizer)) as worker:
            health = worker.service.health
            await until(lambda: health.problem == "")
            server.kill()
            await until(lambda: "onnect" in health.problem)
            server.start()
            await until(lambda: health.problem == "")
    finally:
        server.remove()


async def test_a_port_in_use_is_named(valkey: Server, tokenizer: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        service = Service(settings(valkey, model_name(tokenizer), metrics_port=port))
        with pytest.raises(CannotServe, match=f"metrics_port {port} of 127.0.0.1: .*choose another"):
            await service.run()


async def test_damaged_metadata_of_a_queue_is_named(valkey: Server, tokenizer: Path) -> None:
    async with redis.asyncio.Redis.from_url(valkey.url) as direct:
        await direct.hset(QueueKeys("default").meta, mapping={"shards": "many", "pubsub": "plain"})
    with pytest.raises(CannotServe, match="metadata is damaged"):
        await Service(settings(valkey, model_name(tokenizer))).run()


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


@pytest.mark.parametrize(
    ("stored", "says"),
    [
        ({"maxmemory-policy": "allkeys-lru"}, "maxmemory-policy is allkeys-lru"),
        ({"appendonly": "no"}, "appendonly is no"),
        ({"appendonly": "yes", "appendfsync": "no"}, "appendfsync is no"),
        ({"client-output-buffer-limit": "normal 0 0 0 pubsub 0 0 0"}, "client-output-buffer-limit pubsub"),
    ],
)
def test_dangerous_server_settings_are_named(stored: dict[str, str], says: str) -> None:
    [warning] = warnings(stored)
    assert says in warning


async def test_a_strict_worker_refuses_a_server_that_can_lose_jobs(valkey: Server, tokenizer: Path) -> None:
    async with redis.asyncio.Redis.from_url(valkey.url) as direct:
        before = await direct.config_get("maxmemory-policy")
        await direct.config_set("maxmemory-policy", "allkeys-lru")
        try:
            service = Service(settings(valkey, model_name(tokenizer), server_check="strict"))
            with pytest.raises(CannotServe) as refused:
                await service.run()
        finally:
            await direct.config_set("maxmemory-policy", before["maxmemory-policy"])
    for says in ("maxmemory-policy is allkeys-lru", "appendonly is no", "MILLSTREAM_SERVER_CHECK"):
        assert says in str(refused.value)


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


def test_a_server_without_a_bound_is_advice_and_no_reason_to_refuse() -> None:
    assert warnings({"maxmemory": "0"}) == []
    assert "the server grows" in advice({"maxmemory": "0"})[0]
    assert advice({"maxmemory": "4294967296"}) == []


def test_safe_server_settings_are_quiet() -> None:
    safe = {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction"}
    assert warnings(safe | {"client-output-buffer-limit": "normal 0 0 0 pubsub 33554432 8388608 60"}) == []


def test_logs_are_json_for_machines_and_lines_for_people() -> None:
    try:
        machine, person = io.StringIO(), io.StringIO()
        logs.configure("auto", "info", machine)
        structlog.get_logger().info("job ended", job_id="0-a", attempt=2)
        structlog.get_logger().debug("not shown")
        [line] = machine.getvalue().splitlines()
        record = json.loads(line)
        assert (record["event"], record["job_id"], record["attempt"], record["level"]) == (
            "job ended",
            "0-a",
            2,
            "info",
        )
        logs.configure("console", "info", person)
        structlog.get_logger().info("job ended", job_id="0-a")
        assert "job ended" in person.getvalue()
        assert "{" not in person.getvalue()
    finally:
        structlog.reset_defaults()


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_tracebacks_do_not_tell_what_is_in_variables(log_format: Literal["json", "console"]) -> None:
    def fail(prompt: str) -> None:
        raise RuntimeError(f"{len(prompt)} letters")

    stream = io.StringIO()
    try:
        logs.configure(log_format, "info", stream)
        try:
            fail("between you and " + "me")
        except RuntimeError:
            structlog.get_logger().exception("ours")
            logging.getLogger("asyncio").exception("theirs")
    finally:
        structlog.reset_defaults()
        logging.getLogger().handlers.clear()
    assert stream.getvalue().count("18 letters") == 2
    assert "between you and me" not in stream.getvalue()
