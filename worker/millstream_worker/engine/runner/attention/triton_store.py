"""Puts a step's new keys and values into their places in the KV storage."""

# Triton's types are none of Python's:
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def store_kernel(
    key,  # [tokens, kv_heads, KEY_DIM]
    value,  # [tokens, kv_heads, VALUE_DIM]
    keys,
    values,
    slots,  # [tokens] int64: block * BLOCK_SIZE + offset
    new_key_token_stride,
    new_key_head_stride,
    new_value_token_stride,
    new_value_head_stride,
    key_block_stride,
    key_head_stride,
    key_token_stride,
    value_block_stride,
    value_head_stride,
    value_token_stride,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PAD_KEY: tl.constexpr,
    PAD_VALUE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + token)
    block = slot // BLOCK_SIZE
    offset = slot % BLOCK_SIZE
    place = tl.arange(0, PAD_KEY)
    new = tl.load(
        key + token * new_key_token_stride + head * new_key_head_stride + place, mask=place < KEY_DIM
    )
    target = keys + block * key_block_stride + head * key_head_stride + offset * key_token_stride + place
    tl.store(target, new.to(keys.dtype.element_ty), mask=place < KEY_DIM)
    place = tl.arange(0, PAD_VALUE)
    new = tl.load(
        value + token * new_value_token_stride + head * new_value_head_stride + place, mask=place < VALUE_DIM
    )
    target = (
        values + block * value_block_stride + head * value_head_stride + offset * value_token_stride + place
    )
    tl.store(target, new.to(values.dtype.element_ty), mask=place < VALUE_DIM)
