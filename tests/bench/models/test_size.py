"""Sizes counted by hand for small models of different kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ops.bench.models.size import ModelSize, size_of
from safetensors.torch import load_file, save_file
from support.models.checkpoints import build
from transformers import AutoConfig

from millstream_worker.engine.runner.kv.storage import bytes_per_block
from millstream_worker.engine.runner.model.load import load_model

SIZES: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
NORMS = 2 * 2 * 32 + 32
LAYERS = 2 * (2 * 32 * 32 + 2 * 32 * 16) + 2 * 3 * 32 * 48 + NORMS


def _size(folder: Path, kind: str, **fields: Any) -> ModelSize:
    AutoConfig.for_model(kind, **SIZES | {"dtype": "bfloat16"} | fields).save_pretrained(folder)
    return size_of(folder)


def test_of_a_hybrid_model_only_some_layers_have_keys(tmp_path: Path) -> None:
    kinds = ["linear_attention", "full_attention"]
    size = _size(tmp_path, "qwen3_5_text", layer_types=kinds, head_dim=8)
    assert size.kv_token_bytes == 2 * 1 * 2 * 2 * 8
    assert size.windows == (None,)


def test_a_plain_decoder(tmp_path: Path) -> None:
    size = _size(tmp_path, "llama", tie_word_embeddings=False)
    assert size.token_weights == LAYERS
    assert size.head_weights == 100 * 32
    assert size.weight_bytes == 2 * (LAYERS + 100 * 32)  # of the embedding a step reads only some rows
    assert size.kv_token_bytes == 2 * 2 * 2 * 2 * 8
    assert size.pair_flops == 2 * 2 * 4 * 8
    assert size.windows == (None, None)


def test_a_tied_head_counts_once_and_float32_doubles_the_bytes(tmp_path: Path) -> None:
    tied = _size(tmp_path, "llama", tie_word_embeddings=True)
    assert (tied.token_weights, tied.head_weights) == (LAYERS, 100 * 32)
    assert tied.weight_bytes == 2 * (LAYERS + 100 * 32)
    wide = _size(tmp_path, "llama", dtype="float32")
    assert (wide.weight_bytes, wide.kv_token_bytes) == (4 * (LAYERS + 100 * 32), 4 * 2 * 2 * 2 * 8)


def test_a_token_reads_some_experts_and_a_step_reads_all(tmp_path: Path) -> None:
    size = _size(tmp_path, "mixtral", num_local_experts=4, num_experts_per_tok=2)
    expert, router = 3 * 32 * 48, 4 * 32
    rest = LAYERS - 2 * expert + 2 * router
    assert size.token_weights == rest + 2 * 2 * expert
    assert size.weight_bytes == 2 * (rest + 2 * 4 * expert + 100 * 32)


@pytest.mark.parametrize(
    ("kind", "fields", "windows"),
    [
        ("mistral", {"sliding_window": 12}, (12, 12)),
        ("mistral", {"sliding_window": None}, (None, None)),
        ("qwen2", {"sliding_window": 12, "use_sliding_window": False}, (None, None)),
        ("gemma2", {"sliding_window": 12}, (12, None)),
    ],
)
def test_windows(tmp_path: Path, kind: str, fields: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert _size(tmp_path, kind, **fields).windows == windows


@pytest.mark.parametrize("case", ["llama", "gemma2", "deepseek_v3", "gpt_oss"])
def test_the_engine_sees_the_same_layers(tmp_path: Path, case: str) -> None:
    folder = build(case, tmp_path)
    size = size_of(folder)
    loaded = load_model(str(folder), dtype=torch.float32, device=torch.device("cpu"))
    assert size.kv_token_bytes == bytes_per_block(loaded.layer_specs, 16, torch.float32) // 16
    assert {size.pair_flops} == {2 * one.heads * (one.key_dim + one.value_dim) for one in loaded.layer_specs}
    assert size.windows == tuple(one.window for one in loaded.layer_specs)


def test_weights_count_as_what_their_numbers_take(tmp_path: Path) -> None:
    folder = build("llama", tmp_path)
    wide = size_of(folder).weight_bytes
    (file,) = folder.glob("*.safetensors")
    narrow = {name: tensor.bfloat16().float() for name, tensor in load_file(file).items()}
    save_file(narrow, file, {"format": "pt"})
    assert size_of(folder).weight_bytes == wide // 2


def test_pairs_between_two_positions() -> None:
    size = ModelSize(1, 1, 1, 1, 1, 1, windows=(None, 3))
    by_hand = sum(n + min(n, 3) for n in range(5, 9))  # tokens 5th to 8th
    assert size.attended(4, 8) == by_hand
