"""Counts the tokens of prompts: by workers, which render and tokenize them as those of any job and compute
nothing. Where no living worker can, they are estimated.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millstream.client.jobs.cancel_jobs import cancel_many
from millstream.client.jobs.forget_jobs import forget_many
from millstream.client.jobs.wait_jobs import as_completed
from millstream.client.session.job_reader import QueueJobs
from millstream.client.submit.requests import draft
from millstream.client.submit.submission import Outcome, Submission, Submitted
from millstream.errors import InvalidRequest, JobError, MillstreamError, NotReady
from millstream.wire.messages.job_messages import RequestKind, Result
from millstream.wire.state.durability import Durability


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """The length of a request's prompt. `estimated`: from its bytes, as no living worker counts."""

    tokens: int
    estimated: bool = False


Count = PromptTokens | MillstreamError


async def count_prompts(
    jobs: QueueJobs,
    submission: Submission,
    requests: Iterable[Mapping[str, Any]],
    timeout_s: float | None,
) -> list[Count]:
    """One outcome for each request, in their order. Their jobs are forgotten afterwards."""
    asked = [{**request, "kind": RequestKind.COUNT} for request in requests]
    if not await submission.can_count():
        return [_estimate(one, jobs.session.options.max_payload_bytes) for one in asked]
    give_up_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    ended: dict[str, Result | JobError] = {}
    made: Sequence[Outcome] = ()
    try:
        room_s = jobs.session.options.reconnect_s if timeout_s is None else timeout_s
        made = await submission.many(asked, room_s, Durability.NONE)
        left_s = None if timeout_s is None else max(0.0, give_up_s - time.monotonic())
        async for job_id, end in as_completed(jobs, _ids(made), left_s):
            ended[job_id] = end  # noqa: PERF403 - those that have ended are known where this is cancelled
    finally:
        await _clear(jobs, _ids(made), ended)
    return [_count(one, ended) for one in made]


def _ids(made: Iterable[Outcome]) -> list[str]:
    return [one.id for one in made if isinstance(one, Submitted)]


def _count(outcome: Outcome, ended: Mapping[str, Result | JobError]) -> Count:
    if not isinstance(outcome, Submitted):
        return outcome
    end = ended[outcome.id]
    return PromptTokens(end.usage.prompt_tokens) if isinstance(end, Result) else end


def _estimate(request: Mapping[str, Any], most_bytes: int) -> Count:
    """A count costs the tokens of its prompt: see request_cost."""
    try:
        return PromptTokens(draft(request, round(time.time() * 1000), most_bytes).cost, estimated=True)
    except InvalidRequest as error:
        return error


async def _clear(jobs: QueueJobs, ids: Sequence[str], ended: Mapping[str, Result | JobError]) -> None:
    """Nobody asks for these again; what stays expires."""
    with contextlib.suppress(MillstreamError):
        left = [job_id for job_id in ids if isinstance(ended.get(job_id), NotReady | None)]
        if left:
            await cancel_many(jobs, left)
        await forget_many(jobs, ids, keep_cached=True)
