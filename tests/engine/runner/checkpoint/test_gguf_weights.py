"""Quantised GGUF files keep their own bits, and the model computes what transformers makes of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize
from support.engine.planning import Segment, pack
from support.engine.serving import logits_of, runner_of
from support.engine.whole_engine import engine_on, tokens_of
from support.models.checkpoints import logits, quiet
from support.models.gguf_files import TOKENS, packed, tiny_llama, tiny_model, write_gguf
from transformers import AutoModelForCausalLM, GgufConfig, PreTrainedModel

from millstream_worker.engine.runner.checkpoint.gguf_cache import GGUFCache
from millstream_worker.engine.runner.checkpoint.gguf_weights import GGUFError, GGUFWeights
from millstream_worker.engine.runner.linear.fused import FusedLinear
from millstream_worker.engine.runner.linear.quantized_layers import (
    QuantizedEmbedding,
    QuantizedLinear,
)
from millstream_worker.engine.runner.model import weights as reading
from millstream_worker.engine.runner.model.load import LoadedModel, load_model
from millstream_worker.engine.runner.model_config.support import UnsupportedModel
from millstream_worker.engine.runner.quantization.codes import in_panels
from millstream_worker.engine.runner.quantization.gguf_blocks import KINDS, unpack
from millstream_worker.engine.runner.quantization.packed import read_packed
from millstream_worker.engine.runner.replay.cpu_replay import CpuReplay

Type = gguf.GGMLQuantizationType
CPU = torch.device("cpu")
BITS = {  # of a weight, with its share of scales and offsets
    Type.Q8_0: 8.5, Type.Q4_0: 4.5, Type.Q4_1: 5.0, Type.Q5_0: 8.5, Type.Q5_1: 9.0,
    Type.Q4_K: 5.0, Type.Q5_K: 9.0, Type.Q6_K: 9.0,
}  # fmt: skip
SCALES = 2**-10  # by which float16 changes a weight of a type whose scales are products
ROWS = 0.06  # part of the logits' norm by which rows of 8 bits change them, in layers of exaggerated weights
PROMPT = list(range(3, 40))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_weights_are_those_that_gguf_dequantizes(kind: Type) -> None:
    data = packed(np.random.default_rng(0).standard_normal((48, 768)).astype(np.float32), kind)
    want, kept = dequantize(data, kind), unpack(data, kind)
    codes = in_panels(kept)
    allowed = SCALES * np.abs(want).max() if kind.name.endswith("_K") else 0
    assert np.abs(codes.dequantized().numpy() - want).max() <= allowed
    assert torch.equal(kept.dequantized(torch.float32, CPU), codes.dequantized())
    parts = (codes.codes, codes.scales, codes.offsets)
    assert 8 * sum(one.nbytes for one in parts if one is not None) / want.size == BITS[kind]


def transformers_own(file: Path) -> PreTrainedModel:
    with quiet():
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
            attn_implementation="eager",
        )
    return model.eval()


def off(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).norm() / want.norm())


def load(file: Path, weights: str = "auto", dtype: torch.dtype = torch.float32) -> LoadedModel:
    folder = GGUFCache(file.parent / "cache").folder_of(file, lambda _: None)
    return load_model(str(folder), dtype=dtype, device=CPU, weights=weights)


def prefilled(loaded: LoadedModel, prompt: list[int]) -> torch.Tensor:
    """Logits [tokens, vocabulary] of a text, a token a step after its first half."""
    runner, _ = runner_of(loaded, blocks=16, block_size=4)
    half, blocks = len(prompt) // 2, list(range(16))
    parts = [Segment(0, prompt[:half], 0, blocks, range(half))]
    parts += [Segment(0, [token], half + place, blocks) for place, token in enumerate(prompt[half:])]
    return torch.cat([logits_of(runner, pack([part], 4)) for part in parts])


def size_of(kind: Type) -> int:
    return 256 if kind.name.endswith("_K") else 64


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind in (Type.Q4_K, Type.Q8_0) else pytest.mark.slow) for kind in KINDS],
    ids=lambda kind: kind.name,
)
def test_logits_are_those_of_the_dequantized_model(tmp_path: Path, kind: Type) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", tiny_llama(size=size_of(kind)), kind)
    want = logits(transformers_own(file), PROMPT)
    loaded, reference = load(file), load(file, "dequantized")
    assert off(prefilled(loaded, PROMPT), want) < ROWS
    assert off(prefilled(reference, PROMPT), want) < (4 * SCALES if kind.name.endswith("_K") else 1e-5)

    assert (loaded.weights, reference.weights) == (kind.name, "float32")
    assert loaded.parameters == reference.parameters
    assert loaded.weight_bytes < (BITS[kind] + 1) / 8 * loaded.parameters < reference.weight_bytes
    kinds = {type(module) for module in loaded.model.modules()}
    assert {QuantizedLinear, QuantizedEmbedding, FusedLinear} <= kinds
    assert not kinds & {torch.nn.Linear, torch.nn.Embedding}


@pytest.mark.parametrize(
    ("architecture", "own"),
    [
        ("qwen2", "q_proj.bias"),
        ("qwen3", "k_norm.weight"),
        ("gemma3_text", "pre_feedforward_layernorm.weight"),
        ("lfm2", "conv.conv.weight"),
    ],
)
def test_other_architectures_keep_their_bits(tmp_path: Path, architecture: str, own: str) -> None:
    model = tiny_model(architecture, tied=True)
    assert any(name.endswith(own) for name in model.state_dict())
    file = write_gguf(tmp_path / "tiny.gguf", model, Type.Q8_0)
    want = logits(transformers_own(file), PROMPT)
    loaded = load(file)
    assert loaded.weights == "Q8_0"
    assert off(want, logits(model, PROMPT)) < ROWS
    assert off(prefilled(load(file, "dequantized"), PROMPT), want) < 1e-5
    assert off(prefilled(loaded, PROMPT), want) < ROWS


@pytest.mark.parametrize("kind", [Type.F32, Type.Q8_0])
def test_lfm2s_norms_have_the_epsilon_of_the_file(kind: Type, tmp_path: Path) -> None:
    """Transformers leaves it out."""
    model = tiny_model("lfm2", tied=True, norm_eps=0.1)
    file = write_gguf(tmp_path / "tiny.gguf", model, kind)
    own = transformers_own(file)
    for module in own.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = 0.1
    assert off(prefilled(load(file, "dequantized"), PROMPT), logits(own, PROMPT)) < 1e-5
    assert off(prefilled(load(file), PROMPT), logits(model, PROMPT)) < ROWS


@pytest.mark.parametrize(("weights", "form"), [("auto", "its own bits"), ("dequantized", "float32")])
def test_bits_beyond_the_free_memory_are_refused(
    weights: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", tiny_llama(), Type.Q8_0)
    monkeypatch.setattr(reading, "free_bytes", lambda device: 2000)
    with pytest.raises(UnsupportedModel, match=f"GB in {form}, and 0\\.0 GB are free on cpu"):
        load(file, weights)


def test_an_architecture_that_is_not_read_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "gemma4")
    writer.add_tensor("token_embd.weight", np.ones((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(GGUFError, match="gemma4 are not read yet; use its safetensors"):
        GGUFWeights(tmp_path / "tiny.gguf")


@pytest.mark.parametrize("weights", ["auto", "int8"])
def test_a_tied_embedding_is_there_once(tmp_path: Path, weights: str) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", tiny_llama(tied=True), Type.Q8_0)
    loaded = load(file, weights)
    head, embedding = loaded.model.get_output_embeddings(), loaded.model.get_input_embeddings()
    assert isinstance(head, QuantizedLinear)
    assert isinstance(embedding, QuantizedEmbedding)
    assert head.codes is embedding.codes
    want = logits(transformers_own(file), PROMPT)
    assert off(prefilled(loaded, PROMPT), want) < ROWS
    assert loaded.weights == {"auto": "Q8_0", "int8": "int8"}[weights]


def test_bfloat16_rows_are_multiplied_with_codes_too(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", tiny_llama(), Type.Q4_1)
    want = logits(transformers_own(file), PROMPT)
    got = prefilled(load(file, dtype=torch.bfloat16), PROMPT)
    assert off(got, want) < 2 * ROWS


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore:bf16 and fp16 are mixed")  # scales, and what they become
def test_compiled_steps_of_4_bits_are_replayed(tmp_path: Path, own_cache: str) -> None:
    """Their embedding, too, in which torch's compiler could call what is not recorded. They draw what
    computed ones draw."""
    file = write_gguf(tmp_path / "tiny.gguf", tiny_llama(), Type.Q4_1)
    folder = GGUFCache(tmp_path / "cache").folder_of(file, lambda _: None)
    said: list[str] = []
    options = {"dtype": "auto", "compile_model": "on", "cache_dir": own_cache}
    engine: Any = engine_on("cpu", folder, said.append, **options)
    recorded = engine.runner.model
    assert isinstance(recorded, CpuReplay)
    got = tokens_of(engine)
    assert len(recorded._steps) > 1
    engine.runner.model = recorded.eager
    assert tokens_of(engine) == got
    assert any(line.startswith("weights: Q4_1, ") for line in said)
    assert "short steps are recorded and replayed" in said
    assert not [line for line in said if "replay is off" in line]


def test_a_type_that_is_not_computed_is_refused_by_name(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", tiny_llama(size=256), Type.TQ1_0)
    with pytest.raises(GGUFError, match=r"tensor token_embd.weight has the type TQ1_0.*are: Q8_0, .*, F32"):
        load(file)


def test_a_quantized_file_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    part = tiny_llama()
    weights = {name: tensor for name, tensor in part.state_dict().items() if ".layers.1." not in name}
    part.state_dict = lambda: weights  # type: ignore[method-assign, assign]
    with pytest.raises(GGUFError, match=r"lacks 9 of .* first is model.layers.1.input_layernorm"):
        load(write_gguf(tmp_path / "tiny.gguf", part, Type.Q8_0))


def test_weights_outlast_the_file_that_keeps_them(tmp_path: Path) -> None:
    """Memory that is mapped from a file is gone, and the engine with it, when that is cut."""
    file = write_gguf(tmp_path / "tiny.gguf", tiny_llama(), Type.Q4_0)
    mapped = re.compile(r"packed\.safetensors")
    for weights in ("auto", "dequantized"):
        loaded = load(file, weights)
        assert not mapped.search(Path("/proc/self/maps").read_text())
        assert loaded.weights == ("Q4_0" if weights == "auto" else "float32")
    kept = read_packed(GGUFCache(tmp_path / "cache").folder_of(file, lambda _: None))
    assert mapped.search(Path("/proc/self/maps").read_text())
    assert len(kept.codes["lm_head.weight"].codes) == len(TOKENS)
