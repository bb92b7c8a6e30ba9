"""Advances states in plain PyTorch, row after row and token after token: the reference of compiled code, and
used where there is none."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from millstream_worker.engine.runner.states.state_backend import LayerStates
from millstream_worker.engine.runner.states.state_storage import StateStorage

EPSILON = 1e-6  # beside the square of a key's length, as in the modelling code


class TorchStates:
    """`StateBackend` over one storage."""

    def __init__(self, storage: StateStorage) -> None:
        self._storage = storage

    def begin(self) -> None: ...

    def layer(self, number: int) -> LayerStates:
        return _TorchLayer(self._storage, number)


class _TorchLayer:
    def __init__(self, storage: StateStorage, number: int) -> None:
        self._storage = storage
        self._spec, self._held = storage.specs[number], storage.held[number]
        self._convolution, self._rule = storage.convolutions[number], storage.rules[number]

    def convolve(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        spec, state, held = self._spec.convolution, self._convolution, self._held.channels
        taps = weight.float().unbind(1)
        answers = inputs.new_empty(inputs.shape)
        for slot, first, tokens, fresh, replays, holds in self._storage.segments.tolist():
            own = inputs[first : first + tokens]
            before = torch.zeros_like(state[slot]) if fresh else state[slot]
            seen = torch.cat([before, held[slot, :replays].float(), own.float()])
            out = torch.zeros(tokens, spec.channels) + (0.0 if bias is None else bias.float())
            for place, tap in enumerate(taps, replays):
                out = out + seen[place : place + tokens] * tap
            answers[first : first + tokens] = functional.silu(out) if spec.activated else out
            stored = replays if holds else replays + tokens
            state[slot] = seen[stored : stored + spec.taps - 1]
            if holds:
                held[slot, :tokens] = own
        return answers

    def advance(self, query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
        state, held = self._rule, self._held.rule
        assert state is not None, "a module without a rule"
        assert held is not None, "a rule whose inputs cannot be held"
        answers = value.new_empty(value.shape)
        for slot, first, tokens, fresh, replays, holds in self._storage.segments.tolist():
            own = slice(first, first + tokens)
            kept = ((held.keys, key), (held.values, value), (held.log_decays, log_decay), (held.betas, beta))
            inputs = [torch.cat([before[slot, :replays].float(), now[own].float()]) for before, now in kept]
            queries = torch.cat([held.keys[slot, :replays].float(), query[own].float()])
            before = torch.zeros_like(state[slot]) if fresh else state[slot].clone()
            stored = replays if holds else replays + tokens
            outs, state[slot] = self._walk(stored, before, queries, *inputs)
            answers[own] = torch.stack(outs[replays:]).to(value.dtype)
            if holds:
                for before, now in kept:
                    before[slot, :tokens] = now[own]
        return answers

    def _walk(
        self,
        stored: int,
        state: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        log_decay: Tensor,
        beta: Tensor,
    ) -> tuple[list[Tensor], Tensor]:
        """Returns the tokens' answers, and the state behind so many of them."""
        spec = self._spec.rule
        assert spec is not None, "a module without a rule"
        if spec.corrects:
            query, key = _normalised(query) / spec.key_dim**0.5, _normalised(key)
        query, key = (one.repeat_interleave(spec.heads // spec.key_heads, 1) for one in (query, key))
        decay = log_decay.exp()
        decay = decay[..., None] if spec.by_channel else decay[..., None, None]
        rate = beta[..., None]
        answers, behind = [], state
        for token in range(len(key)):
            state = state * decay[token]
            change = value[token] * rate[token]
            if spec.corrects:
                found = (state * key[token, :, :, None]).sum(1)
                change = (value[token] - found) * rate[token]
            state = state + key[token, :, :, None] * change[:, None]
            answers.append((state * query[token, :, :, None]).sum(1))
            behind = state if token + 1 == stored else behind
        return answers, behind


def _normalised(vectors: Tensor) -> Tensor:
    return vectors * torch.rsqrt((vectors * vectors).sum(-1, keepdim=True) + EPSILON)
