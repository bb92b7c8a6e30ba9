"""Defines what every attention backend offers: one call per step, then one call per layer.

A backend owns how a step's attention is computed, and writes the step's keys and values into the
`KVStorage` whose layout it is built for. It knows layers by number and no model code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Plan


class AttentionBackend(Protocol):
    """Built over one `KVStorage`; used by one runner, from one thread."""

    def begin(self, plan: Plan) -> None:
        """Take in the step: what all its layers share (indices, masks, tables on the device) is made here."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        """Store the step's keys and values, then attend from its tokens to all that their rows have stored. A
        layer with a source stores nothing: that layer has, before it in the same step.

        query [T, heads, key_dim], key [T, kv_heads, key_dim], value [T, kv_heads, value_dim], of any
        strides with the last one 1; sinks [heads] where the layer has them. Returns [T, heads, value_dim],
        contiguous. T may exceed the step's tokens (compiled code pads a single one): what is returned for the
        others is arbitrary.
        """
        ...


@dataclass(frozen=True, slots=True)
class StaticSize:
    """The size of a recorded step. Each field is the most that the step holds."""

    rows: int  # segments
    tokens: int  # new ones
    prompts: int  # segments that do not decode; 0: the step decodes, and no more
    width: int  # blocks of a row
    prefix_groups: bool  # whether they are read together; else a step that has some is computed as if not

    def holds(self, plan: Plan) -> bool:
        segments = len(plan.query_lens)
        return (
            segments <= self.rows
            and segments - plan.decodes <= self.prompts
            and plan.token_count <= self.tokens
            and max(table.shape[1] for table in plan.block_tables) <= self.width
        )


class StaticStep(Protocol):
    """The inputs that the layers share in a step of a fixed size. Their addresses stay the same."""

    def fill(self, plan: Plan) -> None:
        """Take in a step that the size holds. Of the tokens beyond its own nothing is stored, and their
        answers are 0: no NaN may reach a mixture's router."""
        ...


@runtime_checkable
class StaticAttention(AttentionBackend, Protocol):
    """A backend whose steps can be recorded: all that depends on the step is in tensors that never move."""

    def reserve(self, size: StaticSize) -> StaticStep:
        """For steps of up to that size, one at a time; no row is in it yet. Steps may share memory: the one
        filled last is the one that counts."""
        ...

    def hold(self, step: StaticStep) -> None:
        """From here to the next `begin` or `hold`, `attend` goes by that step's tensors, whatever `fill` puts
        there later."""
        ...
