"""Attention of rows with one new token each. A long context is read in parts by several programs, and a
beginning that rows share by those of `shared_kernel`, where a tile holds the query heads of one KV head of
several rows, and loads each shared key once for all of them; the last kernel puts a row's parts together by
the logarithms of their sums (split-KV, https://crfm.stanford.edu/2023/10/12/flashdecoding.html).

    parts of a row    │ shared_parts of its beginning │ own_parts │     each [VALUE_DIM], and a sum

How many parts there are is no constant of the kernels: each number would be one more to compile.
"""

# Triton's types are none of Python's:
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from millstream_worker.engine.runner.attention.triton.tile import (
    LOG2_E,
    attend_range,
    empty_sums,
    load_queries,
    part_keys,
    store_answers,
)


@triton.jit
def own_range(kv_lens, shared_lens, row, shared_parts, WINDOW: tl.constexpr):
    """Where the keys begin and end that a row reads alone, and how many it reads with others."""
    kv_len = tl.load(kv_lens + row)
    shared = tl.where(shared_parts > 0, tl.load(shared_lens + row), 0)
    begin = tl.maximum(kv_len - WINDOW, 0) if WINDOW > 0 else shared
    return begin, kv_len, shared


@triton.jit(do_not_specialize=["shared_parts", "own_parts", "table_stride"])
def decode_kernel(
    query,  # [rows, heads, KEY_DIM]
    keys,
    values,
    tables,  # [rows, table_stride] int32
    kv_lens,  # [rows] int32
    shared_lens,  # [rows] int32: keys that shared_kernel reads for the row, if it has any parts
    sinks,  # [heads], read only where SINKS
    out,  # [rows, heads, VALUE_DIM], contiguous; written where a row has one part
    parts,  # [rows, heads, shared_parts + own_parts, VALUE_DIM] float32; written otherwise
    part_sums,  # [rows, heads, shared_parts + own_parts] float32: logarithm of each sum of weights, in base 2
    scale,
    shared_parts,
    own_parts,
    query_token_stride,
    query_head_stride,
    table_stride,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of a KV head
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PAD_KEY: tl.constexpr,
    PAD_VALUE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,  # GROUP, padded
    KEYS: tl.constexpr,
    LEAST: tl.constexpr,  # keys of a part
    ALONE: tl.constexpr,  # the row has one part
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    begin, end, _ = own_range(kv_lens, shared_lens, row, shared_parts, WINDOW)
    size = part_keys(end - begin, own_parts, LEAST, KEYS)
    start = begin + part * size
    if (part > 0) & (start >= end):
        return  # an empty part: the last kernel knows as well

    member = tl.arange(0, ROWS)
    head = kv_head * GROUP + member
    mine = member < GROUP
    asked = load_queries(query, row, head, mine, query_token_stride, query_head_stride, KEY_DIM, PAD_KEY)
    highest, total = empty_sums(sinks, head, mine, ROWS, SINKS and ALONE)
    answer, log_sum = attend_range(
        asked, tl.zeros([ROWS], tl.int32) + (end - 1), start, tl.minimum(start + size, end), start, start,
        keys, values, kv_head, tables + row * table_stride, scale, highest, total,
        ROWS, HEADS, GROUP, KEY_DIM, VALUE_DIM, PAD_KEY, PAD_VALUE, BLOCK_SIZE, KEYS,
        False, WINDOW, SOFTCAP,
    )  # fmt: skip
    place = row * HEADS + head
    if ALONE:
        store_answers(out, place, answer, mine, VALUE_DIM, PAD_VALUE)
    else:
        place = place * (shared_parts + own_parts) + shared_parts + part
        store_answers(parts, place, answer, mine, VALUE_DIM, PAD_VALUE)
        tl.store(part_sums + place, log_sum, mask=mine)


@triton.jit(do_not_specialize=["shared_parts", "own_parts", "table_stride"])
def shared_kernel(
    query,  # [rows, heads, KEY_DIM]
    keys,
    values,
    tables,  # [rows, table_stride] int32
    shared_lens,  # [rows] int32: keys that a row shares
    members,  # [members] int32: rows that share, prefix group after prefix group
    tile_firsts,  # [tiles] int32: a tile's first place among the members
    tile_counts,  # [tiles] int32: its members, all of one prefix group; 0: nothing to do
    parts,  # [rows, heads, shared_parts + own_parts, VALUE_DIM] float32
    part_sums,  # [rows, heads, shared_parts + own_parts] float32
    scale,
    shared_parts,
    own_parts,
    query_token_stride,
    query_head_stride,
    table_stride,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of a KV head
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PAD_KEY: tl.constexpr,
    PAD_VALUE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,  # query heads of a tile, padded
    KEYS: tl.constexpr,
    LEAST: tl.constexpr,  # keys of a part
    SOFTCAP: tl.constexpr,
):
    tile = tl.program_id(0)
    kv_head = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    count = tl.load(tile_counts + tile)
    if count == 0:
        return
    first = tl.load(tile_firsts + tile)
    leader = tl.load(members + first).to(tl.int64)  # any member's table begins with the shared blocks
    length = tl.load(shared_lens + leader)
    size = part_keys(length, shared_parts, LEAST, KEYS)
    start = part * size
    if start >= length:
        return
    end = tl.minimum(start + size, length)

    place = tl.arange(0, ROWS)
    mine = place < count * GROUP
    row = tl.load(members + first + place // GROUP, mask=mine, other=0).to(tl.int64)
    head = kv_head * GROUP + place % GROUP
    asked = load_queries(query, row, head, mine, query_token_stride, query_head_stride, KEY_DIM, PAD_KEY)
    highest, total = empty_sums(query, head, mine, ROWS, False)
    answer, log_sum = attend_range(
        asked, tl.zeros([ROWS], tl.int32) + length, start, end, start, start + (end - start) // KEYS * KEYS,
        keys, values, kv_head, tables + leader * table_stride, scale, highest, total,
        ROWS, HEADS, GROUP, KEY_DIM, VALUE_DIM, PAD_KEY, PAD_VALUE, BLOCK_SIZE, KEYS,
        True, 0, SOFTCAP,
    )  # fmt: skip
    target = (row * HEADS + head) * (shared_parts + own_parts) + part
    store_answers(parts, target, answer, mine, VALUE_DIM, PAD_VALUE)
    tl.store(part_sums + target, log_sum, mask=mine)


@triton.jit(do_not_specialize=["shared_parts", "own_parts"])
def combine_kernel(
    parts,
    part_sums,
    kv_lens,
    shared_lens,
    sinks,
    out,
    shared_parts,
    own_parts,
    HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PAD_VALUE: tl.constexpr,
    KEYS: tl.constexpr,
    LEAST: tl.constexpr,
    PAD_PARTS: tl.constexpr,  # of shared_parts + own_parts
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    place = row * HEADS + tl.program_id(1)
    begin, end, shared = own_range(kv_lens, shared_lens, row, shared_parts, WINDOW)
    part = tl.arange(0, PAD_PARTS)
    own = part - shared_parts
    first = tl.where(own >= 0, own * part_keys(end - begin, own_parts, LEAST, KEYS), end - begin)
    written = (own < own_parts) & (first < end - begin)
    first = part * part_keys(shared, shared_parts, LEAST, KEYS)
    written = written | ((own < 0) & (first < shared))
    source = place * (shared_parts + own_parts) + part
    sums = tl.load(part_sums + source, mask=written, other=float("-inf"))
    highest = tl.max(sums, 0)
    sink = float("-inf")
    if SINKS:
        sink = tl.load(sinks + tl.program_id(1)).to(tl.float32) * LOG2_E
        highest = tl.maximum(highest, sink)
    highest = tl.where(highest == float("-inf"), 0.0, highest)  # a row of no keys: no inf - inf
    weights = tl.exp2(sums - highest)
    total = tl.sum(weights, 0) + tl.exp2(sink - highest)
    value_place = tl.arange(0, PAD_VALUE)
    answers = tl.load(
        parts + source[:, None] * VALUE_DIM + value_place[None, :],
        mask=written[:, None] & (value_place < VALUE_DIM)[None, :],
        other=0.0,
    )
    answer = tl.sum(answers * weights[:, None], 0) / tl.where(total > 0, total, 1.0)
    target = out + place * VALUE_DIM + value_place
    tl.store(target, answer.to(out.dtype.element_ty), mask=value_place < VALUE_DIM)
