"""What an attention backend offers besides, if a decode step can be recorded with its attention in it: then
all that depends on the step must stand in tensors that never move."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.attention.interface import AttentionBackend


class StaticStep(Protocol):
    """What the layers share in a decode step of a fixed number of rows, at addresses that stay."""

    def fill(self, plan: Plan) -> None:
        """Take in a step of at most so many rows, one new token each. Of the rows beyond its own nothing is
        stored, and their answer means nothing."""
        ...


@runtime_checkable
class StaticAttention(AttentionBackend, Protocol):
    def reserve(self, rows: int, width: int, *, prefix_groups: bool) -> StaticStep:
        """For `rows` rows of up to `width` blocks; no row is in it yet. Without `prefix_groups` a step
        that has some is computed as if it had none."""
        ...

    def hold(self, step: StaticStep) -> None:
        """From here to the next `begin` or `hold`, `attend` goes by that step's tensors, whatever `fill` puts
        there later."""
        ...
