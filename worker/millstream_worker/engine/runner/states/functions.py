"""Finds the functions through which modelling code advances recurrent states, and puts ours in their place.

A module is known by the functions that its forward names. It gets a hook that adds what computes its state to
the keywords of its calls, which it hands on to these functions. In the namespace of its modelling file
they are replaced by ones that look for that keyword, and call the original without it: other models of the
process are untouched.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from millstream_worker.engine.runner.states.module_state import BackedState, MarkedStates
from millstream_worker.engine.runner.states.state_backend import LayerStates
from millstream_worker.engine.runner.states.traced_states import LAYER_STATES, TracedStates

_METHODS = {  # by the names of functions, those of `ModuleState`
    "causal_conv1d_fn": "convolve",
    "torch_chunk_gated_delta_rule": "advance",
    "chunk_kimi_delta_attention": "advance",
    "mamba2_chunk_scan": "scan",
}
_KEYWORD = "millstream_state"
# Attributes of a module: what computes its states, and the number of that for compiled code.
_SLOT, _NUMBER = "recurrent_state", "recurrent_number"


class ModuleState(Protocol):
    """Stands for the state of a module: its functions call it, with transformers' shapes. `options`: whatever
    else the module hands over."""

    def convolve(
        self,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **options: Any,
    ) -> Tensor:
        """inputs [1, channels, T], weight [channels, taps]; returns the shape of inputs."""

    def advance(
        self, query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **options: Any
    ) -> tuple[Tensor, None]:
        """[1, T, heads, dim]; returns the shape of value, and no state."""

    def scan(
        self, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk_size: int, **options: Any
    ) -> Tensor:
        """x [1, T, heads, dim], dt [1, T, heads], A [heads], B and C [1, T, groups, state]; returns the shape
        of x in float32."""


def take_over(model: nn.Module) -> tuple[nn.Module, ...]:
    """Returns the modules of a model that keep a recurrent state, all of which can be occupied afterwards."""
    found = tuple(module for module in model.modules() if _named(module))
    for module in found:
        module.register_forward_pre_hook(_hand_over, with_kwargs=True)
        namespace = _forward(module).__globals__
        for name in _named(module):
            if not hasattr(namespace[name], _KEYWORD):
                namespace[name] = _replaced(namespace[name], name)
    return found


def occupy(modules: Sequence[nn.Module], states: Sequence[ModuleState | None]) -> None:
    """Have each module's functions call its state; None: they compute by themselves again."""
    for module, state in zip(modules, states, strict=True):
        setattr(module, _SLOT, state)


def connect_states(module: nn.Module, states: LayerStates, mark: Callable[[], None] = lambda: None) -> None:
    """Have a module's functions, run by Python or compiled, advance these states. `mark` is called with each
    step."""
    marked = MarkedStates(states, mark)
    setattr(module, _SLOT, BackedState(marked))
    setattr(module, _NUMBER, LAYER_STATES.register(marked))


def _forward(module: nn.Module) -> Any:
    return inspect.unwrap(type(module).forward)


def _named(module: nn.Module) -> tuple[str, ...]:
    """Returns the names of the functions that a module's forward calls."""
    code = getattr(_forward(module), "__code__", None)
    names = () if code is None else code.co_names
    return tuple(name for name in _METHODS if name in names)


def _hand_over(
    module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    state: ModuleState | None = getattr(module, _SLOT, None)
    if state is None:
        return None
    if torch.compiler.is_compiling():
        state = BackedState(TracedStates(getattr(module, _NUMBER)))
    return args, options | {_KEYWORD: state}


def _replaced(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def function(*args: Any, **options: Any) -> Any:
        state: ModuleState | None = options.pop(_KEYWORD, None)
        if state is None:
            return original(*args, **options)
        return getattr(state, _METHODS[name])(*args, **options)

    setattr(function, _KEYWORD, True)
    return function
