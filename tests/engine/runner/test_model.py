"""Loading: the facts about a model, and checkpoints that are not what they say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.models.checkpoints import CONTEXT, VOCABULARY, WINDOW, build, plain
from transformers import AttentionInterface
from transformers.utils import logging as transformers_logging

from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.model import weights
from millstream_worker.engine.runner.model.load import ATTENTION, LoadedModel, load_model
from millstream_worker.engine.runner.model_config.support import UnsupportedModel

CPU = torch.device("cpu")


def test_facts(checkpoint: Callable[[str], Path]) -> None:
    loaded = load_model(str(checkpoint("gemma2")), dtype=torch.float32, device=CPU, attention="torch")

    assert loaded.architecture == "Gemma2ForCausalLM"
    assert loaded.attention == "torch"
    assert (loaded.vocab_size, loaded.context_length, loaded.eos_ids) == (VOCABULARY, CONTEXT, (2,))
    assert loaded.parameters == sum(p.numel() for p in plain(checkpoint("gemma2")).parameters()) > 10_000
    sliding = LayerSpec(4, 2, 16, 16, scale=12**-0.5, window=WINDOW, softcap=1.5)
    full = LayerSpec(4, 2, 16, 16, scale=12**-0.5, window=None, softcap=1.5)
    assert loaded.layer_specs == (sliding, full)
    assert [module.layer_idx for module in loaded.anatomy.attention_modules] == [0, 1]
    assert not loaded.model.training


def test_end_tokens_of_both_configurations(tmp_path: Path) -> None:
    folder = build("llama", tmp_path, eos_token_id=[2, 9])
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 2]}')
    assert load_model(str(folder), dtype=torch.float32, device=CPU).eos_ids == (7, 2, 9)
    (folder / "generation_config.json").unlink()
    assert load_model(str(folder), dtype=torch.float32, device=CPU).eos_ids == (2, 9)


def test_a_shortened_context_is_noted(checkpoint: Callable[[str], Path]) -> None:
    loaded = load_model(str(checkpoint("phi3-longrope")), dtype=torch.float32, device=CPU)
    assert loaded.context_length == CONTEXT
    assert loaded.notes[0].startswith(f"context limited to {CONTEXT} of {8 * CONTEXT} tokens")


@pytest.mark.parametrize("part", ["embed_tokens", "0.self_attn.q_proj", "1.self_attn.v_proj", "norm"])
def test_weights_that_are_not_finite_are_refused(part: str, tmp_path: Path) -> None:
    folder = build("llama", tmp_path)
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith(f"{part}.weight"))
    weights[name].view(-1)[0] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UnsupportedModel, match=rf"{name} has values that are not finite.*anew"):
        load_model(str(folder), dtype=torch.float32, device=CPU)


def test_missing_weights_are_an_error_and_not_random(tmp_path: Path) -> None:
    folder = build("llama", tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        UnsupportedModel, match=r"lacks 1 weights, the first is model.layers.1.mlp.up_proj.weight"
    ):
        load_model(str(folder), dtype=torch.float32, device=CPU)


def test_weights_beyond_the_free_memory_are_refused(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "free_bytes", lambda device: 2000)
    words = r"take 0\.0 GB in float32, and 0\.0 GB are free on cpu: use a smaller model, or a GGUF file"
    with pytest.raises(UnsupportedModel, match=words):
        load_model(str(checkpoint("llama")), dtype=torch.float32, device=torch.device("cpu"))


def test_weights_of_other_shapes_are_an_error_that_names_them(tmp_path: Path) -> None:
    folder = build("llama", tmp_path)
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 40}))
    with pytest.raises(
        UnsupportedModel,
        match=r"6 weights that do not fit .* first is model.layers.0.mlp.down_proj.weight: "
        r"\[32, 48\] instead of \[32, 40\]",
    ):
        load_model(str(folder), dtype=torch.float32, device=CPU)


def test_attention_that_the_device_does_not_have(checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(ValueError, match="needs a CUDA device"):
        load_model(str(checkpoint("llama")), dtype=torch.float32, device=CPU, attention="triton")


def test_loading_leaves_transformers_as_it_was(
    load: Callable[[str], LoadedModel], capfd: pytest.CaptureFixture[str]
) -> None:
    transformers_logging.enable_progress_bar()
    capfd.readouterr()
    loaded = load("qwen3")
    assert capfd.readouterr() == ("", "")
    assert transformers_logging.is_progress_bar_enabled()
    assert loaded.model.config._attn_implementation == ATTENTION
    assert ATTENTION in AttentionInterface()
