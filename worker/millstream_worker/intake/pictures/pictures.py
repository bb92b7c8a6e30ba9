"""Has the images of jobs prepared by other processes, and gives the engine as many as it can hold.

    lane ─► read ─► PREPARING ─► one image after the other ─► a place in the engine's memory ─► completed

Tenants take turns, each with one image, `interactive` before `batch`. An image that several jobs of a tenant
have is prepared once. A job begins when its images are likely to fit beside all that is held and is to come;
where they do not, none behind it begins. Once it has begun it goes on, and no two jobs wait for each other's
memory. Of a job that lost its engine, the message is fetched again, and its images are prepared again; its
tokens are kept.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field

from millstream.errors import InvalidRequest
from millstream.wire.messages.job_messages import State, read_request
from millstream_worker.images.messages import BadImage, ImageData, ImageTokens
from millstream_worker.intake.message_fetch import MessageFetch
from millstream_worker.intake.tenant_turns import TenantTurns
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.job_phase import JobPhase
from millstream_worker.jobs.net import Net
from millstream_worker.jobs.pictures.held_images import Key
from millstream_worker.jobs.served_model import ModelSlot
from millstream_worker.jobs.table import JobTable
from millstream_worker.observe.watchdog import LoopWatch
from millstream_worker.threads import in_thread

_LOOK_S = 1.0  # between two turns; work wakes it sooner
_DECAY = 0.95  # of the size of a large image, with each one after it
_MOST_FILE_BYTES = 32 * 2**20  # of images that wait here; the messages of others stay on the server

Turn = Callable[[], Awaitable[None]]
Prepare = Callable[[bytes], Awaitable[ImageData]]
Complete = Callable[[Job, Sequence[ImageTokens]], Awaitable[None]]


@dataclass(slots=True, eq=False)
class Pictures:
    """`prepare` raises BadImage; `complete` gives a job the rest of its prompt; `at_once`: number of images
    that are prepared at a time, at most `most_at_once`.
    """

    table: JobTable
    queue: EngineQueue
    model: ModelSlot
    fetch: MessageFetch
    net: Net
    watch: LoopWatch
    _: KW_ONLY
    prepare: Prepare
    complete: Complete
    at_once: Callable[[], int]
    most_at_once: int = 8
    _turns: TenantTurns = field(default_factory=TenantTurns)
    _prepared_now: set[Key] = field(default_factory=set)
    _busy: set[Job] = field(default_factory=set)  # being fetched or completed
    _largest: float = 0.0  # bytes of an image lately; 0: none was prepared yet
    _stopping: bool = False

    @property
    def takes_more(self) -> bool:
        """False while the files of too many images wait here."""
        return sum(job.input.images.file_bytes for job in self.table.to_prepare()) < _MOST_FILE_BYTES

    def stop(self) -> None:
        self._stopping = True
        self.table.changed.notify()

    async def run(self) -> None:
        """Until `stop`: unprepared jobs are then released by the drain."""
        with self.watch:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._take_turns(), name="pictures") for _ in range(self.most_at_once)
                ]
                while not self._stopping:
                    await self.table.changed.wait(_LOOK_S)
                for task in tasks:  # nobody waits for an image
                    task.cancel()

    async def _take_turns(self) -> None:
        while not self._stopping:
            self.watch.turn()
            turn = self._next()
            if turn is None:
                await self.table.changed.wait(_LOOK_S)
                continue
            await turn()
            self.table.changed.notify()

    def _next(self) -> Turn | None:
        isolated = self.queue.isolated
        jobs = [
            job
            for job in self.table.to_prepare()
            if job not in self._busy and (job is isolated or (isolated is None and not job.attempt.alone))
        ]
        self._turns.meet((*jobs, *self._busy))
        held, is_full = self.queue.images, False
        for job in sorted(jobs, key=self._turns.place):
            missing = held.missing(job)
            if not held.has_begun(job):
                is_full = is_full or not (job is isolated or self._has_room(job, missing, jobs))
                if is_full:
                    continue
                held.begin(job)
            if not missing and (held.reserve(job, self._most) or job is isolated):
                return self._turn(job, self._complete)
            if missing and (turn := self._next_image(job, missing)) is not None:
                return turn
        return None

    def _next_image(self, job: Job, missing: Sequence[bytes]) -> Turn | None:
        if len(self._prepared_now) >= self.at_once():
            return None
        free = [digest for digest in missing if self.queue.images.key(job, digest) not in self._prepared_now]
        if not free:
            return None
        self._turns.take(job)
        if free[0] not in job.input.images.files:
            return self._turn(job, self._fetch)
        key = self.queue.images.key(job, free[0])
        self._prepared_now.add(key)
        return lambda: self._prepare(key, job.input.images.files[free[0]])

    def _turn(self, job: Job, work: Callable[[Job], Awaitable[None]]) -> Turn:
        """The job is left alone by others until the work is done."""
        self._busy.add(job)

        async def turn() -> None:
            try:
                await work(job)
            finally:
                self._busy.discard(job)

        return turn

    @property
    def _most(self) -> int:
        return self.model.get().info.image_memory

    def _has_room(self, job: Job, missing: Sequence[bytes], jobs: Sequence[Job]) -> bool:
        """True if the job's missing images are likely to fit beside those of jobs that have begun."""
        held = self.queue.images
        coming = {
            held.key(other, digest)
            for other in jobs
            if held.has_begun(other)
            for digest in held.missing(other)
        }
        new = {held.key(job, digest) for digest in missing} - coming
        if not new or not (coming or held.bytes):
            return True
        if not self._largest:  # how large they become the first ones show
            return len(coming) < self.at_once()
        return held.bytes + (len(coming) + len(new)) * self._largest <= self._most

    def _goes_on(self) -> bool:
        self.watch.turn()  # an outage is no standstill
        return not self._stopping

    async def _fetch(self, job: Job) -> None:
        payload = await self.fetch.payload(job, self._goes_on)
        if payload:
            files = await in_thread(_files, payload)
            job.input.images.take(files)

    async def _prepare(self, key: Key, data: bytes) -> None:
        begun = time.monotonic()
        try:
            made = await self.prepare(data)
        except BadImage as error:
            self._refuse(key, error)
        else:
            self.net.metrics.image_prepared(made.size, time.monotonic() - begun)
            self._take(key, made)
        finally:
            self._prepared_now.discard(key)

    def _take(self, key: Key, made: ImageData) -> None:
        jobs, held = self._jobs_with(key), self.queue.images
        size = held.put(jobs, key[1], made, self.model.get().info.feature_bytes)
        self._largest = max(size, _DECAY * self._largest)
        for job in jobs:
            if held.size_of(job) > self._most:
                self._refuse_job(job, self._too_much(job), "memory")

    def _too_much(self, job: Job) -> InvalidRequest:
        count, most = len(set(job.input.images.digests)), self._most // 10**6
        images = "its image takes" if count == 1 else f"its {count} images take"
        problem = (
            f"{images} more than {most:,} MB when prepared, and this worker has {most:,} MB (its "
            "MILLSTREAM_IMAGE_MEMORY); send fewer"
        )
        return InvalidRequest(job.input.images.fields[0], count, problem)

    def _refuse(self, key: Key, error: BadImage) -> None:
        for job in self._jobs_with(key):
            own = job.input.images
            field = own.fields[own.digests.index(key[1])]
            size = len(own.files.get(key[1], b""))
            self._refuse_job(job, InvalidRequest(field, f"{size} bytes", error.problem), error.kind)

    def _refuse_job(self, job: Job, error: InvalidRequest, reason: str) -> None:
        self.net.metrics.image_refused(reason)
        self.table.conclude(job, State.FAILED, self.net.refusal(error))

    def _jobs_with(self, key: Key) -> list[Job]:
        """Returns the jobs that wait for this image."""
        return [
            job
            for job in self.table.to_prepare()
            if any(self.queue.images.key(job, digest) == key for digest in job.input.images.digests)
        ]

    async def _complete(self, job: Job) -> None:
        tokens = self.queue.images.tokens(job)
        with self.queue.no_isolation():
            await self.complete(job, tokens)
        self.queue.hand_over()
        self.queue.isolation_changed.notify()
        if job.phase is JobPhase.QUEUED:
            await self.queue.engine.writable(_LOOK_S)


def _files(payload: bytes) -> list[bytes]:
    return [image.data for image in read_request(payload).images]
