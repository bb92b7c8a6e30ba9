"""Builds the calls that write a job: the unacknowledged bodies of its token log, then its end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from millstream.wire import calls
from millstream.wire.calls.attempt import Keep
from millstream.wire.messages.job_messages import Timing
from millstream.wire.messages.script_replies import AppendReply, EndOutcome
from millstream.wire.timing import ServerClock
from millstream_worker.jobs.equal_jobs.answers import kept_under
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.served_model import ModelSlot

MOST_BYTES = 4 * 1024 * 1024  # sent at once; a round too large for the line would be repeated unchanged

_SENT = Timing()  # the times were sent with the first body

Call = calls.ScriptCall[AppendReply | EndOutcome]


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """Seconds between flushes of streamed and other jobs; results' time to live; dead letters kept."""

    streamed_s: float
    unstreamed_s: float
    result_ttl_ms: int
    max_dead: int
    cache_bytes: int = 0  # of results kept for equal requests, in each shard


@dataclass(slots=True, eq=False)
class WriteBuilder:
    owner: str
    clock: ServerClock
    model: ModelSlot
    policy: FlushPolicy

    def calls(self, job: Job) -> list[Call]:
        """The calls to send now: the unacknowledged bodies, and the end if it may follow."""
        if job.log.is_acknowledged or job.phase.has_ended:
            job.take_delta()
        job.log.next_flush = time.monotonic() + (
            self.policy.streamed_s if job.request.stream else self.policy.unstreamed_s
        )
        if not job.phase.has_ended:
            return self._appends(job, len(job.log.written))
        # The last body goes with the end, but not with a dead letter's. All others go before it.
        before = len(job.log.written) if job.end.letter is not None else len(job.log.written) - 1
        return self._appends(job, before) or [self._end(job)]

    def _appends(self, job: Job, end: int) -> list[Call]:
        """Bodies before `end`, as many as are sent at once."""
        stop, size = job.log.acknowledged, 0
        while stop < end and size < MOST_BYTES:
            size += len(job.log.written[stop])
            stop += 1
        if end and not job.log.acknowledged and job.outputs.tokens:
            job.times.send_first_token(self.clock.now_ms())
        claim = job.claim(self.owner)
        return [
            calls.append(
                job.shard,
                claim,
                seq=place + 1,
                body=job.log.written[place],
                publish=True,
                timing=_SENT if place else job.times.timing,
            )
            for place in range(job.log.acknowledged, stop)
        ]

    def _end(self, job: Job) -> Call:
        now_ms = self.clock.now_ms()
        if job.request.stream and job.outputs.tokens:  # published with the end at the latest
            job.times.send_first_token(now_ms)
            if job.times.timing.last_token_ms is not None:
                job.times.set("last_token_ms", now_ms)
        served = self.model.current
        result = job.result(served.facts.of_result() if served is not None else {}, now_ms)
        claim = job.claim(self.owner)
        if job.end.letter is not None:
            return calls.dead_letter(
                job.shard,
                claim,
                lane=job.entry.lane,
                reason=job.end.letter,
                result=result,
                ttl_ms=self.policy.result_ttl_ms,
                max_dead=self.policy.max_dead,
                timing=job.times.timing,
            )
        open_body = None if job.log.is_acknowledged else job.log.written[-1]
        return calls.finish(
            job.shard,
            claim,
            lane=job.entry.lane,
            state=job.end.state,
            result=result,
            seq=len(job.log.written) + (open_body is None),
            delta=open_body,
            ttl_ms=self.policy.result_ttl_ms,
            timing=job.times.timing,
            keep=Keep(kept_under(job).hex(), self.policy.cache_bytes),
        )


def size_of(batch: Sequence[Call]) -> int:
    return sum(len(arg) for call in batch for arg in call.args if isinstance(arg, bytes))
