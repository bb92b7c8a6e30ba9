"""What one observed forward tells of a model: its layers, linear layers with one input, body and head."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.models.checkpoints import SIZES, build
from torch import Tensor, nn
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM

from millstream_worker.engine.runner.model.anatomy import Anatomy, Argument, layers_of, observe
from millstream_worker.engine.runner.model.load import ATTENTION, LoadedModel, load_model
from millstream_worker.engine.runner.model_config.support import UnsupportedModel

Load = Callable[[str], LoadedModel]


def observe_again(loaded: LoadedModel) -> Anatomy:
    return observe(loaded.model, ATTENTION)


@pytest.mark.parametrize("case", ["llama", "gpt2", "opt", "gemma2", "mixtral", "deepseek_v3"])
def test_layers_hold_the_attention_modules_in_order(case: str, load: Load) -> None:
    anatomy = load(case).anatomy
    assert anatomy.layers is not None
    assert len(anatomy.layers) == len(anatomy.attention_modules) == len(anatomy.layer_specs)
    for layer, attention in zip(anatomy.layers, anatomy.attention_modules, strict=True):
        assert attention in set(layer.modules())


def test_siblings_are_named_as_the_model_names_them(load: Load) -> None:
    assert load("qwen3").anatomy.siblings[:2] == (
        tuple(f"model.layers.0.self_attn.{name}_proj" for name in "qkv"),
        ("model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj"),
    )


@pytest.mark.parametrize(("case", "name"), [("llama", "model"), ("opt", "model.decoder")])
def test_the_body_is_the_outermost_module_that_is_called(case: str, name: str, load: Load) -> None:
    loaded = load(case)
    body = loaded.anatomy.body
    assert body is not None
    assert body.module is loaded.model.get_submodule(name)
    assert body.options["input_ids"] is Argument.TOKENS
    assert body.options["position_ids"] is Argument.POSITIONS
    assert not [option for option in body.options.values() if isinstance(option, Tensor)]
    assert (body.width, body.dtype) == (32, torch.float32)


def test_a_body_is_not_told_to_leave_tokens_out(load: Load) -> None:
    """It would, in the layers that store nothing, were the number of logits a number."""
    body = load("gemma4_text").anatomy.body
    assert body is not None
    assert body.options["logits_to_keep"] is Argument.WANTED


@pytest.mark.parametrize(("case", "value"), [("gemma4_text", "all"), ("gemma3_text", True)])
def test_tokens_that_attend_to_those_behind_them_are_refused(
    case: str, value: object, load: Load, tmp_path: Path
) -> None:
    """As in models that make embeddings."""
    folder = build(case, tmp_path, use_bidirectional_attention=value)
    with pytest.raises(
        UnsupportedModel, match=r"ForCausalLM is not supported: .*use_bidirectional_attention"
    ):
        load_model(str(folder), dtype=torch.float32, device=torch.device("cpu"))


def test_what_a_head_computes_for_its_body_is_seen(load: Load) -> None:
    loaded = load("llama")
    inner, given = loaded.model.model, {"full": torch.ones(1, 1)}
    forward = inner.forward
    inner.forward = lambda attention_mask, **named: forward(**named)
    inner.register_forward_pre_hook(
        lambda _, args, named: (args, named | {"attention_mask": given}), with_kwargs=True
    )
    body = observe_again(loaded).body
    assert body is not None
    assert body.options["attention_mask"] is Argument.OTHER


def test_no_tensor_of_the_forward_is_kept(load: Load) -> None:
    loaded = load("llama")
    seen: list[weakref.ref[Tensor]] = []
    for module in (
        loaded.model.get_input_embeddings(),
        *loaded.anatomy.attention_modules,
        loaded.model.get_output_embeddings(),
    ):
        module.register_forward_hook(
            lambda _, args, answer: seen.append(
                weakref.ref(answer[0] if isinstance(answer, tuple) else answer)
            )
        )
    anatomy = observe_again(loaded)
    assert anatomy.attention_modules == loaded.anatomy.attention_modules
    assert [tensor() for tensor in seen] == [None] * 4


def test_the_attention_function_is_registered_as_before(load: Load) -> None:
    loaded = load("llama")
    registered = AttentionInterface()[ATTENTION]
    loaded.anatomy.attention_modules[0].register_forward_pre_hook(
        lambda _, args, named: (args, named | {"strange": torch.ones(1)}), with_kwargs=True
    )
    with pytest.raises(UnsupportedModel, match="its attention depends on strange"):
        observe_again(loaded)
    assert AttentionInterface()[ATTENTION] is registered


def test_keys_that_anothers_window_has_dropped_are_not_read(load: Load) -> None:
    loaded = load("gemma4_text")
    modules = zip(loaded.anatomy.attention_modules, loaded.anatomy.layer_specs, strict=True)
    reader = next(module for module, spec in modules if spec.source is not None and spec.window)
    reader.sliding_window = 99  # type: ignore[assignment]  # a number of transformers' own
    with pytest.raises(UnsupportedModel, match="layers read keys that another's window has dropped"):
        observe_again(loaded)


def test_layers_are_one_list_with_at_most_one_module_of_a_kind() -> None:
    attentions = [nn.Identity() for _ in range(4)]
    pairs = nn.ModuleList(nn.Sequential(*attentions[start : start + 2]) for start in (0, 2))
    assert layers_of(nn.Sequential(pairs), attentions) is None
    single = nn.ModuleList(nn.Sequential(attention, nn.ReLU()) for attention in attentions)
    assert layers_of(nn.Sequential(single), attentions) == tuple(single)
    assert layers_of(nn.Sequential(single), attentions[:2], attentions[1:3]) == tuple(single)
    assert layers_of(nn.Sequential(single), [*attentions, nn.ReLU()]) is None


@pytest.mark.parametrize(
    ("model_type", "options", "calls"),
    [
        ("bloom", {"n_layer": 2, "n_head": 4}, "0 calls of the attention interface by 0 modules in 2 layers"),
        ("diffllama", {}, "4 calls of the attention interface by 2 modules in 2 layers"),
    ],
)
def test_a_model_past_the_interface_fails_at_its_first_token(
    model_type: str, options: dict[str, int], calls: str, load: Load
) -> None:
    """Were its model type thought to be supported, or one day no longer go through the interface."""
    load("llama")  # registers the interface
    config = AutoConfig.for_model(model_type, **{**SIZES, **options})
    with pytest.raises(UnsupportedModel, match=calls):
        observe(AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION), ATTENTION)
