"""Lines with images: answered where a worker reads them, refused by name where the model reads text only."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.batch_files import BatchFiles
from support.wire.image_files import data_url, png
from support.workers.answering_worker import answering, read_rows
from support.workers.hand_worker import register

from millstream import InvalidRequest
from millstream.wire.keys import QueueKeys
from millstream.wire.messages.job_messages import Request
from millstream.wire.versions import TAKEN


def line(number: int, *images: str) -> dict[str, Any]:
    parts: list[Any] = [{"type": "image_url", "image_url": {"url": url}} for url in images]
    body = {"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": f"page {number}"}]}]}
    return {"custom_id": f"{number}", "url": "/v1/chat/completions", "body": body}


def shown(request: Request) -> str:
    return json.dumps([len(image.data) for image in request.images])


def told(place: BatchFiles) -> dict[str, str]:
    rows = read_rows(place.out)
    return {row["custom_id"]: row["response"]["body"]["choices"][0]["message"]["content"] for row in rows}


async def test_pages_are_answered(place: BatchFiles) -> None:
    place.write(line(1, data_url(png(1))), line(2), line(3, data_url(png(1)), data_url(png(2))))
    register(place.server.port, QueueKeys("default").shard(0), version_max=str(TAKEN.high), images="1")
    with answering(place.server.url, answer=shown) as worker:
        assert (await place.run()).completed == 3
        size = len(png(1))
        assert told(place) == {"1": f"[{size}]", "2": "[]", "3": f"[{size}, {len(png(2))}]"}
        place.write(line(1, data_url(png(9))), line(2))
        with pytest.raises(InvalidRequest, match="1 line has changed since it was answered"):
            await place.run()  # another page is another line
    assert worker.computed_once()


async def test_a_model_that_reads_text_only(place: BatchFiles) -> None:
    place.write(line(1, data_url(png())), line(2), line(3, "scan.png"))
    register(place.server.port, QueueKeys("default").shard(0), version_max=str(TAKEN.high))
    with answering(place.server.url, answer=shown):
        assert (await place.run()).completed == 1
    assert place.faults() == [
        (1, "images_not_supported", "body.messages"),
        (3, "invalid_field", "body.messages[0].content[0].image_url.url"),
    ]
