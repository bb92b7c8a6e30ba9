"""Advances states with the compiled library: the backend of CPUs that have a compiler. A state is read once
and written once a step, in the storage itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from ctypes import addressof
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from millstream_worker.engine.runner.native import intercept
from millstream_worker.engine.runner.native.library import (
    ConvolutionNumbers,
    Library,
    RuleNumbers,
    StateStepNumbers,
)
from millstream_worker.engine.runner.states.spec import StateSpec
from millstream_worker.engine.runner.states.state_backend import LayerStates, StateBackend
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
        self._storage = storage
        specs = storage.specs
        self._convolved = max((prod(spec.convolution.shape) for spec in specs), default=0)
        self._advanced = max((prod(spec.rule.shape) for spec in specs if spec.rule is not None), default=0)
        self._convolving, self._advancing = StateStepNumbers(), StateStepNumbers()  # they stay where they are
        self._segments = storage.segments
        self._layers = [  # recorded steps know where their numbers lie
            _NativeLayer(
                library,
                specs[number],
                _convolution(storage, number),
                _rule(storage, number),
                self._convolving,
                self._advancing,
            )
            for number in range(len(specs))
        ]

    def begin(self) -> None:
        self._segments = segments = self._storage.segments
        tokens = int(segments[:, 2].sum())
        for step, numbers in ((self._convolving, self._convolved), (self._advancing, self._advanced)):
            step.segments, step.count = segments.ctypes.data, len(segments)
            step.threads = torch.get_num_threads() if numbers * tokens >= _THREADED else 1

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Computes what is computed inside from the states as they are, and leaves them so."""
        self._convolving.kept = self._advancing.kept = True
        try:
            yield
        finally:
            self._convolving.kept = self._advancing.kept = False

    def layer(self, number: int) -> LayerStates:
        return self._layers[number]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class _NativeLayer:
    library: Library
    spec: StateSpec
    convolution: ConvolutionNumbers  # it points into the storage
    rule: RuleNumbers | None
    convolving: StateStepNumbers
    advancing: StateStepNumbers

    def convolve(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        _check(inputs, self.spec.convolution.dtype)
        out = intercept.empty(inputs, *inputs.shape)
        tensors = (inputs, weight, bias, out)
        numbers = addressof(self.convolution), addressof(self.convolving)
        intercept.call(self.library.convolve[inputs.dtype], tensors, *numbers, inputs.stride(0))
        return out

    def advance(self, query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
        assert self.rule is not None, "a module without a rule"
        assert self.spec.rule is not None, "a module without a rule"
        _check(value, self.spec.rule.dtype)
        out = intercept.empty(value, *value.shape)
        tensors = (query, key, value, log_decay, beta, out)
        numbers = addressof(self.rule), addressof(self.advancing)
        strides = query.stride(0), key.stride(0), value.stride(0)
        intercept.call(self.library.advance[value.dtype], tensors, *numbers, *strides)
        return out


def _check(given: Tensor, dtype: torch.dtype) -> None:
    """Raises TypeError for another type than was seen when the model was loaded: there is room for that."""
    if given.dtype != dtype:
        raise TypeError(f"a state's inputs are {given.dtype}, and were {dtype}")


def _convolution(storage: StateStorage, number: int) -> ConvolutionNumbers:
    spec, state = storage.specs[number].convolution, storage.convolutions[number]
    return ConvolutionNumbers(
        *(spec.channels, spec.taps, spec.activated, storage.most_held, storage.memory.shape[1]),
        *(state.data_ptr(), storage.held[number].channels.data_ptr()),
    )


def _rule(storage: StateStorage, number: int) -> RuleNumbers | None:
    spec, state, held = storage.specs[number].rule, storage.rules[number], storage.held[number].rule
    if spec is None or state is None or held is None:
        return None
    tensors = state, held.keys, held.values, held.log_decays, held.betas
    return RuleNumbers(
        *(spec.key_heads, spec.heads, spec.key_dim, spec.value_dim, spec.by_channel, spec.corrects),
        *(storage.most_held, storage.memory.shape[1]),
        *(tensor.data_ptr() for tensor in tensors),
    )
