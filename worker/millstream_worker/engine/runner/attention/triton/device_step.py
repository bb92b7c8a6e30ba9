"""What the Triton kernels must know of a step: vectors that lie on the device, and a few numbers that decide
how many programs start.

A captured graph keeps the numbers and the places of the vectors. So all that depends on lengths is read from
the vectors, and for every step that decodes so many rows vectors of the same sizes do
(`StepLayout.decode_sizes`), with anything beyond the step's own values blank: a row of 0 keys, a slot of -1
and a tile of 0 members cost next to nothing and change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Int32, Plan
from millstream_worker.engine.runner.attention.tiles import tiles
from millstream_worker.engine.runner.device.transfer import Arena, Field, to_device
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec

LEAST_PART_KEYS = 256  # a shorter part costs more to put together than it saves
MOST_PARTS = 64
LEAST_DOT = 16  # sides of a tensor core's matrix product
TILE_QUERIES = 64  # query heads of a tile, of several rows that share keys
PREFILL_QUERIES = 128  # of several tokens of a row
NARROW_HEAD = 256  # bytes of a head's key or value
Vectors = dict[str, NDArray[Any]]
_BLANKS = {"slots": -1}  # what stands beyond a step's own values; else 0


@dataclass(frozen=True, slots=True, eq=False)
class DeviceStep:
    """What the layers of one shape share in a step of S segments and T tokens; int32 where nothing else is
    said. The vectors may be longer than the step is."""

    slots: Tensor  # [T] int64
    tables: Tensor  # [S, W]
    kv_lens: Tensor  # [S]
    query_lens: Tensor  # [S]
    query_starts: Tensor  # [S]
    tile_segments: Tensor  # [N] prefill tiles
    tile_firsts: Tensor  # [N]
    prefill_starts: Tensor  # [P + 1] where the segments that do not decode start, counted from the first
    shared_lens: Tensor  # [S] tokens that a segment reads with its prefix group
    members: Tensor  # [M] segments of prefix groups
    shared_firsts: Tensor  # [H] tiles of members: the place of the first among the members
    shared_counts: Tensor  # [H] and how many
    decodes: int
    parts: int  # in which a row's own context is read
    shared_parts: int  # in which a prefix group's is; 0: the step has no prefix groups
    longest_query: int  # of the segments that do not decode: new tokens
    longest_context: int


@dataclass(frozen=True, slots=True)
class StepLayout:
    """Lays steps out for the layers of one shape, whose keys and values have numbers of `itemsize` bytes, on
    a device that wants so many `programs` of a kernel."""

    shape: LayerSpec
    itemsize: int
    programs: int

    @property
    def tile(self) -> int:
        return tile_rows(self.shape, self.itemsize)

    def arrays(self, plan: Plan) -> Vectors:
        """A step's vectors by the names of `DeviceStep`'s fields."""
        segments, firsts = prefill_tiles(plan, tile_tokens(self.shape, self.itemsize))
        shared_lens, shared_firsts, shared_counts = self.shared_tiles(plan)
        return {
            "slots": plan.slot_mapping[self.shape.group],
            "tables": plan.block_tables[self.shape.group],
            "kv_lens": plan.kv_lens,
            "query_lens": plan.query_lens,
            "query_starts": plan.query_starts[:-1],
            "tile_segments": segments,
            "tile_firsts": firsts,
            "prefill_starts": plan.query_starts[plan.decodes :] - np.int32(plan.decodes),
            "shared_lens": shared_lens,
            "members": plan.prefix_group_segments,
            "shared_firsts": shared_firsts,
            "shared_counts": shared_counts,
        }

    def decode_sizes(self, rows: int, width: int) -> dict[str, int]:
        """The most numbers in each vector of a step that decodes up to `rows` rows of up to `width` blocks,
        and does nothing else."""
        segments = ("slots", "kv_lens", "query_lens", "query_starts", "shared_lens", "members")
        tiles = rows // 2 + rows // self.tile  # prefix groups of two, or as many full tiles as there are
        return dict.fromkeys(segments, rows) | {
            "tables": rows * width,
            "tile_segments": 0,
            "tile_firsts": 0,
            "prefill_starts": 1,
            "shared_firsts": tiles,
            "shared_counts": tiles,
        }

    def numbers(self, plan: Plan, vectors: Vectors) -> dict[str, int]:
        """The numbers of `DeviceStep` that suit this step best. `vectors`: what `arrays` made of it."""
        shared_lens, tiles = vectors["shared_lens"], vectors["shared_counts"]
        longest = int((plan.kv_lens - shared_lens)[: plan.decodes].max(initial=1))
        own, shared = self.parts_for(plan.decodes, min(longest, self.shape.window or longest))
        if len(tiles):
            _, shared = self.parts_for(len(plan.prefix_group_segments), int(shared_lens.max()))
        return {
            "decodes": plan.decodes,
            "parts": own,
            "shared_parts": shared if len(tiles) else 0,
            "longest_query": int(plan.query_lens[plan.decodes :].max(initial=0)),
            "longest_context": int(plan.kv_lens[plan.decodes :].max(initial=0)),
        }

    def parts_for(self, rows: int, longest: int) -> tuple[int, int]:
        """In how many parts `rows` decoding rows read what each reads alone, of up to `longest` keys; and
        what they read in prefix groups, whose tiles are fewer, and compute so much that half as many programs
        do."""
        tiles, heads = -(-rows // self.tile), self.shape.kv_heads
        own = split(longest, rows * heads, self.programs)
        return own, split(longest, tiles * heads, self.programs // 2)

    def shared_tiles(self, plan: Plan) -> tuple[Int32, Int32, Int32]:
        """Tokens that each segment shares, and first member and members of each tile of a prefix group. A
        layer with a window shares nothing: what a row sees of the beginning is its own."""
        shared = np.zeros(len(plan.kv_lens), np.int32)
        if self.shape.window is not None or not len(plan.prefix_group_lens):
            none = np.empty(0, np.int32)
            return shared, none, none
        counts = np.diff(plan.prefix_group_starts)
        shared[plan.prefix_group_segments] = np.repeat(plan.prefix_group_lens, counts)
        owner, firsts, members = tiles(counts, self.tile)
        return shared, (plan.prefix_group_starts[owner] + firsts).astype(np.int32), members.astype(np.int32)


def split(longest: int, programs: int, wanted: int) -> int:
    """Parts that contexts of up to `longest` keys are read in, when one part each makes `programs` programs
    and the device wants as many as `wanted`."""
    return max(1, min(-(-longest // LEAST_PART_KEYS), MOST_PARTS, wanted // max(programs, 1)))


def prefill_tiles(plan: Plan, tokens: int) -> tuple[Int32, Int32]:
    """Segment and first token of each prefill tile of up to so many new tokens; those that see most keys come
    first, so that none of them is computed alone at the end."""
    lens = plan.query_lens[plan.decodes :]
    cached = plan.kv_lens[plan.decodes :] - lens
    owner, firsts, counts = tiles(lens, tokens)
    order = np.argsort(-(cached[owner] + firsts + counts), kind="stable")
    return (owner[order] + plan.decodes).astype(np.int32), firsts[order].astype(np.int32)


def tile_rows(spec: LayerSpec, itemsize: int) -> int:
    """Rows of a tile of a prefix group: their query heads of one KV head fill it. In float32 they are half as
    many: more have no room in registers, nor, 256 wide, in the shared memory of compute capability 8.6."""
    queries = TILE_QUERIES if itemsize < 4 else TILE_QUERIES // 2
    return max(1, queries // (spec.heads // spec.kv_heads))


def tile_tokens(spec: LayerSpec, itemsize: int) -> int:
    """Tokens of a prefill tile. Those of narrow heads are twice as large, for eight warps, so that keys are
    read half as often. Few new tokens leave most of such a tile empty, and cost little more for it: what a
    tile reads then takes longer than what it computes. So there is one size, and one kernel to compile."""
    if itemsize == 4 or head_bytes(spec, itemsize) > NARROW_HEAD:
        return tile_rows(spec, itemsize)
    return max(1, PREFILL_QUERIES // (spec.heads // spec.kv_heads))


def head_bytes(spec: LayerSpec, itemsize: int) -> int:
    return max(spec.key_dim, spec.value_dim) * itemsize


def padded(size: int, least: int) -> int:
    """The next power of two: what Triton's blocks are made of."""
    return max(least, 1 << (size - 1).bit_length())


class StaticDecode:
    """`StaticStep` of `rows` rows of up to `width` blocks, for layers of these layouts: what a recorded step
    reads, at places that stay."""

    def __init__(
        self,
        layouts: Sequence[StepLayout],
        rows: int,
        width: int,
        parts: Sequence[tuple[int, int]],  # of each shape: own and shared ones
        device: torch.device,
    ) -> None:
        self._layouts = list(layouts)
        self._tables = {
            group: torch.zeros(rows, width, dtype=torch.int32, device=device)
            for group in {layout.shape.group for layout in layouts}
        }
        sizes = [layout.decode_sizes(rows, width) for layout in layouts]
        self._arena = Arena(
            {
                _name(index, name): Field(
                    size, np.int64 if name == "slots" else np.int32, _BLANKS.get(name, 0)
                )
                for index, named in enumerate(sizes)
                for name, size in named.items()
                if name != "tables"
            },
            device,
        )
        self.steps = {
            layout.shape: DeviceStep(
                tables=self._tables[layout.shape.group],
                **{name: self._arena[_name(index, name)] for name in named if name != "tables"},
                decodes=rows,
                parts=own,
                shared_parts=shared,
                longest_query=0,
                longest_context=0,
            )
            for index, (layout, named, (own, shared)) in enumerate(zip(layouts, sizes, parts, strict=True))
        }

    def fill(self, plan: Plan) -> None:
        vectors = {
            _name(index, name): array
            for index, layout in enumerate(self._layouts)
            for name, array in layout.arrays(plan).items()
            if name != "tables"
        }
        self._arena.fill(**vectors)
        for group, table in self._tables.items():
            rows = to_device(plan.block_tables[group], table.device)
            table[: rows.shape[0], : rows.shape[1]].copy_(rows)  # what stands beyond is never read


def _name(index: int, name: str) -> str:
    return f"{index}.{name}"
