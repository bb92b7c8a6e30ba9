"""Compiles a model with torch.compile: one graph for any number of tokens, in which each kind of layer is
compiled once and attention is an operation that the compiler does not look into.

Nothing is compiled on the way: a step that the code does not fit is computed without it. Measure with
`python -m ops.bench layers`.
"""

from __future__ import annotations

import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from millstream_worker.engine.runner.device import torch_internals
from millstream_worker.engine.runner.model.load import LoadedModel, occupy

# Dynamo takes two dimensions of one size for the same one, and the sizes 0 and 1 for constants: no dimension
# of a model has these sizes.
_TOKENS, _LOGITS = 61, 59


class CannotCompile(Exception):
    """The model stays as it was; the message says why."""


def compile_model(
    loaded: LoadedModel,
    cache: Path,
    report: Callable[[str], None],
    mark: Callable[[], None] = lambda: None,
    *,
    backend: str | Callable[..., Any] = "inductor",
) -> None:
    """Have the model computed by compiled code, which is kept in `cache`; its attention modules are connected
    afterwards. `mark` is called as it gets on. A process has one compiled model. Raises CannotCompile."""
    begun, layers = time.perf_counter(), loaded.anatomy.layers
    if layers is None:
        raise CannotCompile("its layers are not the members of one list")
    report(f"compiling {type(loaded.model).__name__} of {len(layers)} layers")

    def zeros(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> Tensor:
        mark()
        return value.new_zeros(len(query), query.shape[1], value.shape[2])

    for module in loaded.anatomy.attention_modules:
        occupy(module, zeros)
    try:
        torch.compiler.reset()
        torch.compiler.set_stance("default")
        torch_internals.configure_compiler(cache)
        _share_code(layers)
        for tokens in _install(loaded, backend):
            _run_step(loaded, tokens)
    except Exception as error:  # of the model's code, of torch's compiler, of a C++ one: steps can do without
        _restore(loaded, layers)
        raise CannotCompile(_short(error)) from error
    finally:
        torch.compiler.set_stance("eager_on_recompile")
    report(f"model compiled in {time.perf_counter() - begun:.1f} s")


def _share_code(layers: Sequence[nn.Module]) -> None:
    """Have layers of one class, which differ in weights alone, share their code."""
    regions: dict[type[nn.Module], Any] = {}
    for layer in layers:
        kind = type(layer)
        if kind not in regions:
            regions[kind] = torch.compiler.nested_compile_region(kind.forward)
        layer.forward = types.MethodType(regions[kind], layer)


def _install(loaded: LoadedModel, backend: str | Callable[..., Any]) -> Sequence[int]:
    """All of the model on the CPU; on a GPU its body, which CUDA graphs record by itself. Returns the token
    counts to compile for."""
    body = loaded.anatomy.body
    if loaded.device.type == "cpu" or body is None:
        loaded.logits.compile(lambda function: _compiled(function, backend))
        return (_TOKENS,)
    body.module.forward = _compiled(body.module.forward, backend)
    return _TOKENS, 1


def _compiled(function: Callable[..., Any], backend: str | Callable[..., Any]) -> Callable[..., Any]:
    # The model is what it was when it was compiled: guards on its modules would be looked at in each step.
    options: dict[str, Any] = {"guard_filter_fn": torch.compiler.keep_portable_guards_unsafe}
    if backend == "inductor":
        options |= torch_internals.compiler_options()
    return torch.compile(function, backend=backend, fullgraph=True, dynamic=True, options=options)


@torch.inference_mode()
def _run_step(loaded: LoadedModel, tokens: int) -> None:
    """Inputs are of a step's types: the guards of the code would not hold for a step otherwise."""
    sizes = (tokens, tokens, _LOGITS)
    loaded.logits(*(torch.zeros(size, dtype=torch.int64, device=loaded.model.device) for size in sizes))


def _restore(loaded: LoadedModel, layers: Sequence[nn.Module]) -> None:
    loaded.logits.restore()
    body = loaded.anatomy.body
    for module in (*layers, *([body.module] if body else [])):
        vars(module).pop("forward", None)


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
