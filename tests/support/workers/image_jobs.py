"""Jobs with images, as any client may send them."""

from __future__ import annotations

import io
from typing import Any

from redis.asyncio import Redis

from millstream.wire import calls
from millstream.wire.messages import codec
from support.models.vision_checkpoints import picture
from support.workers.work import raw_submission

VERSION = 7


def png(seed: int, width: int = 60, height: int = 90) -> bytes:
    out = io.BytesIO()
    picture(seed, width, height).save(out, "PNG")
    return out.getvalue()


def asked(*files: bytes, text: str = "read", **fields: Any) -> dict[str, Any]:
    """A request: the images, and a text behind them."""
    parts: list[dict[str, Any]] = [{"image": number} for number in range(len(files))]
    return {
        "version": VERSION,
        "messages": [{"role": "user", "parts": [*parts, {"text": text}]}],
        "images": [{"data": data} for data in files],
        "sampling": {"max_tokens": 4, "temperature": 0.0},
        **fields,
    }


async def submit(redis: Redis, job_id: str, request: dict[str, Any]) -> None:
    lane, tenant = request.get("lane", "batch"), request.get("tenant", "")
    submission = raw_submission(
        f"0-{job_id}", codec.pack(request), digest=job_id, lane=lane, tenant=tenant, version=VERSION
    )
    await calls.run(redis, submission)
