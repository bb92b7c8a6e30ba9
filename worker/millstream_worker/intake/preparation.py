"""What a job needs before an engine can compute it: token ids, limits, and rows that go on from its log. No
I/O, so that long inputs can be prepared in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.errors import InvalidRequest, ProtocolError
from millstream.wire import codec
from millstream.wire.messages import ChoiceDelta, Delta, Request
from millstream.wire.record import DELTA
from millstream.wire.replies import LogEntry, StartReply
from millstream_worker.engine.config import EngineInfo
from millstream_worker.jobs import Job
from millstream_worker.rows import Row
from millstream_worker.text import TextModel


class LogDamaged(Exception):
    """The token log of earlier attempts has a hole, or holds what no worker wrote."""


def prepare(job: Job, started: StartReply, text: TextModel, info: EngineInfo) -> None:
    """Fill in the job. Raises ProtocolError where its payload is no request, InvalidRequest where that cannot
    be computed here, LogDamaged where it cannot go on.
    """
    job.request = codec.decode(Request, job.entry.payload)
    _take_log(job, started, text)
    job.prompt = tuple(text.encode(job.request))
    job.max_tokens = _max_tokens(job.request, len(job.prompt), info)
    _check_ids(job.request, info)
    asked = job.request.sampling
    job.end_ids = (() if asked.ignore_eos else info.eos_ids) + asked.stop_token_ids
    for row in job.rows:
        if row.reason is None and len(row.ids) >= job.max_tokens:
            row.reason = "length"


def _take_log(job: Job, started: StartReply, text: TextModel) -> None:
    asked = job.request.sampling
    bodies, deltas = _logged(started)
    job.written = bodies
    job.acknowledged = len(bodies)
    for index in range(asked.n):
        row = Row(index, text.detokenizer(asked.stop, asked.min_tokens), watched=bool(asked.stop))
        row.logprobs = [] if asked.logprobs else None
        row.resume([delta for delta in deltas if delta.index == index])
        job.rows.append(row)


def _logged(started: StartReply) -> tuple[list[bytes], list[ChoiceDelta]]:
    """The log's bodies in order, and what they tell."""
    entries: Sequence[LogEntry] = [entry for entry in started.log if entry.kind == DELTA]
    if [entry.seq for entry in entries] != list(range(1, started.last_seq + 1)):
        raise LogDamaged(f"the token log should hold 1 to {started.last_seq}, but has {len(entries)} entries")
    try:
        deltas = [part for entry in entries for part in codec.decode(Delta, entry.body).choices]
    except ProtocolError as error:
        raise LogDamaged(str(error)) from error
    return [entry.body for entry in entries], deltas


def _max_tokens(request: Request, prompt_tokens: int, info: EngineInfo) -> int:
    """Output tokens a choice may have; the prompt and they have to fit into the model's context and the KV
    pool.
    """
    limit = min(info.context_length, info.token_capacity)
    if prompt_tokens >= limit:
        field = next(
            name for name in ("prompt", "messages", "token_ids") if getattr(request, name) is not None
        )
        raise InvalidRequest(
            field,
            f"{prompt_tokens} tokens",
            f"{info.model} holds {limit} tokens here, input and output together; shorten it",
        )
    asked = request.sampling.max_tokens
    if asked is not None and prompt_tokens + asked > limit:
        raise InvalidRequest(
            "sampling.max_tokens",
            asked,
            f"with an input of {prompt_tokens} tokens {info.model} has room for {limit - prompt_tokens} "
            "here; ask for fewer, or leave max_tokens out",
        )
    return asked or limit - prompt_tokens


def _check_ids(request: Request, info: EngineInfo) -> None:
    for field, ids in (
        ("sampling.logit_bias", request.sampling.logit_bias),
        ("sampling.stop_token_ids", request.sampling.stop_token_ids),
    ):
        beyond = [token_id for token_id in ids if token_id >= info.vocab_size]
        if beyond:
            raise InvalidRequest(
                field, beyond[0], f"is beyond the vocabulary of {info.vocab_size} tokens; use ids below it"
            )
