"""The gaps of a chain: each layer's answer is a tensor of its own for as long as somebody holds it."""

from __future__ import annotations

import torch
from support.engine.cpu_recorder import CpuRecorder
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.attention.hook import HookableAttention
from millstream_worker.engine.runner.cuda_graphs.chain import record_chain


class _Counting:
    """Answers a layer's number and the query, in tokens of value size 2."""

    def begin(self, plan: Plan) -> None: ...

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        return query[..., :2] + layer


def test_an_answer_lasts_beyond_the_next_layers() -> None:
    """Compiled layers compute what they hand on in the memory of the answer that they were given."""
    attention = HookableAttention(_Counting())
    given, found = torch.zeros(3, 1, 4), torch.zeros(3, 1, 2)

    def run() -> None:
        query = given + 1
        first = attention.attend(1, query, query, query[..., :2]).mul_(10)
        second = attention.attend(2, query, query, query[..., :2])
        found.copy_(first + second)

    chain = record_chain(run, attention, CpuRecorder())
    for number in (5.0, 7.0):
        given.fill_(number)
        chain.replay(attention, tokens=2)
        assert torch.equal(found[:2], torch.full((2, 1, 2), 10 * (number + 2) + number + 3))
        assert not found[2].any(), "padding has no answer"
