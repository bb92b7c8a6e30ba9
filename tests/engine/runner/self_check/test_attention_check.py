"""Attention at start beside plain PyTorch: kernels that compute or store something else are noticed. Logits
of two ways to compute a step: rounding passes, one wrong row and a wrong factor do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.attention.interface import AttentionBackend
from millstream_worker.engine.runner.attention.torch_backend import TorchAttention
from millstream_worker.engine.runner.gpu.attention.step_layout import LEAST_TILE_KEYS
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.model.attention_choice import choose
from millstream_worker.engine.runner.self_check import attention_check
from millstream_worker.engine.runner.self_check.attention_check import check_attention
from millstream_worker.engine.runner.self_check.attention_steps import attention_steps
from millstream_worker.engine.runner.self_check.deviation import TOLERANCE, Mismatch, compare_logits

CPU = torch.device("cpu")
LAYERS = (
    LayerSpec(6, 2, 40, 40, scale=0.2),
    LayerSpec(4, 2, 64, 32, scale=0.2, window=20, softcap=4.0, sinks=True),
)
CONTEXTS = (1, 15, 16, 17, 40, 70)


def check(backend: Callable[[KVStorage], AttentionBackend], dtype: torch.dtype = torch.float32) -> float:
    return check_attention(backend, LAYERS, dtype, CPU, 16, CONTEXTS)


class Altered(TorchAttention):
    """Plain PyTorch with one mistake."""

    def __init__(self, storage: KVStorage, mistake: Callable[[Altered, Plan, Tensor], Tensor]) -> None:
        super().__init__(storage)
        self.storage = storage
        self.mistake = mistake

    def begin(self, plan: Plan) -> None:
        super().begin(plan)
        self.plan = plan

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        return self.mistake(self, self.plan, super().attend(layer, query, key, value, sinks))


def of_one_token_of_a_later_chunk(backend: Altered, plan: Plan, out: Tensor) -> Tensor:
    if plan.decodes and plan.token_count > len(plan.query_lens):
        out[-1] = out[-2]
    return out


def without_a_number(backend: Altered, plan: Plan, out: Tensor) -> Tensor:
    out[0, 0, 0] = torch.nan
    return out


def of_windows(backend: Altered, plan: Plan, out: Tensor) -> Tensor:
    """One token too few is seen, where the window cuts anything."""
    window = backend.storage.layers[0].window or 10**9
    return out * (1.01 if (plan.kv_lens > window).any() else 1.0)


def stored_elsewhere(backend: Altered, plan: Plan, out: Tensor) -> Tensor:
    backend.storage.keys[0][-1, -1, -1, -1] = 1.0
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_backend_of_this_machine_is_right(dtype: torch.dtype) -> None:
    assert 0 < check(choose("auto", CPU, dtype).build, dtype) < TOLERANCE[dtype]


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (
            lambda backend, plan, out: out * 1.01,
            "attention of 6 heads .2 KV. of 40, float32 is off by 0.01 of the largest value; the limit",
        ),
        (of_one_token_of_a_later_chunk, "is off by"),
        (lambda backend, plan, out: out.flip(0) if len(plan.prefix_group_lens) else out, "is off by"),
        (without_a_number, "is off by inf"),
        (stored_elsewhere, "what is stored of the keys and values of 6 heads"),
    ],
)
def test_a_mistake_is_found(mistake: Callable[[Altered, Plan, Tensor], Tensor], says: str) -> None:
    with pytest.raises(Mismatch, match=says):
        check(lambda storage: Altered(storage, mistake))


@pytest.mark.parametrize("window", [70, 4096])
def test_a_window_beyond_every_context_is_checked_by_a_short_one(window: int) -> None:
    long = (replace(LAYERS[1], window=window, group=1),)
    given = (long, torch.float32, CPU, 16)
    assert check_attention(TorchAttention, *given) < 1e-5
    with pytest.raises(Mismatch, match=f"of 64, window {min(window, 100)}, float32 is off by 0.01"):
        check_attention(lambda storage: Altered(storage, of_windows), *given)


def test_the_reference_is_exact_where_the_process_uses_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    """As TORCH_ALLOW_TF32_CUBLAS_OVERRIDE of NVIDIA's images has it."""
    found = set()

    class Reference(TorchAttention):
        def attend(self, layer: int, *given: Tensor | None) -> Tensor:
            found.add(torch.get_float32_matmul_precision())
            return super().attend(layer, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(attention_check, "TorchAttention", Reference)
    torch.set_float32_matmul_precision("high")
    try:
        check(TorchAttention)
        assert torch.get_float32_matmul_precision() == "high", "the model's own products stay as they are"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert found == {"highest"}


@pytest.mark.parametrize("block_size", [1, 16, 256, 1024])
def test_the_steps_have_what_goes_wrong(block_size: int) -> None:
    """Decoding rows, later chunks, one of them over keys for several programs, a row alone; and, where a
    prefix is as long as a block, prefix groups."""
    steps, blocks = attention_steps(block_size)
    assert max(int(table.max()) for step in steps for table in step.block_tables) == blocks - 1
    assert any(step.decodes == len(step.query_lens) == 1 for step in steps)
    assert any(0 < step.decodes < len(step.query_lens) for step in steps)
    assert any(((step.query_lens > 1) & (step.kv_lens > 2 * LEAST_TILE_KEYS)).any() for step in steps)
    groups = [len(step.prefix_group_segments) for step in steps if len(step.prefix_group_lens)]
    assert groups == ([3, 70] if block_size <= 1100 else [])


WANT = torch.randn(61, 500, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("dtype", "noise"), [(torch.bfloat16, 0.06), (torch.float16, 0.01), (torch.float32, 1e-5)]
)
def test_rounding_passes_and_one_wrong_row_does_not(dtype: torch.dtype, noise: float) -> None:
    got = WANT + noise * torch.randn(WANT.shape, generator=torch.Generator().manual_seed(1))
    assert 0 < compare_logits(got.to(dtype), WANT.to(dtype), "it", dtype) < 1.5 * noise + 1e-6
    got[17] = WANT[18]
    with pytest.raises(Mismatch, match="it has other logits"):
        compare_logits(got.to(dtype), WANT.to(dtype), "it", dtype)


def test_a_factor_and_what_is_not_finite_do_not_pass() -> None:
    with pytest.raises(Mismatch):
        compare_logits(WANT.bfloat16() * 1.3, WANT.bfloat16(), "it", torch.bfloat16)
    got = WANT.clone()
    got[3, 4] = torch.nan
    with pytest.raises(Mismatch):
        compare_logits(got, WANT, "it", torch.float32)


def test_rows_expected_not_to_be_finite_are_not_compared() -> None:
    want = WANT.clone()
    want[3] = torch.nan
    assert compare_logits(WANT, want, "it", torch.float32) == 0


def test_nothing_to_compare_is_no_success() -> None:
    with pytest.raises(Mismatch, match="it cannot be compared: no row of its logits"):
        compare_logits(WANT[:1], torch.full_like(WANT[:1], torch.nan), "it", torch.float32)
