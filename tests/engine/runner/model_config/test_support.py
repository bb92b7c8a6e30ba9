"""What is refused, from the configuration alone: no weights are there to be loaded."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from support.pages import ROOT
from transformers import AutoConfig, PretrainedConfig

from millstream_worker.engine.runner.model.load import load_model
from millstream_worker.engine.runner.model_config.model_types import HALVES, IMAGE_UNITS, PROVEN
from millstream_worker.engine.runner.model_config.quantization import READ_METHODS
from millstream_worker.engine.runner.model_config.support import (
    UnsupportedModel,
    check,
    context_length,
    context_note,
)

REFUSED = {
    "keeps state beside keys and values": "mamba mamba2 falcon_mamba jamba zamba2 rwkv recurrent_gemma",
    "linear attention": "minimax",
    "in its own code, past transformers' attention interface": "gptj bloom mpt xglm falcon codegen",
    "attends within chunks": "llama4_text",
    "more than once": "diffllama",
    "selects or compresses the keys": "doge",
    "encoder-decoder": "t5 bart",
    "is not among the tested types; all that run: millstream-worker --models": "bert",
}


@pytest.mark.parametrize(
    "reason",
    [
        pytest.param(reason, marks=pytest.mark.slow if len(types) > 20 else ())  # each is imported
        for reason, types in REFUSED.items()
    ],
)
def test_a_model_type_is_refused_with_its_reason(reason: str, tmp_path: Path) -> None:
    for model_type in REFUSED[reason].split():
        AutoConfig.for_model(model_type).save_pretrained(tmp_path)
        message = refusal(tmp_path)
        assert f"({model_type}) " in message
        assert reason in message


def refusal(folder: Path) -> str:
    with pytest.raises(UnsupportedModel) as caught:
        load_model(str(folder), dtype=torch.float32, device=torch.device("cpu"))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_architecture_is_named_as_in_the_configuration(tmp_path: Path) -> None:
    AutoConfig.for_model("mamba", architectures=["MambaForCausalLM"]).save_pretrained(tmp_path)
    assert refusal(tmp_path).startswith("MambaForCausalLM (mamba) keeps state")


def test_unknown_kinds_and_code_of_their_own_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "novel", "auto_map": {"AutoConfig": "c.C"}}')
    assert refusal(tmp_path).startswith("novel is computed by code that comes with the checkpoint")
    (tmp_path / "config.json").write_text('{"model_type": "novel"}')
    assert refusal(tmp_path).startswith(
        f"novel is newer than transformers {transformers.__version__} here, or"
    )


def test_the_readme_has_the_number_of_types() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert f"[{len(PROVEN)} model types]" in readme
    assert f"of {len(HALVES)} multimodal ones the text half" in readme
    assert f"of {len(IMAGE_UNITS)} their [images]" in readme


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"quant_method": "hqq"}, r"\(hqq\), which are not read; read are auto-round, awq, "),
        ({"quant_method": "awq", "version": "gemv"}, r"\(awq\) of version gemv; gemm is read"),
        ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "in checkpoint_format marlin; gptq and"),
        ({"quant_method": "auto-round", "packing_format": "auto_round:x"}, "in packing_format auto_round:x"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "with load_in_8bit; nf4 and fp4 are read"),
        (
            {"quant_method": "compressed-tensors", "transform_config": {"config_groups": {"R1": {}}}},
            "with transforms of the inputs",
        ),
        (
            {"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}},
            "sparsity_config.format sparse-24-bitmask; dense is read",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value["quant_method"],
)
def test_quantised_weights_that_are_not_read_are_refused(settings: dict[str, Any], says: str) -> None:
    config = AutoConfig.for_model("llama", quantization_config=settings)
    with pytest.raises(UnsupportedModel, match=f"has quantised weights .*{says}") as refused:
        check(config)
    assert str(refused.value).endswith(": use the model in bfloat16, or a GGUF file")


@pytest.mark.parametrize("method", READ_METHODS)
def test_quantised_weights_that_are_read_run(method: str) -> None:
    check(AutoConfig.for_model("llama", quantization_config={"quant_method": method}))


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 75}
LONG = {**YARN, "rope_type": "longrope", "short_factor": [1.0] * 16, "long_factor": [2.0] * 16}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}


@pytest.mark.parametrize(
    ("rope", "length"),
    [(None, 300), (YARN, 300), (LONG, 75), (DYNAMIC, 300)],
    ids=["plain", "yarn", "longrope", "dynamic"],
)
def test_context_ends_where_rope_would_depend_on_other_rows(rope: dict[str, Any] | None, length: int) -> None:
    sizes = {"hidden_size": 128, "num_attention_heads": 4, "max_position_embeddings": 300}
    config = AutoConfig.for_model("llama", rope_parameters=rope, **sizes)

    assert context_length(config) == length
    note = context_note(config)
    assert (note is None) == (length == 300)
    assert note is None or "limited to 75 of 300 tokens" in note


def test_a_rope_that_no_test_has_seen_is_refused() -> None:
    config = AutoConfig.for_model("llama")
    config.rope_parameters = {"full_attention": {"rope_type": "novel"}, "sliding_attention": {}}
    with pytest.raises(UnsupportedModel, match=r"has RoPE of type 'novel', .* \(default, dynamic, linear"):
        check(config)


def test_a_model_without_a_context_length_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="max_position_embeddings is missing"):
        context_length(PretrainedConfig())


@pytest.mark.parametrize("length", [10**18, -5])
def test_a_context_that_none_can_have_is_refused(length: int) -> None:
    config = AutoConfig.for_model("llama", max_position_embeddings=length)
    with pytest.raises(
        UnsupportedModel, match=rf"max_position_embeddings is {length} .*1 to 134217728; correct"
    ):
        context_length(config)


@pytest.mark.parametrize("theta", [0, -1.0, float("inf"), float("nan")])
def test_rotations_by_no_positive_number_are_refused(theta: float) -> None:
    config = AutoConfig.for_model("llama")
    config.rope_parameters = {"rope_type": "default", "rope_theta": theta}
    with pytest.raises(
        UnsupportedModel, match=rf"has the rope_theta {theta}, which can only be a positive number"
    ):
        check(config)


@pytest.mark.parametrize("ids", [10**9, -1, [2, 10**9]], ids=str)
def test_end_tokens_beyond_the_vocabulary_are_refused(ids: int | list[int], tmp_path: Path) -> None:
    AutoConfig.for_model("llama", vocab_size=100, eos_token_id=ids).save_pretrained(tmp_path)
    assert re.search(r"eos_token_id (-1|1000000000) is none of the model's 100 tokens", refusal(tmp_path))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"max_position_embeddings": "long"}, "max_position_embeddings"),
        ({"rope_scaling": {"type": "yarn"}}, "Missing required keys in `rope_parameters`.*factor"),
        ({"num_attention_heads": 0}, "config.json: "),
    ],
    ids=["another type", "a missing value", "an impossible value"],
)
def test_a_configuration_with_a_wrong_value_is_refused(
    wrong: dict[str, Any], says: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"} | wrong))
    assert re.search(says, refusal(tmp_path))
