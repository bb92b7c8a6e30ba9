"""Checks the kernels that mask and draw on their device: beside PyTorch's sort and running sums of the same
weights, to the very token; and masks and weights beside PyTorch's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import TokenMasks
from millstream_worker.engine.protocol.frames import Tried
from millstream_worker.engine.runner.device.gpu import settle
from millstream_worker.engine.runner.sampling.draw import draw_by_id, draw_by_rank, weigh
from millstream_worker.engine.runner.sampling.masking import Masking, mask
from millstream_worker.engine.runner.sampling.triton_draws import TritonDraws
from millstream_worker.engine.runner.self_check.deviation import Mismatch, deviation
from millstream_worker.engine.runner.self_check.findings import Findings, short

_WAYS = (  # temperature, top_p, min_p, top_k (0: off)
    (1.0, 1.0, 0.0, 0),
    (0.7, 1.0, 0.05, 0),
    (1.0, 0.9, 0.0, 0),
    (0.6, 0.95, 0.01, 20),
    (1.3, 0.999, 0.0, 3000),
    (1.0, 1.0, 0.0, 50),
    (0.2, 1e-9, 0.0, 0),
)
_BROKEN = (torch.nan, torch.inf, -torch.inf)
_WEIGHT_TOLERANCE = 1e-5  # a share of each weight


def checked_draws(
    vocab_size: int,
    dtype: torch.dtype,
    device: torch.device,
    findings: Findings,
    make: Callable[[int], TritonDraws] = TritonDraws,
    mark: Callable[[], None] = lambda: None,
) -> TritonDraws | None:
    """Draws for logits of `dtype`, and for those that were changed, which are float32; None where they fail
    in whatever way: PyTorch's operations draw then. `mark` is called on the way."""
    findings.report(f"{Tried.SAMPLING} from {vocab_size:,} tokens")
    try:
        draws = make(vocab_size)
        worst = max(check_draws(draws, vocab_size, one, device, mark) for one in {dtype, torch.float32})
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - of a compiler, a driver, or a mismatch
        settle(device)
        findings.fall_back(f"sampling: plain PyTorch, slower than one kernel: {short(error)}")
        return None
    findings.passed("sampling", worst)
    return draws


@torch.inference_mode()
def check_draws(
    draws: TritonDraws,
    vocab_size: int,
    dtype: torch.dtype,
    device: torch.device,
    mark: Callable[[], None] = lambda: None,
) -> float:
    """Returns the largest deviation of a weight, as a share of the largest. Raises Mismatch, or what Triton
    raises."""
    logits = _logits(vocab_size)
    _check_masks(draws, logits.to(dtype).to(device))
    sound = slice(len(logits))
    logits = torch.cat([logits, _broken(vocab_size)]).to(dtype).to(device)
    ways = [_WAYS[row % len(_WAYS)] for row in range(len(logits))]
    random = torch.Generator().manual_seed(1)
    noise = torch.rand(len(logits), dtype=torch.float64, generator=random)
    columns = torch.tensor([way[:3] for way in ways], dtype=torch.float64).T
    settings = torch.cat([columns, noise[None]]).to(device)
    top_k = torch.tensor([min(way[3] or vocab_size, vocab_size) for way in ways]).to(device)
    order = torch.randperm(len(logits), generator=random).to(device)

    tokens, non_finite = draws.draw(logits, order, settings[:, order], top_k[order])
    mark()
    weights = draws.weights(logits[sound], settings[0, sound])
    mark()
    expected = torch.arange(len(logits), device=device) >= len(weights)
    if not torch.equal(non_finite, expected[order]):
        raise Mismatch(f"rows of {dtype} that are not finite are not told from others")
    want = torch.zeros_like(tokens)
    want[sound] = _drawn(weights, settings[:, sound, None], top_k[sound, None])
    mark()
    if wrong := int((tokens != want[order]).sum()):
        raise Mismatch(f"{wrong} of {len(logits)} tokens drawn from logits of {dtype} are others")
    return _compare(weights, weigh(logits[sound].float(), settings[0, sound, None].float()))


def _check_masks(draws: TritonDraws, logits: Tensor) -> None:
    """Of every other row, and of one that allows nothing."""
    chance = np.random.default_rng(0)
    rows = np.arange(0, len(logits), 2, dtype=np.int32)
    bits = chance.integers(-(2**31), 2**31, (len(rows), -(-logits.shape[1] // 32))).astype(np.int32)
    bits[0], bits[1] = 0, -1
    masks, want = TokenMasks(rows, bits), logits.clone()
    got = logits.clone()
    mask(want, masks)
    Masking(None, draws).apply(got, masks)
    if not torch.equal(got, want):
        raise Mismatch(f"masked logits of {logits.dtype} are others")


def _logits(vocab_size: int) -> Tensor:
    """[rows, V]: of the usual kind, with many equal ones, all equal, and most of them impossible; each kind
    in each way."""
    usual = 3 * torch.randn(len(_WAYS), vocab_size, generator=torch.Generator().manual_seed(0))
    impossible = usual.masked_fill(usual < 3, -torch.inf).index_fill(1, torch.tensor(vocab_size // 2), 1.0)
    return torch.cat([usual, (usual / 2).round(), torch.zeros_like(usual), impossible])


def _broken(vocab_size: int) -> Tensor:
    rows = torch.zeros(len(_BROKEN), vocab_size)
    rows[:, -1] = torch.tensor(_BROKEN)
    rows[2] = -torch.inf
    return rows


def _drawn(weights: Tensor, settings: Tensor, top_k: Tensor) -> Tensor:
    """Tokens [M] of weights [M, V] with settings [4, M, 1] and top_k [M, 1]."""
    vocab_size = weights.shape[1]
    _, top_p, min_p, noise = settings
    ranked = draw_by_rank(weights, top_k, top_p, min_p, noise, most=vocab_size)
    unranked = (top_k >= vocab_size) & (top_p >= 1)
    return torch.where(unranked[:, 0], draw_by_id(weights, min_p, noise), ranked)


def _compare(got: Tensor, want: Tensor) -> float:
    """Weights, each of which may be off by its share; what is less than one unit is rounded off."""
    off = float((((got - want).abs() - 1).clamp(min=0) / want.clamp(min=1)).max())
    if off > _WEIGHT_TOLERANCE:
        raise Mismatch(f"the weight of a token is off by {off:.2g} of it; the limit is {_WEIGHT_TOLERANCE}")
    return deviation(got, want)
