"""Keeps the jobs that go to the engine: which wait for it, which it computes, and which one runs isolated.

    put ─► waiting ─ hand_over ─► in the engine ─┬─► end_row, stop_row ─► (no rows left)
             ▲                                   └─ engine_lost ─┐
             └───────────────────────────────────────────────────┘
`withdraw` takes a job out from anywhere. A job that is not ready yet waits until it is; a suspect until
everything else is out of the engine, then it runs isolated. A job that equals one in the engine follows
that one instead of being handed over; when its leader is withdrawn it waits again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Protocol

from millstream.wire.timing import within
from millstream_worker.engine.protocol.request import EngineRequest
from millstream_worker.jobs.engine_request import engine_request
from millstream_worker.jobs.equal_jobs.followers import Followers, outranks
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.job_phase import JobPhase
from millstream_worker.jobs.output import ChoiceOutput
from millstream_worker.jobs.pictures.held_images import HeldImages, ImageHolder

_PROOF = EngineRequest(handle=0, prompt=(0,), max_tokens=1)  # jobs' handles begin at 1


class Signal:
    """Wakes all who wait at that moment. Any number of tasks may wait; none has to clear anything."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify(self) -> None:
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, seconds: float) -> bool:
        """Wait for the next `notify` for at most `seconds`. False: there was none in time."""
        return await within(self._next, seconds)


class RunningEngine(ImageHolder, Protocol):
    """The engine that runs now. Without one nothing is sent."""

    @property
    def up(self) -> bool: ...

    def add(self, request: EngineRequest) -> None: ...

    def abort(self, handles: Sequence[int]) -> None: ...

    async def writable(self, wait_s: float) -> bool:
        """Wait while the engine is far behind in reading; False if it still is after `wait_s`."""


class EngineQueue:
    """`isolation_changed`: an isolated run may start, has changed, or has ended. `engine_proved`: the running
    engine, or the one that was lost, has computed something; `ever_proved`: one of them has.
    """

    def __init__(self, engine: RunningEngine) -> None:
        self.engine = engine
        self.rows: dict[int, tuple[Job, ChoiceOutput]] = {}  # what the running engine computes, by handle
        self.isolated: Job | None = None  # the suspect that has engine and worker for itself
        self.isolation_changed = Signal()
        self.engine_proved = False
        self.ever_proved = False
        self._proof_asked = False
        self._must_prove = False  # that it works, before it gets jobs: one has died
        self._jobs: dict[Job, None] = {}  # all that were put and not withdrawn, in this order
        self._waiting: dict[Job, None] = {}  # those of them that the running engine was not given
        self.followers = Followers()
        self.images = HeldImages(engine)
        self._reading = 0  # payloads being read just now
        self._next_handle = 1

    def put(self, job: Job) -> None:
        """Have a job computed, as soon as it is ready and there is an engine."""
        self._jobs[job] = self._waiting[job] = None
        self.hand_over()

    @contextlib.contextmanager
    def no_isolation(self) -> Iterator[None]:
        """A payload is being read, which may kill the worker: no isolated run starts meanwhile, nor after an
        abandoned reading, since its thread goes on.
        """
        self._reading += 1
        yield
        self._reading -= 1
        self._notify()

    def hand_over(self) -> None:
        """Give the engine every job that waits and is ready. Suspects come after all others, one by one."""
        if not self.engine.up or self.isolated is not None or (self._must_prove and not self.engine_proved):
            return
        for job in [job for job in self._waiting if not job.attempt.alone and job.phase is JobPhase.READY]:
            if not self.images.has_all(job):
                job.move(JobPhase.PREPARING)
                continue
            leader = self.followers.leader_for(job)
            if leader is None:
                self._hand_to_engine(job)
            elif outranks(job, leader):
                left = [leader, *self._take_back(leader)]
                self._hand_to_engine(job)
                for one in left:
                    one.move(JobPhase.READY)
                    self.followers.follow(one, job)
            else:
                del self._waiting[job]
                self.followers.follow(job, leader)
        self._notify()

    def has_leader_for(self, job: Job) -> bool:
        """True if an equal job is in the engine, whose tokens this one gets when it is handed over."""
        return self.followers.leader_for(job) not in (None, job)

    def engine_ready(self) -> None:
        """A new engine is ready. It has no jobs."""
        assert not self.rows, "the loss of the engine before it was not reported"
        self.engine_proved = self._proof_asked = False
        if self._must_prove:
            self.try_prove_engine()
        self.hand_over()

    def try_prove_engine(self) -> bool:
        """True if the running engine has computed anything; if not, it is asked for one token."""
        if self.engine.up and not self.engine_proved and not self._proof_asked:
            self._proof_asked = True
            self.engine.add(_PROOF)
        return self.engine_proved

    def engine_worked(self) -> None:
        """The running engine has computed something."""
        if not self.engine_proved:
            self.engine_proved = self.ever_proved = True
            self.isolation_changed.notify()
            self.hand_over()

    def engine_refused(self, handle: int) -> None:
        """An engine that refuses a request works, too."""
        if handle == _PROOF.handle:
            self.engine_worked()

    def engine_lost(self) -> list[Job]:
        """The engine is gone: all jobs wait for the next one. Returns the jobs that it had, in its batch or
        waiting before it.
        """
        lost = list({job.id: job for job, _ in self.rows.values()}.values())
        self._must_prove = True
        self.rows.clear()
        self.images.engine_lost()
        for job in (*lost, *self.followers.clear()):
            job.move(JobPhase.READY)
        self._waiting = dict(self._jobs)
        for job in self._waiting:
            if job.phase is JobPhase.READY and not self.images.has_all(job):
                job.move(JobPhase.PREPARING)
        self._notify()
        return lost

    def end_row(self, handle: int) -> tuple[Job, ChoiceOutput]:
        """The engine has ended a choice."""
        return self.rows.pop(handle)

    def stop_row(self, job: Job, row: ChoiceOutput) -> None:
        """A choice has ended here, by a stop string: abort it in the engine."""
        handle = job.outputs.handle + row.index
        del self.rows[handle]
        self.engine.abort([handle])

    def withdraw(self, job: Job) -> None:
        """Stop computing a job. If others follow it, one of them leads the rest, from the tokens so far."""
        self._jobs.pop(job, None)
        self._waiting.pop(job, None)
        left = self._take_back(job)
        for one in left:
            one.move(JobPhase.READY)
            self._waiting[one] = None
        self.images.release(job)
        if left:
            self.hand_over()
        self._notify()

    def try_isolate(self) -> Job | None:
        """Isolate the first suspect, once no other job is in the engine, waits for it or is being read."""
        idle = self.engine.up and self.isolated is None and not self.rows and not self._reading
        if idle and all(job.attempt.alone for job in self._waiting):
            self.isolated = next(iter(self._waiting), None)
            return self.isolated
        return None

    def awaits_isolated_run(self, job: Job) -> bool:
        """True if it is isolated, was not given to the engine yet, and there is an engine."""
        return self.isolated is job and job in self._waiting and self.engine.up

    def hand_over_isolated(self, job: Job) -> None:
        assert self.isolated is job, "it is not isolated"
        assert not self.rows, "the engine has other jobs"
        self._hand_to_engine(job)

    def end_isolation(self) -> None:
        self.isolated = None
        self.isolation_changed.notify()
        self.hand_over()

    def computes(self, job: Job) -> bool:
        return any(given is job for given, _ in self.rows.values())

    def computes_row(self, job: Job, row: ChoiceOutput) -> bool:
        return self.rows.get(job.outputs.handle + row.index, (None, None))[0] is job

    def _take_back(self, job: Job) -> list[Job]:
        """Take a job's rows out of the engine. Returns its followers."""
        handles = range(job.outputs.handle, job.outputs.handle + len(job.rows))
        given = [handle for handle in handles if handle in self.rows and self.rows[handle][0] is job]
        for handle in given:
            del self.rows[handle]
        self.engine.abort(given)
        return self.followers.leave(job)

    def _hand_to_engine(self, job: Job) -> None:
        """Its handles were never used before by this worker."""
        del self._waiting[job]
        self.followers.lead(job)
        job.outputs.handle = self._next_handle
        job.move(JobPhase.QUEUED if job.input.grammar is None else JobPhase.COMPILING)
        self._next_handle += len(job.rows)
        for row in job.rows:
            if row.reason is None:
                self.rows[job.outputs.handle + row.index] = (job, row)
        self.images.send(job)
        self.engine.add(engine_request(job))

    def _notify(self) -> None:
        if self._waiting or self.isolated is not None:
            self.isolation_changed.notify()
