"""Compiles a model with torch.compile: one graph for any number of tokens, in which each kind of layer is
compiled once and attention is an operation that the compiler does not look into.

The compiled code is checked beside the model as it was. Nothing is compiled on the way: a step that the code
does not fit is computed without it. Measure with `python -m ops.bench layers`.
"""

from __future__ import annotations

import time
import types
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from millstream_worker.engine.protocol.frames import Tried
from millstream_worker.engine.runner.device import torch_internals
from millstream_worker.engine.runner.model.load import LoadedModel, occupy
from millstream_worker.engine.runner.self_check.deviation import compare_logits
from millstream_worker.engine.runner.self_check.findings import short

# Dynamo takes two dimensions of one size for the same one, and the sizes 0 and 1 for constants: no dimension
# of a model has these sizes.
_TOKENS, _LOGITS = 61, 59
_CHECKED = (1, 2, _TOKENS)  # token counts of the steps that compiled code is checked with


class CannotCompile(Exception):
    """The model stays as it was; the message says why."""


def compile_model(
    loaded: LoadedModel,
    cache: Path,
    report: Callable[[str], None],
    mark: Callable[[], None] = lambda: None,
    *,
    backend: str | Callable[..., Any] = "inductor",
) -> float:
    """Have the model computed by compiled code, which is kept in `cache`; its attention modules are connected
    afterwards. `mark` is called as it gets on. A process has one compiled model. Returns the logits' largest
    deviation from the plain model's. Raises CannotCompile."""
    begun, layers = time.perf_counter(), loaded.anatomy.layers
    if layers is None:
        raise CannotCompile("its layers are not the members of one list")
    report(f"{Tried.COMPILE_MODEL}, {type(loaded.model).__name__} of {len(layers)} layers")

    def stand_in(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> Tensor:
        """Attention as quick as zeros, and a function of all that it is given."""
        mark()
        key, value = (tensor.repeat_interleave(query.shape[1] // key.shape[1], 1) for tensor in (key, value))
        return value * (query * key).mean(-1, keepdim=True).tanh()

    for module in loaded.anatomy.attention_modules:
        occupy(module, stand_in)
    try:
        expected = [_run_step(loaded, tokens) for tokens in _CHECKED]
        torch.compiler.reset()
        torch.compiler.set_stance("default")
        torch_internals.configure_compiler(cache)
        _share_code(layers)
        for tokens in _install(loaded, backend):
            _run_step(loaded, tokens)
        worst = max(map(partial(_checked, loaded), _CHECKED, expected))
    except Exception as error:  # of the model's code, of torch's compiler, of a C++ one: steps can do without
        _restore(loaded, layers)
        raise CannotCompile(short(error)) from error
    finally:
        torch.compiler.set_stance("eager_on_recompile")
    report(f"model compiled in {time.perf_counter() - begun:.1f} s")
    return worst


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
        loaded.logits.compile(lambda function: _compiled(function, loaded.device, backend))
        return (_TOKENS,)
    body.module.forward = _compiled(body.module.forward, loaded.device, backend)
    return _TOKENS, 1


def _compiled(
    function: Callable[..., Any], device: torch.device, backend: str | Callable[..., Any]
) -> Callable[..., Any]:
    # The model is what it was when it was compiled: guards on its modules would be looked at in each step.
    options: dict[str, Any] = {"guard_filter_fn": torch.compiler.keep_portable_guards_unsafe}
    if backend == "inductor":
        options |= torch_internals.compiler_options(device)
    return torch.compile(function, backend=backend, fullgraph=True, dynamic=True, options=options)


@torch.inference_mode()
def _run_step(loaded: LoadedModel, tokens: int) -> Tensor:
    """Returns logits [_LOGITS, vocabulary]. Inputs are of a step's types: the guards of the code would not
    hold for a step otherwise."""
    positions = torch.arange(tokens, device=loaded.model.device)
    wanted = torch.arange(_LOGITS, device=loaded.model.device) % tokens
    return loaded.logits(positions * 7919 % loaded.vocab_size, positions, wanted).clone()


def _checked(loaded: LoadedModel, tokens: int, expected: Tensor) -> float:
    """Returns the deviation. Raises Mismatch."""
    return compare_logits(
        _run_step(loaded, tokens), expected, f"a compiled step of {tokens} tokens", loaded.dtype
    )


def _restore(loaded: LoadedModel, layers: Sequence[nn.Module]) -> None:
    loaded.logits.restore()
    body = loaded.anatomy.body
    for module in (*layers, *([body.module] if body else [])):
        vars(module).pop("forward", None)
