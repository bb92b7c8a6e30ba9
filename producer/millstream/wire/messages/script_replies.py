"""The replies of the protocol's scripts as typed values, and the claim that a worker's calls carry."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from millstream.wire.messages.job_messages import State
from millstream.wire.versions import FIRST_VERSION


class SubmitOutcome(StrEnum):
    ACCEPTED = "accepted"
    EXISTS = "exists"  # same id, same digest: nothing was queued again
    CONFLICT = "conflict"  # same id, another digest
    FULL = "full"  # over the bound in entries or bytes, or the server is at its maxmemory


class AppendOutcome(StrEnum):
    OK = "ok"
    DUPLICATE = "duplicate"  # this seq is already in the log: the reply of an earlier call was lost
    GAP = "gap"  # the log ends before seq - 1: rewrite from `last_seq` + 1
    FENCED = "fenced"  # the job no longer belongs to this attempt
    CANCELLED = "cancelled"  # the job's owner must stop; nothing was appended


class EndOutcome(StrEnum):
    """The reply of finish, dead_letter, retry, release and isolate."""

    OK = "ok"
    ALREADY = "already"  # the same attempt has done it before
    FENCED = "fenced"
    GAP = "gap"  # finish only: the log ends before seq - 1; append what is missing, then finish again


class CancelOutcome(StrEnum):
    CANCELLED = "cancelled"  # it was queued: terminal now (or was cancelled before)
    REQUESTED = "requested"  # it is running: its worker is notified
    TERMINAL = "terminal"  # it had ended in another way before; unchanged
    NOT_FOUND = "not_found"


@dataclass(frozen=True, slots=True)
class SubmitReply:
    outcome: SubmitOutcome
    state: State | None  # the job's state now; None if nothing of that id exists (FULL)
    entries: int  # backlog of the shard: jobs in lanes, parked and delayed
    held_bytes: int
    used_up: str = ""  # FULL: entries, bytes or memory


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of a token log, stored or published. `cursor` is its stream id `<attempt>-<seq>`."""

    attempt: int
    seq: int
    kind: str  # "d" delta, "m" resume marker, "e" end
    body: bytes  # d: msgpack Delta; m: empty; e: the terminal state's name

    @property
    def cursor(self) -> str:
        return f"{self.attempt}-{self.seq}"


@dataclass(frozen=True, slots=True)
class StartReply:
    """`started` False: the entry was stale (its job ended or is under another entry), or another owner's; or
    the shard serves another model than the worker, whose digest is then `served`.
    """

    started: bool
    served: str = ""
    attempt: int = 0
    last_seq: int = 0
    died: int = 0  # engines and workers that died while they had this job
    died_alone: int = 0  # those of them that had nothing else
    cancelled: bool = False
    submitted_ms: int = 0
    started_ms: int | None = None  # of the first attempt
    compiled_ms: int | None = None  # of an earlier attempt
    admitted_ms: int | None = None  # the same
    first_token_ms: int | None = None  # the same
    seed: int = 0  # stored by the first start; used if the request has none
    log: tuple[LogEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class AppendReply:
    outcome: AppendOutcome
    last_seq: int


@dataclass(frozen=True, slots=True)
class RenewReply:
    lost: tuple[str, ...]  # job ids that are no longer the owner's
    cancelled: tuple[str, ...]  # job ids with a requested cancellation


@dataclass(frozen=True, slots=True)
class PendingEntry:
    entry_id: str
    owner: str
    idle_ms: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A worker's claim to a job that it holds. A script compares it with the job's hash and refuses the call
    as `fenced` if another attempt, owner or entry stands there.
    """

    job_id: str
    entry_id: str
    owner: str
    attempt: int | None = None  # None: delivered and, to the worker's knowledge, never started

    @property
    def fence(self) -> tuple[int | str, str, str]:
        """The arguments that a script compares."""
        return ("" if self.attempt is None else self.attempt, self.owner, self.entry_id)


@dataclass(frozen=True, slots=True)
class LaneEntry:
    """One entry of a lane as delivered: `payload` is the msgpack Request."""

    lane: str
    entry_id: str
    job_id: str
    version: int
    payload: bytes

    def claim(self, owner: str, attempt: int | None = None) -> Claim:
        return Claim(self.job_id, self.entry_id, owner, attempt)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job's hash, as a poller sees it."""

    job_id: str
    state: State
    lane: str
    attempt: int
    died: int
    submits: int
    owner: str
    submitted_ms: int
    started_ms: int | None
    admitted_ms: int | None
    finished_ms: int | None
    result: bytes | None  # msgpack Result; None for jobs ended by expire or cancel without a worker
    cancelled: bool  # a cancellation was requested and the worker has not ended the job yet
    first_token_ms: int | None = None
    last_seq: int = 0
    died_alone: int = 0
    requeued_from: str | None = None  # the dead-lettered job that this one repeats
    version: int = FIRST_VERSION  # of its request, and so of its log and result
    compiled_ms: int | None = None  # its response_format was compiled
    tenant: str = ""
