"""Counts the tokens of prompts: by workers, which render and tokenize them as those of any job and compute
nothing. Where no living worker can, they are estimated.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from math import inf
from typing import Any

from millstream.client.jobs.cancel_and_forget import cancel_many, forget_many
from millstream.client.jobs.wait_jobs import as_completed
from millstream.client.session.job_reader import QueueJobs
from millstream.client.session.run_while import run_while
from millstream.client.submit.requests import drafted
from millstream.client.submit.submission import Outcome, Submission, Submitted
from millstream.errors import InvalidRequest, JobError, MillstreamError, NotReady
from millstream.wire.keys import new_own_id
from millstream.wire.messages.job_messages import RequestKind, Result
from millstream.wire.state.durability import Durability


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """The length of a request's prompt. `estimated`: from its bytes, as no living worker counts."""

    tokens: int
    estimated: bool = False


Count = PromptTokens | MillstreamError
SILENT_S = 30.0  # without any count: a worker that is started again may take it up


class _NobodyCountsError(Exception):
    """The jobs under way may wait for ever."""


async def count_prompts(
    jobs: QueueJobs,
    submission: Submission,
    requests: Iterable[Mapping[str, Any]],
    timeout_s: float | None,
    silent_s: float = SILENT_S,
) -> list[Count]:
    """One outcome for each request, in their order. Their jobs are forgotten afterwards. The rest of them is
    estimated once none has ended for `silent_s` and no workers count any more.
    """
    asked = [{**request, "kind": RequestKind.COUNT} for request in requests]
    if not await submission.can_count():
        return [await _estimate(one, jobs) for one in asked]
    unnamed = [one for one in asked if one.get("id") is None]
    for one in unnamed:
        one["id"] = new_own_id()
    sent = {one["id"] for one in unnamed}  # known before any reply; another id may be that of a foreign job
    give_up_s = inf if timeout_s is None else time.monotonic() + timeout_s
    ended: dict[str, Result | JobError] = {}
    try:
        room_s = jobs.session.options.reconnect_s if timeout_s is None else timeout_s
        made = await submission.many(asked, room_s, Durability.NONE)
        accepted = {
            one["id"] for one, outcome in zip(asked, made, strict=True) if isinstance(outcome, Submitted)
        }
        sent |= accepted
        left_s = None if timeout_s is None else max(0.0, give_up_s - time.monotonic())
        with contextlib.suppress(_NobodyCountsError):
            await run_while(_watch(submission, ended, silent_s), _collect(jobs, accepted, left_s, ended))
    finally:
        await _clear(jobs, sent, ended)
    return [await _count(jobs, one, outcome, ended) for one, outcome in zip(asked, made, strict=True)]


async def _collect(
    jobs: QueueJobs, names: Iterable[str], timeout_s: float | None, ended: dict[str, Result | JobError]
) -> None:
    async for name, end in as_completed(jobs, names, timeout_s):
        ended[name] = end  # noqa: PERF403 - those that have ended are known where this is cancelled


async def _watch(submission: Submission, ended: Mapping[str, object], silent_s: float) -> None:
    """Raises _NobodyCountsError."""
    while True:
        before = len(ended)
        await asyncio.sleep(silent_s)
        if len(ended) == before and not await submission.can_count():
            raise _NobodyCountsError


async def _count(
    jobs: QueueJobs, request: Mapping[str, Any], outcome: Outcome, ended: Mapping[str, Result | JobError]
) -> Count:
    if not isinstance(outcome, Submitted):
        return outcome
    end = ended.get(request["id"])
    if end is None:
        return await _estimate(request, jobs)
    return PromptTokens(end.usage.prompt_tokens) if isinstance(end, Result) else end


async def _estimate(request: Mapping[str, Any], jobs: QueueJobs) -> Count:
    """A count costs the tokens of its prompt: see request_cost."""
    most_bytes = jobs.session.options.max_payload_bytes
    try:
        made = await drafted(request, round(time.time() * 1000), most_bytes)
        return PromptTokens(made.cost, estimated=True)
    except InvalidRequest as error:
        return error


async def _clear(jobs: QueueJobs, sent: Set[str], ended: Mapping[str, Result | JobError]) -> None:
    """Nobody asks for these again; what stays expires."""
    with contextlib.suppress(MillstreamError):
        left = [name for name in sent if isinstance(ended.get(name), NotReady | None)]
        if left:
            await cancel_many(jobs, left)
        await forget_many(jobs, list(sent), keep_cached=True)
