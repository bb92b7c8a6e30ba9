"""Compiles a model with torch.compile: one graph for any number of tokens, in which each kind of layer is
compiled once, and attention and what advances recurrent states are operations that the compiler does not
look into.

The compiled code is checked beside the model as it was. Nothing is compiled on the way: a step that the code
does not fit is computed without it. Measure with `python -m ops.bench layers`.
"""

from __future__ import annotations

import contextlib
import time
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from millstream_worker.engine.protocol.frames import Tried
from millstream_worker.engine.runner.compiled.stand_ins import QuickStates, attend_quickly
from millstream_worker.engine.runner.device import torch_internals
from millstream_worker.engine.runner.device.transfer import settle
from millstream_worker.engine.runner.linear.quantized_layers import without_rounding
from millstream_worker.engine.runner.model.anatomy import Anatomy
from millstream_worker.engine.runner.model.load import LoadedModel, occupy
from millstream_worker.engine.runner.self_check.deviation import compare_logits
from millstream_worker.engine.runner.self_check.findings import short
from millstream_worker.engine.runner.states.functions import connect_states

# Dynamo takes two dimensions of one size for the same one, and the sizes 0 and 1 for constants: no dimension
# of a model has these sizes.
_TOKENS, _LOGITS = 61, 59
_CHECKED = (1, 2, _TOKENS)  # token counts of the steps that compiled code is checked with
_LARGE = 4099  # and of one in which kernels of large steps have whole tiles and a part of one; a prime
COMBINED = "inductor with combo kernels"  # several operations in one launch

Backend = str | Callable[..., Any]
Expected = Mapping[int, Mapping[str, Tensor]]  # answers [_LOGITS, size] by tokens, then heads


class CannotCompile(Exception):
    """The model stays as it was; the message says why."""


def compile_model(
    loaded: LoadedModel,
    cache: Path,
    report: Callable[[str], None],
    mark: Callable[[], None] = lambda: None,
    *,
    most_tokens: int = 0,
    fall_back: Callable[[str], None] = lambda _: None,
    backends: Sequence[Backend] = (),
) -> float:
    """Have the model computed by compiled code, which is kept in `cache`; its modules are connected
    afterwards. `mark` is called as it gets on. A process has one compiled model. Of the `backends` (by
    default torch's own for the device), each with less that can fail, the first whose code is right is taken;
    `fall_back` gets the reason if that is not the first. The code is checked with a large step of up to
    `most_tokens` tokens, too; 0: with none. Returns the answers' largest deviation from the plain model's.
    Raises CannotCompile."""
    begun, layers = time.perf_counter(), loaded.anatomy.layers
    if layers is None:
        raise CannotCompile("its layers are not the members of one list")
    report(f"{Tried.COMPILE_MODEL}: {len(layers)} layers")

    def attention(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> Tensor:
        mark()
        return attend_quickly(query, key, value)

    for module in loaded.anatomy.attention_modules:
        occupy(module, attention)
    states = QuickStates()  # in one place as long as the compiler runs
    for module in loaded.anatomy.state_modules:
        connect_states(module, states, mark)
    try:
        with without_rounding():
            expected = _expected(loaded, most_tokens)
            torch_internals.configure_compiler(cache)
            worst = _compile_first_right(loaded, layers, backends, expected, fall_back)
    except Exception as error:  # of the model's code, of torch's compiler, of a C++ one: steps can do without
        _restore_plain(loaded)
        settle(loaded.device)  # a device fault ends the process here, and is charged to compiled code
        raise CannotCompile(short(error)) from error
    finally:
        torch.compiler.set_stance("eager_on_recompile")
    report(f"model compiled in {time.perf_counter() - begun:.1f} s")
    return worst


def _restore_plain(loaded: LoadedModel) -> None:
    """Have the model computed by its own code again. Its modules stay connected."""
    loaded.heads.restore()
    body = loaded.anatomy.body
    for module in (*(loaded.anatomy.layers or ()), *([body.module] if body else [])):
        vars(module).pop("forward", None)


def _expected(loaded: LoadedModel, most_tokens: int) -> dict[int, dict[str, Tensor]]:
    """The plain heads' answers by the token counts that are checked; all are odd but 2."""
    expected = {tokens: _run_step(loaded, tokens) for tokens in _CHECKED}
    if most_tokens > _TOKENS:
        large = min(_LARGE, (most_tokens - 1) | 1)
        with contextlib.suppress(torch.OutOfMemoryError):  # a smaller largest step will be chosen
            expected[large] = _run_step(loaded, large)
    return expected


def _compile_first_right(
    loaded: LoadedModel,
    layers: Sequence[nn.Module],
    backends: Sequence[Backend],
    expected: Expected,
    fall_back: Callable[[str], None],
) -> float:
    """Returns the deviation. Raises what the last backend raises."""
    *risky, last = backends or ((COMBINED, "inductor") if loaded.device.type == "cuda" else ("inductor",))
    slower = []
    for backend in risky:
        try:
            worst = _compile(loaded, layers, backend, expected)
            break
        except Exception as error:  # noqa: BLE001 - of a compiler, or a mismatch
            settle(loaded.device)
            _restore_plain(loaded)
            slower.append(f"the model is compiled, but not by {backend}: {short(error)}")
    else:
        worst = _compile(loaded, layers, last, expected)
    for line in slower:
        fall_back(line)
    return worst


def _compile(loaded: LoadedModel, layers: Sequence[nn.Module], backend: Backend, expected: Expected) -> float:
    """Returns the deviation. Raises Mismatch, or what the compiler raises."""
    torch.compiler.reset()
    torch.compiler.set_stance("default")
    _share_code(layers, loaded.anatomy)
    for tokens in _install(loaded, backend):
        _run_step(loaded, tokens)
    return max(_checked(loaded, *one) for one in expected.items())


def _share_code(layers: Sequence[nn.Module], anatomy: Anatomy) -> None:
    """Have layers of one class and of the same parts, which differ in weights alone, share their code. One
    whose keys and values others read has its own: shared code hands on nothing but its answer."""
    sources = {spec.source for spec in anatomy.layer_specs} - {None}
    read = {module for number, module in enumerate(anatomy.attention_modules) if number in sources}
    regions: dict[tuple[object, ...], Any] = {}
    for layer in layers:
        if not read.isdisjoint(layer.modules()):
            continue
        kind = type(layer), *((name, type(part)) for name, part in layer.named_modules())
        if kind not in regions:
            regions[kind] = _region(type(layer).forward)
        layer.forward = types.MethodType(regions[kind], layer)


def _region(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `forward` as code that layers share, also those that are given parts of one tensor: the code
    would be for the place where a part begins."""
    region = torch.compiler.nested_compile_region(forward)

    def call(layer: nn.Module, *args: Any, **options: Any) -> Any:
        parts = [isinstance(arg, Tensor) and not arg.is_contiguous() for arg in args]
        args = tuple(arg.contiguous() if part else arg for arg, part in zip(args, parts, strict=True))
        return region(layer, *args, **options)

    return call


def _install(loaded: LoadedModel, backend: Backend) -> Sequence[int]:
    """The body with each head on the CPU; on a GPU the body, which CUDA graphs record by itself. Returns the
    token counts to compile for."""
    body = loaded.anatomy.body
    if loaded.device.type == "cpu" or body is None:
        loaded.heads.compile(lambda function: _compiled(function, loaded.device, backend))
        return (_TOKENS,)
    body.module.forward = _compiled(body.module.forward, loaded.device, backend)
    return _TOKENS, 1


def _compiled(function: Callable[..., Any], device: torch.device, backend: Backend) -> Callable[..., Any]:
    # The model is what it was when it was compiled: guards on its modules would be looked at in each step.
    options: dict[str, Any] = {"guard_filter_fn": torch.compiler.keep_portable_guards_unsafe}
    if backend in ("inductor", COMBINED):
        options |= torch_internals.compiler_options(combo_kernels=backend == COMBINED)
        backend = "inductor"
    return torch.compile(function, backend=backend, fullgraph=True, dynamic=True, options=options)


@torch.inference_mode()
def _run_step(loaded: LoadedModel, tokens: int) -> dict[str, Tensor]:
    """Returns answers [_LOGITS, size] by heads. Inputs are of a step's types: the guards of the code would
    not hold for a step otherwise."""
    positions = torch.arange(tokens, device=loaded.model.device)
    wanted = torch.arange(_LOGITS, device=loaded.model.device) % tokens
    places = positions % loaded.context_length
    given = positions * 7919 % loaded.vocab_size, places, wanted
    return {name: loaded.heads(name, *given).clone() for name in loaded.heads.names}


def _checked(loaded: LoadedModel, tokens: int, expected: Mapping[str, Tensor]) -> float:
    """Returns the deviation. Raises Mismatch."""
    found, what = _run_step(loaded, tokens), f"a compiled step of {tokens} tokens"
    return max(compare_logits(found[name], want, what, loaded.rounded_to) for name, want in expected.items())
