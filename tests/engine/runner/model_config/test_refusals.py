"""What is said of models as they are published, by config.json alone: one line each, with a way out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from millstream_worker.engine.runner.model_config.config_file import load_config
from millstream_worker.engine.runner.model_config.support import UnsupportedModel, check

_FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
_PACKED = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {}}
_NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
_AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}
_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
_BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True}
_RUNS = ""
_NEW = "is newer than transformers"

# Type, architecture, quantisation; words of the refusal.
MODELS: list[tuple[str, str, dict[str, Any] | None, str]] = [
    ("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", None, _RUNS),
    ("qwen3_5", "Qwen3_5ForConditionalGeneration", None, _RUNS),
    ("qwen3_vl", "Qwen3VLForConditionalGeneration", None, _RUNS),
    ("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", None, _RUNS),
    ("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", _AWQ, _RUNS),
    ("qwen3", "Qwen3ForCausalLM", _FP8, _RUNS),
    ("qwen3", "Qwen3ForCausalLM", _AWQ, _RUNS),
    ("gemma3", "Gemma3ForConditionalGeneration", None, _RUNS),
    ("gemma3n", "Gemma3nForConditionalGeneration", None, _RUNS),
    ("gemma4", "Gemma4ForConditionalGeneration", None, _RUNS),
    ("gpt_oss", "GptOssForCausalLM", {"quant_method": "mxfp4"}, _RUNS),
    ("mistral3", "Mistral3ForConditionalGeneration", _FP8, _RUNS),
    ("mistral3", "Mistral3ForConditionalGeneration", None, _RUNS),
    ("lfm2", "Lfm2ForCausalLM", None, _RUNS),
    ("lfm2_moe", "Lfm2MoeForCausalLM", None, _RUNS),
    ("lfm2_vl", "Lfm2VlForConditionalGeneration", None, _RUNS),
    ("nemotron_h", "NemotronHForCausalLM", None, _RUNS),
    ("nemotron_h", "NemotronHForCausalLM", _NVFP4, _RUNS),
    ("granitemoehybrid", "GraniteMoeHybridForCausalLM", None, _RUNS),
    ("glm4_moe_lite", "Glm4MoeLiteForCausalLM", None, _RUNS),
    ("deepseek_v32", "DeepseekV32ForCausalLM", _FP8, "selects or compresses the keys"),
    ("llama4", "Llama4ForConditionalGeneration", None, "of its kind runs llama"),
    ("llama", "LlamaForCausalLM", _PACKED, _RUNS),
    ("llama", "LlamaForCausalLM", _GPTQ, _RUNS),
    ("llama", "LlamaForCausalLM", _BNB, _RUNS),
    ("llama", "LlamaForCausalLM", {"quant_method": "aqlm"}, "quantised weights (aqlm)"),
    ("llama", "LlamaForCausalLM", {}, _RUNS),  # null in the file
    ("granite_docling", "GraniteDoclingForConditionalGeneration", None, _RUNS),
    ("smolvlm", "SmolVLMForConditionalGeneration", None, _RUNS),
    ("internvl", "InternVLForConditionalGeneration", None, _RUNS),
    ("kimi_linear", "KimiLinearForCausalLM", None, _RUNS),
    ("lighton_ocr", "LightOnOcrForConditionalGeneration", None, _RUNS),
    ("paddleocr_vl", "PaddleOCRVLForConditionalGeneration", None, _RUNS),
    ("aya_vision", "AyaVisionForConditionalGeneration", None, "scales its logits otherwise"),
    ("mllama", "MllamaForConditionalGeneration", None, "from inside its text layers (cross-attention)"),
    ("diffusion_gemma", "DiffusionGemmaForBlockDiffusion", None, "by diffusion"),
    ("whisper", "WhisperForConditionalGeneration", None, "encoder-decoder"),
    ("xlm-roberta", "XLMRobertaModel", None, "reads its input and continues no text: it makes embeddings"),
    ("qwen5", "Qwen5ForCausalLM", None, _NEW),
    ("minicpmv", "MiniCPMV", None, _NEW),
]


@pytest.mark.parametrize(
    ("model_type", "architecture", "quantisation", "words"),
    MODELS,
    ids=[
        f"{kind}-{(quantised or {}).get('quant_method', number)}"
        for number, (kind, _, quantised, _) in enumerate(MODELS)
    ],
)
def test_a_published_model_runs_or_is_told_why_not(
    model_type: str, architecture: str, quantisation: dict[str, Any] | None, words: str, tmp_path: Path
) -> None:
    config: dict[str, Any] = {"model_type": model_type, "architectures": [architecture]}
    if quantisation is not None:
        config["quantization_config"] = quantisation or None
    (tmp_path / "config.json").write_text(json.dumps(config))
    if words == _RUNS:
        check(load_config(str(tmp_path)))
        return
    with pytest.raises(UnsupportedModel) as caught:
        check(load_config(str(tmp_path)))
    said = str(caught.value)
    assert words in said
    assert "\n" not in said
    assert len(said) <= 300
    assert said.startswith((architecture, model_type))
    assert "--models" in said or "a GGUF file" in said, "no way out"
