"""The protocol of one lane of a shard in plain Python: what every call must answer, and what is there then.

It says the rules of the scripts once more, in another language and without their order of writes, so that a
test can hold the two side by side. It knows no server; the ids of lane entries are told to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.wire.calls import Claim
from support.wire.fair_order import FairOrder, Place

RELEASED = "released"
MAX_DEAD = 5


@dataclass(eq=False, slots=True)
class Job:
    digest: str
    entry: str | None
    overdue: bool
    state: str = "queued"  # also "running", or how it ended
    attempt: int = 0
    seq: int = 0
    died: int = 0
    died_alone: int = 0
    alone: int = 0  # the attempt that has its engine for itself
    submits: int = 1
    requeued_from: str | None = None
    owner: str = ""  # who runs it, or ended it
    nonce: str = ""
    model_digest: str = ""  # of the worker of the last attempt
    left: tuple[int, str] | None = None  # the attempt and owner that gave it back last
    cancel: bool = False
    log: list[str] = field(default_factory=list)
    place: Place | None = None  # where it is parked

    @property
    def ended(self) -> bool:
        return self.state not in ("queued", "running")

    @property
    def outside(self) -> bool:
        """Queued, but not in its lane: it waits for a retry, or is parked."""
        return self.state == "queued" and self.entry is None


@dataclass(eq=False, slots=True)
class Model:
    window: int
    order: FairOrder = field(default_factory=FairOrder)  # of the parked
    jobs: dict[str, Job] = field(default_factory=dict)
    undelivered: list[str] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)  # entry -> owner
    destroyed: set[str] = field(default_factory=set)  # entries that somebody has deleted
    served: str = ""  # the digest of the model that the shard serves
    letters: dict[str, str] = field(default_factory=dict)  # entry of the dead stream -> job id, oldest first

    # --- producers ---------------------------------------------------------------------------------------

    def submit(
        self,
        job_id: str,
        digest: str,
        overdue: bool,
        requeued_from: str | None = None,
        tenant: str = "",
        cost: int = 1,
    ) -> str:
        job = self.jobs.get(job_id)
        if job is None:
            job = self.jobs[job_id] = Job(digest, None, overdue, requeued_from=requeued_from)
            if self.order.places or self.unread >= self.window:
                job.place = self.order.park(job_id, tenant, cost)
            return "accepted"
        if job.digest != digest:
            return "conflict"
        job.submits += 1
        return "exists"

    def queued_as(self, job_id: str, entry: str) -> None:
        job = self.jobs[job_id]
        job.entry, job.place = entry, None
        self.undelivered.append(entry)

    def cancel(self, job_id: str) -> str:
        job = self.jobs.get(job_id)
        if job is None:
            return "not_found"
        if job.ended:
            return "cancelled" if job.state == "cancelled" else "terminal"
        if job.state == "running":
            job.cancel = True
            return "requested"
        self._end(job, "cancelled", "")
        return "cancelled"

    def forget(self, job_id: str) -> str:
        """What is asked for by name, or the ended job's time to live is over."""
        job = self.jobs.get(job_id)
        if job is None:
            return "not_found"
        if not job.ended:
            return job.state
        del self.jobs[job_id]
        return "forgotten"

    def buried(self, job_id: str, entry: str) -> None:
        self.letters[entry] = job_id
        while len(self.letters) > MAX_DEAD:
            del self.letters[next(iter(self.letters))]

    # --- the attempt -------------------------------------------------------------------------------------

    def start(self, job_id: str, entry: str, owner: str, nonce: str, model_digest: str) -> int | str | None:
        """The attempt, or the digest of the served model where the worker's is another one."""
        job = self._live(job_id, entry)
        if job is None:
            self.held.pop(entry, None)
            return None
        if self.held.get(entry) != owner:
            return None
        if _differ(self.served, model_digest):
            return self.served
        if (job.state, job.nonce) != ("running", nonce):
            job.attempt += 1
            if _differ(job.model_digest, model_digest):
                job.log.clear()
                job.seq = 0
            job.model_digest = model_digest
            job.state, job.owner, job.nonce = "running", owner, nonce
            job.log.append(f"{job.attempt}-{job.seq} m")
        self.served = self.served or model_digest
        return job.attempt

    def append(self, claim: Claim, seq: int) -> tuple[str, int]:
        job = self.jobs.get(claim.job_id)
        if not self._runs(job, claim):
            return "fenced", job.seq if job else 0
        assert job is not None
        if job.cancel:
            return "cancelled", job.seq
        if seq != job.seq + 1:
            return ("duplicate" if seq <= job.seq else "gap"), job.seq
        self._write(job, "d")
        return "ok", seq

    def renew(self, owner: str, job_id: str, entry: str) -> str:
        job = self._live(job_id, entry)
        if self.held.get(entry) != owner:
            return "lost"
        if job is None:
            del self.held[entry]
            return "lost"
        self._claim(entry, owner)
        return "cancelled" if job.cancel else "kept"

    def finish(self, claim: Claim, state: str, seq: int, delta: bool) -> str:
        job = self.jobs.get(claim.job_id)
        if self._belongs(job, claim) and job is not None and job.ended:
            return "already"
        if not self._runs(job, claim):
            return "fenced"
        assert job is not None
        if seq > job.seq + 1:
            return "gap"
        if delta and seq == job.seq + 1:
            self._write(job, "d")
        self.held.pop(claim.entry_id, None)
        self._end(job, state, claim.owner)
        return "ok"

    def isolate(self, claim: Claim, alone: bool, died: int, died_alone: int) -> str:
        job = self.jobs.get(claim.job_id)
        if not self._runs(job, claim):
            return "fenced"
        assert job is not None
        job.alone = claim.attempt if alone else 0
        self._raise(job, died, died_alone)
        return "ok"

    def retry(self, claim: Claim, died: int, died_alone: int) -> str:
        job = self.jobs.get(claim.job_id)
        if self._runs(job, claim) and claim.entry_id in self.destroyed:
            return "LOST"
        answer = self._give_back(claim, died, died_alone)
        if answer == "ok":
            self.jobs[claim.job_id].entry = None
            del self.held[claim.entry_id]
        return answer

    def release(self, claim: Claim, died: int, died_alone: int) -> str:
        answer = self._give_back(claim, died, died_alone)
        if answer == "ok" and claim.entry_id in self.held:
            self._claim(claim.entry_id, RELEASED)
        return answer

    def give_back(self, job_id: str, entry: str, owner: str) -> str:
        live, holder = self._live(job_id, entry), self.held.get(entry)
        if holder is None:
            return "fenced" if live else "already"
        if holder != owner:
            return "already" if holder == RELEASED else "fenced"
        if live:
            self._claim(entry, RELEASED)
            if live.state == "running" and live.owner == owner:
                self._leave(live)
        else:
            del self.held[entry]
        return "ok"

    def _give_back(self, claim: Claim, died: int, died_alone: int) -> str:
        job = self.jobs.get(claim.job_id)
        if job and job.state == "queued" and job.left == (claim.attempt, claim.owner):
            return "already"
        if not self._runs(job, claim):
            return "fenced"
        assert job is not None
        self._leave(job)
        self._raise(job, died, died_alone)
        return "ok"

    @staticmethod
    def _raise(job: Job, died: int, died_alone: int) -> None:
        job.died, job.died_alone = max(job.died, died), max(job.died_alone, died_alone)

    @staticmethod
    def _leave(job: Job) -> None:
        job.left = (job.attempt, job.owner)
        job.state, job.owner = "queued", ""

    # --- upkeep ------------------------------------------------------------------------------------------

    def deliver(self, owner: str) -> str | None:
        if not self.undelivered:
            return None
        entry = self.undelivered.pop(0)
        self.held[entry] = owner
        return entry

    def reclaim(self, job_id: str, entry: str, seen: str, owner: str, died: bool) -> bool:
        if self.held.get(entry) != seen:
            return False
        job = self._live(job_id, entry)
        if job is None or entry in self.destroyed:
            del self.held[entry]
            return False
        self.held[entry] = owner
        if job.state == "running":
            job.state, job.owner = "queued", ""
            job.died += died
            job.died_alone += died and job.alone == job.attempt
        return True

    def refill(self, wanted: int) -> list[str]:
        """Who leaves the parked for the lane, in this order."""
        room = min(wanted - self.unread, len(self.order.places))
        return [self.order.serve() for _ in range(room)]

    def delayed(self) -> set[str]:
        return {job_id for job_id, job in self.jobs.items() if job.outside and job.place is None}

    def expire(self) -> set[str]:
        due = {job_id for job_id, job in self.jobs.items() if job.overdue and not job.ended}
        for job_id in due:
            job = self.jobs[job_id]
            if job.state == "running":
                assert job.entry is not None
                self.held.pop(job.entry, None)
            self._end(job, "expired", "")
        return due

    def destroy(self, entry: str) -> None:
        """By hand, by XTRIM, by XADD with MAXLEN."""
        self.destroyed.add(entry)
        if entry in self.undelivered:
            self.undelivered.remove(entry)

    def look(self, job_id: str) -> bool:
        job = self.jobs.get(job_id)
        if job is None or job.ended or job.outside:
            return False
        assert job.entry is not None
        if job.entry in self.held or job.entry not in self.destroyed:
            return False
        self._end(job, "failed", "")
        return True

    @property
    def length(self) -> int:
        """Entries of the lane."""
        return len(self.undelivered) + len(self.held.keys() - self.destroyed)

    @property
    def unread(self) -> int:
        """As the scripts count it: short by those that were destroyed while somebody held them."""
        return self.length and self.length - len(self.held)

    # --- rules -------------------------------------------------------------------------------------------

    def _live(self, job_id: str, entry: str) -> Job | None:
        job = self.jobs.get(job_id)
        return job if job and not job.ended and job.entry == entry else None

    def _claim(self, entry: str, owner: str) -> None:
        """The server notices here that an entry was destroyed: nobody holds it any more."""
        if entry in self.destroyed:
            del self.held[entry]
        else:
            self.held[entry] = owner

    @staticmethod
    def _belongs(job: Job | None, claim: Claim) -> bool:
        return job is not None and (job.attempt, job.owner, job.entry) == claim.fence

    def _runs(self, job: Job | None, claim: Claim) -> bool:
        return self._belongs(job, claim) and job is not None and job.state == "running"

    def _write(self, job: Job, kind: str) -> None:
        job.seq += 1
        job.log.append(f"{job.attempt}-{job.seq} {kind}")

    def _end(self, job: Job, state: str, owner: str) -> None:
        if job.place is not None:
            self.order.leave(job.place)
        job.state, job.owner, job.cancel, job.place = state, owner, False, None
        self._write(job, "e")


def _differ(known: str, model_digest: str) -> bool:
    return bool(known and model_digest) and known != model_digest
