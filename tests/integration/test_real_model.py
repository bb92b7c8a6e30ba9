"""A real (tiny, random) model in float32 behind the real queue: what is streamed is what transformers would
generate, and a SIGKILL of the engine or of the worker in the middle changes not one character.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support import checkpoints
from support.counting_worker import assert_nothing_left, worker_process, write_tokenizer
from support.servers import Server

from millstream import AsyncClient, Result, TokenEvent

pytestmark = pytest.mark.slow

TOKENS = 220
PROMPTS = [f"w3 w5 w8 w13 w21 w34 w55 w89 w{n}" for n in range(10, 14)]
SEEDED: dict[str, Any] = {"max_tokens": TOKENS, "temperature": 1.2, "top_p": 0.95, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = checkpoints.build(
        "llama", tmp_path_factory.mktemp("models"), max_position_embeddings=512, num_hidden_layers=4
    )
    return write_tokenizer(folder)


def worker(server: Server, model: Path) -> Any:
    return worker_process(
        server, str(model), engine_command="", dtype="float32", device="cpu", threads=1, kv_memory="4MiB"
    )


async def submit_all(client: AsyncClient, run: str) -> list[str]:
    """The same seeded jobs under ids of this run; the first is streamed."""
    return [
        (await client.submit(prompt, id=f"{run}-{n}", seed=n, stream=n == 0, **SEEDED)).id
        for n, prompt in enumerate(PROMPTS)
    ]


async def texts(client: AsyncClient, ids: list[str]) -> list[Result]:
    return [await client.wait(job_id, timeout_s=90) for job_id in ids]


async def read(events: AsyncIterator[Any], until: int | None = None) -> str:
    """The stream's text, up to at least `until` tokens or to its end."""
    text, tokens = "", 0
    async for event in events:
        text += event.text
        if isinstance(event, TokenEvent):
            tokens += sum(len(choice.token_ids) for choice in event.choices)
        if until is not None and tokens >= until:
            break
    return text


def test_greedy_is_what_transformers_generates(valkey: Server, model: Path) -> None:
    from millstream import Client

    with Client(valkey.url) as client, worker(valkey, model):
        ids = [
            client.submit(token_ids=[3, 5, 8, n], max_tokens=30, temperature=0, ignore_eos=True).id
            for n in range(4)
        ]
        results = [client.wait(job_id, timeout_s=90) for job_id in ids]
    reference = checkpoints.plain(model)
    for n, result in enumerate(results):
        assert list(result.choices[0].token_ids) == checkpoints.generate(reference, [3, 5, 8, n], 30)
        assert result.choices[0].finish_reason == "length"


@pytest.mark.parametrize("victim", ["engine", "worker"])
async def test_a_kill_changes_no_character(valkey: Server, model: Path, victim: str) -> None:
    async with AsyncClient(valkey.url) as client:
        with worker(valkey, model):
            whole = [r.choices[0].text for r in await texts(client, await submit_all(client, "whole"))]
        with worker(valkey, model) as first:
            ids = await submit_all(client, "killed")
            events = client.stream(ids[0])
            begun = await read(events, until=20)
            front = psutil.Process(first.pid)
            target = front.children()[0] if victim == "engine" else front
            os.kill(target.pid, signal.SIGKILL)
            if victim == "engine":
                streamed = begun + await read(events)
                results = await texts(client, ids)
            else:
                with worker(valkey, model):
                    streamed = begun + await read(events)
                    results = await texts(client, ids)
    assert len(set(whole)) == len(PROMPTS)
    assert [result.choices[0].text for result in results] == whole
    assert streamed == whole[0]
    assert [result.usage.output_tokens for result in results] == [TOKENS] * len(PROMPTS)
    assert {result.attempts for result in results} == {1 if victim == "engine" else 2}


async def test_nothing_is_left_behind(server: Server, model: Path, redis_client: Any) -> None:
    async with AsyncClient(server.url) as client:
        with worker(server, model):
            await texts(client, await submit_all(client, "clean"))
        await assert_nothing_left(redis_client)
