"""All jobs this worker holds: by id for the lanes and leases, by row handle for the engine's steps. The one
place where a job comes in, is decided on, or leaves, so that its rows in the engine always go with it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

from millstream.wire.keys import ShardKeys
from millstream.wire.messages import ErrorInfo, State
from millstream.wire.replies import LaneEntry
from millstream_worker.engine_link import EnginePort
from millstream_worker.jobs import Job, Phase
from millstream_worker.rows import Row

Entry = tuple[ShardKeys, str, str]  # shard, lane, entry id
_MOST_PUT_OFF = 256  # long jobs that wait beside the look-ahead; of their messages few are kept


class JobTable:
    """`to_write` is set when something must not wait for the next flush, `changed` when a job has left or
    moved on, `turned` when it may be a suspect's turn, or its turn may be over.
    """

    def __init__(self, engine: EnginePort) -> None:
        self.rows: dict[int, tuple[Job, Row]] = {}  # what the running engine computes, by handle
        self.to_write = asyncio.Event()
        self.changed = asyncio.Event()
        self.turned = asyncio.Event()
        self.lone: Job | None = None  # the suspect whose turn it is: it has engine and worker for itself
        self._coming: dict[Entry, str] = {}  # job ids by entry: delivered, being made jobs of
        self._cancelled: set[str] = set()  # ids of those: they end as soon as they are jobs
        self._reading = 0  # payloads being read just now
        self._engine = engine
        self._jobs: dict[str, Job] = {}
        self._unseated: dict[str, Job] = {}  # neither ended nor handed to the engine that runs
        self._next_handle = 1

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._jobs.values()))

    def get(self, job_id: str) -> Job | None:
        return self._jobs.get(job_id)

    def holds(self, job: Job) -> bool:
        return self._jobs.get(job.id) is job

    def entries(self) -> dict[Entry, str]:
        """What this worker has a lease on, with its job ids: jobs held, and entries that become jobs."""
        return self._coming | {
            (job.shard, job.entry.lane, job.entry.entry_id): job.id for job in self._jobs.values()
        }

    @property
    def waiting_rows(self) -> int:
        """Not in the engine's batch yet. Of a job that is not read at least one; long jobs that wait to be
        read take nobody's place before they are many, or where they hold logged tokens.
        """
        put_off = sum(job.unread.last_seq == 0 for job in self.to_read() if job.unread is not None)
        waiting = sum(max(1, len(job.rows)) for job in self._jobs.values() if job.phase is Phase.WAITING)
        return waiting - min(put_off, _MOST_PUT_OFF)

    @property
    def waiting_tokens(self) -> int:
        """Of the inputs of jobs that are not in the engine's batch yet. Suspects wait for all others: if
        theirs counted, they could wait for a job that is not read because of them.
        """
        waiting = (job for job in self._jobs.values() if job.phase is Phase.WAITING and not job.alone)
        return sum(len(job.prompt) for job in waiting)

    @property
    def has_suspect(self) -> bool:
        return any(job.alone for job in self._jobs.values())

    def to_read(self) -> list[Job]:
        """Those that were put off for their length alone, in the order in which they came."""
        return [job for job in self._unseated.values() if job.unread is not None and not job.alone]

    def put_off(self) -> list[Job]:
        """Those for their length, whether they wait to be read or their reading was given up."""
        return [*self.to_read(), *(job for job in self if job.being_read and not job.alone)]

    def expect(self, shard: ShardKeys, entries: Sequence[LaneEntry]) -> None:
        """These were delivered to this worker; making jobs of them may outlast a lease."""
        self._coming |= {(shard, entry.lane, entry.entry_id): entry.job_id for entry in entries}

    def expect_no_more(self, shard: ShardKeys, entries: Sequence[LaneEntry]) -> None:
        for entry in entries:
            self._coming.pop((shard, entry.lane, entry.entry_id), None)
            self._cancelled.discard(entry.job_id)

    def cancel(self, job_id: str) -> None:
        """End a job that is held, or one that comes, as cancelled; unknown ids are ignored."""
        job = self._jobs.get(job_id)
        if job is not None:
            self.conclude(job, State.CANCELLED)
        elif job_id in self._coming.values():
            self._cancelled.add(job_id)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """A payload is being read, which may take the worker along: no suspect has its turn meanwhile, nor
        after a reading that was given up, since its thread goes on.
        """
        self._reading += 1
        yield
        self._reading -= 1
        self._nudge()

    def take(self, job: Job) -> None:
        """Hold a started job, and have it computed unless its end is already decided."""
        older = self._jobs.get(job.id)
        if older is not None:  # our lease on an earlier attempt was lost and we have not noticed yet
            self.drop(older)
        self._jobs[job.id] = job
        if job.id in self._cancelled:  # while it was made
            self._cancelled.discard(job.id)
            job.end(State.CANCELLED)
        self.to_write.set()
        if job.phase is not Phase.ENDED:
            self._unseated[job.id] = job
            self._seat_more()
            if job.unread is not None:
                self.changed.set()

    def seat_read(self) -> None:
        """Hand what was read meanwhile to the engine."""
        self._seat_more()

    def seat_all(self) -> None:
        """Hand everything that is not ended to a new, empty engine."""
        assert not self.rows, "the engine before it was vacated"
        self._seat_more()

    def suspect(self, job: Job) -> None:
        """From here on it runs alone, and what it takes counts for nobody else."""
        job.alone = True
        self.changed.set()

    def vacate(self) -> list[Job]:
        """The engine is gone: nobody has a seat until there is the next one. Answers the jobs that it had, in
        its batch or waiting before it.
        """
        seated = list({job.id: job for job, _ in self.rows.values()}.values())
        self.rows.clear()
        for job in seated:
            job.wait()
        self._unseated = {job.id: job for job in self._jobs.values() if job.phase is not Phase.ENDED}
        self._nudge()
        return seated

    def end_row(self, handle: int) -> tuple[Job, Row]:
        """The engine has ended a choice."""
        return self.rows.pop(handle)

    def stop_row(self, job: Job, row: Row) -> None:
        """One choice has ended here, not in the engine: stop computing it."""
        handle = job.handle + row.index
        del self.rows[handle]
        self._engine.abort([handle])

    def conclude(
        self, job: Job, state: State, error: ErrorInfo | None = None, letter: str | None = None
    ) -> None:
        """Decide how a job ends; its rows stop, and its end is written next."""
        job.end(state, error, letter)
        self._unseat(job)
        self.to_write.set()
        self.changed.set()  # it takes no room any more

    def drop(self, job: Job) -> None:
        """Forget a job without a word: it is written, or not ours any more."""
        if self.holds(job):
            del self._jobs[job.id]
        self._unseat(job)
        self.changed.set()
        self._nudge()

    def try_turn(self) -> Job | None:
        """Give the first suspect its turn, once nobody else is seated, read or to be read."""
        idle = self._engine.up and self.lone is None and not self.rows and not self._reading
        idle = idle and all(job.alone for job in self._unseated.values())
        self.lone = next(iter(self._unseated.values()), None) if idle else self.lone
        return self.lone if idle else None

    def waits_alone(self, job: Job) -> bool:
        """It is this suspect's turn, it is not over, and there is an engine that can be given it."""
        return self.lone is job and self._unseated.get(job.id) is job and self._engine.up

    def sits(self, job: Job) -> bool:
        return any(seated is job for seated, _ in self.rows.values())

    def seat_lone(self, job: Job) -> None:
        assert self.lone is job, "it is not its turn"
        assert not self.rows, "others are seated"
        self._seat(job)

    def end_turn(self) -> None:
        self.lone = None
        self.changed.set()
        self._seat_more()

    def _seat_more(self) -> None:
        """All that are read but suspects: those have their turn after all others, one by one."""
        if not self._engine.up or self.lone is not None:
            return
        for job in [job for job in self._unseated.values() if not job.alone and job.is_read]:
            self._seat(job)
        self._nudge()

    def _seat(self, job: Job) -> None:
        """Under handles that this worker has never used before."""
        del self._unseated[job.id]
        job.handle = self._next_handle
        self._next_handle += len(job.rows)
        for row in job.rows:
            if row.reason is None:
                self.rows[job.handle + row.index] = (job, row)
        self._engine.add(job.engine_request())

    def _unseat(self, job: Job) -> None:
        handles = range(job.handle, job.handle + len(job.rows))
        seats = [handle for handle in handles if handle in self.rows and self.rows[handle][0] is job]
        for handle in seats:
            del self.rows[handle]
        self._engine.abort(seats)
        if self._unseated.get(job.id) is job:  # else a later attempt at it waits there
            del self._unseated[job.id]
        self._nudge()

    def _nudge(self) -> None:
        if self._unseated or self.lone is not None:
            self.turned.set()
