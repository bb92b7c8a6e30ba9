"""Lays a step out for the Triton kernels: who reads which keys for which queries, as plain arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream_worker.engine.brain.batch.plan import Int32, Int64, Plan
from millstream_worker.engine.runner.attention.interface import StaticSize
from millstream_worker.engine.runner.attention.tiles import tiles
from millstream_worker.engine.runner.gpu.attention.device_step import WIDTHS
from millstream_worker.engine.runner.gpu.attention.key_parts import KeyParts, cut
from millstream_worker.engine.runner.gpu.attention.tile_sizes import tile_rows, tile_tokens
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec

LEAST_PART_KEYS = 256  # a shorter part costs more to merge than it saves
LEAST_TILE_KEYS = 512  # and a tile's has more to merge
Vectors = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class StepLayout:
    """The layout for the layers of one shape, whose keys and values have numbers of `itemsize` bytes. The
    device wants `programs` programs of a kernel."""

    shape: LayerSpec
    itemsize: int
    programs: int

    @property
    def tile(self) -> int:
        return tile_rows(self.shape, self.itemsize)

    @property
    def row_programs(self) -> int:
        """Programs per KV head, where each computes one row: as many as the device wants."""
        return max(1, self.programs // self.shape.kv_heads)

    @property
    def tile_programs(self) -> int:
        """Programs per KV head for tiles: half as many, as each does more work."""
        return max(1, self.programs // 2 // self.shape.kv_heads)

    def arrays(self, plan: Plan) -> tuple[Vectors, dict[str, int]]:
        """Returns a step's vectors and numbers by the names of `DeviceStep`'s fields."""
        vectors: Vectors = {
            "slots": plan.slot_mapping[self.shape.group],
            "tables": plan.block_tables[self.shape.group],
            "kv_lens": plan.kv_lens,
            "query_lens": plan.query_lens,
            "query_starts": plan.query_starts[:-1],
            "members": plan.prefix_group_segments,
        }
        decode, decode_partials = self._decode(plan)
        prefill, prefill_partials = self._prefill(plan)
        return vectors | decode | prefill, {
            "decodes": plan.decodes,
            "decode_partials": decode_partials,
            "prefill_partials": prefill_partials,
        }

    def static_sizes(self, size: StaticSize, block_size: int) -> tuple[dict[str, int], dict[str, int]]:
        """Returns the most numbers in each vector of a step of that size; and the numbers of `DeviceStep` for
        all such steps."""
        longest = size.width * block_size
        decode, decode_partials = self.decode_sizes(size.rows, longest, prefix_groups=size.prefix_groups)
        prefill, prefill_partials = self.prefill_sizes(size.tokens, size.prompts, longest)
        rowed = ("kv_lens", "query_lens", "query_starts", "members", "member_partials")
        return {"slots": size.tokens} | dict.fromkeys(rowed, size.rows) | decode | prefill, {
            "decodes": size.rows,
            "decode_partials": decode_partials,
            "prefill_partials": prefill_partials,
        }

    def decode_sizes(self, rows: int, longest: int, *, prefix_groups: bool) -> tuple[dict[str, int], int]:
        """Returns the sizes for up to `rows` decoding rows of up to `longest` tokens; and most partials."""
        most = min(longest, self.shape.window or longest) // LEAST_PART_KEYS  # parts of a row
        partials = min(rows * most, self.row_programs) if most > 1 else 0
        parts, merges, tiles = rows + max(0, partials - 1), min(rows, partials // 2), 0
        if prefix_groups and self.shape.window is None:
            tiles = rows // 2 + rows // self.tile  # prefix groups of two, or as many full tiles as there are
            # Each row may have one of what it reads alone, and one of what it shares, without being cut.
            partials += 2 * rows + min(rows * most, self.tile * self.tile_programs)
            merges, tiles = rows, tiles + min(tiles * most, self.tile_programs)
        return {"decode_parts": parts, "decode_merges": merges, "shared_parts": tiles}, partials

    def prefill_sizes(self, tokens: int, prompts: int, longest: int) -> tuple[dict[str, int], int]:
        """Returns the same for up to so many new tokens in so many segments that do not decode."""
        tile = tile_tokens(self.shape, self.itemsize)
        tiles = min(tokens // tile + prompts, tokens) if prompts else 0
        most = min(longest, (self.shape.window or longest) + tile) // LEAST_TILE_KEYS  # parts of a tile
        parts = min(tiles * most, self.tile_programs) if most > 1 else 0
        return {
            "prefill_parts": tiles + max(0, parts - 1),
            "prefill_merges": min(tokens, parts // 2 * tile),
        }, parts * tile

    def _decode(self, plan: Plan) -> tuple[Vectors, int]:
        shared_lens, shared_counts, shared_parts = self._shared(plan)
        ends = plan.kv_lens[: plan.decodes].astype(np.int64)
        begins = shared_lens if self.shape.window is None else np.maximum(ends - self.shape.window, 0)
        parts = cut(begins, ends, self.row_programs, LEAST_PART_KEYS)
        counts = parts.counts + shared_counts
        partials = np.where(counts > 1, counts, 0)
        firsts = np.cumsum(partials) - partials
        own = np.where(partials > 0, firsts + shared_counts, -1)[parts.runs] + parts.numbers
        merged = np.flatnonzero(partials)
        return {
            "decode_parts": _rows(parts.runs, parts.begins, parts.ends, own),
            "decode_merges": _rows(merged, firsts[merged], partials[merged]),
            "member_partials": firsts.astype(np.int32),
            "shared_parts": shared_parts,
        }, int(partials.sum())

    def _shared(self, plan: Plan) -> tuple[Int64, Int64, Int32]:
        """Returns the tokens that each decoding segment shares, the parts in which they are read for it, and
        these parts of all tiles. A layer with a window shares nothing: what a row sees of the beginning is
        its own."""
        lens, counts = np.zeros((2, plan.decodes), np.int64)
        if self.shape.window is not None or not len(plan.prefix_group_lens):
            return lens, counts, _none("shared_parts")
        sizes = np.diff(plan.prefix_group_starts)
        lens[plan.prefix_group_segments] = np.repeat(plan.prefix_group_lens, sizes)
        group, firsts, members = tiles(sizes, self.tile)
        ends = plan.prefix_group_lens[group].astype(np.int64)
        parts = cut(np.zeros_like(ends), ends, self.tile_programs, LEAST_PART_KEYS)
        counts[plan.prefix_group_segments] = np.repeat(parts.counts, members)
        places = plan.prefix_group_starts[group] + firsts
        shared_parts = _rows(places[parts.runs], members[parts.runs], parts.begins, parts.ends, parts.numbers)
        return lens, counts, shared_parts

    def _prefill(self, plan: Plan) -> tuple[Vectors, int]:
        """Puts those parts first that see most keys, so that none of them is computed alone at the end."""
        prompts = np.arange(plan.decodes, len(plan.query_lens))
        if not len(prompts):
            return {name: _none(name) for name in ("prefill_parts", "prefill_merges")}, 0
        lens = plan.query_lens[prompts]
        cached = (plan.kv_lens[prompts] - lens).astype(np.int64)
        owner, first_tokens, tokens = tiles(lens, tile_tokens(self.shape, self.itemsize))
        own, segments = cached[owner] + first_tokens, prompts[owner]
        window = self.shape.window
        begins = np.zeros_like(own) if window is None else np.maximum(own + 1 - window, 0)
        parts = cut(begins, own + tokens, self.tile_programs, LEAST_TILE_KEYS)
        runs, partials = parts.runs, np.where(parts.counts > 1, parts.counts * tokens, 0)
        firsts = np.where(partials > 0, np.cumsum(partials) - partials, -1)[runs] + parts.numbers
        queries = segments[runs], first_tokens[runs]
        found = _rows(*queries, parts.begins, parts.ends, firsts, parts.counts[runs])
        return {
            "prefill_parts": found[np.argsort(parts.begins - parts.ends, kind="stable")],
            "prefill_merges": _token_merges(plan.query_starts[segments] + first_tokens, tokens, parts),
        }, int(partials.sum())


def _token_merges(first_tokens: Int64, tokens: Int64, parts: KeyParts) -> Int32:
    """Returns the merges of tokens in tiles of several parts: tile after tile, token after token."""
    several = np.flatnonzero(parts.counts > 1)
    if not len(several):
        return _none("prefill_merges")
    counts = tokens[several]
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    partials = np.repeat(parts.counts[several], counts)
    return _rows(np.repeat(first_tokens[several], counts) + within, np.cumsum(partials) - partials, partials)


def _rows(*columns: NDArray[Any]) -> Int32:
    rows = np.empty((len(columns[0]), len(columns)), np.int32)  # np.stack takes five times as long
    for place, column in enumerate(columns):
        rows[:, place] = column
    return rows


def _none(name: str) -> Int32:
    return np.empty((0, WIDTHS[name]), np.int32)
