"""The worker as a process: what signals make of it."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from support.counting_worker import model_name, worker_process
from support.servers import Server

from millstream import AsyncClient


def mapped_files(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


async def test_any_number_of_signals_end_a_worker_well(valkey: Server, tokenizer: Path) -> None:
    """Also those that come when it has given everything back and is on its way out."""
    async with AsyncClient(valkey.url) as client:
        with worker_process(valkey, model_name(tokenizer)) as worker:
            job = await client.submit("w1", max_tokens=2)
            await client.wait(job.id, timeout_s=30)
            while worker.poll() is None:
                worker.send_signal(signal.SIGTERM)
                await asyncio.sleep(0.001)
            assert worker.returncode == 0


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no list of what a process has loaded")
async def test_the_front_serves_without_torch(valkey: Server, tokenizer: Path) -> None:
    async with AsyncClient(valkey.url) as client:
        with worker_process(valkey, model_name(tokenizer)) as worker:
            job = await client.submit("w1", max_tokens=2)
            result = await client.wait(job.id, timeout_s=30)
            loaded = mapped_files(worker.pid)
            worker.terminate()
            worker.wait(30)

    assert result.choices[0].finish_reason == "length"
    assert "tokenizers" in loaded
    assert "libtorch" not in loaded
