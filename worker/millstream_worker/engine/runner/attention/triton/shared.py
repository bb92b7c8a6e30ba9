"""Attention of rows with one new token each to a beginning that they share: a tile holds the query heads of
one KV head of several rows, and loads each shared key once for all of them. What it finds are parts of those
rows' answers, which decode.py puts together with what each row reads alone.
"""

# Triton's types are none of Python's:
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from millstream_worker.engine.runner.attention.triton.tile import (
    attend_range,
    empty_sums,
    load_queries,
    part_keys,
    store_answers,
)


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

    place = tl.arange(0, ROWS)
    mine = place < count * GROUP
    row = tl.load(members + first + place // GROUP, mask=mine, other=0).to(tl.int64)
    head = kv_head * GROUP + place % GROUP
    asked = load_queries(query, row, head, mine, query_token_stride, query_head_stride, KEY_DIM, PAD_KEY)
    highest, total = empty_sums(query, head, mine, ROWS, False)
    answer, log_sum = attend_range(
        asked, tl.zeros([ROWS], tl.int32) + length, start, tl.minimum(start + size, length),
        keys, values, kv_head, tables + leader * table_stride, scale, highest, total,
        ROWS, HEADS, GROUP, KEY_DIM, VALUE_DIM, PAD_KEY, PAD_VALUE, BLOCK_SIZE, KEYS, 0, SOFTCAP,
    )  # fmt: skip
    target = (row * HEADS + head) * (shared_parts + own_parts) + part
    store_answers(parts, target, answer, mine, VALUE_DIM, PAD_VALUE)
    tl.store(part_sums + target, log_sum, mask=mine)
