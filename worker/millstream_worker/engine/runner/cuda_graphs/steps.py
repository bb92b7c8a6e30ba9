"""Steps that are replayed. Decoding rows alone are one recording, attention included, where the attention
backend can keep what it needs in place; any other step is a chain with gaps at the attention.

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
from millstream_worker.engine.runner.attention.interface import StaticAttention, StaticStep
from millstream_worker.engine.runner.cuda_graphs.body import Body
from millstream_worker.engine.runner.cuda_graphs.chain import Chain, record_chain
from millstream_worker.engine.runner.cuda_graphs.ladder import fitting, row_rungs, token_rungs
from millstream_worker.engine.runner.cuda_graphs.recorder import CannotRecord, Recorder, Replay
from millstream_worker.engine.runner.device.transfer import Arena, Field
from millstream_worker.engine.runner.forward import Eager, sampled_in, token_ids
from millstream_worker.engine.runner.self_check.findings import short


@dataclass(frozen=True, slots=True)
class GraphLimits:
    """Of the steps that may come."""

    rows: int  # that decode in one step
    tokens: int  # computed in one step
    width: int  # blocks of the longest row
    spare: int = 0  # bytes of the device's memory that computing a step from Python takes
    prompts: bool = True  # whether steps with prompts are recorded, too


@dataclass(frozen=True, slots=True, eq=False)
class _Decode:
    inputs: Arena
    step: StaticStep
    replay: Replay


@dataclass(frozen=True, slots=True, eq=False)
class _Mixed:
    inputs: Arena
    chain: Chain


class CudaGraphs:
    """The recorded steps of one model over one storage. Recording needs the device for itself."""

    def __init__(self, eager: Eager, body: Body, recorder: Recorder, limits: GraphLimits) -> None:
        device = eager.last_tokens.device
        self.eager = eager
        self._body = body
        self._attention = eager.attention
        self._recorder = recorder
        self._width = limits.width
        static = isinstance(eager.attention.backend, StaticAttention)
        self._row_rungs = row_rungs(min(limits.rows, limits.tokens)) if static else []
        self._token_rungs = token_rungs(limits.tokens) if limits.prompts else []
        most = max(self._row_rungs + self._token_rungs)
        self._hidden = torch.zeros(most, body.width, dtype=body.dtype, device=device)
        self._decodes: dict[tuple[int, bool], _Decode] = {}
        self._mixed: dict[int, _Mixed] = {}

    @property
    def sizes(self) -> tuple[list[int], list[int]]:
        """Rows of the decode steps and tokens of the others that are recorded, or will be."""
        return self._row_rungs, self._token_rungs

    def forget_decodes(self) -> None:
        """From now on they are computed from Python, or padded to another recorded step."""
        self._decodes, self._row_rungs = {}, []

    def forget_mixed(self) -> None:
        """The same of steps with prompts."""
        self._mixed, self._token_rungs = {}, []

    @torch.inference_mode()
    def record(self, mark: Callable[[], None], fall_back: Callable[[str], None]) -> None:
        """Record all sizes, the largest first: the smaller ones compute in its memory. Where steps with
        prompts cannot be recorded, `fall_back` gets the reason. Raises what goes wrong with the others."""
        without = ""
        with self._recorder.apart():
            try:
                self._record_steps_with_prompts(mark)
            except CannotRecord:  # nor can decode steps be: the model's code waits for the device
                raise
            except Exception as error:
                if not self._row_rungs:
                    raise
                self.forget_mixed()
                without = short(error)
            for rows in reversed(self._row_rungs):
                for prefix_groups in (True, False) if rows > 1 else (False,):
                    self._decodes[rows, prefix_groups] = self._record_decode(rows, prefix_groups)
                    mark()
        if without:
            fall_back(f"CUDA graphs of decode steps only: {without}")

    def _record_steps_with_prompts(self, mark: Callable[[], None]) -> None:
        for index, tokens in enumerate(reversed(self._token_rungs)):
            self._mixed[tokens] = self._record_mixed(tokens, strict=index == 0)
            mark()

    def run(self, plan: Plan) -> Tensor:
        logits = self.replay(plan)
        return self.eager.run(plan) if logits is None else logits

    def replay(self, plan: Plan) -> Tensor | None:
        """Logits [L, vocabulary] of a step by replaying it; None: none of its size is recorded."""
        decode = self._decode_for(plan)
        if decode is not None:
            decode.inputs.fill(**_inputs_of(plan))
            decode.step.fill(plan)
            decode.replay()
            return self._logits(plan, decode.inputs)
        tokens = fitting(self._token_rungs, plan.token_count)
        mixed = None if tokens is None else self._mixed.get(tokens)
        if mixed is None:
            return None
        mixed.inputs.fill(**_inputs_of(plan))
        self._attention.begin(plan)
        mixed.chain.replay(self._attention, plan.token_count)
        return self._logits(plan, mixed.inputs)

    def _decode_for(self, plan: Plan) -> _Decode | None:
        rows = len(plan.query_lens)
        if plan.decodes < rows or plan.block_tables[0].shape[1] > self._width:
            return None
        rung = fitting(self._row_rungs, rows)
        return None if rung is None else self._decodes.get((rung, len(plan.prefix_group_lens) > 0))

    def _logits(self, plan: Plan, inputs: Arena) -> Tensor:
        count, wanted = plan.token_count, len(plan.logit_indices)
        everything = wanted == count and bool((plan.logit_indices[1:] > plan.logit_indices[:-1]).all())
        return self._body.logits(self._hidden[:count], None if everything else inputs["wanted"][:wanted])

    def _record_mixed(self, tokens: int, *, strict: bool) -> _Mixed:
        inputs = _inputs(tokens, self._hidden.device)

        def run() -> None:
            self._compute(inputs, tokens)

        with self._attention.left_out():
            run()  # libraries and compilers do at first what no recording may hold
            if strict:
                with self._recorder.strict():
                    run()
        return _Mixed(inputs, record_chain(run, self._attention, self._recorder))

    def _record_decode(self, rows: int, prefix_groups: bool) -> _Decode:
        inputs = _inputs(rows, self._hidden.device)
        backend = self._attention.backend
        assert isinstance(backend, StaticAttention), "decode steps are recorded with their attention"
        step = backend.reserve(rows, self._width, prefix_groups=prefix_groups)
        backend.hold(step)
        self._compute(inputs, rows)
        self._recorder.begin()
        try:
            self._compute(inputs, rows)
            replay = self._recorder.end()
        finally:
            self._recorder.drop()
        return _Decode(inputs, step, replay)

    def _compute(self, inputs: Arena, tokens: int) -> None:
        ids = token_ids(inputs["tokens"], inputs["sources"], self.eager.last_tokens)
        self._hidden[:tokens].copy_(self._body.hidden(ids, inputs["positions"]))


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
        "positions": plan.positions,
        "wanted": plan.logit_indices,
    }
