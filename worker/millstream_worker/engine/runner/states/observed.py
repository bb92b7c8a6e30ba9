"""Sees what modules with a recurrent state hand to the functions that advance it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from millstream_worker.engine.runner.states.functions import occupy
from millstream_worker.engine.runner.states.spec import ConvolutionSpec, RuleSpec, StateSpec

_ACTIVATIONS = {None: False, "silu": True, "swish": True}


class StrangeState(Exception):
    """A module advances its state in a way that is not known; the message says in which."""


class ObservedState:
    """Stands for the state of one module. It answers with something of the right shape, which is not finite
    where something that it was given is not."""

    def __init__(self, order: list[nn.Module], module: nn.Module) -> None:
        self._order = order  # of the modules' first calls
        self._module = module
        self.convolutions: list[ConvolutionSpec] = []
        self.rules: list[RuleSpec] = []

    def convolve(
        self,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **options: Any,
    ) -> Tensor:
        if activation not in _ACTIVATIONS:
            raise StrangeState(f"its convolutions are followed by {activation!r}, and only silu is known")
        self._order.append(self._module)
        shape = weight.shape[0], weight.shape[1]
        self.convolutions.append(ConvolutionSpec(*shape, _ACTIVATIONS[activation], inputs.dtype))
        return inputs + 0 * (weight.sum() + (0 if bias is None else bias.sum()))

    def advance(
        self, query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **options: Any
    ) -> tuple[Tensor, None]:
        if options.get("use_qk_l2norm_in_kernel") is not True:
            raise StrangeState("its delta rule takes keys that it has not normalised")
        _, _, heads, value_dim = value.shape
        shape = key.shape[2], heads, key.shape[3], value_dim
        self.rules.append(RuleSpec(*shape, by_channel=g.dim() == 4, dtype=value.dtype))
        return value + 0 * (query.sum() + key.sum() + g.sum() + beta.sum()), None

    def scan(
        self, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk_size: int, **options: Any
    ) -> Tensor:
        if options.get("z") is not None:
            raise StrangeState("its scans are gated (z), which is not known")
        _, _, heads, dim = x.shape
        shape = B.shape[2], heads, B.shape[3], dim  # it is computed in float32
        self.rules.append(RuleSpec(*shape, corrects=False))
        return x.float() + 0 * (dt.sum() + A.sum() + B.sum() + C.sum())

    @property
    def spec(self) -> StateSpec:
        """Raises StrangeState unless there was one convolution and at most one rule behind it."""
        if len(self.convolutions) != 1 or len(self.rules) > 1:
            raise StrangeState(
                f"a module has {len(self.convolutions)} convolutions and {len(self.rules)} rules a token"
            )
        return StateSpec(self.convolutions[0], self.rules[0] if self.rules else None)


@contextlib.contextmanager
def observed_states(modules: Sequence[nn.Module]) -> Iterator[dict[nn.Module, ObservedState]]:
    """Collects what modules that were taken over are given, in the order of their calls; those that are not
    called are left out at the end."""
    order: list[nn.Module] = []
    states = {module: ObservedState(order, module) for module in modules}
    called: dict[nn.Module, ObservedState] = {}
    occupy(modules, list(states.values()))
    try:
        yield called
        called.update({module: states[module] for module in order})
    finally:
        occupy(modules, [None] * len(modules))
