"""bitsandbytes' numbers of 4 bits (nf4, fp4): blocks of the flat weight, whose numbers a table names."""

from __future__ import annotations

import json
from math import prod

import torch
from torch import Tensor

from millstream_worker.engine.runner.checkpoint.quantized.parts import ITSELF, Parts

_CPU = torch.device("cpu")
_STATES = (".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4")
_MOST_BYTES = 2**16  # of a state


class Blocks4:
    """https://github.com/bitsandbytes-foundation/bitsandbytes/blob/main/bitsandbytes/functional.py"""

    own_bits = False

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        state_part = next((part for part in _STATES if part in parts), _STATES[0])
        if prod(parts.shape(state_part)) > _MOST_BYTES:
            raise parts.unread(
                f"its quant_state has {prod(parts.shape(state_part))} bytes, and may have {_MOST_BYTES}"
            )
        try:
            state = json.loads(bytes(parts.read(state_part, _CPU).tolist()))
            outputs, inputs = (int(size) for size in state["shape"])
            self._block = int(state["blocksize"])
            self._outer = int(state.get("nested_blocksize") or 0)
            self._offset = float(state.get("nested_offset") or 0.0)
        except (ValueError, LookupError, TypeError, RecursionError, OverflowError, AttributeError) as error:
            raise parts.unread(f"its quant_state cannot be read: {error!r:.80}") from error
        self.shape = outputs, inputs
        count, self._nested = outputs * inputs, ".nested_absmax" in parts
        if min(outputs, inputs, self._block) < 1 or (self._nested and self._outer < 1):
            raise parts.unread(
                f"its quant_state says {[outputs, inputs]} in blocks of {self._block}, and {self._outer}"
            )
        parts.expect(ITSELF, (-(-count // 2), 1), (1, -(-count // 2)), dtypes=("U8",))
        blocks = -(-count // self._block)
        parts.expect(".absmax", (blocks,), dtypes=("U8",) if self._nested else ("F32", "F16", "BF16"))
        parts.expect(".quant_map", (16,), dtypes=("F32",))
        if self._nested:
            parts.expect(".nested_absmax", (-(-blocks // self._outer),), dtypes=("F32",))
            parts.expect(".nested_quant_map", (256,), dtypes=("F32",))
        self.form = f"{state_part[-3:]}"

    def dequantized(self, first: int, end: int, device: torch.device) -> Tensor:
        """Returns outputs in float32."""
        inputs, read = self.shape[1], self._parts.read
        start, stop = first * inputs, end * inputs
        whole = slice(start // 2, -(-stop // 2))
        flat = (slice(None), whole) if self._parts.shape(ITSELF)[0] == 1 else (whole,)
        data = read(ITSELF, device, *flat).flatten()
        codes = torch.stack((data >> 4, data & 15), -1).flatten()[start % 2 :][: stop - start]  # high first
        block = slice(start // self._block, -(-stop // self._block))
        most = read(".absmax", device, block)
        if self._nested:
            outer = torch.arange(block.start, block.stop, device=device) // self._outer
            most = read(".nested_quant_map", device)[most.int()] * read(".nested_absmax", device)[outer]
            most = most + self._offset
        scales = most.float().repeat_interleave(self._block)[start - block.start * self._block :]
        numbers = read(".quant_map", device)[codes.int()] * scales[: stop - start]
        return numbers.view(end - first, inputs)
