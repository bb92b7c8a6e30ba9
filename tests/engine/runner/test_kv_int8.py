"""Keys and values in INT8: what is stored, what attention reads, and that a row's tokens stay its own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine.paged_rows import LAYERS
from support.engine.whole_engine import engine_on, run, tokens_of

from millstream_worker.engine.process import CannotLoad
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from millstream_worker.engine.runner.kv.kv_format import (
    KEY_SCALES,
    LAYOUT,
    VALUE_SCALES,
    KVFormat,
    dequantize,
    quantize,
)
from millstream_worker.engine.runner.kv.storage import KVStorage, bytes_per_block
from millstream_worker.engine.runner.model.load import load_model

CPU = torch.device("cpu")


@settings(max_examples=60)
@given(
    dim=st.integers(1, 130),
    size=st.floats(1e-4, 1e4),
    shift=st.floats(-100, 100),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    kind=st.sampled_from([KEY_SCALES, VALUE_SCALES]),
)
def test_a_code_is_half_a_step_off_at_most(
    dim: int, size: float, shift: float, dtype: torch.dtype, kind: int
) -> None:
    numbers = ((torch.randn(7, 3, dim) + shift) * size).to(dtype)
    codes, scales = quantize(numbers, kind)
    assert scales.shape == (7, 3, kind)
    found = dequantize(codes, scales, torch.float64)
    step = scales[..., :1].double()
    assert codes.dtype == torch.int8
    assert codes.abs().max() <= 127
    assert ((found - numbers.double()).abs() <= step * 0.5001 + numbers.abs().double() * 1e-6).all()
    largest = numbers.abs().amax(-1).double()
    spread = (numbers.amax(-1) - numbers.amin(-1)).double()
    most = spread / 2 + largest / 256 if kind == KEY_SCALES else largest
    assert (step[..., 0] <= most / 127 * 1.01).all(), "no wider than the numbers, but for the rounding"


def test_equal_keys_are_kept_and_what_is_no_number_stays_so() -> None:
    same = torch.tensor([[3.0] * 8, [0.0] * 8, [-1e-38] * 8])
    assert torch.equal(dequantize(*quantize(same, KEY_SCALES), torch.float32), same.bfloat16().float())
    broken = torch.tensor([[1.0, torch.nan, 2.0], [1.0, torch.inf, 2.0], [-torch.inf, 0.0, 2.0]])
    for kind in (KEY_SCALES, VALUE_SCALES):
        assert not dequantize(*quantize(broken, kind), torch.float32).isfinite().any()


def test_other_bits_have_another_name() -> None:
    """Blocks are found by it: bits that mean other numbers must not be."""
    numbers = torch.linspace(-3, 5, 64).view(4, 16).bfloat16()
    digest = hashlib.sha256()
    for kind in (KEY_SCALES, VALUE_SCALES):
        for part in quantize(numbers, kind):
            digest.update(part.view(torch.uint8).numpy().tobytes())
    assert (LAYOUT, digest.hexdigest()[:8]) == ("int8, keys with a middle", "f376484f")


def test_blocks_count_their_scales_and_travel_with_them() -> None:
    layers = (LAYERS["80 int8"], LAYERS["window"])
    assert bytes_per_block(layers, 16, torch.bfloat16) == 16 * (2 * (2 * 80 + 4 + 2) + 2 * 2 * 8 * 2)
    source, target = (KVStorage(layers, blocks, 4, torch.bfloat16, CPU) for blocks in (6, 9))
    assert sum(part.nbytes for part in source.parts()) == 6 * source.bytes_per_block
    for part in source.parts():
        part.view(torch.uint8).random_()
    target.copy_in(torch.tensor([0, 8, 3]), source.copy_out(torch.tensor([4, 1, 5])))
    for mine, theirs in zip(source.parts(), target.parts(), strict=True):
        assert torch.equal(mine[[4, 1, 5]].view(torch.uint8), theirs[[0, 8, 3]].view(torch.uint8))


@pytest.fixture
def int8(checkpoint: Callable[[str], Path]) -> Callable[..., Any]:
    return lambda **changes: engine_on("cpu", checkpoint("llama"), kv_dtype="int8", **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_step_tokens": 7, "max_rows": 2},  # chunks and neighbours
        {"prefix_cache": False},
        {"shared_attention": False},
        {"kv_memory": "10KiB"},  # preempted rows compute again
        {"kv_memory": "10KiB", "host_swap": "1MiB"},  # or their blocks come back
        {"speculate": "always"},  # and codes of rejected tokens are written over
    ],
    ids=str,
)
@pytest.mark.parametrize("attention", ["torch", "auto"])
def test_tokens_do_not_depend_on_the_way(
    attention: str, changes: dict[str, Any], int8: Callable[..., Any], one_thread: None
) -> None:
    engine = int8(attention=attention, **changes)
    assert tokens_of(engine) == tokens_of(int8(attention=attention))
    if "kv_memory" in changes:
        stats = engine.report().stats
        assert stats.preemptions_total > 0
        assert (stats.swapped_in_total > 0) == ("host_swap" in changes)


def test_a_row_resumes_from_its_log_in_another_kv_format(
    int8: Callable[..., Any], checkpoint: Callable[[str], Path], one_thread: None
) -> None:
    row = EngineRequest(
        1, tuple(range(20, 33)), max_tokens=24, sampling=SamplingSpec(temperature=1.0, seed=3)
    )
    whole = run(int8(), [row])[1]
    resumed = replace(row, outputs=(tuple(whole[:9]),))
    assert run(int8(), [resumed])[1] == whole[9:]
    other = run(engine_on("cpu", checkpoint("llama")), [resumed])[1]
    assert len(other) == len(whole) - 9


def test_layers_with_a_window_stay_as_they_are(checkpoint: Callable[[str], Path]) -> None:
    loaded = load_model(
        str(checkpoint("gemma2")), dtype=torch.bfloat16, device=CPU, attention="torch", kv_dtype="int8"
    )
    formats = {layer.window is None: layer.kv_format for layer in loaded.layer_specs}
    assert formats == {True: KVFormat.INT8, False: KVFormat.AS_COMPUTED}
    assert loaded.kv_format == "int8+bfloat16"


@pytest.mark.parametrize(
    ("case", "reason"),
    [("gpt_oss", "learned sinks"), ("minicpm3", "latent"), ("deepseek_v3", "latent"), ("mistral", "window")],
)
def test_what_is_not_tested_is_refused(case: str, reason: str, checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(CannotLoad, match=f"kv_dtype 'int8': .*{reason}.*; use 'auto'"):
        engine_on("cpu", checkpoint(case), kv_dtype="int8")
