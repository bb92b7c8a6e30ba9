"""Records steps and replays them, attention included: one recording for each number of decoding rows, and one
for each number of tokens of a step with prompts. The attention backend keeps what it needs of a step in
place.

A step is padded to the next rung of its ladder. What pads it are tokens 0 at position 0, of no row: nothing
is stored for them, and nothing is computed from them for others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.attention.interface import StaticAttention, StaticSize, StaticStep
from millstream_worker.engine.runner.device.transfer import Arena, Field
from millstream_worker.engine.runner.forward import Eager, sampled_in, token_ids
from millstream_worker.engine.runner.gpu.cuda_graphs.ladder import row_rungs, rung_for, token_rungs
from millstream_worker.engine.runner.gpu.cuda_graphs.recorder import CannotRecord, Recorder, Replay
from millstream_worker.engine.runner.self_check.findings import short

# Segments with prompts in one step: at most MOST_PROMPTS, or one per PROMPT_TOKENS tokens if that is more. A
# replay launches programs for all of them, also where a step has fewer.
MOST_PROMPTS = 32
PROMPT_TOKENS = 16


@dataclass(frozen=True, slots=True)
class GraphLimits:
    """The largest step that may come. It bounds what is recorded."""

    rows: int  # in one step
    tokens: int  # computed in one step
    width: int  # blocks of the longest row
    spare: int = 0  # bytes of the device's memory that computing a step from Python takes
    prompts: bool = True  # whether steps with prompts are recorded, too


@dataclass(frozen=True, slots=True, eq=False)
class _Recorded:
    size: StaticSize
    inputs: Arena
    step: StaticStep
    replay: Replay


class CudaGraphs:
    """The recorded steps of one model's body over one storage; heads are computed after it. Recording needs
    the device for itself. Raises CannotRecord for a model without a body, or an attention backend without
    static steps."""

    def __init__(self, eager: Eager, recorder: Recorder, limits: GraphLimits) -> None:
        device, body = eager.last_tokens.device, eager.loaded.heads.body
        if body is None:
            raise CannotRecord(eager.loaded.heads.uncut)
        if not isinstance(eager.attention, StaticAttention):
            raise CannotRecord(f"attention ({eager.loaded.attention}) computes from values of the host")
        self.eager = eager
        self._body = body
        self._attention = eager.attention
        self._recorder = recorder
        self._limits = limits
        self._row_rungs = row_rungs(min(limits.rows, limits.tokens))
        self._token_rungs = token_rungs(limits.tokens) if limits.prompts else []
        most = max(self._row_rungs + self._token_rungs)
        self._hidden = torch.zeros(most, body.width, dtype=body.dtype, device=device)
        self._decodes: dict[tuple[int, bool], _Recorded] = {}
        self._mixed: dict[int, _Recorded] = {}

    @property
    def sizes(self) -> tuple[list[int], list[int]]:
        """Returns the rows of the decode steps and tokens of the others that are recorded, or will be."""
        return self._row_rungs, self._token_rungs

    def forget_decodes(self) -> None:
        """Drops those of decode steps: they are computed from Python, or padded to other recorded steps."""
        self._decodes, self._row_rungs = {}, []

    def forget_mixed(self) -> None:
        """Does the same for steps with prompts."""
        self._mixed, self._token_rungs = {}, []

    @torch.inference_mode()
    def record(self, mark: Callable[[], None], fall_back: Callable[[str], None]) -> None:
        """Records all sizes, the largest first: the smaller ones compute in its memory. Where steps with
        prompts cannot be recorded, `fall_back` gets the reason. Raises what goes wrong with the others."""
        without = ""
        with self._recorder.apart():
            try:
                self._record_mixed(mark)
            except CannotRecord:
                raise
            except Exception as error:  # noqa: BLE001 - as when memory runs out, or a kernel wants too much
                self.forget_mixed()
                without = short(error)
            if without:  # now that nothing refers to the error, and it to what was being computed
                self._recorder.start_over()
            self._record_decodes(mark)
        if without:
            fall_back(f"CUDA graphs of decode steps only: {without}")

    def run(self, plan: Plan) -> Tensor:
        answer = self.replay(plan)
        return self.eager.run(plan) if answer is None else answer

    def replay(self, plan: Plan) -> Tensor | None:
        """Returns the answer of a step by replaying its body; None: none of its size is recorded."""
        recorded = self.recorded_for(plan)
        if recorded is None:
            return None
        recorded.inputs.fill(**_inputs_of(plan))
        recorded.step.fill(plan)
        recorded.replay()
        return self._answer(plan, recorded.inputs)

    def recorded_for(self, plan: Plan) -> _Recorded | None:
        """Returns the smallest recorded step that holds this one; for a decode step perhaps with prompts."""
        rows = rung_for(self._row_rungs, len(plan.query_lens)) or 0
        tokens = rung_for(self._token_rungs, plan.token_count) or 0
        found = (self._decodes.get((rows, len(plan.prefix_group_lens) > 0)), self._mixed.get(tokens))
        return next((one for one in found if one and one.size.holds(plan)), None)

    def _answer(self, plan: Plan, inputs: Arena) -> Tensor:
        count, wanted = plan.token_count, len(plan.logit_indices)
        everything = wanted == count and bool((plan.logit_indices[1:] > plan.logit_indices[:-1]).all())
        head = self.eager.loaded.heads.heads[plan.head]
        return head(self._hidden[:count], None if everything else inputs["wanted"][:wanted])

    def _record_mixed(self, mark: Callable[[], None]) -> None:
        for index, tokens in enumerate(reversed(self._token_rungs)):
            rows = min(self._limits.rows, tokens)
            prompts = min(rows, max(MOST_PROMPTS, tokens // PROMPT_TOKENS))
            size = StaticSize(rows, tokens, prompts, self._limits.width, prefix_groups=True)
            self._mixed[tokens] = self._record(size, strict=index == 0)
            mark()

    def _record_decodes(self, mark: Callable[[], None]) -> None:
        for rows in reversed(self._row_rungs):
            for prefix_groups in (True, False) if rows > 1 else (False,):
                size = StaticSize(rows, rows, 0, self._limits.width, prefix_groups=prefix_groups)
                self._decodes[rows, prefix_groups] = self._record(size)
                mark()

    def _record(self, size: StaticSize, *, strict: bool = False) -> _Recorded:
        inputs = _inputs(size.tokens, self._hidden.device)
        step = self._attention.reserve(size)
        self._attention.hold(step)
        self._compute(inputs, size.tokens)  # libraries and compilers do at first what no recording may hold
        if strict:
            with self._recorder.strict():
                self._compute(inputs, size.tokens)
        try:
            self._recorder.begin()
            self._compute(inputs, size.tokens)
            replay = self._recorder.end()
        finally:
            self._recorder.drop()
        return _Recorded(size, inputs, step, replay)

    def _compute(self, inputs: Arena, tokens: int) -> None:
        ids = token_ids(inputs["tokens"], inputs["sources"], self.eager.last_tokens)
        self._hidden[:tokens].copy_(self._body(ids, inputs["positions"]))


def _inputs(tokens: int, device: torch.device) -> Arena:
    return Arena(
        {
            "tokens": Field(tokens),
            "sources": Field(tokens, blank=-1),
            "positions": Field(tokens),
            "wanted": Field(tokens),
        },
        device,
    )


def _inputs_of(plan: Plan) -> dict[str, NDArray[Any]]:
    return {
        "tokens": plan.tokens,
        "sources": sampled_in(plan),
        "positions": plan.model_positions,
        "wanted": plan.logit_indices,
    }
