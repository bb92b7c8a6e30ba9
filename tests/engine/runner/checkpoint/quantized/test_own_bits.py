"""Quantised safetensors in their own bits: the codes are the weights, and dense models compute with them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engine.planning import Segment, pack
from support.engine.serving import logits_of, runner_of
from support.models.checkpoints import build, logits, plain, quiet
from support.models.multimodal import build_whole, whole
from support.models.quantized_checkpoints import (
    FORMATS,
    SIZES,
    awq,
    build_quantized,
    float8,
    named,
    quantize,
)

from millstream_worker.engine.runner.checkpoint.quantized import dense as reading
from millstream_worker.engine.runner.checkpoint.quantized.dense import open_dense
from millstream_worker.engine.runner.checkpoint.quantized.own_bits import code_bytes, codes_of, has_codes
from millstream_worker.engine.runner.linear.quantized_layers import QuantizedLinear
from millstream_worker.engine.runner.model import kept_codes, weights
from millstream_worker.engine.runner.model.load import LoadedModel, load_model
from millstream_worker.engine.runner.model_config.support import UnsupportedModel

CPU = torch.device("cpu")
OWN = {  # bits of a weight with scales and offsets, and how far float16's scales are off
    "awq": (5.0, 4e-4), "gptq": (4.5, 0.0), "gptq-2": (5.0, 4e-4), "gptq-8": (8.5, 0.0),
    "gptq-zeros": (5.0, 4e-4), "gptq-v2": (5.0, 4e-4), "w4a16": (4.5, 4e-4), "w4a16-zeros": (5.0, 6e-4),
    "w8a16": (8.5, 4e-4), "w8a8": (8.5, 4e-4), "w8a8-zeros": (9.0, 6e-4), "mxfp4": (8.5, 0.0),
    "nvfp4": (9.0, 4e-4), "nvfp4-modelopt": (9.0, 4e-4),
}  # fmt: skip
FAST = {"awq"}
TIERED = [pytest.param(form, marks=() if form in FAST else pytest.mark.slow) for form in OWN]
ROWS = 0.06  # part of the logits' norm by which rows of 8 bits change them, in layers of exaggerated weights
PROMPT = list(range(3, 40))


@pytest.mark.parametrize("form", FORMATS)
def test_codes_are_the_weights_of_the_format(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_AT_ONCE", 1)  # three pieces
    pack_one, settings, _ = FORMATS[form]
    parts, want = pack_one(torch.randn(96, 128, generator=torch.Generator().manual_seed(1)) * 0.05)
    save_file(named("a.weight", parts), tmp_path / "model.safetensors")
    with open_dense(tmp_path, settings, torch.float32, CPU) as found:
        weight = found["a.weight"]
        assert has_codes(weight) == (form in OWN)
        if form not in OWN:
            return
        codes = codes_of(weight)
        assert codes is not None
        bits, off = OWN[form]
        got = codes.dequantized(torch.float32, CPU)
        assert (got - want).abs().max() <= off * want.abs().max()
        tensors = (codes.codes, codes.scales, codes.offsets)
        held = sum(one.nbytes for one in tensors if one is not None)
        assert 8 * held / want.numel() == bits
        assert held <= code_bytes(weight) <= 1.25 * held


def test_scales_that_float16_does_not_hold_make_no_codes(tmp_path: Path) -> None:
    pack_one, settings, _ = FORMATS["w8a8"]
    for factor in (1e-5, 1e9):
        parts, _ = pack_one(torch.randn(64, 128))
        parts["_scale"] *= factor
        save_file(named("a.weight", parts), tmp_path / "model.safetensors")
        with open_dense(tmp_path, settings, torch.float32, CPU) as found:
            assert codes_of(found["a.weight"]) is None


def loaded_of(folder: Path, cache: Path, told: list[str] | None = None) -> LoadedModel:
    with quiet():
        return load_model(
            str(folder), dtype=torch.float32, device=CPU, cache_dir=str(cache), attention="torch",
            report=(told if told is not None else []).append,
        )  # fmt: skip


def prefilled(loaded: LoadedModel) -> torch.Tensor:
    """Logits [tokens, vocabulary] of the prompt, a token a step after its first half."""
    runner, _ = runner_of(loaded, blocks=16, block_size=4)
    half, blocks = len(PROMPT) // 2, list(range(16))
    parts = [Segment(0, PROMPT[:half], 0, blocks, range(half))]
    parts += [Segment(0, [token], half + place, blocks) for place, token in enumerate(PROMPT[half:])]
    return torch.cat([logits_of(runner, pack([part], 4)) for part in parts])


def off(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).norm() / want.norm())


@pytest.mark.parametrize("form", TIERED)
def test_a_dense_model_computes_with_its_own_bits(form: str, tmp_path: Path) -> None:
    folder, dense = build_quantized(form, tmp_path)
    loaded = loaded_of(folder, tmp_path / "cache")
    assert loaded.weights == FORMATS[form][2]
    assert off(prefilled(loaded), logits(plain(dense), PROMPT)) < ROWS
    layers = [one for one in loaded.model.modules() if isinstance(one, QuantizedLinear)]
    assert {layer.quantized.bits for layer in layers} == {8 if OWN[form][0] > 8 else 4}


def test_layers_in_fp8_are_dequantised_beside_codes(tmp_path: Path) -> None:
    ends = ("q_proj.weight", "up_proj.weight")
    half, _ = quantize(build("llama", tmp_path, **SIZES), awq, {"quant_method": "awq"}, ends)
    tensors = load_file(half / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.weight"
    parts, want = float8(tensors.pop(name), "tensor")
    save_file(tensors | named(name, parts), half / "model.safetensors", {"format": "pt"})
    loaded = loaded_of(half, tmp_path / "cache")
    assert loaded.weights == "awq-int4+float32 from fp8"
    layer = loaded.model.get_submodule(name.removesuffix(".weight"))
    assert torch.equal(layer(torch.eye(128)).T, want)


def test_codes_are_made_once(tmp_path: Path) -> None:
    folder, _ = build_quantized("awq", tmp_path)
    told: list[str] = []
    first, again = (loaded_of(folder, tmp_path / "cache", told) for _ in range(2))
    assert sum("once" in line for line in told) == 1
    assert torch.equal(prefilled(first), prefilled(again))
    (kept,) = (tmp_path / "cache" / "quantised").glob("*/")
    assert [file.name for file in kept.iterdir()] == ["packed.safetensors"]


def test_a_text_half_keeps_its_own_bits(tmp_path: Path) -> None:
    dense = build_whole("mistral3", tmp_path, tie_word_embeddings=False)
    settings = {"quant_method": "awq", "bits": 4, "group_size": 32}
    folder, dense = quantize(dense, awq, settings, ("q_proj.weight", "o_proj.weight"))
    loaded = loaded_of(folder, tmp_path / "cache")
    assert loaded.weights == "awq-int4"
    with quiet():
        assert off(prefilled(loaded), logits(whole(dense), PROMPT)) < ROWS


@pytest.mark.slow
def test_a_mixture_is_dequantised_and_says_what_that_takes(tmp_path: Path) -> None:
    folder, dense = build_quantized("awq", tmp_path, "mixtral")
    loaded = loaded_of(folder, tmp_path / "cache")
    assert loaded.weights == "float32 from awq-int4"
    assert "weights in float32, 0.0 GB: own bits are computed of dense models" in loaded.notes
    assert off(prefilled(loaded), logits(plain(dense), PROMPT)) < 1e-5


def test_codes_beyond_the_free_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = build_quantized("awq", tmp_path)
    monkeypatch.setattr(weights, "free_bytes", lambda device: 2000)
    with pytest.raises(UnsupportedModel, match=r"GB in its own bits, and 0\.0 GB are free on cpu"):
        loaded_of(folder, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_full_disk_is_told_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    folder, _ = build_quantized("awq", tmp_path)
    monkeypatch.setattr(kept_codes, "write_packed", full)
    with pytest.raises(UnsupportedModel, match=r"cannot be kept in .*No space left.*MILLSTREAM_CACHE_DIR"):
        loaded_of(folder, tmp_path / "cache")
    assert not list((tmp_path / "cache" / "quantised").glob("*/"))
