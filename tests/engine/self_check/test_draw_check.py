"""What becomes of the kernel that draws when it fails at start: PyTorch's operations draw, and the reason is
kept. The draws here are computed by those as well; for the kernel itself see interpreted_draws.py."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import TokenMasks
from millstream_worker.engine.protocol.frames import Loading, Tried
from millstream_worker.engine.runner.sampling.draw import weigh
from millstream_worker.engine.runner.sampling.masking import mask
from millstream_worker.engine.runner.sampling.triton_draws import TritonDraws
from millstream_worker.engine.runner.self_check import draw_check
from millstream_worker.engine.runner.self_check.draw_check import checked_draws
from millstream_worker.engine.runner.self_check.findings import Findings

VOCAB, CPU = 200, torch.device("cpu")


class Right(TritonDraws):
    def __init__(self, vocab_size: int) -> None:
        pass

    def draw(self, logits: Tensor, rows: Tensor, settings: Tensor, top_k: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.weights(logits[rows], settings[0])
        non_finite = ~logits[rows].float().amax(-1).isfinite()
        tokens = draw_check._drawn(weights, settings[..., None], top_k[:, None])
        return tokens.masked_fill(non_finite, 0), non_finite

    def weights(self, logits: Tensor, temperature: Tensor) -> Tensor:
        return weigh(logits.float(), temperature[:, None].float())

    def mask(self, logits: Tensor, rows: Tensor, bits: Tensor) -> None:
        mask(logits, TokenMasks(rows.numpy(), bits.numpy()))


class WrongMasks(Right):
    def mask(self, logits: Tensor, rows: Tensor, bits: Tensor) -> None:
        super().mask(logits, rows, bits.roll(1, dims=0))


class WrongToken(Right):
    def draw(self, *given: Tensor) -> tuple[Tensor, Tensor]:
        tokens, non_finite = super().draw(*given)
        first = int((~non_finite).nonzero()[0])
        return tokens.index_fill(0, torch.tensor(first), VOCAB - 1), non_finite


class WrongRows(Right):
    def draw(self, logits: Tensor, rows: Tensor, *given: Tensor) -> tuple[Tensor, Tensor]:
        return super().draw(logits, rows.roll(1), *given)


class WrongWeights(Right):
    def weights(self, logits: Tensor, temperature: Tensor) -> Tensor:
        return super().weights(logits, temperature * 1.0001)


class NoneBroken(Right):
    def draw(self, *given: Tensor) -> tuple[Tensor, Tensor]:
        tokens, non_finite = super().draw(*given)
        return tokens, non_finite.zero_()


def failing(error: Exception) -> Callable[[int], TritonDraws]:
    def make(vocab_size: int) -> TritonDraws:
        raise error

    return make


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_right_is_used_and_said(dtype: torch.dtype) -> None:
    said: list[str] = []
    marks: list[None] = []
    findings = Findings(said.append)

    draws = checked_draws(VOCAB, dtype, CPU, findings, Right, lambda: marks.append(None))
    assert isinstance(draws, Right)
    assert Loading(said[0]).tried is Tried.SAMPLING, "a death in it is charged to it"
    assert len(marks) == 3 * len({dtype, torch.float32})
    assert findings.checks == ["sampling off by at most 0"]
    assert not findings.fallbacks


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (WrongToken, "1 of 31 tokens drawn from logits of torch.float32 are others"),
        (WrongRows, "rows of torch.float32 that are not finite are not told from others"),
        (NoneBroken, "rows of torch.float32 that are not finite are not told from others"),
        (WrongMasks, "masked logits of torch.float32 are others"),
        (WrongWeights, "the weight of a token is off by "),
        (failing(ImportError("No module named 'triton'")), "ImportError: No module named 'triton'"),
        (failing(RuntimeError("Triton Error [CUDA]:\nbad")), "RuntimeError: Triton Error [CUDA]: bad"),
    ],
)
def test_what_is_not_is_not_used_and_the_reason_is_kept(
    make: Callable[[int], TritonDraws], reason: str
) -> None:
    findings = Findings(lambda _: None)

    assert checked_draws(VOCAB, torch.float32, CPU, findings, make) is None
    assert not findings.checks
    [line] = findings.fallbacks
    assert line.startswith(f"sampling: plain PyTorch, slower than one kernel: {reason}")


def test_too_little_memory_is_no_reason_to_sample_more_slowly() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        checked_draws(
            VOCAB, torch.float32, CPU, Findings(print), failing(torch.OutOfMemoryError("CUDA out of memory"))
        )


def test_a_vocabulary_that_is_too_large() -> None:
    pytest.importorskip("triton")
    with pytest.raises(ValueError, match="600,000; at most 524,288 tokens"):
        TritonDraws(600_000)


def test_every_kind_of_row_is_drawn_from_in_every_way() -> None:
    ways, rows = len(draw_check._WAYS), draw_check._logits(50)

    assert len(rows) % ways == 0
    assert all(not torch.equal(one, other) for one, other in pairwise(rows[::ways]))
