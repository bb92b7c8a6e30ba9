"""Stands for what compiled code calls, while it is made and checked: quick, without a cache or states, and a
function of all that it is given."""

from __future__ import annotations

from torch import Tensor


def attend_quickly(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Takes and returns what attention does."""
    key, value = (heads.repeat_interleave(query.shape[1] // heads.shape[1], 1) for heads in (key, value))
    return value * (query * key).mean(-1, keepdim=True).tanh()


class QuickStates:
    """`LayerStates` of any module."""

    def convolve(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        answer = inputs * weight.mean(1)
        return answer if bias is None else answer + bias

    def advance(self, query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
        heads = value.shape[1] // key.shape[1]
        found = (query * key).mean(-1, keepdim=True).tanh().repeat_interleave(heads, 1)
        kept = log_decay if log_decay.dim() == 2 else log_decay.mean(-1)
        return (value * (found + (kept.exp() * beta)[..., None])).to(value.dtype)
