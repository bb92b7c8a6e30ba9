"""What lies around a model's layers, compiled: embedding, rotary angles, last norm, logits.

Transformers' own code for it is Python, 0.45 ms of it in each step, which is more than all else around the
layers of a 14M model. Here a stretch of layers is one operation that is not looked into: it calls what the
layers were compiled to.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from millstream_worker.engine.runner.calls import Call
from millstream_worker.engine.runner.operation import define

_Run = Callable[..., Tensor]
_COMPILED = "compiled_around"  # the attribute through which a model's forward finds it
_BLANK = object()
_numbers = itertools.count()
# Operations are global to a process, and get no objects: this is how the code of one finds its layers.
_registered: WeakValueDictionary[int, _Layers] = WeakValueDictionary()


def compile_around(
    model: nn.Module, calls: Mapping[nn.Module, Call], compiler: Callable[[_Run], _Run]
) -> _Run:
    """Have `model` computed by what `compiler` makes of it, when it is called through `forward`. `calls`: to
    the layers whose forward is compiled. Answers what `compiler` got."""
    for layer, call in calls.items():
        if not call.args:
            raise ValueError("its layers get their tokens by name")
        layer.forward = _opaque(layer.forward, call.args[1:], call.options)

    def around(tokens: Tensor, positions: Tensor, wanted: Tensor) -> Tensor:
        return _logits(model, tokens, positions, wanted)

    setattr(model, _COMPILED, compiler(around))
    return around


def leave(model: nn.Module) -> None:
    """Undo `compile_around`. Layers keep the forward that it gave them, which calls what they had."""
    vars(model).pop(_COMPILED, None)


def forward(model: nn.Module, tokens: Tensor, positions: Tensor, wanted: Tensor) -> Tensor:
    """Logits [L, vocabulary] at `wanted` [L] of a packed step: tokens and positions [T], all int64."""
    compiled = vars(model).get(_COMPILED)
    if compiled is None or not _are_as_in_steps(tokens, positions, wanted):
        return _logits(model, tokens, positions, wanted)
    count = len(wanted)
    if count < 2:  # no logits, or one, would be compiled for themselves
        wanted = torch.cat((wanted, wanted.new_zeros(2 - count)))
    answer: Tensor = compiled(tokens, positions, wanted)[:count]
    return answer


def _are_as_in_steps(*inputs: Tensor) -> bool:
    """Code was compiled for such, and may not be asked whether it suits others: made in inference mode, and
    three of them."""
    return all(tensor.is_inference() for tensor in inputs) and len(set(map(id, inputs))) == len(inputs)


def _logits(model: nn.Module, tokens: Tensor, positions: Tensor, wanted: Tensor) -> Tensor:
    answer = model(
        input_ids=tokens[None], position_ids=positions[None], use_cache=False, logits_to_keep=wanted
    )
    logits: Tensor = answer.logits[0]
    return logits


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class _Layers:
    """Compiled layers, and what they are called with beside the tokens: tensors, and what stays the same."""

    run: _Run
    constants: tuple[Any, ...]  # in order, with a blank for each tensor
    form: pytree.TreeSpec
    keys: tuple[Any, Any]  # torch's dispatch keys as they were when the layers were compiled

    def __call__(self, hidden: Tensor, tensors: Sequence[Tensor]) -> Tensor:
        own = iter(tensors)
        leaves = [next(own) if leaf is _BLANK else leaf for leaf in self.constants]
        args, options = pytree.tree_unflatten(leaves, self.form)
        with torch._C._ForceDispatchKeyGuard(*self.keys):  # else they would not know their weights again
            return self.run(hidden, *args, **options)


@torch.inference_mode()
def _dispatch_keys() -> tuple[Any, Any]:
    return torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()


def _opaque(run: _Run, args: tuple[Any, ...], options: dict[str, Any]) -> _Run:
    leaves, form = pytree.tree_flatten((args, options))
    constants = tuple(_BLANK if isinstance(leaf, Tensor) else leaf for leaf in leaves)
    number, layers = next(_numbers), _Layers(run, constants, form, _dispatch_keys())
    _registered[number] = layers

    def forward(hidden: Tensor, *args: Any, **options: Any) -> Tensor:
        if not torch.compiler.is_compiling():
            return layers.run(hidden, *args, **options)
        leaves = pytree.tree_leaves((args, options))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        own = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]
        assert own == [leaf for leaf in constants if leaf is not _BLANK], "called in another way"
        answer: Tensor = torch.ops.millstream.layers.default(hidden, tensors, number)
        return answer

    return forward


def _run(hidden: Tensor, tensors: Sequence[Tensor], number: int) -> Tensor:
    return _registered[number](hidden, tensors)


def _shaped(hidden: Tensor, tensors: Sequence[Tensor], number: int) -> Tensor:
    return torch.empty_like(hidden)


define("layers(Tensor hidden, Tensor[] tensors, int number) -> Tensor", _run, _shaped)
