"""Batches as OpenAI's client makes them, and what comes of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import openai
from openai.types import Batch

Line = dict[str, Any]
ENDED = ("completed", "failed", "expired", "cancelled")
CHAT = "/v1/chat/completions"


def chat(number: int, text: str, max_tokens: int) -> Line:
    """The line with the custom_id `r<number>`."""
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
    }
    return {"custom_id": f"r{number}", "method": "POST", "url": CHAT, "body": body}


def jsonl(lines: Iterable[Mapping[str, Any] | bytes]) -> bytes:
    return b"".join(
        (line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines
    )


async def upload(client: openai.AsyncOpenAI, lines: Iterable[Mapping[str, Any] | bytes]) -> str:
    """The id of a file of these lines."""
    return (await client.files.create(file=("in.jsonl", jsonl(lines)), purpose="batch")).id


async def made(client: openai.AsyncOpenAI, lines: Sequence[Line | bytes], **fields: Any) -> Batch:
    """A new batch of these lines."""
    asked: dict[str, Any] = {"endpoint": CHAT, "completion_window": "24h"} | fields
    return await client.batches.create(input_file_id=await upload(client, lines), **asked)


async def finished(client: openai.AsyncOpenAI, batch_id: str, wait_s: float = 30.0) -> Batch:
    async with asyncio.timeout(wait_s):
        while (batch := await client.batches.retrieve(batch_id)).status not in ENDED:  # noqa: ASYNC110 — HTTP
            await asyncio.sleep(0.05)
        return batch


async def rows_counted(client: openai.AsyncOpenAI, batch_id: str, count: int) -> bool:
    counts = (await client.batches.retrieve(batch_id)).request_counts
    return counts is not None and counts.completed + counts.failed == count


def counts(batch: Batch) -> tuple[int, int]:
    """Its rows that have an answer, and those that have none."""
    assert batch.request_counts is not None
    return batch.request_counts.completed, batch.request_counts.failed


def faults(batch: Batch) -> list[tuple[int | None, str | None, str | None]]:
    assert batch.errors is not None
    return [(one.line, one.code, one.param) for one in batch.errors.data or ()]


async def files_of(client: openai.AsyncOpenAI, batch: Batch) -> tuple[list[Line], list[Line]]:
    """The rows of its output and of its error file."""
    output, errors = [
        rows_of((await client.files.content(file_id)).content) if file_id else []
        for file_id in (batch.output_file_id, batch.error_file_id)
    ]
    return output, errors


def rows_of(data: bytes) -> list[Line]:
    return [json.loads(line) for line in data.splitlines() if line]


def answered(rows: Iterable[Line]) -> dict[str, str]:
    """Texts by custom_id, of which no two may be the same."""
    texts: dict[str, str] = {}
    for row in rows:
        assert row["custom_id"] not in texts, "a row stands twice"
        texts[row["custom_id"]] = row["response"]["body"]["choices"][0]["message"]["content"]
    return texts
