"""Lines of a batch that are equal, and the jobs that a worker by hand gets of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from millstream import ErrorInfo
from support.batches import Line, chat
from support.workers.hand_worker import HandJob, HandWorker

REFUSED = ErrorInfo(code="bad_request", message="prompt: no", field="prompt")


def lines_of(texts: Iterable[str], **body: Any) -> list[Line]:
    """Lines r1, r2, … that are not sampled: equal where their texts are."""
    lines = [chat(number, text, 5) for number, text in enumerate(texts, 1)]
    return [line | {"body": {"temperature": 0, **line["body"], **body}} for line in lines]


def text_of(job: HandJob) -> str:
    [message] = job.request.messages or ()
    return str(message.content)


async def taken(worker: HandWorker, texts: str) -> list[HandJob]:
    jobs = [await worker.take() for _ in texts]
    assert [text_of(job) for job in jobs] == list(texts)
    return jobs


def cached(rows: Iterable[Line]) -> set[str]:
    return {row["custom_id"] for row in rows if row["response"]["body"].get("cached")}
