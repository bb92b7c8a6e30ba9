"""Makes a loaded model ours: finds out what its attention layers compute and gives each its storage. Knows
transformers' models; knows nothing of rows.

The modelling code is transformers' own. Its attention modules call the function registered here, which
hands the packed step to the module's `LayerAttention`. Which modules these are, and what they ask for, is
not guessed from the configuration but seen in a forward of one token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

from millstream_worker.engine.runner import around, guards, merge_choice, packed, support
from millstream_worker.engine.runner.attention.breakable import BreakableAttention
from millstream_worker.engine.runner.attention.choice import choose
from millstream_worker.engine.runner.attention.interface import AttentionBackend, LayerSpec
from millstream_worker.engine.runner.attention.operator import Attention, attend, register
from millstream_worker.engine.runner.merged import Siblings
from millstream_worker.engine.runner.native.library import Library
from millstream_worker.engine.runner.storage import KVStorage
from millstream_worker.engine.runner.support import UnsupportedModel
from millstream_worker.engine.runner.weights import end_ids, load_config, load_weights

ATTENTION = "millstream"  # our name among transformers' attention functions
_SLOT = "paged_attention"  # the attribute through which an attention module finds its layer
_NUMBER = "paged_attention_number"  # the one through which its compiled code does
_KNOWN_TENSORS = {
    "s_aux",
    "position_ids",
    "cache_position",
}  # tensors that modules hand to an attention function


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model on its device, and the facts about it that the engine asks for."""

    model: PreTrainedModel
    modules: tuple[nn.Module, ...]  # the attention module of each layer
    layers: tuple[LayerSpec, ...]
    architecture: str
    attention: str  # backend: torch | native | triton
    attend_over: Callable[[KVStorage], AttentionBackend]  # makes the backend
    library: Library | None  # native code, on a CPU that has a compiler
    vocab_size: int  # width of the logits
    context_length: int  # most tokens of a row
    eos_ids: tuple[int, ...]
    parameters: int
    dtype: torch.dtype
    device: torch.device
    notes: tuple[str, ...] = ()  # what the operator should know


class LayerAttention:
    """One layer of a storage and who computes its attention; sits in the layer's attention module."""

    __slots__ = ("__weakref__", "_backend", "_layer", "_mark")

    def __init__(self, backend: AttentionBackend, layer: int, mark: Callable[[], None]) -> None:
        self._backend = backend
        self._layer = layer
        self._mark = mark

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any]
    ) -> torch.Tensor:
        self._mark()
        return self._backend.attend(self._layer, query, key, value, options.get("s_aux"))


def load_model(
    folder: str,
    *,
    dtype: torch.dtype,
    device: torch.device,
    attention: str = "auto",
    cache_dir: str = "",
    mark: Callable[[], None] = lambda: None,
) -> LoadedModel:
    """The model of a folder with config.json and safetensors. `mark` is called with each weight read. What
    its attention compiles is kept in `cache_dir` ("": ~/.cache/millstream).

    Raises `UnsupportedModel` for a model that would not be computed correctly or lacks weights, and
    ValueError for an attention backend that the device does not have.
    """
    chosen = choose(attention, device, dtype, cache_dir)
    config = load_config(folder)
    support.check(config)
    context_length = support.context_length(config)
    AttentionInterface.register(ATTENTION, _attend)
    model = load_weights(folder, config, dtype, device, ATTENTION, mark)
    with Siblings(model) as siblings:
        modules, layers, vocab_size = _observe(model)
    merged = merge_choice.merge(siblings, device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    packed.pack(model, chosen.library)
    note = support.context_note(config)
    return LoadedModel(
        model=model,
        modules=modules,
        layers=layers,
        architecture=type(model).__name__,
        attention=chosen.name,
        attend_over=chosen.build,
        library=chosen.library,
        vocab_size=vocab_size,
        context_length=context_length,
        eos_ids=end_ids(folder, config),
        parameters=parameters,
        dtype=dtype,
        device=device,
        notes=(*([note] if note else []), f"attention: {chosen.reason}", *merged),
    )


def connect(
    loaded: LoadedModel, storage: KVStorage, mark: Callable[[], None] = lambda: None
) -> BreakableAttention:
    """Give each attention module its layer of `storage`. Before each forward the backend wants
    `begin(plan)`; `mark` is called with each layer."""
    backend = BreakableAttention(loaded.attend_over(storage))
    reconnect(loaded, backend, mark)
    return backend


def reconnect(loaded: LoadedModel, backend: BreakableAttention, mark: Callable[[], None]) -> None:
    """Give each attention module back what `connect` gave it, after something else sat there."""
    for layer, module in enumerate(loaded.modules):
        occupy(module, LayerAttention(backend, layer, mark))


def occupy(module: nn.Module, attention: Attention) -> None:
    """Have an attention module, run by Python or compiled, call `attention`."""
    setattr(module, _SLOT, attention)
    setattr(module, _NUMBER, register(attention))


@torch.inference_mode()
def forward(
    model: PreTrainedModel, tokens: torch.Tensor, positions: torch.Tensor, logit_indices: torch.Tensor
) -> torch.Tensor:
    """Logits [L, vocabulary] at `logit_indices` of a packed step: tokens and positions [T], all int64."""
    return guards.computed(lambda: around.forward(model, tokens, positions, logit_indices))


def _attend(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: None, **options: Any
) -> tuple[torch.Tensor, None]:
    """What the attention modules call with [1, heads, T, head_dim] each; answers [1, T, heads, head_dim].

    Transformers makes no mask, as no mask function has our name. But for the sinks, `options` are the
    constants that were seen when the model was loaded.
    """
    query, key, value = query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1)
    if torch.compiler.is_compiling():
        out = attend(query, key, value, options.get("s_aux"), getattr(module, _NUMBER))
    else:  # an operation written in Python costs more than the call
        out = getattr(module, _SLOT)(query, key, value, options)
    return out.unsqueeze(0), None


class _Observer:
    """Stands in every module's slot for one forward: notes who calls with what, and answers zeros."""

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []
        self.layers: list[LayerSpec] = []
        self.tensors: set[str] = set()

    def listen(self, module: nn.Module) -> None:
        def attend(
            query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any]
        ) -> torch.Tensor:
            self.modules.append(module)
            self.layers.append(_layer_spec(query, key, value, options))
            self.tensors |= {name for name, option in options.items() if isinstance(option, torch.Tensor)}
            return value.new_zeros(len(query), query.shape[1], value.shape[2])

        setattr(module, _SLOT, attend)


def _observe(model: PreTrainedModel) -> tuple[tuple[nn.Module, ...], tuple[LayerSpec, ...], int]:
    """Run one token through: the attention modules in order, what they compute, and the width of the
    logits."""
    name, observer, everyone = type(model).__name__, _Observer(), list(model.modules())
    for module in everyone:
        observer.listen(module)
    zero = torch.zeros(1, dtype=torch.int64, device=model.device)
    vocab_size = forward(model, zero, zero, zero).shape[1]
    for module in everyone:
        delattr(module, _SLOT)
    calls, callers = len(observer.modules), len(set(observer.modules))
    layers = model.config.get_text_config().num_hidden_layers
    if not calls == callers == layers:
        raise UnsupportedModel(
            f"{name} is not supported: {calls} calls of the attention interface by {callers} modules "
            f"in {layers} layers; it must be one a layer"
        )
    if unknown := sorted(observer.tensors - _KNOWN_TENSORS):
        raise UnsupportedModel(f"{name} is not supported: its attention depends on {', '.join(unknown)}")
    return tuple(observer.modules), tuple(observer.layers), vocab_size


def _layer_spec(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any]
) -> LayerSpec:
    """From what an attention module hands over, [T, heads, head_dim] each."""
    scale = options.get("scaling")
    return LayerSpec(
        heads=query.shape[1],
        kv_heads=key.shape[1],
        key_dim=key.shape[2],
        value_dim=value.shape[2],
        scale=query.shape[2] ** -0.5 if scale is None else float(scale),
        window=options.get("sliding_window"),
        softcap=options.get("softcap"),
        sinks=options.get("s_aux") is not None,
    )
