"""Whether compiled code suits every step that may come. What it depends on then need not be looked up again
in each one: for the 30 layers of a 135M model that took 0.9 ms of a step of 18.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from millstream_worker.engine.runner.calls import Call


@torch.inference_mode()
def suits(forward: Callable[..., Any], call: Call, sizes: Sequence[Mapping[int, int]]) -> bool:
    """Whether what `forward` was compiled to would run for calls like this one, but with other lengths in
    place of some, in inference mode. Nothing is computed. False also where torch does not tell."""
    try:
        return all(_has_code(forward, _locals(forward, call, lengths)) for lengths in sizes)
    except (ImportError, AttributeError, TypeError, KeyError):  # names that torch does not promise
        return False


def _has_code(forward: Callable[..., Any], values: dict[str, Any]) -> bool:
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    entries = _debug_get_cache_entry_list(inspect.unwrap(forward).__code__)
    return any(entry.guard_manager.check(values) for entry in entries)


def _locals(forward: Callable[..., Any], call: Call, lengths: Mapping[int, int]) -> dict[str, Any]:
    """What compiled code would find: by the name of each parameter, and of each variable from around it."""
    args, options = _resized(call, lengths)
    bound = inspect.signature(forward).bind(*args, **options)
    bound.apply_defaults()
    own = {"self": forward.__self__} if inspect.ismethod(forward) else {}
    return own | dict(inspect.getclosurevars(inspect.unwrap(forward)).nonlocals) | bound.arguments


def _resized(value: Any, lengths: Mapping[int, int]) -> Any:
    """Tensors hold anything: no memory of theirs is touched."""
    if isinstance(value, torch.Tensor) and not lengths.keys().isdisjoint(value.shape):
        return value.new_empty([lengths.get(length, length) for length in value.shape])
    if isinstance(value, (tuple, list)):
        return type(value)(_resized(part, lengths) for part in value)
    if isinstance(value, dict):
        return {name: _resized(part, lengths) for name, part in value.items()}
    return value
