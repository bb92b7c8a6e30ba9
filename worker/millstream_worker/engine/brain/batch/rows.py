"""Holds a row: one choice of a request on its way through the batch, with its tokens and its state. Counts
that change with every step are kept as vectors by the batch.

    WAITING ──▶ RUNNING ──▶ PREEMPTED ──▶ WAITING       its blocks were needed: it is recomputed later
       │           │            │
       │           └────────────┴──▶ ENDING ──▶ ENDED   over or aborted
       └──────────────────────────────────────▶ ENDED

PREEMPTED and ENDING rows keep slot and blocks until the last launch that has them is settled.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np

from millstream_worker.engine.brain.batch.plan import Int32
from millstream_worker.engine.brain.cache.block_hash import extend_chain
from millstream_worker.engine.brain.images.held_image import PlacedImage, RopePositions
from millstream_worker.engine.grammars.limited_matcher import RowMatcher
from millstream_worker.engine.protocol.request import EngineRequest


class RowState(Enum):
    WAITING = auto()
    RUNNING = auto()
    PREEMPTED = auto()
    ENDING = auto()
    ENDED = auto()


_MOVES = {
    RowState.WAITING: (RowState.RUNNING, RowState.ENDED),
    RowState.RUNNING: (RowState.PREEMPTED, RowState.ENDING),
    RowState.PREEMPTED: (RowState.WAITING, RowState.ENDING),
    RowState.ENDING: (RowState.ENDED,),
    RowState.ENDED: (),
}


@dataclass(slots=True, eq=False)
class Origin:
    """Shared by all rows of one request."""

    request: EngineRequest
    prompt: Int32
    root: bytes  # root of the hash chain
    chain: list[bytes]  # hashes of the prompt's full blocks
    images: tuple[PlacedImage, ...] = ()
    rope: RopePositions | None = None  # where its images have positions of several axes
    in_blocks: dict[int, bytes] = field(default_factory=dict)  # what images add to the chain, by block
    entered: bool = False  # one of its rows has been in the batch


@dataclass(slots=True, eq=False)
class Row:
    # set when it is added
    origin: Origin
    handle: int
    choice: int
    arrival: int  # number of the row in the order of arrival
    max_output: int  # clamped to what context and pool allow
    end_ids: frozenset[int]
    priority: int  # 0 by its request, or by ageing
    output: list[int]
    chain: list[bytes]  # hashes of its full blocks, as far as they were needed
    matcher: RowMatcher | None = None  # follows its output; None: any token may come next
    state: RowState = RowState.WAITING
    # while waiting
    waiting_since: float = 0.0
    waited_s: float = 0.0  # in earlier waits
    entered: bool = False  # it was in the batch before
    preemptions: int = 0
    # while in the batch
    slot: int | None = None
    blocks: list[int] = field(default_factory=list)
    published: int = 0  # blocks whose hashes were published to the pool

    @property
    def known(self) -> int:
        """Returns the number of tokens whose ids are known here: prompt and output."""
        return len(self.origin.prompt) + len(self.output)

    @property
    def lives(self) -> bool:
        """True if the row has neither ended nor been aborted."""
        return self.state not in (RowState.ENDING, RowState.ENDED)

    @property
    def rank(self) -> tuple[int, int]:
        """Returns the order in which rows keep their blocks: the smallest rank longest."""
        return (self.priority, self.arrival)

    def move(self, state: RowState) -> None:
        assert state in _MOVES[self.state], f"row {self.handle}: {self.state.name} cannot become {state.name}"
        self.state = state

    def tokens(self, start: int, end: int) -> Int32:
        """Returns the known token ids of positions start <= p < end."""
        prompt = self.origin.prompt
        if end <= len(prompt):
            return prompt[start:end]
        output = self.output[max(start - len(prompt), 0) : end - len(prompt)]
        return np.concatenate((prompt[start:], np.array(output, dtype=np.int32)))

    def hash_blocks(self, blocks: int, block_size: int) -> list[bytes]:
        """Returns its hash chain, for at least `blocks` blocks; all their tokens are known."""
        if len(self.chain) < blocks:
            fresh = self.tokens(len(self.chain) * block_size, blocks * block_size)
            extend_chain(self.chain, self.origin.root, fresh, block_size, self.origin.in_blocks)
        return self.chain

    @property
    def steps_singly(self) -> bool:
        """True if each of its tokens needs logits, also one that its grammar forces."""
        return self.origin.request.sampling.top_logprobs is not None or self._penalised

    @property
    def may_draft(self) -> bool:
        """True if samples depend only on the text before them. False for a suspect: it takes no chances."""
        return not (self.origin.request.alone or self._penalised)

    @property
    def _penalised(self) -> bool:
        spec = self.origin.request.sampling
        penalties = (spec.repetition_penalty, spec.presence_penalty, spec.frequency_penalty)
        return penalties != (1.0, 0.0, 0.0)

    def finish_reason(self) -> str | None:
        """Returns the reason why the row ends with its last output token; None while it continues."""
        output = self.output
        if output and output[-1] in self.end_ids and len(output) > self.origin.request.sampling.min_tokens:
            return "stop"
        if self.matcher is not None and self.matcher.complete:
            return "complete"
        return "length" if len(output) >= self.max_output else None
