"""Puts a step's new keys and values into their places in the KV storage. Tokens that only pad the step have
none, and no kernel computes an answer for them: theirs is 0, not what was in its memory before. So the layers
behind, a mixture's router among them, compute with numbers."""

# Triton's types are none of Python's:
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["slot_count"])
def store_kernel(
    key,  # [tokens, kv_heads, KEY_DIM]
    value,  # [tokens, kv_heads, VALUE_DIM]
    keys,  # [blocks, kv_heads, BLOCK_SIZE, KEY_DIM]
    values,  # [blocks, kv_heads, BLOCK_SIZE, VALUE_DIM]
    slots,  # [slot_count] int64: block * BLOCK_SIZE + offset; -1, or none: a token that is stored nowhere
    out,  # [tokens, heads, VALUE_DIM], contiguous
    slot_count,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of a KV head
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PAD_KEY: tl.constexpr,
    PAD_VALUE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + token, mask=token < slot_count, other=-1)
    if slot < 0:
        place = tl.arange(0, PAD_VALUE)
        for member in range(GROUP):
            answer = out + ((token * KV_HEADS + head) * GROUP + member) * VALUE_DIM
            zeros = tl.zeros([PAD_VALUE], out.dtype.element_ty)
            tl.store(answer + place, zeros, mask=place < VALUE_DIM)
        return
    row = (slot // BLOCK_SIZE * KV_HEADS + head) * BLOCK_SIZE + slot % BLOCK_SIZE
    place = tl.arange(0, PAD_KEY)
    new = tl.load(key + token * key_token_stride + head * key_head_stride + place, mask=place < KEY_DIM)
    tl.store(keys + row * KEY_DIM + place, new.to(keys.dtype.element_ty), mask=place < KEY_DIM)
    place = tl.arange(0, PAD_VALUE)
    new = tl.load(
        value + token * value_token_stride + head * value_head_stride + place, mask=place < VALUE_DIM
    )
    tl.store(values + row * VALUE_DIM + place, new.to(values.dtype.element_ty), mask=place < VALUE_DIM)
