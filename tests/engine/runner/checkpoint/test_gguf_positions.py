"""Rotary positions of GGUF files are scaled as those of the models that the files were made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from support.models.gguf_files import tiny_model, write_gguf
from transformers import AutoConfig

from millstream_worker.engine.runner.checkpoint.gguf_cache import GGUFCache
from millstream_worker.engine.runner.checkpoint.gguf_weights import GGUFError

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
Type = gguf.GGMLQuantizationType


@pytest.mark.parametrize("kind", [Type.F32, Type.Q8_0], ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    ("architecture", "rope"),
    [("llama", LLAMA3), ("qwen2", YARN), ("llama", LINEAR)],
    ids=["llama3", "yarn", "linear"],
)
def test_scaled_positions_are_those_of_the_original(
    architecture: str, rope: dict[str, Any], kind: Type, tmp_path: Path
) -> None:
    model = tiny_model(architecture, rope_parameters=rope)
    folder = GGUFCache(tmp_path / "kept").folder_of(
        write_gguf(tmp_path / "tiny.gguf", model, kind), lambda line: None
    )
    config = AutoConfig.from_pretrained(folder)
    got = type(model.get_decoder().rotary_emb)(config=config)
    want = model.get_decoder().rotary_emb
    torch.testing.assert_close(got.inv_freq, want.inv_freq, rtol=1e-4, atol=0)
    assert got.attention_scaling == pytest.approx(want.attention_scaling)


def test_layers_with_a_window_keep_plain_positions(tmp_path: Path) -> None:
    plain = {"rope_type": "default", "rope_theta": 1e4}
    rope = {"sliding_attention": plain, "full_attention": LINEAR | {"rope_theta": 1e6}}
    model = tiny_model("gemma3_text", rope_parameters=rope)
    folder = GGUFCache(tmp_path / "kept").folder_of(
        write_gguf(tmp_path / "tiny.gguf", model, Type.Q8_0), lambda line: None
    )
    assert AutoConfig.from_pretrained(folder).rope_parameters == rope


def test_a_factor_of_nothing_is_refused(tmp_path: Path) -> None:
    model = tiny_model("llama", rope_parameters=LINEAR)
    model.config.rope_parameters = LINEAR | {"factor": 0.0}
    file = write_gguf(tmp_path / "tiny.gguf", model)
    with pytest.raises(GGUFError, match=r"rope\.scaling\.factor is 0\.0, and can only be a positive number"):
        GGUFCache(tmp_path / "kept").folder_of(file, lambda line: None)


@pytest.mark.parametrize("words", ["factors of its own", "longrope"])
def test_positions_that_are_not_computed_are_refused(words: str, tmp_path: Path) -> None:
    model = tiny_model("llama", rope_parameters=LLAMA3 | {"low_freq_factor": 2.0})
    if words == "longrope":
        model.config.rope_parameters = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0}
    file = write_gguf(tmp_path / "tiny.gguf", model)
    with pytest.raises(GGUFError, match=f"{words}, which (is|are) read from safetensors only"):
        GGUFCache(tmp_path / "kept").folder_of(file, lambda line: None)
