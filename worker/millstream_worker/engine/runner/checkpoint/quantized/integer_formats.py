"""Formats whose codes are whole numbers: GPTQ, AWQ, compressed-tensors' int-quantized and pack-quantized."""

from __future__ import annotations

import torch
from torch import Tensor

from millstream_worker.engine.runner.checkpoint.quantized.grid import BITS_OF_WORD, Grid, unpacked
from millstream_worker.engine.runner.checkpoint.quantized.parts import ITSELF, Parts

_CPU = torch.device("cpu")
_FLOATS = ("F16", "BF16", "F32")
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # place of output k of eight in a word
_READ_BITS = (2, 4, 8)


class _Packed:
    """A weight in words: what the formats have in common."""

    bits: int
    shape: tuple[int, int]
    groups: int

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def _bits_of(self, words: int, numbers: int, named: str) -> int:
        """Returns the bits of numbers that fill so many words."""
        for bits in _READ_BITS:
            if -(-numbers * bits // BITS_OF_WORD) == words:
                return bits
        bits_given = BITS_OF_WORD * words / max(1, numbers)
        raise self._parts.unread(f"{named} with {bits_given:.3g} bits is not read; 2, 4 and 8 are")

    def _set_groups(self, order: str | None = None) -> None:
        """Sets the inputs of a group, and the group of each input where a part says another `order`."""
        inputs, asked = self.shape[1], self._parts.facts.group or 0
        fits = asked > 0 and -(-inputs // asked) == self.groups
        if self.groups < 1 or inputs < 1:
            raise self._parts.unread(f"it has {inputs} inputs and {self.groups} scales of an output")
        self.group = asked if fits else -(-inputs // self.groups)
        self._of_input: Tensor | None = None
        if order is None or order not in self._parts:
            if not fits and inputs % self.groups:
                raise self._parts.unread(f"{self.groups} scales do not divide its {inputs} inputs")
            return
        self._parts.expect(order, (inputs,), dtypes=("I32", "I64"))
        of_input = self._parts.read(order, _CPU).long()
        if int(of_input.min()) < 0 or int(of_input.max()) >= self.groups:
            raise self._parts.unread(f"its g_idx names a group that is none of its {self.groups}")
        if not torch.equal(of_input, torch.arange(inputs) // self.group):
            self._of_input = of_input

    def _grid(self, codes: Tensor, scales: Tensor, zeros: Tensor) -> Grid:
        of_input = None if self._of_input is None else self._of_input.to(codes.device)
        return Grid(codes, scales.float(), zeros, self.group, of_input)


class GPTQ(_Packed):
    """AutoGPTQ's `QuantLinear`: codes along the inputs, zeros along the outputs.

    https://github.com/AutoGPTQ/AutoGPTQ/blob/main/auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py
    """

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        (words, outputs), (self.groups, _) = parts.sides("qweight"), parts.sides("scales")
        parts.expect("scales", (self.groups, outputs), dtypes=_FLOATS)
        _, zeros = parts.sides("qzeros")
        self.bits = self._bits_of(zeros, outputs, "GPTQ")
        parts.expect("qzeros", (self.groups, zeros), dtypes=("I32",))
        parts.expect("qweight", (words, outputs), dtypes=("I32",))
        self.shape = outputs, words * BITS_OF_WORD // self.bits
        self._set_groups("g_idx")
        self.own_bits = self._of_input is None
        self.form = f"gptq-int{self.bits}"

    def grid(self, first: int, end: int, device: torch.device) -> Grid:
        read, some = self._parts.read, slice(first, end)
        codes = unpacked(read("qweight", device, slice(None), some), self.bits, 0).T
        per = BITS_OF_WORD // self.bits
        words = read("qzeros", device, slice(None), slice(first // per, -(-end // per)))
        zeros = unpacked(words, self.bits, 1)[:, first % per :][:, : end - first].T
        if self._parts.facts.zeros_less_one:
            zeros = (zeros + 1) & (2**self.bits - 1)
        return self._grid(codes, read("scales", device, slice(None), some).T, zeros)


class AWQ(_Packed):
    """AutoAWQ's `WQLinear_GEMM`: eight outputs in a word, in an order of their own.

    https://github.com/casper-hansen/AutoAWQ/blob/main/awq/utils/packing_utils.py
    """

    bits = 4
    form = "awq-int4"
    own_bits = True

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        (inputs, words), (self.groups, _) = parts.sides("qweight"), parts.sides("scales")
        self.shape = 8 * words, inputs
        parts.expect("qweight", (inputs, words), dtypes=("I32",))
        parts.expect("scales", (self.groups, 8 * words), dtypes=_FLOATS)
        parts.expect("qzeros", (self.groups, words), dtypes=("I32",))
        self._set_groups()

    def grid(self, first: int, end: int, device: torch.device) -> Grid:
        words = slice(first // 8, -(-end // 8))
        codes, zeros = (
            self._outputs(part, words, device)[:, first % 8 :][:, : end - first].T
            for part in ("qweight", "qzeros")
        )
        scales = self._parts.read("scales", device, slice(None), slice(first, end)).T
        return self._grid(codes, scales, zeros)

    def _outputs(self, part: str, words: slice, device: torch.device) -> Tensor:
        numbers = unpacked(self._parts.read(part, device, slice(None), words), 4, 1)
        return numbers.view(len(numbers), -1, 8)[..., list(_AWQ_ORDER)].flatten(1)


class PackQuantized(_Packed):
    """compressed-tensors' pack-quantized (W4A16, W8A16): codes along the inputs, zeros along the outputs.

    https://github.com/vllm-project/compressed-tensors
    """

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        parts.expect("_shape", (2,), dtypes=("I32", "I64"))
        outputs, inputs = (int(size) for size in parts.read("_shape", _CPU))
        _, words = parts.sides("_packed")
        self.bits = self._bits_of(words, inputs, "pack-quantized")
        parts.expect("_packed", (outputs, words), dtypes=("I32",))
        self.shape = outputs, inputs
        _, self.groups = parts.sides("_scale")
        parts.expect("_scale", (outputs, self.groups), dtypes=_FLOATS)
        if "_zero_point" in parts:
            words = -(-outputs * self.bits // BITS_OF_WORD)
            parts.expect("_zero_point", (words, self.groups), dtypes=("I32",))
        self._set_groups("_g_idx")
        self.own_bits = self._of_input is None
        self.form = f"w{self.bits}a16"

    def grid(self, first: int, end: int, device: torch.device) -> Grid:
        read, some, middle = self._parts.read, slice(first, end), 2 ** (self.bits - 1)
        codes = unpacked(read("_packed", device, some), self.bits, 1)[:, : self.shape[1]]
        zeros = torch.full((1, 1), middle, device=device)
        if "_zero_point" in self._parts:
            per = BITS_OF_WORD // self.bits
            words = read("_zero_point", device, slice(first // per, -(-end // per)))
            zeros = unpacked(words, self.bits, 0)[first % per :][: end - first]
        return self._grid(codes, read("_scale", device, some), zeros)


class IntQuantized(_Packed):
    """compressed-tensors' int-quantized (W8A8): a byte for each number."""

    bits = 8
    form = "w8a8"
    own_bits = True

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        outputs, _ = self.shape = parts.sides(ITSELF)
        self.groups = parts.shape("_scale")[-1] if len(parts.shape("_scale")) == 2 else 1
        grids = (outputs, self.groups), (outputs,), (1,), ()
        parts.expect("_scale", *grids, dtypes=_FLOATS)
        if "_zero_point" in parts:
            parts.expect("_zero_point", *grids, dtypes=("I8",))
        self._set_groups()

    def grid(self, first: int, end: int, device: torch.device) -> Grid:
        codes = self._parts.read(ITSELF, device, slice(first, end))
        scales = self._of_outputs("_scale", first, end, device)
        has_zeros = "_zero_point" in self._parts
        zeros = self._of_outputs("_zero_point", first, end, device) if has_zeros else None
        return Grid(codes, scales.float(), zeros, self.group)  # of 8 bits

    def _of_outputs(self, part: str, first: int, end: int, device: torch.device) -> Tensor:
        numbers = self._parts.read(part, device)
        if numbers.numel() == 1:
            return numbers.reshape(1, 1)
        return numbers.reshape(self.shape[0], -1)[first:end]
