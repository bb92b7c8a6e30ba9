"""Compares the models of a run's queues, while it runs, with those that its run file names: an output has
rows of one model, unless its owner wants otherwise.
"""

from __future__ import annotations

import contextlib
from enum import StrEnum

from millstream.batch.files.journal import Journal
from millstream.client.async_client import AsyncClient
from millstream.errors import InvalidRequest, JobError, Unavailable
from millstream.wire.messages.job_messages import Result
from millstream.wire.state.queue_info import ModelIdentity


class OnChange(StrEnum):
    """The action if lines have changed since they were answered, or their queue's model has."""

    STOP = "stop"
    REDO = "redo"  # remove their rows, and run them again
    KEEP = "keep"  # leave their rows as they are


class ModelWatch:
    """Records the first model of each queue and compares later ones with it. It ignores models without a
    digest, and all models of a run whose own worker replaces the queue's model.
    """

    def __init__(self, journal: Journal, on_change: OnChange) -> None:
        self._notes = journal.notes
        self._on_change = on_change
        self._compares = journal.model is None
        self._kept: set[tuple[str, str]] = set()  # queues and digests of answers that are kept all the same

    async def look(self, client: AsyncClient) -> None:
        """Compares the model that the queue has now. Raises InvalidRequest if it is another one, unless
        `on_change` is KEEP.
        """
        if not self._compares:
            return
        with contextlib.suppress(Unavailable):  # the submit reports it, or outlasts it
            now = await client.queue_model()
            if self._on_change is not OnChange.KEEP and now.is_other(self._notes.models.get(client.queue)):
                raise self._changed(client.queue, now, f"queue {client.queue!r} now has {now}")
            self._notes.serves(client.queue, now)

    async def admits(self, client: AsyncClient, end: Result | JobError, *, again: bool) -> bool:
        """True if the row of the ended job may be written. False, only with `again`: its line must be
        computed again. Raises InvalidRequest as `look` does.
        """
        model = _model_of(end)
        if not self._compares or not model.digest:
            return True
        if not model.is_other(self._notes.models.get(client.queue)):
            self._notes.serves(client.queue, model)
            return True
        if self._on_change is OnChange.KEEP:
            if (kept := (client.queue, model.digest)) not in self._kept:
                self._kept.add(kept)
                await self.look(client)  # a run whose last rows these are submits no more
            return True
        if self._on_change is OnChange.REDO and again:
            await self.look(client)  # of the model that the queue had before, by a job of an earlier run
            return False
        raise self._changed(client.queue, model, f"an answer of queue {client.queue!r} is by {model}")

    def _changed(self, queue: str, model: ModelIdentity, met: str) -> InvalidRequest:
        return InvalidRequest(
            "model",
            model.name,
            f"{met}, and this run's lines are answered by {self._notes.models[queue]}: the run stops, and "
            "writes no row of the other one. Start it again with --redo-changed, which answers all lines "
            "anew, or with --keep-answers, which leaves the rows as they are",
        )


def _model_of(end: Result | JobError) -> ModelIdentity:
    result = getattr(end, "result", None) if isinstance(end, JobError) else end
    if not isinstance(result, Result):
        return ModelIdentity()
    return ModelIdentity(result.model, result.model_digest or "")
