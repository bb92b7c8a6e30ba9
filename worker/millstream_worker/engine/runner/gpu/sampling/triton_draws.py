"""Launches the kernels that mask and sample: one launch for all rows, whatever their settings."""

from __future__ import annotations

import torch
from torch import Tensor

from millstream_worker.engine.runner.sampling.draw import weight_bits

_MOST_TOKENS = 2**19  # of a vocabulary: mantissas of so many weights can be added up beside their number
_LEAST_BLOCKS = 16
_OPTIONS = {"num_warps": 16}  # on an H200 a tenth faster than 32, or 8


class TritonDraws:
    """Draws as `draw` does, from weights that may differ from `draw.weigh` in their last bits. Raises
    ImportError without Triton, ValueError for vocabularies that are too large."""

    def __init__(self, vocab_size: int) -> None:
        from millstream_worker.engine.runner.gpu.sampling import draw_kernel, mask_kernel  # need triton

        if vocab_size > _MOST_TOKENS:
            raise ValueError(
                f"a vocabulary of {vocab_size:,}; at most {_MOST_TOKENS:,} tokens can be drawn from"
            )
        self._kernels, self._masking = draw_kernel, mask_kernel
        self._vocab_size = vocab_size
        self._sizes = {"VOCAB": vocab_size, "BITS": weight_bits(vocab_size)}

    def draw(self, logits: Tensor, rows: Tensor, settings: Tensor, top_k: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [M] int64 of those `rows` [M] (int64) of logits [L, V] of any floating dtype; and which rows
        [M] hold NaN or +inf, or nothing but -inf: their token is 0. `settings` [4, M] are temperature, top_p,
        min_p and uniforms (float64), `top_k` [M] (int64) is at most V."""
        logits, kernels = _dense(logits), self._kernels
        tokens = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
        non_finite = torch.empty(len(rows), dtype=torch.bool, device=logits.device)
        bins = torch.empty(len(rows), 2, kernels.BINS.value, dtype=torch.int64, device=logits.device)
        given = logits, rows, settings, top_k, tokens, non_finite, bins, logits.stride(0)
        blocks = -(-self._vocab_size // kernels.BLOCK.value)
        padded = max(_LEAST_BLOCKS, 1 << (blocks - 1).bit_length())
        kernels.draw_kernel[len(rows),](*given, **self._sizes, BLOCKS=padded, **_OPTIONS)
        return tokens, non_finite

    @torch.inference_mode()
    def try_out(self, dtype: torch.dtype, device: torch.device) -> None:
        """Launch it once, for one row. Raises what Triton raises where it cannot be compiled or launched."""
        row, top_k = (torch.full((1,), number, device=device) for number in (0, self._vocab_size))
        settings = torch.full((4, 1), 0.5, dtype=torch.float64, device=device)
        self.draw(torch.zeros(1, self._vocab_size, dtype=dtype, device=device), row, settings, top_k)

    def mask(self, logits: Tensor, rows: Tensor, bits: Tensor) -> None:
        """Make -inf, in place, of logits [L, V] of any floating dtype what no bit allows: `bits` [M, words]
        (int32) are those of the tokens of `rows` [M] (int32), token 0 lowest."""
        assert logits.stride(1) == 1, "the logits of a row lie side by side"
        programs = len(rows), -(-self._vocab_size // self._masking.BLOCK.value)
        given = logits, rows, bits, logits.stride(0), bits.shape[1]
        self._masking.mask_kernel[programs](*given, VOCAB=self._vocab_size)


def _dense(logits: Tensor) -> Tensor:
    return logits if logits.stride(1) == 1 else logits.contiguous()
