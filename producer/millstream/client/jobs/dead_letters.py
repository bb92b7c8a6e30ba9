"""One queue's dead letters: listed, shown, submitted once more, dropped."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncGenerator

from millstream.client.session.job_reader import QueueJobs
from millstream.client.submit.request_cost import BYTES_PER_TOKEN, cost_of
from millstream.client.submit.requests import EncodedRequest
from millstream.client.submit.submission import Submission, Submitted
from millstream.errors import InvalidRequest, NotDead, ProtocolError
from millstream.wire import calls
from millstream.wire.keys import Lane, ShardKeys, check_own_id, is_job_id, shard_of
from millstream.wire.messages import codec
from millstream.wire.messages.job_messages import Request
from millstream.wire.state.dead_letter import DeadLetter, Place, list_dead, read_letter

PAGE_LETTERS = 200
MAX_OWN_ID = 200
_REQUEUED = re.compile(r"\.r[0-9]+-[0-9]+$")


class DeadLetters:
    """Dead letters of all shards. An id is a letter's or that of the job that died, which names its newest
    letter.
    """

    def __init__(self, jobs: QueueJobs, submission: Submission) -> None:
        self._jobs = jobs
        self._session = jobs.session
        self._submission = submission

    async def newest(self, limit: int | None) -> AsyncGenerator[DeadLetter, None]:
        """Yield the letters from the newest on, without requests; not those that arrive meanwhile."""
        if limit is not None and limit < 1:
            raise InvalidRequest("limit", limit, "must be at least 1")
        info = await self._jobs.info()
        of_shard = [self._of_shard(shard) for shard in range(info.shards)]
        heads = [(letter, rest) for rest in of_shard if (letter := await anext(rest, None))]
        count = 0
        while heads and count != limit:
            newest = max(heads, key=lambda head: Place.of(head[0]).age)
            letter, rest = newest
            yield letter
            count += 1
            heads.remove(newest)
            if following := await anext(rest, None):
                heads.append((following, rest))

    async def _of_shard(self, shard: int) -> AsyncGenerator[DeadLetter, None]:
        keys, last = await self._keys(shard), None
        while True:
            call = list_dead(keys, shard=shard, before=last, count=PAGE_LETTERS, most_bytes=0)
            with self._session.reach():
                page = await calls.run(self._session.redis, call)
            for letter in page:
                yield letter
            if len(page) < PAGE_LETTERS:
                return
            last = Place.of(page[-1])

    async def find(self, letter_id: str) -> DeadLetter:
        """One letter with its whole request. Raises NotDead."""
        place = Place.parse(letter_id) or await self._place_of_job(letter_id)
        if place is not None and place.shard < (await self._jobs.info()).shards:
            keys = await self._keys(place.shard)
            with self._session.reach():
                if letter := await read_letter(self._session.redis, keys, place):
                    return letter
        raise NotDead(letter_id)

    async def _place_of_job(self, name: str) -> Place | None:
        [job_id] = (await self._jobs.full_ids([name])).values()
        if job_id is None:
            return None
        async for letter in self._of_shard(shard_of(job_id)):
            if letter.job_id == job_id:
                return Place.of(letter)
        return None

    async def requeue(self, letter_id: str, wait_s: float) -> Submitted:
        """Submit its request as a new job, then delete the letter. Raises what `find` and `submit` raise.

        An interruption keeps the letter, and requeueing it again is the same job.
        """
        letter = await self.find(letter_id)
        job = await self._submission.ready(again(letter), wait_s)
        if job.durable:  # otherwise the server may still lose it, and the letter is the only copy
            await self._remove(letter)
        return job

    async def drop(self, letter_id: str) -> None:
        """Delete one letter. Raises what `find` raises."""
        await self._remove(await self.find(letter_id))

    async def _remove(self, letter: DeadLetter) -> None:
        place = Place.of(letter)
        keys = await self._keys(place.shard)
        with self._session.reach():
            await self._session.redis.xdel(keys.dead, place.entry)

    async def _keys(self, shard: int) -> ShardKeys:
        return (await self._jobs.info()).keys(self._jobs.queue).shard(shard)


def again(letter: DeadLetter) -> EncodedRequest:
    """The letter's request under a new id that follows from the letter: repeated, it is the same job.

    Its deadline is left out: it was that of the job that died, and is over or soon will be. Nothing else is
    changed, even in a request of a version that this client does not know. Raises InvalidRequest.
    """
    if letter.job_id is None:
        raise InvalidRequest("id", letter.id, "is a foreign entry and not a job; it can only be dropped")
    if not letter.payload:
        raise InvalidRequest("id", letter.id, "has lost its request; submit the job again from its source")
    try:
        lane = Lane(letter.lane)
    except ValueError as error:
        raise InvalidRequest("id", letter.id, f"is of an unknown lane {letter.lane!r}") from error
    payload, stream = _without_deadline(letter.payload)
    tenant, cost = _share(payload)
    return EncodedRequest(
        own_id=_own_id(letter.job_id, Place.of(letter)),
        lane=lane,
        payload=payload,
        digest=hashlib.sha256(b"requeued " + letter.payload).hexdigest()[:32],
        deadline_ms=None,
        stream=stream,
        version=letter.version,
        requeued_from=letter.job_id,
        tenant=tenant,
        cost=cost,
    )


def _own_id(job_id: str, place: Place) -> str:
    """`<own id>.r<entry>`; it replaces the last suffix of a job that was requeued before."""
    first = _REQUEUED.sub("", job_id.partition("-")[2])
    suffix = f".r{place.entry}"
    # a foreign client's id may make it look like a job's
    if len(first) + len(suffix) > MAX_OWN_ID or is_job_id(first + suffix):
        first = hashlib.sha256(first.encode()).hexdigest()[:32]
    return check_own_id(first + suffix)


def _share(payload: bytes) -> tuple[str, int]:
    """Tenant and cost of the request; if it cannot be read, only its size is known."""
    try:
        request = codec.decode(Request, payload)
    except ProtocolError:
        return "", max(1, len(payload) // BYTES_PER_TOKEN)
    return request.tenant, cost_of(request)


def _without_deadline(payload: bytes) -> tuple[bytes, bool]:
    """The payload, and whether its producer asked for a stream. An unreadable one is sent unchanged: the
    worker reports the error.
    """
    try:
        fields = codec.unpack(payload)
    except ProtocolError:
        return payload, False
    if not isinstance(fields, dict):
        return payload, False
    if fields.pop("deadline_ms", None) is not None:
        payload = codec.pack(fields)
    return payload, fields.get("stream") is True
