"""Keeps what modules with a recurrent state were given of tokens that may turn out wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from millstream_worker.engine.runner.states.spec import ITEM_BYTES, RuleSpec, StateSpec


@dataclass(frozen=True, slots=True, eq=False)
class HeldRule:
    """Has what a rule was given, of up to N tokens of each slot."""

    keys: Tensor  # [slots, N, key_heads, key_dim]
    values: Tensor  # [slots, N, heads, value_dim]
    log_decays: Tensor  # [slots, N, heads] or [slots, N, heads, key_dim] float32
    betas: Tensor  # [slots, N, heads] float32


@dataclass(frozen=True, slots=True, eq=False)
class HeldInputs:
    """Has what a module was given."""

    channels: Tensor  # [slots, N, channels]
    rule: HeldRule | None


def room_for(spec: StateSpec, slots: int, tokens: int) -> HeldInputs:
    """Returns room for so many tokens of each slot. The system gives it where it is written to."""
    convolution = spec.convolution
    channels = torch.zeros(slots, tokens, convolution.channels, dtype=convolution.dtype)
    if spec.rule is None:
        return HeldInputs(channels, None)
    keys, values, decays, betas = _shapes(spec.rule)
    return HeldInputs(
        channels,
        HeldRule(
            torch.zeros(slots, tokens, *keys, dtype=spec.rule.dtype),
            torch.zeros(slots, tokens, *values, dtype=spec.rule.dtype),
            torch.zeros(slots, tokens, *decays),
            torch.zeros(slots, tokens, *betas),
        ),
    )


def held_tokens(drafts: int) -> int:
    """Returns the most tokens of a slot that are held: draft tokens, and the one before them."""
    return 1 + drafts if drafts else 0


def held_bytes(specs: Sequence[StateSpec], tokens: int) -> int:
    """Returns the bytes of that for one slot, of all modules."""
    size = 0
    for spec in specs:
        size += spec.convolution.channels * spec.convolution.dtype.itemsize
        if spec.rule is not None:
            keys, values, decays, betas = map(prod, _shapes(spec.rule))
            size += (keys + values) * spec.rule.dtype.itemsize + (decays + betas) * ITEM_BYTES
    return size * tokens


def _shapes(rule: RuleSpec) -> tuple[tuple[int, ...], ...]:
    decays = (rule.heads, rule.key_dim) if rule.by_channel else (rule.heads,)
    return (rule.key_heads, rule.key_dim), (rule.heads, rule.value_dim), decays, (rule.heads,)
