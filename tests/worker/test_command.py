"""The worker as a process: what signals make of it."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import psutil
from support.servers.servers import Server
from support.workers.counting_worker import model_name, worker_process

from millstream import AsyncClient


async def test_a_process_serves_without_torch_and_ends_well_by_any_number_of_signals(
    valkey: Server, tokenizer: Path
) -> None:
    """Also by those that come when it has given everything back and is on its way out."""
    async with AsyncClient(valkey.url) as client:
        with worker_process(valkey, model_name(tokenizer)) as worker:
            job = await client.submit("w1", max_tokens=2)
            assert (await client.wait(job.id, timeout_s=30)).choices[0].finish_reason == "length"
            if sys.platform == "linux":
                loaded = {Path(one.path).name for one in psutil.Process(worker.pid).memory_maps()}
                assert any("tokenizers" in name for name in loaded)
                assert not any("libtorch" in name for name in loaded)
            while worker.poll() is None:
                worker.send_signal(signal.SIGTERM)
                await asyncio.sleep(0.001)
            assert worker.returncode == 0
