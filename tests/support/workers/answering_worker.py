"""A worker in a thread that answers whatever comes, for commands and batch runs that are under test."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from millstream.wire.messages.job_messages import ErrorInfo, Request, State
from millstream.wire.state.queue_info import ModelIdentity
from support.workers.hand_worker import UNFIT_CALL, HandJob, hand_worker

CUT = "…"  # ends an answer that does not fulfil its request's response format
UNFIT = "✗"  # ends one whose call of a function does not fit that
Answer = Callable[[Request], str | ErrorInfo]


def shout(request: Request) -> str | ErrorInfo:
    """The input in capitals; an input that says "fail" fails."""
    said = request.messages[-1].content if request.messages else str(request.token_ids)
    text = said if request.prompt is None else request.prompt
    if "fail" in text:
        return ErrorInfo(code="model_refused", message="it said fail", field="prompt")
    return text.upper()


class Responder:
    """`answered` counts computations by job id. While `gate` is clear, nothing is answered. `model`: that of
    the answers from now on.
    """

    def __init__(self, url: str, queue: str, answer: Answer) -> None:
        self.answered: Counter[str] = Counter()
        self.requests: dict[str, Request] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.model = ModelIdentity()
        self.after = 1_000_000  # answers, until the gate closes by itself
        self.full_stop = threading.Event()  # it holds a job and asks for none, so no reply can be lost
        self._url, self._queue, self._answer = url, queue, answer
        self._ready, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> Responder:
        self._thread.start()
        assert self._ready.wait(30), "the worker did not come up"
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self.gate.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def computed_once(self) -> int:
        """How many jobs were computed, none of them twice."""
        assert set(self.answered.values()) <= {1}, self.answered.most_common(3)
        return len(self.answered)

    async def _serve(self) -> None:
        async with hand_worker(self._url, self._queue) as worker, asyncio.TaskGroup() as group:
            await worker.create_groups()
            self._ready.set()
            serving = group.create_task(self._forever(worker.take))
            await asyncio.to_thread(self._stopping.wait)
            serving.cancel()

    async def _forever(self, take: Callable[[], Any]) -> None:
        while True:
            job: HandJob = await take()
            if not self.gate.is_set():
                self.full_stop.set()
                await asyncio.to_thread(self.gate.wait)
            await self._end(job)
            if sum(self.answered.values()) >= self.after:
                self.after = 1_000_000
                self.gate.clear()

    async def _end(self, job: HandJob) -> None:
        self.answered[job.id] += 1
        self.requests[job.id] = job.request
        job.worker.model = self.model
        answer = self._answer(job.request)
        if isinstance(answer, ErrorInfo):
            await job.end(State.FAILED, error=answer)
        else:
            complete = None if job.request.response_format is None else not answer.endswith(CUT)
            calls_with = UNFIT_CALL if answer.endswith(UNFIT) else None
            await job.end(last=answer, complete=complete, calls_with=calls_with)


@contextlib.contextmanager
def answering(url: str, queue: str = "default", answer: Answer = shout) -> Iterator[Responder]:
    with Responder(url, queue, answer) as worker:
        yield worker


def completion(custom_id: str, prompt: Any = "hello", **body: Any) -> dict[str, Any]:
    """A line of a batch file."""
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/completions",
        "body": {"prompt": prompt, **body},
    }


def write_lines(path: Path, lines: Sequence[object]) -> Path:
    """JSON for mappings; bytes and texts as they are, each with its line end."""
    data = b""
    for line in lines:
        if isinstance(line, bytes):
            data += line
        else:
            data += (line if isinstance(line, str) else json.dumps(line)).encode() + b"\n"
    path.write_bytes(data)
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    return (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    )
