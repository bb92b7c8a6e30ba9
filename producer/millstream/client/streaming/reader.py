"""The reader's half of the streaming protocol, as a state machine without I/O: the next read, and the events
to emit.

Live messages may be lost, repeated or late; the token log is complete. The reader follows live messages while
they continue at its place, and reads the log from its place on when they do not, after silence and after a
reconnect. Such a read includes the entry at the place itself: if it is gone or another, the server has lost
writes, and the reader compares its delivered entries with the whole log and rewinds to the last common entry.
So the emitted events, rewinds applied, are always a prefix of the log. After a reconnect the messages may be
a new master's, and the log still an old one's: then the whole log is compared once more before the end.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterable, Sequence
from enum import Enum

from millstream.client.streaming.cursor import START, Cursor
from millstream.client.streaming.events import EndEvent, Event, RewindEvent, TokenEvent
from millstream.client.streaming.merge import missing_deltas
from millstream.errors import CursorExpired, NotFound, ProtocolError
from millstream.wire.messages import codec
from millstream.wire.messages.choices import Delta
from millstream.wire.messages.job_messages import ErrorInfo, Result, State
from millstream.wire.messages.record import DELTA, END, MARKER
from millstream.wire.messages.script_replies import JobRecord, LogEntry

RUNNING_PATIENCE_S = 1.0  # silence of a running job, after which the log is read
QUEUED_PATIENCE_S = 15.0  # the same of a waiting job, reached by doubling
PAGE_ENTRIES = 512  # in one read from the place on


class Want(Enum):
    """The next input that the reader needs."""

    MESSAGES = "messages"  # live messages, at most `patience_s`; then `silence`
    TAIL = "tail"  # the job's state, then at most PAGE_ENTRIES log entries from `place` on, inclusive
    WHOLE = "whole"  # the job's record, then the whole log
    NOTHING = "nothing"  # the stream has ended


class StreamReader:
    """Follows one job's token log. Every method that takes data returns the events to emit."""

    __slots__ = (
        *("_attempt", "_base", "_delivered", "_doubted", "_jitter", "_job_id", "_patience_s"),
        *("place", "want"),
    )

    def __init__(
        self, job_id: str, start: Cursor = START, jitter: Callable[[], float] = random.random
    ) -> None:
        self.place = start  # the last entry that was read, without markers
        self.want = Want.TAIL
        self._attempt = start.attempt  # begun by the last marker
        self._job_id = job_id
        self._base = start  # entries up to here were read by someone else: their contents are unknown
        self._delivered = array("q")  # a digest of each entry read after `_base`, by its sequence number
        self._doubted = False  # messages and log may have come from two servers
        self._patience_s = RUNNING_PATIENCE_S
        self._jitter = jitter

    @property
    def patience_s(self) -> float:
        """Seconds to wait for a message; jittered, so that many readers do not poll in step."""
        return self._patience_s * (0.75 + 0.5 * self._jitter())

    def messages(self, entries: Iterable[LogEntry]) -> list[Event]:
        """Apply live messages, in the order of their arrival."""
        events: list[Event] = []
        for entry in entries:
            if self.want is not Want.MESSAGES:
                break  # the log is read next, and has the rest too
            if self._doubted and entry.kind == END:
                self.want = Want.WHOLE
                break
            if (entry.attempt, entry.seq) <= (self._attempt, self.place.seq):
                continue
            if self._joins(entry) and (entry.kind == MARKER or entry.attempt == self._attempt):
                self._patience_s = RUNNING_PATIENCE_S
                try:
                    events += self._take(entry)
                except ProtocolError:  # anybody may publish: only the log is trusted
                    self.want = Want.TAIL
            else:
                self.want = Want.TAIL
        return events

    def lost(self) -> None:
        """Notes a lost connection: messages may be missing, and the next ones be another server's."""
        self._doubted = True
        self.silence()

    def silence(self) -> None:
        """Notes that no message came for `patience_s`, or that some are missing."""
        if self.want is Want.MESSAGES:
            self.want = Want.TAIL

    def tail(self, entries: Sequence[LogEntry], state: State | None) -> list[Event]:
        """Apply the read of Want.TAIL. `state` None: the job's hash does not exist."""
        known = int(self.place != START)
        if self._doubted and any(entry.kind == END for entry in entries):
            self.want = Want.WHOLE
            return []
        if known and (not entries or not self._is_place(entries[0])):
            self.want = Want.WHOLE
            return []
        if known and entries[0].kind == END:
            self.want = Want.NOTHING
        self._attempt = self.place.attempt
        events: list[Event] = []
        for entry in entries[known:]:
            if not self._joins(entry):
                self.want = Want.WHOLE
                return events
            events += self._take(entry)
            if self.want is Want.NOTHING:
                break  # foreign entries behind the end are no part of it
        if self.want is not Want.NOTHING:
            if len(entries) < PAGE_ENTRIES:
                self._settle(state, quiet=not events)
            elif not events:  # markers only: there is no place to continue the pages from
                self.want = Want.WHOLE
        return events

    def whole(self, entries: Sequence[LogEntry], record: JobRecord | None) -> list[Event]:
        """Apply the read of Want.WHOLE. Raises NotFound, CursorExpired, and ProtocolError for a
        damaged log.
        """
        if record is None:
            raise NotFound(self._job_id)
        if not entries:
            return self._without_log(record)
        log = self._straighten(entries)
        events = self._rewind_to(log, self._shared(log))
        if self.place.seq and log[self.place.seq - 1].kind == END:
            self.want = Want.NOTHING
        for entry in log[self.place.seq :]:
            if self.want is Want.NOTHING:
                break
            events += self._take(entry)
        if self.want is Want.NOTHING:
            return events
        self._attempt = entries[-1].attempt
        if record.state.terminal:  # the end marker found no room: the result has the missing part
            return events + self._from_result(record, log)
        self._settle(record.state, quiet=not events)
        return events

    # --- single entries

    def _joins(self, entry: LogEntry) -> bool:
        return entry.seq == self.place.seq + (entry.kind != MARKER)

    def _take(self, entry: LogEntry) -> list[Event]:
        events = self._read(entry)  # before any change: an unreadable entry is not taken
        self._attempt = entry.attempt
        if entry.kind == MARKER:
            return events
        self.place = Cursor(entry.attempt, entry.seq)
        self._delivered.append(_digest(entry))
        if entry.kind == END:
            self.want = Want.NOTHING
        return events

    def _read(self, entry: LogEntry) -> list[Event]:
        if entry.kind == DELTA:
            delta = codec.decode(Delta, entry.body, codec.MAX_RESULT_BYTES)
            return [TokenEvent(entry.cursor, entry.seq, delta.choices)]
        if entry.kind == END:
            return [EndEvent(entry.cursor, self._job_id, _terminal(entry.body))]
        return []

    def _is_place(self, entry: LogEntry) -> bool:
        """True if the log's entry at our place is still the one that was read."""
        if (entry.attempt, entry.seq) != (self.place.attempt, self.place.seq):
            return False
        return not self._delivered or self._delivered[-1] == _digest(entry)

    def _settle(self, state: State | None, *, quiet: bool) -> None:
        """Called at the end of the log: waits for messages next, unless the job is over."""
        if state is None or state.terminal:
            self.want = Want.WHOLE
            return
        self.want = Want.MESSAGES
        if state is State.QUEUED and quiet:
            self._patience_s = min(2 * self._patience_s, QUEUED_PATIENCE_S)
        else:
            self._patience_s = RUNNING_PATIENCE_S

    # --- the whole log

    def _straighten(self, entries: Sequence[LogEntry]) -> list[LogEntry]:
        """The valid entries, number n at index n - 1: a marker takes back all after its number."""
        log: list[LogEntry] = []
        for entry in entries:
            if entry.kind == MARKER and entry.seq <= len(log):
                del log[entry.seq :]
            elif entry.kind != MARKER and entry.seq == len(log) + 1:
                log.append(entry)
            else:
                raise ProtocolError(f"{self._job_id}: the token log jumps from {len(log)} to {entry.cursor}")
        return log

    def _shared(self, log: Sequence[LogEntry]) -> int:
        """Number of leading entries of `log` that were delivered unchanged."""
        for number, entry in enumerate(log[: self.place.seq], start=1):
            if number <= self._base.seq:
                known = entry.attempt <= self._base.attempt
            else:
                known = self._delivered[number - self._base.seq - 1] == _digest(entry)
            if not known:
                return number - 1
        return min(len(log), self.place.seq)

    def _rewind_to(self, log: Sequence[LogEntry], shared: int) -> list[Event]:
        read = self.place.seq
        self.place = Cursor(log[shared - 1].attempt, shared) if shared else START
        self._attempt = self.place.attempt
        if shared < self._base.seq:
            self._base = self.place
        del self._delivered[shared - self._base.seq :]
        return [RewindEvent(str(self.place), shared)] if shared < read else []

    # --- no log, or an unfinished one

    def _without_log(self, record: JobRecord) -> list[Event]:
        if self.place == START:
            return self._from_result(record, []) if record.state.terminal else self._wait(record)
        if record.state.terminal:
            raise CursorExpired(self._job_id, str(self.place))
        return self._rewind_to([], 0) + self._wait(record)  # the job starts over, and so does the stream

    def _wait(self, record: JobRecord) -> list[Event]:
        self._settle(record.state, quiet=True)
        return []

    def _from_result(self, record: JobRecord, log: Sequence[LogEntry]) -> list[Event]:
        """The stored result as events, without the content of `log`."""
        self.want = Want.NOTHING
        error: ErrorInfo | None = None
        events: list[Event] = []
        if record.result is not None:
            result = codec.decode(Result, record.result, codec.MAX_RESULT_BYTES)
            error = result.error
            deltas = [entry.body for entry in log if entry.kind == DELTA]
            read = [codec.decode(Delta, body, codec.MAX_RESULT_BYTES) for body in deltas]
            if choices := missing_deltas(result.choices, read):
                self._pass_by()
                events.append(TokenEvent(str(self.place), self.place.seq, choices))
        self._pass_by()
        return [*events, EndEvent(str(self.place), self._job_id, record.state, error)]

    def _pass_by(self) -> None:
        """Advance by one place, as if the log had this entry: a reader that resumes from there does not read
        it again.
        """
        self.place = Cursor(self.place.attempt, self.place.seq + 1)


def _digest(entry: LogEntry) -> int:
    return hash((entry.kind, entry.body))


def _terminal(body: bytes) -> State:
    try:
        return State(body.decode())
    except ValueError as error:
        raise ProtocolError(f"end marker with unknown state {body[:40]!r}") from error
