"""Keeps the prepared images of jobs under way: each once for all jobs of one salt, and until the last of them
has ended. The engine has the pixels of those that it was sent, and only it.

    begin ─► (prepared) put ─► reserve ─► send ─► release
                  ▲                        └── engine_lost ─┐
                  └─────────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from millstream_worker.engine.protocol.frames import DropImage, HoldImage
from millstream_worker.images.messages import ImageData, ImageTokens
from millstream_worker.jobs.job import Job

Key = tuple[str, bytes]  # salt, and digest of the file


class ImageHolder(Protocol):
    """The engine that runs now. Without one nothing is sent."""

    def hold(self, image: HoldImage) -> None: ...

    def drop(self, image: DropImage) -> None: ...


@dataclass(slots=True, eq=False)
class _SharedImage:
    tokens: ImageTokens
    size: int  # bytes: of its pixels or its features, whichever are more
    data: ImageData | None  # None: the engine has it
    is_reserved: bool = False
    jobs: dict[Job, None] = field(default_factory=dict)


class HeldImages:
    """`bytes`: of all. `reserved_bytes`: of those that the engine has, or gets with the jobs that wait for
    it. `salted`: tenants share none.
    """

    def __init__(self, engine: ImageHolder) -> None:
        self.salted = True
        self.bytes = 0
        self.reserved_bytes = 0
        self._engine = engine
        self._held: dict[Key, _SharedImage] = {}
        self._keys: dict[Job, tuple[Key, ...]] = {}  # of jobs that have begun: what they hold
        self._given: set[Job] = set()  # those whose images are reserved

    def key(self, job: Job, digest: bytes) -> Key:
        return (job.request.tenant if self.salted else "", digest)

    def missing(self, job: Job) -> list[bytes]:
        """Returns the digests of its images that are not here."""
        return [
            one for one in dict.fromkeys(job.input.images.digests) if self.key(job, one) not in self._held
        ]

    def begin(self, job: Job) -> None:
        """Hold for the job what is here of its images, and what will be put for it."""
        keys = self._keys.setdefault(job, ())
        for digest in dict.fromkeys(job.input.images.digests):
            key = self.key(job, digest)
            held = self._held.get(key)
            if held is not None and job not in held.jobs:
                held.jobs[job] = None
                keys = (*keys, key)
        self._keys[job] = keys

    def has_begun(self, job: Job) -> bool:
        return job in self._keys

    def has_all(self, job: Job) -> bool:
        return len(self._keys.get(job, ())) == len(set(job.input.images.digests))

    def size_of(self, job: Job) -> int:
        """Returns the bytes of its images that are held."""
        return sum(self._held[key].size for key in self._keys.get(job, ()))

    def put(self, jobs: Sequence[Job], digest: bytes, data: ImageData, feature_bytes: int) -> int:
        """Hold a prepared image for those of these jobs of one salt that have begun. Returns its size.
        `feature_bytes`: of the features of one token.
        """
        size = max(data.size, data.tokens.features * feature_bytes)
        begun = [job for job in jobs if job in self._keys]
        if not begun:  # they ended meanwhile
            return size
        self._held[self.key(begun[0], digest)] = _SharedImage(data.tokens, size, data)
        self.bytes += size
        for job in begun:
            self.begin(job)
        return size

    def tokens(self, job: Job) -> list[ImageTokens]:
        """Returns those of each image in its messages, in order; all are held."""
        return [self._held[self.key(job, digest)].tokens for digest in job.input.images.digests]

    def reserve(self, job: Job, most: int) -> bool:
        """The engine may hold `most` bytes, and more where only jobs that wait hold what it has: no two of
        them wait for each other. False: there is no room for the job's images yet.
        """
        new = [held for key in self._keys.get(job, ()) if not (held := self._held[key]).is_reserved]
        more = sum(held.size for held in new)
        if new and self._given and self.reserved_bytes + more > most:
            return False
        self._given.add(job)
        self.reserved_bytes += more
        for held in new:
            held.is_reserved = True
        return True

    def send(self, job: Job) -> None:
        """To the engine, which gets the job next."""
        for salt, digest in self._keys.get(job, ()):
            held = self._held[salt, digest]
            if held.data is not None:
                self._engine.hold(HoldImage(salt, digest, held.tokens.features, held.data.arrays))
                held.data = None

    def release(self, job: Job) -> None:
        """The job needs its images no more. Those that no other job needs are dropped."""
        self._given.discard(job)
        for key in self._keys.pop(job, ()):
            held = self._held[key]
            del held.jobs[job]
            if held.jobs:
                continue
            self._forget(key)
            if held.data is None:
                self._engine.drop(DropImage(*key))

    def engine_lost(self) -> None:
        """Forget what the engine had: jobs that need it have to get it again."""
        for key in [key for key, held in self._held.items() if held.data is None]:
            for job in self._forget(key).jobs:
                self._keys[job] = tuple(one for one in self._keys[job] if one != key)
        for job in [job for job in self._keys if not self._keys[job]]:
            del self._keys[job]  # it begins anew
        self._given = {job for job in self._given if job in self._keys and self.has_all(job)}

    def _forget(self, key: Key) -> _SharedImage:
        held = self._held.pop(key)
        self.bytes -= held.size
        if held.is_reserved:
            self.reserved_bytes -= held.size
        return held
