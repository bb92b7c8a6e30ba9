"""Advances states in plain PyTorch, row after row and token after token: the reference of compiled code, and
used where there is none."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.states.state_storage import StateStorage

EPSILON = 1e-6  # beside the square of a key's length, as in the modelling code


class TorchStates:
    """`StateBackend` over one storage."""

    def __init__(self, storage: StateStorage) -> None:
        self._storage = storage
        self._segments: list[tuple[int, int, int, bool]] = []  # slot, first token, end; begins with zeros

    def begin(self, plan: Plan) -> None:
        starts = plan.query_starts.tolist()
        fresh = (plan.kv_lens == plan.query_lens).tolist()
        self._segments = list(zip(plan.row_slots.tolist(), starts, starts[1:], fresh, strict=False))

    def convolve(self, layer: int, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        spec, state = self._storage.specs[layer].convolution, self._storage.convolutions[layer]
        taps = weight.float().unbind(1)
        answers = torch.empty_like(inputs)
        for slot, begin, end, fresh in self._segments:
            before = torch.zeros_like(state[slot]) if fresh else state[slot]
            seen = torch.cat([before, inputs[begin:end].float()])
            out = torch.zeros(end - begin, spec.channels) + (0.0 if bias is None else bias.float())
            for place, tap in enumerate(taps):
                out = out + seen[place : place + end - begin] * tap
            answers[begin:end] = functional.silu(out) if spec.activated else out
            state[slot] = seen[end - begin :]
        return answers

    def advance(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor
    ) -> Tensor:
        spec, state = self._storage.specs[layer].rule, self._storage.rules[layer]
        assert spec is not None, f"module {layer} has no rule"
        assert state is not None, f"module {layer} has no state of a rule"
        query, key = query.float(), key.float()
        if spec.corrects:
            query, key = _normalised(query) / spec.key_dim**0.5, _normalised(key)
        query, key = (one.repeat_interleave(spec.heads // spec.key_heads, 1) for one in (query, key))
        decay = log_decay.float().exp()
        decay = decay[..., None] if spec.by_channel else decay[..., None, None]
        wanted, rate = value.float(), beta.float()[..., None]
        answers = torch.empty_like(value)
        for slot, begin, end, fresh in self._segments:
            now = torch.zeros_like(state[slot]) if fresh else state[slot]
            for token in range(begin, end):
                now = now * decay[token]
                change = wanted[token] * rate[token]
                if spec.corrects:
                    found = (now * key[token, :, :, None]).sum(1)
                    change = (wanted[token] - found) * rate[token]
                now = now + key[token, :, :, None] * change[:, None]
                answers[token] = (now * query[token, :, :, None]).sum(1)
            state[slot] = now
        return answers


def _normalised(vectors: Tensor) -> Tensor:
    return vectors * torch.rsqrt((vectors * vectors).sum(-1, keepdim=True) + EPSILON)
