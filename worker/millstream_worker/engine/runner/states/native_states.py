"""Advances states with the compiled library: the backend of CPUs that have a compiler. A state is read once
and written once a step, in the storage itself."""

from __future__ import annotations

from ctypes import addressof
from math import prod

import numpy as np
import torch
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.native import intercept
from millstream_worker.engine.runner.native.library import (
    ConvolutionNumbers,
    Library,
    RuleNumbers,
    StateStepNumbers,
)
from millstream_worker.engine.runner.states.spec import ConvolutionSpec, RuleSpec
from millstream_worker.engine.runner.states.state_backend import StateBackend
from millstream_worker.engine.runner.states.state_storage import StateStorage
from millstream_worker.engine.runner.states.torch_states import TorchStates

_THREADED = 1 << 15  # numbers of the states that a step's tokens change: with fewer, others need not wake up


def native_states(storage: StateStorage, library: Library) -> StateBackend:
    """Returns the library's backend, or PyTorch's for convolutions that are too long for it."""
    short = all(spec.convolution.taps <= library.most_taps for spec in storage.specs)
    return NativeStates(storage, library) if short else TorchStates(storage)


class NativeStates:
    """`StateBackend` over one storage, for modules of bfloat16 or float32."""

    def __init__(self, storage: StateStorage, library: Library) -> None:
        self._library = library
        self._storage = storage  # whose memory the numbers point into
        specs, row = storage.specs, storage.memory.shape[1]
        self._convolutions = [
            _convolution(spec.convolution, state, row)
            for spec, state in zip(specs, storage.convolutions, strict=True)
        ]
        self._rules = [
            None if spec.rule is None or state is None else _rule(spec.rule, state, row)
            for spec, state in zip(specs, storage.rules, strict=True)
        ]
        self._convolved = max((prod(spec.convolution.shape) for spec in specs), default=0)
        self._advanced = max((prod(spec.rule.shape) for spec in specs if spec.rule is not None), default=0)
        self._convolving, self._advancing = StateStepNumbers(), StateStepNumbers()  # they stay where they are
        self._segments = np.empty((0, 4), np.int32)

    def begin(self, plan: Plan) -> None:
        fresh = plan.kv_lens == plan.query_lens
        columns = (plan.row_slots, plan.query_starts[:-1], plan.query_lens, fresh.astype(np.int32))
        self._segments = np.stack(columns, axis=1)
        for step, numbers in ((self._convolving, self._convolved), (self._advancing, self._advanced)):
            step.segments, step.count = self._segments.ctypes.data, len(self._segments)
            step.threads = torch.get_num_threads() if numbers * plan.token_count >= _THREADED else 1

    def convolve(self, layer: int, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if inputs.stride(1) != 1:
            inputs = inputs.contiguous()
        out = intercept.empty(inputs, *inputs.shape)
        numbers = addressof(self._convolutions[layer]), addressof(self._convolving)
        weight = weight.to(inputs.dtype).contiguous()
        tensors = (inputs, weight, None if bias is None else bias.to(inputs.dtype), out)
        intercept.call(self._library.convolve[inputs.dtype], tensors, *numbers, inputs.stride(0))
        return out

    def advance(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor
    ) -> Tensor:
        rule = self._rules[layer]
        assert rule is not None, f"module {layer} has no rule"
        query, key, value = (_side_by_side(heads.to(value.dtype)) for heads in (query, key, value))
        log_decay, beta = (numbers.float().contiguous() for numbers in (log_decay, beta))
        out = intercept.empty(value, *value.shape)
        numbers = addressof(rule), addressof(self._advancing)
        strides = query.stride(0), key.stride(0), value.stride(0)
        tensors = (query, key, value, log_decay, beta, out)
        intercept.call(self._library.advance[value.dtype], tensors, *numbers, *strides)
        return out


def _side_by_side(heads: Tensor) -> Tensor:
    """[T, heads, dim], of which a token's numbers lie side by side."""
    return heads if heads.stride()[1:] == (heads.shape[2], 1) else heads.contiguous()


def _convolution(spec: ConvolutionSpec, state: Tensor, row: int) -> ConvolutionNumbers:
    return ConvolutionNumbers(spec.channels, spec.taps, spec.activated, row, state.data_ptr())


def _rule(spec: RuleSpec, state: Tensor, row: int) -> RuleNumbers:
    heads = spec.key_heads, spec.heads, spec.key_dim, spec.value_dim
    return RuleNumbers(*heads, spec.by_channel, spec.corrects, row, state.data_ptr())
