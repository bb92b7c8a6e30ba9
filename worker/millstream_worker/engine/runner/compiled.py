"""Compiles a model: one kind of layer once, for any number of tokens, with the attention left out; on the CPU
also what lies around the layers.

All layers of a kind run the same code. It is compiled at once, for one token and for more, and kept in the
cache folder for the next start; nothing is compiled on the way: what does not suit the code is computed
without it. Measure with `python -m ops.bench layers`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from millstream_worker.engine.runner import around, blocked, operation, packed
from millstream_worker.engine.runner.attention.interface import LayerSpec
from millstream_worker.engine.runner.calls import Call, calls_of
from millstream_worker.engine.runner.guards import ask_no_more, suits
from millstream_worker.engine.runner.model import LoadedModel, forward, occupy
from millstream_worker.engine.runner.stretches import Stretch, pass_on, stretches

# Of the steps that it is compiled with. One has code of its own. The other is no size that a model has: two
# dimensions of one size are taken for the same, and the number of tokens for as fixed as a head's.
_TOKENS = (61, 1)
_WANTED = 59  # logits
_MOST_KINDS = 6  # of layers, twice: a model with more would compile for minutes
# What holds for as long as the engine runs. To look it up took longer than the arithmetic that is saved.
_UNCHANGING = {"EMPTY_NN_MODULE_HOOKS_DICT", "NOT_PRESENT_IN_GENERIC_DICT", "CLOSURE_MATCH", "MODULE_MATCH"}


class CannotCompile(Exception):
    """The layers stay as they are; the message says why."""


def compile_layers(
    loaded: LoadedModel,
    cache: Path,
    report: Callable[[str], None],
    mark: Callable[[], None] = lambda: None,
    *,
    backend: str | Callable[..., Any] = "inductor",
    most_tokens: int = 2048,
) -> None:
    """Have the model's layers run compiled, by one of torch's backends, for steps of up to `most_tokens`; its
    attention modules are connected afterwards. Compiled code is kept in `cache`. Raises CannotCompile, with
    the model as it was."""
    begun, layers = time.perf_counter(), loaded.anatomy.layers
    if layers is None:
        raise CannotCompile("its layers are not the members of one list")
    report(f"compiling {len(layers)} layers")
    attentions = [_Blank(spec, mark) for spec in loaded.layers]
    for module, attention in zip(loaded.modules, attentions, strict=True):
        occupy(module, attention)
    compiling = _Compiling(loaded, layers, report, mark, backend, most_tokens)
    try:
        _keep_in(cache)
        compiling.somehow()
    except Exception as error:  # of the model's code, of torch's compiler, of a C++ one: steps can do without
        compiling.restore()
        raise CannotCompile(_short(error)) from error
    report(f"layers compiled in {time.perf_counter() - begun:.1f} s")


def _keep_in(cache: Path) -> None:
    """Torch takes the folder from nowhere else, and unpickles what is there: only its owner may write.

    It would keep its headers, 150 MB of them, in a folder that all users share. They are the same for all
    models.
    """
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    from torch._inductor import codecache  # takes seconds

    codecache._HEADER_DIR = str(cache.parent / "headers")
    codecache._HEADER_LOCK_DIR = str(cache.parent / "headers" / "locks")


class _Blank:
    """Answers zeros in a layer's place, of the shape that its attention has."""

    def __init__(self, spec: LayerSpec, mark: Callable[[], None]) -> None:
        self._value_dim = spec.value_dim
        self._mark = mark

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any]
    ) -> torch.Tensor:
        self._mark()
        return value.new_zeros(len(query), query.shape[1], self._value_dim)


@dataclass(frozen=True, slots=True, eq=False)
class _Compiling:
    """One compilation of a model, in the ways that there are, the fastest first."""

    loaded: LoadedModel
    layers: Sequence[nn.Module]
    report: Callable[[str], None]
    mark: Callable[[], None]
    backend: str | Callable[..., Any]
    most_tokens: int

    def somehow(self) -> None:
        """With products of the compiler's own where that goes, else with those that the layers have."""
        _configure()
        if blocked.usable(self.loaded.device):
            try:
                self._blocked()
            except CannotCompile as error:
                self.report(f"products are left to oneDNN: {error}")
            else:
                return
        self._compile()

    def restore(self) -> None:
        for layer in self.layers:
            vars(layer).pop("forward", None)
            blocked.unblock(layer)
        around.leave(self.loaded.model)

    def _blocked(self) -> None:
        try:
            blocked.lower()
            for layer in self.layers:
                blocked.block(layer)
                self.mark()
            if not self._compile():
                raise CannotCompile("the layers' code does not suit every step")
        except Exception as error:  # of names that torch does not promise
            self.restore()
            torch.compiler.reset()
            raise CannotCompile(_short(error)) from error

    def _compile(self) -> bool:
        """Whether what is compiled suits every step, so that nothing is looked up in one."""
        torch.compiler.set_stance("default")
        on_cpu = self.loaded.device.type == "cpu"  # recorded steps of a GPU have no calls to save
        parts = stretches(self.layers, lambda: self._compute(1)) if on_cpu else [[one] for one in self.layers]
        entered = dict(map(self._enter, parts))
        self._compute_sizes()
        sure = on_cpu and self._save_calls(entered)
        ask_no_more(sure)
        return sure

    def _save_calls(self, entered: Mapping[nn.Module, Callable[..., Any]]) -> bool:
        """Compile what is around the layers, too. Whether all that is compiled suits every step."""
        calls = dict(calls_of(list(entered), lambda: self._compute(_TOKENS[0])))
        steps = [{_TOKENS[0]: tokens} for tokens in self._sizes]
        sure = all(suits(entered[layer], call, steps) for layer, call in calls.items())
        try:
            traced = self._compile_around(calls)
        except CannotCompile as error:
            self.report(f"what is around the layers is not compiled: {error}")
            return sure
        call = Call(tuple(map(self._zeros, (_TOKENS[0], _TOKENS[0], _WANTED))), {})
        steps = [step | {_WANTED: wanted} for step in steps for wanted in self._sizes[1:]]
        return sure and suits(traced, call, steps)

    @property
    def _sizes(self) -> tuple[int, ...]:
        """Steps whose code is asked whether it suits: the smallest, the largest, and some in between."""
        between = [2**power + more for power in range(2, 16) for more in (-1, 0)]
        most = max(2, self.most_tokens)
        return (1, 2, *(tokens for tokens in between if tokens < most), most)

    def _compile_around(self, calls: Mapping[nn.Module, Call]) -> Callable[..., Any]:
        try:
            traced = around.compile_around(self.loaded.model, calls, self._compiled)
            self._compute_sizes()
        except Exception as error:  # of code that is Python for a reason
            around.leave(self.loaded.model)
            raise CannotCompile(_short(error)) from error
        return traced

    def _enter(self, together: Sequence[nn.Module]) -> tuple[nn.Module, Callable[..., Any]]:
        """Have the first of some layers compute them all, compiled; it, and what is compiled."""
        first, *others = together
        forward = Stretch(together).forward if others else first.forward
        first.forward = self._compiled(forward)
        for layer in others:
            layer.forward = pass_on
        return first, forward

    def _compiled(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(
            forward,
            backend=self.backend,
            fullgraph=True,
            dynamic=True,
            options={"guard_filter_fn": _changing},
        )

    def _compute_sizes(self) -> None:
        for tokens in _TOKENS:
            self._compute(tokens)
            self.mark()

    def _compute(self, tokens: int) -> None:
        forward(self.loaded.model, self._zeros(tokens), self._zeros(tokens), self._zeros(_WANTED))

    @torch.inference_mode()
    def _zeros(self, size: int) -> torch.Tensor:
        """As steps have them: code for other tensors is not theirs."""
        return torch.zeros(size, dtype=torch.int64, device=self.loaded.device)


def _configure() -> None:
    import torch._dynamo.config  # takes seconds
    import torch._inductor.config

    torch._dynamo.config.recompile_limit = 2 * _MOST_KINDS
    torch._dynamo.config.specialize_float = True  # else each one is made a tensor in each step
    torch._inductor.config.compile_threads = 1  # no pool of processes beside the engine's
    torch._inductor.config.cpp.vec_isa_ok = True  # else a process is started to try each instruction set
    torch._inductor.config.size_asserts = False  # 0.3 us for each tensor of a layer
    with contextlib.suppress(AttributeError):
        packed.compile_directly()
    with contextlib.suppress(AttributeError, ImportError):
        operation.call_directly()


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _changing(guards: Sequence[Any]) -> list[bool]:
    """Of what compiled code depends on, that which may differ between two layers or two steps."""
    return [not guard.is_global and guard.guard_type not in _UNCHANGING for guard in guards]
