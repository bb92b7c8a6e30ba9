"""What operators look at: metrics and their values, health and readiness, warnings about the server, logs."""

from __future__ import annotations

import asyncio
import io
import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import structlog
from prometheus_client import CollectorRegistry
from support.counting_worker import model_name, serving, until
from support.servers import Server, free_port

from millstream import AsyncClient, JobFailed
from millstream_worker import logs
from millstream_worker.health import Health, HealthServer
from millstream_worker.server_check import warnings


def fetch(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def test_metrics_count_what_happened(valkey: Server, tokenizer: Path) -> None:
    port = free_port()
    async with AsyncClient(valkey.url) as client:
        async with serving(valkey, model_name(tokenizer, step_s=0.001), metrics_port=port) as worker:
            jobs = [await client.submit("w1 w2 w3", max_tokens=5, stream=True) for _ in range(4)]
            for job in jobs:
                await client.wait(job.id, timeout_s=30)
            bad = await client.submit(token_ids=[4000])
            with pytest.raises(JobFailed):
                await client.wait(bad.id, timeout_s=30)

            async def counted_all() -> bool:
                return worker.metric("requests_total", state="failed") == 1

            await until(counted_all)
            status, page = await asyncio.to_thread(fetch, port, "/metrics")
            ready = await asyncio.to_thread(fetch, port, "/readyz")
            alive = await asyncio.to_thread(fetch, port, "/healthz")
            missing = await asyncio.to_thread(fetch, port, "/")
    assert status == 200
    assert "millstream_time_to_first_token_seconds_bucket" in page
    assert (ready, alive, missing[0]) == ((200, "ok\n"), (200, "ok\n"), 404)
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
    assert worker.metric("kv_blocks", state="free") == 512


def test_readiness_and_liveness_tell_what_is_wrong() -> None:
    health = Health()
    server = HealthServer("127.0.0.1", 0, CollectorRegistry(), health)
    try:
        assert fetch(server.port, "/healthz") == (503, "the event loop does not answer\n")
        health.touch()
        assert fetch(server.port, "/healthz") == (200, "ok\n")
        assert fetch(server.port, "/readyz") == (503, "starting\n")
        health.problem = ""
        assert fetch(server.port, "/readyz") == (200, "ok\n")
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
