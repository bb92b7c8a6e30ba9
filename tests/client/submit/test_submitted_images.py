"""Images that a Python caller submits: read beside the loop, bounded with their whole message, counted."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from support.wire.image_files import png
from support.workers.hand_worker import HandWorker

from millstream import AsyncClient, InvalidRequest, Submitted
from millstream.client.session.options import MAX_PAYLOAD_BYTES
from millstream.client.submit.request_cost import FRAME_TOKENS, IMAGE_TOKENS, cost_of
from millstream.client.submit.requests import draft
from millstream.wire.messages.images import Image, MessagePart
from millstream.wire.messages.job_messages import ChatMessage, Request

PAGE = png()


def asked(*images: object, **more: Any) -> dict[str, Any]:
    content = [{"type": "image", "image": image} for image in images]
    return {"messages": [{"role": "user", "content": [*content, {"type": "text", "text": "Read."}]}], **more}


async def test_a_worker_gets_the_bytes_of_a_file(
    client: AsyncClient, worker: HandWorker, tmp_path: Path
) -> None:
    (tmp_path / "page.png").write_bytes(PAGE)
    job = await client.submit(**asked(tmp_path / "page.png", PAGE, id="a"))
    assert not (await client.submit(**asked(PAGE, PAGE, id="a"))).created  # the same request
    taken = await worker.take()
    assert (taken.request.images, taken.entry.version) == ((Image(data=PAGE),), 7)
    parts = (MessagePart(image=0), MessagePart(image=0), MessagePart(text="Read."))
    assert taken.request.messages == (ChatMessage(role="user", content="", parts=parts),)
    await taken.end(last="w1")
    assert (await client.wait(job.id, timeout_s=10)).text == "w1"


async def test_the_loop_goes_on_while_a_file_is_read(client: AsyncClient, tmp_path: Path) -> None:
    """A file that nobody has written to yet."""
    os.mkfifo(tmp_path / "slow.png")
    waiting = asyncio.create_task(client.submit_many([asked(tmp_path / "slow.png"), {"prompt": "w1"}]))
    assert (await client.submit("w2")).created
    assert not waiting.done()
    await asyncio.to_thread((tmp_path / "slow.png").write_bytes, PAGE)
    assert all(isinstance(outcome, Submitted) for outcome in await waiting)


async def test_one_file_that_cannot_be_read_refuses_its_own_job(client: AsyncClient, tmp_path: Path) -> None:
    jobs: Any = [asked(tmp_path / "none.png"), asked(PAGE), {"prompt": "w1"}, 5]
    wrong, *made, nothing = await client.submit_many(jobs)
    assert isinstance(wrong, InvalidRequest)
    assert str(wrong).startswith(
        "messages[0].content[0].image: cannot be read (No such file or directory); give an image file"
    )
    assert all(isinstance(outcome, Submitted) for outcome in made)
    assert isinstance(nothing, InvalidRequest)


async def test_counts_take_images(client: AsyncClient) -> None:
    counted = await client.count(**asked(PAGE))
    assert (counted.tokens, counted.estimated) == (IMAGE_TOKENS + FRAME_TOKENS + 2, True)


def test_the_bound_is_of_the_whole_message() -> None:
    assert MAX_PAYLOAD_BYTES == 16 * 1024**2
    half = PAGE + bytes(8 * 1024**2)
    draft(asked(half), 0, MAX_PAYLOAD_BYTES)
    problem = r"^messages: the request takes 167\d+ bytes and may take 16777216; send fewer or smaller images"
    with pytest.raises(InvalidRequest, match=problem):
        draft(asked(half, half + b"x"), 0, MAX_PAYLOAD_BYTES)


def test_an_image_costs_what_it_usually_has_tokens() -> None:
    text = ChatMessage(role="user", content="Read. " * 100)
    parts = ({"image": 0}, {"text": "Read. " * 100}, {"image": 0})
    shown: Any = {"messages": [{"role": "user", "parts": parts}], "images": [{"data": PAGE + bytes(10**6)}]}
    one, other = cost_of(Request(messages=(text,))), cost_of(Request.model_validate(shown))
    assert other - one == 2 * IMAGE_TOKENS


def test_printed_jobs_hide_images() -> None:
    assert "IHDR" not in repr(draft(asked(PAGE), 0, MAX_PAYLOAD_BYTES))
