"""Batches from end to end: OpenAI's own client, a real gateway, a worker that counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from support.batches import Line, answered, chat, files_of, finished, jsonl, made, rows_of, upload
from support.gateway import Gateway, gateway
from support.servers.servers import Server
from support.workers.counting_worker import counted, model_name, serving, until, write_tokenizer


@pytest.fixture
async def counting(
    door: Gateway, valkey: Server, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[None]:
    """A worker of the queue default, whose checkpoint is `counting`."""
    tokenizer = write_tokenizer(tmp_path_factory.mktemp("chat"), chat=True)
    async with serving(valkey, model_name(tokenizer)):
        await until(lambda: door.shows_ready(True))
        yield


async def test_the_whole_life_of_a_batch(door: Gateway, counting: None) -> None:
    lines = [chat(number, f"w{number}", 3) for number in range(1, 51)]
    lines.append(chat(51, "w1", 10**6))  # only the worker can tell
    lines.append(chat(52, "w9", 2) | {"body": {**chat(52, "w9", 2)["body"], "model": "counting"}})
    async with door.client() as client:
        batch = await made(client, lines, metadata={"order": "7"})
        assert (batch.status, batch.object, batch.metadata) == ("validating", "batch", {"order": "7"})
        assert batch.expires_at == batch.created_at + 86_400
        assert (batch.output_file_id, batch.error_file_id, batch.errors) == (None, None, None)
        assert batch.request_counts is not None
        assert batch.request_counts.total == 0
        done = await finished(client, batch.id)
        assert done.status == "completed"
        assert done.request_counts is not None
        counts = done.request_counts
        assert (counts.total, counts.completed, counts.failed) == (52, 51, 1)
        usage = done.to_dict()["usage"]
        assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (51, 152, 203)
        times = [batch.created_at, done.in_progress_at, done.finalizing_at, done.completed_at]
        assert times == sorted(times)
        assert (done.failed_at, done.expired_at, done.cancelled_at) == (None, None, None)
        output, errors = await files_of(client, done)
        assert answered(output) == {f"r{number}": counted(number + 1, 3) for number in range(1, 51)} | {
            "r52": counted(10, 2)
        }
        [error] = errors
        assert (error["custom_id"], error["error"]["param"]) == ("r51", "body.max_tokens")
        assert error["response"]["status_code"] == 400
        listed = [one.id async for one in client.batches.list()]
        assert listed == [batch.id]
