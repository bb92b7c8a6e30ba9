"""Logits of two ways to compute a step: rounding passes, one wrong row and a wrong factor do not."""

from __future__ import annotations

import pytest
import torch

from millstream_worker.engine.runner.self_check.deviation import Mismatch, compare_logits

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


def test_rows_that_are_expected_not_to_be_finite_count_for_nothing() -> None:
    want = WANT.clone()
    want[3] = torch.nan
    assert compare_logits(WANT, want, "it", torch.float32) == 0


def test_nothing_to_compare_is_no_success() -> None:
    with pytest.raises(Mismatch, match="it cannot be compared: no row of its logits"):
        compare_logits(WANT[:1], torch.full_like(WANT[:1], torch.nan), "it", torch.float32)
