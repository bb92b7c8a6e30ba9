"""Puts a step's new keys and values into their places in the KV storage, as codes of 8 bits where the layer's
format says so. Tokens that only pad the step have no place, and no kernel computes an answer for them: theirs
is 0, not what was in its memory before. So the layers behind, a mixture's router among them, compute with
numbers."""

# Triton's types are none of Python's:
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

_MOST = tl.constexpr(1 / 127)  # of kv_format.py, as are the next two
_LEAST_HALF = tl.constexpr(1e-18)
_INFINITY, _NO_NUMBER = tl.constexpr(0x7F800000), tl.constexpr(0x7FC00000)  # bits
_WHOLE = tl.constexpr(3 * 2.0**22)  # what is added to it is rounded to a whole number, half to even


@triton.jit(do_not_specialize=["slot_count"])
def store_kernel(
    key,  # [tokens, kv_heads, KEY_DIM]
    value,  # [tokens, kv_heads, VALUE_DIM]
    keys,  # [blocks, kv_heads, BLOCK_SIZE, KEY_DIM]
    values,  # [blocks, kv_heads, BLOCK_SIZE, VALUE_DIM]
    key_scales,  # [blocks, kv_heads, BLOCK_SIZE] int32: scale and middle in bfloat16; written only where INT8
    value_scales,  # the same, int16: scale in bfloat16
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
    INT8: tl.constexpr,
    STORES: tl.constexpr,  # else the keys and values are those of a layer before it
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
    if not STORES:
        return
    row = (slot // BLOCK_SIZE * KV_HEADS + head) * BLOCK_SIZE + slot % BLOCK_SIZE
    place = tl.arange(0, PAD_KEY)
    mine = place < KEY_DIM
    new = tl.load(key + token * key_token_stride + head * key_head_stride + place, mask=mine)
    if INT8:
        new, scale, middle = _quantized(new.to(tl.float32), mine, True)
        tl.store(key_scales + row, ((scale >> 16) & 0xFFFF) | middle)
    tl.store(keys + row * KEY_DIM + place, new.to(keys.dtype.element_ty), mask=mine)
    place = tl.arange(0, PAD_VALUE)
    mine = place < VALUE_DIM
    new = tl.load(value + token * value_token_stride + head * value_head_stride + place, mask=mine)
    if INT8:
        new, scale, middle = _quantized(new.to(tl.float32), mine, False)
        tl.store(value_scales + row, (scale >> 16).to(tl.int16))
    tl.store(values + row * VALUE_DIM + place, new.to(values.dtype.element_ty), mask=mine)


@triton.jit
def _quantized(numbers, mine, MIDDLE: tl.constexpr):
    """kv_format.py's `quantize` of one vector, to the last bit: codes, whole numbers in float32; scale and
    middle, bits of float32 of which the upper half counts. Without MIDDLE that is 0. Compile it without fused
    products and sums: they round once where PyTorch rounds twice."""
    finite = tl.min(tl.where(mine & ~(tl.abs(numbers) < float("inf")), 0, 1), 0) > 0
    numbers = tl.where(mine & finite, numbers, 0.0)
    if MIDDLE:
        least = tl.min(tl.where(mine, numbers, float("inf")), 0)
        largest = tl.max(tl.where(mine, numbers, float("-inf")), 0)
        bits = ((least + largest) * 0.5).to(tl.int32, bitcast=True)
        middle = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536  # to the nearest bfloat16, half to even
        shift = middle.to(tl.float32, bitcast=True)
        half = tl.maximum(largest - shift, shift - least)
    else:
        middle = tl.full([], 0, tl.int32)
        shift = 0.0
        half = tl.max(tl.abs(numbers), 0)
    scale = ((half * _MOST).to(tl.int32, bitcast=True) + 0xFFFF) & -65536  # to the next one that is not less
    scale = tl.where(half > _LEAST_HALF, scale, 0)
    divisor = tl.where(scale > 0, scale, _INFINITY).to(tl.float32, bitcast=True)
    codes = ((numbers - shift) * tl.div_rn(1.0, divisor) + _WHOLE) - _WHOLE
    scale = tl.where(finite & (half < float("inf")), scale, _NO_NUMBER)
    return tl.where(scale < _INFINITY, codes, 0.0), scale, tl.where(finite, middle, _NO_NUMBER)
