"""The phases of a job that a worker holds, and the moves between them."""

from __future__ import annotations

from enum import Enum


class JobPhase(Enum):
    """A job is in one of these from its start to the end of its writing. Fenced or released it leaves the
    table from any.

        UNREAD ─► READING ─► LOOKING_UP ─► READY ─► COMPILING ─► QUEUED ─► RUNNING ─► ENDED
        READING ─► READY ─► QUEUED           it has no cache key; no grammar
        READING ─► PREPARING ─► READING      it has images
        COMPILING ─► RUNNING                 by an engine that follows no grammar, and so reports none
        READY ─► FOLLOWING ─► RUNNING        with the tokens of an equal job
        READING ─► ENDING ─► ENDED           ended while a thread makes its rows, which nobody else reads
        COMPILING, QUEUED, RUNNING ─► READY  its engine died, or an equal job of a higher lane leads
        FOLLOWING ─► READY                   the same, or its leader left
        READY ─► PREPARING ─► READY          an engine that died had its images
        UNREAD, PREPARING, LOOKING_UP, READY, FOLLOWING, COMPILING, QUEUED ─► ENDED
    """

    UNREAD = "unread"  # put off: a suspect is read when it is isolated, a long job beside others
    READING = "reading"  # perhaps in another thread: it is not written meanwhile
    PREPARING = "preparing"  # its images are, by other processes
    LOOKING_UP = "looking up"  # an answer to its key is being looked for
    READY = "ready"  # for the next engine
    FOLLOWING = "following"  # an equal job that the engine has
    COMPILING = "compiling"  # the engine has it, and not yet its grammar
    QUEUED = "queued"  # it waits in the engine for its place in the batch
    RUNNING = "running"
    ENDING = "ending"  # its end is decided, and it is still being read
    ENDED = "ended"  # only its end has to be written

    def move(self, to: JobPhase) -> JobPhase:
        assert to in _MOVES[self], f"a job cannot go from {self.name} to {to.name}"
        return to

    @property
    def is_being_read(self) -> bool:
        return self in (JobPhase.READING, JobPhase.ENDING)

    @property
    def has_ended(self) -> bool:
        """True if its end is decided."""
        return self in (JobPhase.ENDING, JobPhase.ENDED)

    @property
    def is_before_batch(self) -> bool:
        return self is not JobPhase.RUNNING and not self.has_ended


_MOVES = {
    JobPhase.UNREAD: {JobPhase.READING, JobPhase.ENDED},
    JobPhase.READING: {JobPhase.PREPARING, JobPhase.LOOKING_UP, JobPhase.READY, JobPhase.ENDING},
    JobPhase.PREPARING: {JobPhase.READING, JobPhase.READY, JobPhase.ENDED},
    JobPhase.LOOKING_UP: {JobPhase.READY, JobPhase.ENDED},
    JobPhase.READY: {
        JobPhase.PREPARING,
        JobPhase.FOLLOWING,
        JobPhase.COMPILING,
        JobPhase.QUEUED,
        JobPhase.ENDED,
    },
    JobPhase.FOLLOWING: {JobPhase.RUNNING, JobPhase.READY, JobPhase.ENDED},
    JobPhase.COMPILING: {JobPhase.QUEUED, JobPhase.RUNNING, JobPhase.READY, JobPhase.ENDED},
    JobPhase.QUEUED: {JobPhase.RUNNING, JobPhase.READY, JobPhase.ENDED},
    JobPhase.RUNNING: {JobPhase.READY, JobPhase.ENDED},
    JobPhase.ENDING: {JobPhase.ENDED},
    JobPhase.ENDED: set[JobPhase](),
}
