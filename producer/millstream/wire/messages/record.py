"""Reads a job's hash, its token log, and published entries of the log.

A job's hash. It lives until the job has ended, and then for the result's time to live, as its token log
does. Times are Unix milliseconds of the server's clock; a field that is not there was not set yet.

    state            queued | running | completed | failed | cancelled | expired
    lane             the lane's name
    version          of the request's message
    digest           of the request: tells a repeated submit from a conflict
    entry            id of the job's entry in its lane; empty while it waits outside of the lane
    owner            consumer that runs it, or that ended it; else empty
    attempt          how many attempts were started
    nonce            of the last start: tells a repeated start from a new one
    left             "<attempt> <owner>" that gave it back last: tells a repeated retry or release
    seq              of the log's last entry
    died             engines and workers that died while they had it
    died_alone       those of them that had nothing else; absent: 0
    alone            the attempt that had its engine for itself; else absent or empty
    submits          how often it was submitted with this digest
    bytes            size of the request's payload, as counted in the shard's `bytes`
    stream           1 where the producer asked for a stream
    cancel           1 where a cancellation was asked for and not answered yet
    payload          the request, while it waits outside of its lane: for a retry, or parked
    place            of a parked job: its member of `parked`
    tenant           whose job it is; empty: nobody was named
    seed             stored by the first start, used where the request has none
    requeued_from    id of the dead-lettered job that it repeats
    submitted_ms
    started_ms       a worker first took it
    compiled_ms      its response_format was compiled; known from the first delta on
    admitted_ms      it first entered the batch; the same
    first_token_ms   sent to its readers; sampled, where nobody streams
    finished_ms
    result           msgpack Result; absent where the job ended without its worker
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from millstream.errors import ProtocolError
from millstream.wire.keys import ShardKeys
from millstream.wire.messages.choices import OF_END, Choice, ChoiceDelta, Delta, calls_of
from millstream.wire.messages.codec import MAX_RESULT_BYTES, decode
from millstream.wire.messages.job_messages import ErrorInfo, Result, State, Timing, Usage
from millstream.wire.messages.script_replies import JobRecord, LogEntry
from millstream.wire.versions import FIRST_VERSION

DELTA, MARKER, END = "d", "m", "e"
_LONGEST_ID = 41  # of a stream: two numbers of 64 bits
_KINDS = {kind.encode(): kind for kind in (DELTA, MARKER, END)}
_COUNTS = ("attempt", "died", "submits", "died_alone", "submitted_ms")
_TIMES = ("started_ms", "compiled_ms", "admitted_ms", "first_token_ms", "finished_ms")
ERRORS = {
    State.CANCELLED: ErrorInfo(code="cancelled", message="it was cancelled before it was done"),
    State.EXPIRED: ErrorInfo(code="expired", message="its deadline passed before it was done"),
}
JOB_FIELDS = (
    "state", "lane", "owner", *_COUNTS, *_TIMES, "result", "cancel", "seq", "requeued_from", "version",
    "tenant",
)  # fmt: skip


async def read_job(redis: Any, keys: ShardKeys, job_id: str) -> JobRecord | None:
    """The job's record; None if there is no job of that id."""
    return job_record(job_id, await redis.hmget(keys.job(job_id), JOB_FIELDS))


async def read_log(redis: Any, keys: ShardKeys, job_id: str) -> list[LogEntry]:
    """The token log's entries, oldest first; empty without a log."""
    return [log_entry(entry_id, fields) for entry_id, fields in await redis.xrange(keys.tokens(job_id))]


def job_record(job_id: str, row: Sequence[bytes | None]) -> JobRecord | None:
    field = dict(zip(JOB_FIELDS, row, strict=True))
    if field["state"] is None:
        return None
    try:
        numbers: dict[str, Any] = {name: number(field[name]) for name in _TIMES}
        numbers |= {name: number(field[name]) or 0 for name in _COUNTS}
        return JobRecord(
            job_id=job_id,
            state=State(_text(field["state"])),
            lane=_text(field["lane"]),
            owner=_text(field["owner"]),
            result=field["result"],
            cancelled=field["cancel"] is not None,
            last_seq=number(field["seq"]) or 0,
            requeued_from=_text(field["requeued_from"]) or None,
            version=number(field["version"]) or FIRST_VERSION,
            tenant=_text(field["tenant"]),
            **numbers,
        )
    except ValueError as error:
        raise ProtocolError(f"job {job_id}: its record is damaged: {error!s:.200}") from error


def job_state(job_id: str, value: bytes) -> State:
    """Raises ProtocolError for a state that this version does not know."""
    try:
        return State(value.decode())
    except ValueError as error:
        raise ProtocolError(f"job {job_id}: its record is damaged: state {value[:40]!r}") from error


def log_entry(entry_id: bytes, fields: Mapping[bytes, bytes] | Sequence[bytes]) -> LogEntry:
    """A log's entry as XRANGE (a mapping) or a script (a flat list) returns it."""
    if not isinstance(fields, Mapping):
        fields = dict(zip(fields[::2], fields[1::2], strict=True))
    return _entry(entry_id, fields.get(b"k", b""), fields.get(b"b", b""))


def parse_event(message: bytes) -> LogEntry:
    """A message of the channel `events:<id>`: `<attempt>-<seq> <kind> <body>`, the body binary."""
    entry_id, _, rest = message.partition(b" ")
    kind, _, body = rest.partition(b" ")
    return _entry(entry_id, kind, body)


def partial_result(record: JobRecord, log: Iterable[LogEntry]) -> Result:
    """The result of a job that ended without its worker: the content of its token log, merged by choice."""
    merged = merged_choices(log)
    return Result(
        version=record.version,
        state=record.state,
        choices=merged,
        usage=Usage(output_tokens=sum(len(choice.token_ids) for choice in merged)),
        error=ERRORS.get(record.state),
        timing=Timing(**{name: getattr(record, name) for name in ("submitted_ms", *_TIMES)}),
        attempts=record.attempt,
    )


def merged_choices(log: Iterable[LogEntry]) -> tuple[Choice, ...]:
    """The choices, merged from a log's entries. Raises ProtocolError if they cannot be read."""
    deltas: defaultdict[int, list[ChoiceDelta]] = defaultdict(list)
    for entry in log:
        if entry.kind == DELTA:
            for delta in decode(Delta, entry.body, MAX_RESULT_BYTES).choices:
                deltas[delta.index].append(delta)
    return tuple(_merged(deltas[index]) for index in sorted(deltas))


def _merged(deltas: Sequence[ChoiceDelta]) -> Choice:
    """One choice, of its deltas."""
    return Choice(
        index=deltas[-1].index,
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        logprobs=tuple(one for delta in deltas for one in delta.logprobs or ()) or None,
        reasoning_content="".join(delta.reasoning_content for delta in deltas),
        **{name: getattr(deltas[-1], name) for name in OF_END} | {"tool_calls": calls_of(deltas)},
    )


def _entry(entry_id: bytes, kind: bytes, body: bytes) -> LogEntry:
    attempt, dash, seq = entry_id.partition(b"-")
    if not (dash and attempt.isdigit() and seq.isdigit() and kind) or len(entry_id) > _LONGEST_ID:
        raise ProtocolError(f"not an entry of a token log: {entry_id!r:.60} of kind {kind!r:.20}")
    if kind not in _KINDS:  # it may be text: skipping it would hide a part of the output
        raise ProtocolError(
            f"not an entry of a token log that this version knows: {entry_id!r:.60} of kind {kind!r:.20}"
        )
    return LogEntry(int(attempt), int(seq), _KINDS[kind], body)


def _text(value: bytes | None) -> str:
    return (value or b"").decode()


def number(value: bytes | None) -> int | None:
    """A hash's number. Raises ValueError unless it is a number that a message can carry."""
    if value is None:
        return None
    read = int(value)
    if not -(2**63) <= read < 2**63:
        raise ValueError(f"a number of {len(value)} digits")
    return read
