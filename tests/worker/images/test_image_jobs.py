"""Jobs with images through a whole worker: a real server, processes that prepare images, and an engine process
that answers with what it saw."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from support.engine.ready import INFO
from support.models.vision_checkpoints import build
from support.servers.servers import Server
from support.workers import image_engine
from support.workers.counting_worker import Worker, assert_nothing_left, until
from support.workers.image_engine import COMMAND, LOG, MEMORY, shown
from support.workers.image_jobs import asked, png, submit
from support.workers.work import Work

from millstream import AsyncClient, JobFailed, Result

SHARED: dict[str, Any] = {"engine_command": COMMAND, "image_processes": 2}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("idefics3", tmp_path_factory.mktemp("idefics3")).folder


@pytest.fixture
def seeing(server: Server, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    """Workers that read images; a line for each frame about images is in `frames`."""
    monkeypatch.setenv(LOG, str(tmp_path / "frames"))
    return Work(server, checkpoint, tmp_path, **SHARED)


def frames(folder: Path) -> list[str]:
    log = folder / "frames"
    return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []


async def first_token(client: AsyncClient, job_id: str) -> int:
    result = await client.wait(job_id, timeout_s=60)
    return result.choices[0].token_ids[0]


async def test_an_answer_is_about_the_images_of_its_request(
    client: AsyncClient, redis_client: Redis, seeing: Work, tmp_path: Path
) -> None:
    one, two = png(1), png(2, 200, 40)
    async with seeing() as worker:
        for name, files in {"a": [one], "b": [two], "ab": [one, two], "again": [one]}.items():
            await submit(redis_client, name, asked(*files))
        seen = {name: await first_token(client, name) for name in ("a", "b", "ab", "again")}
        usage = (await client.result("ab")).usage
        assert worker.metric("images_prepared_total") >= 2
    assert len({seen["a"], seen["b"], seen["ab"]}) == 3
    assert (seen["ab"] - 1) % 700 == (seen["a"] + seen["b"] - 2) % 700
    assert seen["again"] == seen["a"]
    assert usage.image_tokens == 28 + 16
    assert frames(tmp_path).count("hold") == frames(tmp_path).count("drop") > 0
    await assert_nothing_left(redis_client)
