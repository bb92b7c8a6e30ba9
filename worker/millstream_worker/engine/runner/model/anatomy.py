"""Finds what a loaded transformers model is made of. Nothing is guessed from names or from the configuration:
one forward of one token shows which module is called with what.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from millstream_worker.engine.runner.attention.observed_attention import AttentionCall, observed_attentions
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.linear.quantized_layers import QuantizedLinear
from millstream_worker.engine.runner.model_config.support import UnsupportedModel
from millstream_worker.engine.runner.states.functions import take_over
from millstream_worker.engine.runner.states.observed import StrangeState, observed_states
from millstream_worker.engine.runner.states.spec import StateSpec

# Tensors, beside queries, keys and values, that modules may hand to an attention function.
_KNOWN_TENSORS = {"s_aux", "position_ids", "cache_position"}
_RECURRENT_KINDS = ("linear_attention", "conv", "mamba", "mamba2")  # of layers, as configurations name them


class Argument(Enum):
    """Stands for a tensor that the body is called with."""

    TOKENS = auto()  # token ids [1, T]
    POSITIONS = auto()  # [1, T]
    WANTED = auto()  # [L] the places whose logits are asked for
    OTHER = auto()  # one that the head computes, or a container of such


@dataclass(frozen=True, slots=True, eq=False)
class BodyCall:
    """The outermost module that the model itself calls for all attention modules, and with what."""

    module: nn.Module
    args: tuple[Any, ...]  # each tensor as an Argument
    options: dict[str, Any]  # likewise
    output: type  # class of the answer
    width: int | None  # of the answer's `last_hidden_state` [1, T, width]; None: it has none
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, eq=False)
class Anatomy:
    """The modules of one model. Attention modules, layers and body stay in it for as long as it lives; linear
    layers may be replaced, and are given by name."""

    attention_modules: tuple[nn.Module, ...]  # in the order of their calls
    layer_specs: tuple[LayerSpec, ...]  # what each of them computes
    state_modules: tuple[nn.Module, ...]  # that keep a recurrent state, in the order of their calls
    state_specs: tuple[StateSpec, ...]  # what each of them keeps
    layers: tuple[nn.Module, ...] | None  # members of the module list that holds them; None: no such list
    siblings: tuple[tuple[str, ...], ...]  # linear layers of one parent, called once each, with one tensor
    body: BodyCall | None  # None: only the model itself holds all attention modules
    vocab_size: int  # width of the logits
    finite: Tensor  # [] bool: so the logits were, as far as queries, keys and values were


@dataclass(frozen=True, slots=True, eq=False)
class ModuleCall:
    """A call of a module; holds its tensors."""

    module: nn.Module
    args: tuple[Any, ...]
    options: dict[str, Any]
    answer: Any


@torch.inference_mode()
def observe(model: PreTrainedModel, attention: str) -> Anatomy:
    """Runs one token through `model`, whose attention function is registered as `attention`. No tensor of the
    forward is kept. Modules with a recurrent state can be occupied afterwards. Raises `UnsupportedModel`
    unless each layer calls attention, or advances a state, once, and of tensors that the engine knows."""
    tokens = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    positions = torch.zeros_like(tokens)
    wanted = tokens[0].clone()  # a number in its place has some models leave tokens out of their last layers
    given = {id(tokens): Argument.TOKENS, id(positions): Argument.POSITIONS, id(wanted): Argument.WANTED}
    recurrent = observed_states(take_over(model))
    try:
        with observed_attentions(attention) as attentions, recurrent as states, calls_of(model) as calls:
            answer = model(input_ids=tokens, position_ids=positions, use_cache=False, logits_to_keep=wanted)
        specs = tuple(state.spec for state in states.values())
    except StrangeState as error:
        raise UnsupportedModel(f"{type(model).__name__} is not supported: {error}") from error
    modules = tuple(attention.module for attention in attentions)
    layers = layers_of(model, modules, tuple(states))
    _check(model, attentions, tuple(states), layers)
    return Anatomy(
        attention_modules=modules,
        layer_specs=tuple(attention.spec for attention in attentions),
        state_modules=tuple(states),
        state_specs=specs,
        layers=layers,
        siblings=siblings_of(model, calls),
        body=_body(model, modules, calls, given),
        vocab_size=answer.logits.shape[-1],
        finite=torch.isfinite(answer.logits).all(),
    )


@contextlib.contextmanager
def calls_of(model: nn.Module) -> Iterator[list[ModuleCall]]:
    """Collects the calls of all modules, in the order in which they return. As the list holds their tensors,
    tensors with one id are one tensor."""
    calls: list[ModuleCall] = []

    def note(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any], answer: Any) -> None:
        calls.append(ModuleCall(module, args, options, answer))

    hooks = [module.register_forward_hook(note, with_kwargs=True) for module in model.modules()]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def layers_of(model: nn.Module, *kinds: Sequence[nn.Module]) -> tuple[nn.Module, ...] | None:
    """Returns the members of the module list that holds all modules of these kinds, each member at most one
    of a kind."""
    totals = [len(kind) for kind in kinds]
    for modules in model.modules():
        if isinstance(modules, nn.ModuleList) and len(modules):
            held = [[len({*kind} & {*member.modules()}) for kind in kinds] for member in modules]
            if [*map(sum, zip(*held, strict=True))] == totals and max(map(max, held)) == 1:
                return tuple(modules)
    return None


def siblings_of(model: nn.Module, calls: Sequence[ModuleCall]) -> tuple[tuple[str, ...], ...]:
    """Returns the names of linear layers of one parent that are called with the same tensor: groups of two
    and more. A layer that is called twice, is in two places, or shares its weight belongs to no group."""
    named = [
        (name, layer)
        for name, layer in model.named_modules(remove_duplicate=False)
        if type(layer) in (nn.Linear, QuantizedLinear) and name  # a subclass may compute something else
    ]
    times, places = Counter(call.module for call in calls), Counter(layer for _, layer in named)
    holders: Counter[object] = Counter(
        tensor
        for module in model.modules()
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))
    )
    names = {
        layer: name for name, layer in named if times[layer] == places[layer] == holders[_held(layer)] == 1
    }
    groups: dict[tuple[object, ...], list[str]] = {}
    for call in calls:
        if call.module in names and call.args:
            name, layer = names[call.module], call.module
            parent = name.rpartition(".")[0]
            alike = (parent, id(call.args[0]), *_kind(layer), layer.bias is None)
            groups.setdefault(alike, []).append(name)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def _held(layer: nn.Module) -> Tensor:
    return layer.codes if isinstance(layer, QuantizedLinear) else layer.get_parameter("weight")


def _kind(layer: nn.Module) -> tuple[object, ...]:
    """Returns a key that is equal for layers whose weights can be put one after the other."""
    if isinstance(layer, QuantizedLinear):
        return layer.quantized.kind
    weight = layer.get_parameter("weight")
    return weight.dtype, weight.device


def _check(
    model: PreTrainedModel,
    attentions: Sequence[AttentionCall],
    states: Sequence[nn.Module],
    members: Sequence[nn.Module] | None,
) -> None:
    """`states`: modules that keep a recurrent one; `members`: of the list of layers."""
    name, calls = type(model).__name__, len(attentions)
    modules = {attention.module for attention in attentions}
    config = model.config.get_text_config()
    layers = config.num_hidden_layers
    expected = _announced(config) if states else (layers, 0)
    together = bool(states) and members is None
    if calls != len(modules) or (calls, len(states)) != expected or together:
        beside = f", and {len(states)} modules with a recurrent state," if states else ""
        raise UnsupportedModel(
            f"{name} is not supported: {calls} calls of the attention interface by {len(modules)} modules"
            f"{beside} in {layers} layers; it must be one a layer"
        )
    if not all(getattr(attention.module, "is_causal", True) for attention in attentions):
        raise UnsupportedModel(
            f"{name} is not supported: its tokens attend to those behind them (use_bidirectional_attention)"
        )
    specs = [attention.spec for attention in attentions]
    if any(spec.source is not None and spec.window != specs[spec.source].window for spec in specs):
        raise UnsupportedModel(f"{name} is not supported: layers read keys that another's window has dropped")
    tensors = {tensor for attention in attentions for tensor in attention.tensors}
    if unknown := sorted(tensors - _KNOWN_TENSORS):
        raise UnsupportedModel(f"{name} is not supported: its attention depends on {', '.join(unknown)}")


def _announced(config: Any) -> tuple[int, int]:
    """Returns how many layers of a model with recurrent states have attention, and how many have a state: as
    its kinds of layers say, or both in each where they do not tell of states."""
    kinds = getattr(config, "layers_block_type", None) or getattr(config, "layer_types", None) or ()
    states = sum(kind in _RECURRENT_KINDS for kind in kinds)
    if not states:
        return config.num_hidden_layers, config.num_hidden_layers
    attentions = sum(kind.endswith("attention") and kind not in _RECURRENT_KINDS for kind in kinds)
    return attentions, states


def _body(
    model: PreTrainedModel,
    attention_modules: Sequence[nn.Module],
    calls: Sequence[ModuleCall],
    given: Mapping[int, Argument],
) -> BodyCall | None:
    """Returns the body's call. `given`: by the ids of the tensors that the model was called with."""
    wanted = set(attention_modules)
    holders = {
        module
        for module in model.modules()
        if module is not model and type(module) is not nn.ModuleList and wanted < set(module.modules())
    }
    held = [call for call in calls if call.module in holders]
    if not held:
        return None
    outermost = held[-1]  # it returns last
    hidden = getattr(outermost.answer, "last_hidden_state", None)
    return BodyCall(
        module=outermost.module,
        args=tuple(_stand_in(arg, given) for arg in outermost.args),
        options={name: _stand_in(option, given) for name, option in outermost.options.items()},
        output=type(outermost.answer),
        width=hidden.shape[-1] if isinstance(hidden, Tensor) else None,
        dtype=hidden.dtype if isinstance(hidden, Tensor) else model.dtype,
    )


def _stand_in(value: Any, given: Mapping[int, Argument]) -> Any:
    return given.get(id(value), Argument.OTHER) if _holds_tensor(value) else value


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_tensor, value.values()))
    if isinstance(value, (tuple, list)):
        return any(map(_holds_tensor, value))
    return isinstance(value, Tensor)
