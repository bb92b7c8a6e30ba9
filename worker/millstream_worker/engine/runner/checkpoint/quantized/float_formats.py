"""Formats whose codes are small floats: FP8, and the numbers of 4 bits of NVFP4 and MXFP4."""

from __future__ import annotations

import torch
from torch import Tensor

from millstream_worker.engine.runner.checkpoint.quantized.grid import E2M1, Grid, e8m0, nibbles
from millstream_worker.engine.runner.checkpoint.quantized.parts import ITSELF, Parts

_EXPONENTS = ("U8", "F8_E8M0")
_FLOATS = ("F32", "BF16", "F16")
_TWICE = torch.tensor([int(2 * number) for number in E2M1], dtype=torch.int8)


class Float8:
    """Numbers of 8 bits (E4M3, E5M2) with a scale for all, for each output, or for each block: the files of
    DeepSeek, Qwen, Mistral, fbgemm, ModelOpt and compressed-tensors; MXFP8, whose scales are exponents.
    Experts that are one tensor [experts, a, b] have a grid of scales each.

    https://github.com/deepseek-ai/DeepSeek-V3/blob/main/README_WEIGHTS.md
    """

    own_bits = False

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._scale = next((part for part in ("_scale_inv", "_scale") if part in parts), "_scale")
        self.shape = shape = parts.shape(ITSELF)
        if len(shape) not in (2, 3):
            raise parts.unread(f"it is {list(shape)}, and FP8 is read of weights with outputs and inputs")
        parts.expect(self._scale, parts.shape(self._scale), dtypes=(*_FLOATS, *_EXPONENTS))
        self._block = self._block_of(parts.shape(self._scale))
        mx = parts.dtype(self._scale) in _EXPONENTS and self._block == (1, 32)
        self.form = "mxfp8" if mx else "fp8"

    def _block_of(self, scales: tuple[int, ...]) -> tuple[int, int]:
        """Returns outputs and inputs that share a scale."""
        *experts, outputs, inputs = self.shape
        if not scales or scales == (1,):
            return outputs, inputs
        if scales[: len(experts)] != tuple(experts):
            raise self._parts.unread(f"its scales are {list(scales)}, and its numbers {list(self.shape)}")
        grid = (*scales[len(experts) :], 1, 1)[:2]
        for block in self._parts.facts.blocks:  # of which the last may be cut
            if grid == (-(-outputs // block[0]), -(-inputs // block[1])):
                return block
        rows, columns = grid
        if not rows or not columns or outputs % rows or inputs % columns:
            raise self._parts.unread(f"its scales {list(grid)} do not divide its {[outputs, inputs]} numbers")
        return outputs // rows, inputs // columns

    def grid(self, first: int, end: int, device: torch.device, expert: int | None = None) -> Grid:
        before = () if expert is None else (expert,)
        codes = self._parts.read(ITSELF, device, *before, slice(first, end))
        scales = self._parts.read(self._scale, device)
        if expert is not None and scales.numel() > 1:
            scales = scales[expert]
        scales = e8m0(scales) if scales.dtype.itemsize == 1 else scales.float()
        scales = scales.reshape(1, 1) if scales.numel() == 1 else scales.reshape(len(scales), -1)
        if len(scales) > 1:
            scales = scales[torch.arange(first, end, device=device) // self._block[0]]
        return Grid(codes, scales, group=self._block[1])


class Float4:
    """NVFP4 (16 inputs share a scale of 8 bits, and all one in float32) and MXFP4 (32 share an exponent), of
    compressed-tensors and of ModelOpt. The codes are twice the numbers, with half the scales: whole ones.

    https://github.com/NVIDIA/Model-Optimizer, https://github.com/vllm-project/compressed-tensors,
    https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf
    """

    own_bits = True

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._codes = "_packed" if "_packed" in parts else ITSELF
        outputs, size = parts.sides(self._codes)
        parts.expect(self._codes, (outputs, size), dtypes=("U8",))
        _, inputs = self.shape = outputs, 2 * size
        _, groups = parts.sides("_scale")
        self.group = inputs // groups if groups else 0
        if self.group not in (16, 32) or inputs % groups:
            raise parts.unread(f"{groups} scales of {inputs} inputs are not read; one for 16 or 32 is")
        exponents = parts.dtype("_scale") in _EXPONENTS
        allowed = _EXPONENTS if exponents else ("F8_E4M3", *_FLOATS)
        parts.expect("_scale", (outputs, groups), dtypes=allowed)
        for part in ("_global_scale", "_scale_2"):
            if part in parts:
                parts.expect(part, (1,), (), dtypes=("F32",))
        if not exponents and "_global_scale" not in parts and "_scale_2" not in parts:
            parts.shape("_scale_2" if self._codes == ITSELF else "_global_scale")
        self.form = "mxfp4" if exponents else "nvfp4"

    def grid(self, first: int, end: int, device: torch.device) -> Grid:
        read = self._parts.read
        codes = _TWICE.to(device)[nibbles(read(self._codes, device, slice(first, end))).int()]
        scales = read("_scale", device, slice(first, end))
        scales = e8m0(scales) if self.form == "mxfp4" else scales.float()
        if "_global_scale" in self._parts:
            scales = scales / read("_global_scale", device)
        if "_scale_2" in self._parts:
            scales = scales * read("_scale_2", device)
        return Grid(codes, scales / 2, group=self.group)


class ExpertsFloat4:
    """gpt-oss' experts in MXFP4: blocks [experts, outputs, groups, 16 bytes], scales [experts, outputs,
    groups]. The weight is [experts, inputs, outputs].

    https://github.com/openai/gpt-oss/blob/main/gpt_oss/torch/weights.py
    """

    own_bits = False
    form = "mxfp4"

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        blocks = parts.shape("_blocks")
        if len(blocks) != 4 or blocks[3] != 16:
            raise parts.unread(f"its blocks are {list(blocks)} instead of [experts, outputs, groups, 16]")
        parts.expect("_blocks", blocks, dtypes=("U8",))
        parts.expect("_scales", blocks[:3], dtypes=_EXPONENTS)
        experts, outputs, groups, _ = blocks
        self.shape = experts, 32 * groups, outputs

    def fill(self, weight: Tensor, expert: int, first: int, end: int) -> None:
        """Writes outputs of an expert. Both numbers of a byte are looked up at once, in the weight's type,
        which has numbers of 4 bits and powers of two as they are."""
        some = expert, slice(first, end)
        blocks = self._parts.read("_blocks", weight.device, *some)
        scales = e8m0(self._parts.read("_scales", weight.device, *some)).to(weight.dtype)
        pairs = _pairs(weight.dtype, weight.device)[blocks.flatten().int()]
        numbers = pairs.view(weight.dtype).view(*scales.shape, 32).mul_(scales[..., None])
        weight[expert, :, first:end] = numbers.flatten(-2).T


def _pairs(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns the two numbers of each byte, the low half's first, as one whole number [256]."""
    numbers, every = torch.tensor(E2M1, dtype=dtype), torch.arange(256)
    pairs = torch.stack((numbers[every & 15], numbers[every >> 4]), 1)
    return pairs.view(torch.int32 if dtype.itemsize == 2 else torch.int64).flatten().to(device)
