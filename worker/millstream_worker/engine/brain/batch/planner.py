"""Converts the scheduler's decisions to the arrays of a plan. There is no loop over rows, only over chunks.

Most steps only decode: each row has one token, and samples one. They take a shorter path; in other steps a
decode row is a chunk of one token.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from millstream_worker.engine.brain.batch.batch import Batch, blocks_for
from millstream_worker.engine.brain.batch.noise import uniform
from millstream_worker.engine.brain.batch.plan import ImagePiece, Int32, Plan, RowLoad
from millstream_worker.engine.brain.batch.rows import Row
from millstream_worker.engine.brain.batch.shared_prefixes import SharedPrefixes, spread
from millstream_worker.engine.brain.images.encode_choice import EncodeChoice


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next `tokens` known tokens of a row."""

    row: Row
    tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Drafts:
    """D draft tokens of the R decode rows of a selection, row by row. Each is computed as one more decode
    segment of its row, and what is sampled after it counts if it is what the segment before has sampled.
    """

    counts: Int32  # [R]
    tokens: Int32  # [D]


@dataclass(slots=True, eq=False)
class Selection:
    """The rows and tokens chosen for a step. The blocks of all its rows are in the block table."""

    decodes: NDArray[np.intp]  # [R] slots, ascending
    budget: int  # tokens that may still be added
    chunks: list[Chunk] = field(default_factory=list)
    loads: list[RowLoad] = field(default_factory=list)
    # first row of its request, cached prompt tokens
    admitted: list[tuple[Row, int]] = field(default_factory=list)
    drafts: Drafts | None = None
    encodes: EncodeChoice = field(default_factory=EncodeChoice)  # units of images that its chunks need

    def __bool__(self) -> bool:
        return len(self.decodes) > 0 or len(self.chunks) > 0

    def add(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self.budget -= chunk.tokens


@dataclass(frozen=True, slots=True, eq=False)
class Follows:
    """Draft tokens by the decode segments [E] before theirs."""

    drafted: NDArray[np.bool_]  # [E] the next segment is of the same row
    tokens: Int32  # [E] its token; meaningless if not drafted
    refused: frozenset[int] = frozenset()  # segments after which that is not to be accepted


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """The part of a plan that is kept until it is settled: S segments, L samples."""

    slots: NDArray[np.intp]  # [S]
    kv_lens: Int32  # [S]
    sample_slots: NDArray[np.intp]  # [L] of the segments that sample a token
    sample_lens: Int32  # [L] their kv_lens
    rows: list[Row]  # [L]
    tokens: int  # computed in the step
    admitted: list[tuple[Row, int]]
    follows: Follows | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Decodes:
    """The decode segments of a step: E, one for each decode row and one for each draft token."""

    slots: NDArray[np.intp]  # [E]
    scheduled: Int32  # [E] tokens before it
    tokens: Int32  # [E] meaningless if on_device
    on_device: NDArray[np.bool_]  # [E]


@dataclass(frozen=True, slots=True, eq=False)
class _Segments:
    """The packing of a step: S segments, T new tokens; L of the segments sample."""

    slots: NDArray[np.intp]  # [S]
    scheduled: Int32  # [S] tokens that earlier steps compute
    query_lens: Int32  # [S]
    query_starts: Int32  # [S + 1]
    kv_lens: Int32  # [S]
    sampling: NDArray[np.intp]  # [L]
    sample_slots: NDArray[np.intp]  # [L]
    sample_lens: Int32  # [L]


def build_plan(step: int, batch: Batch, selection: Selection, sharing: SharedPrefixes) -> tuple[Plan, Launch]:
    """The plan of a selection; changes nothing in the batch."""
    decodes = _decodes(batch, selection)
    packed = _chunked(batch, decodes, selection.chunks) if selection.chunks else _decoded(decodes)
    slots, sampling, kv_lens = packed.slots, packed.sampling, packed.kv_lens
    tokens, from_device = _inputs(batch, decodes, selection.chunks)
    positions, slot_mapping = _places(batch, packed)
    output_indices = packed.sample_lens - batch.prompt_len[packed.sample_slots]
    groups = sharing.groups(selection.decodes)
    if selection.drafts is not None:
        groups = spread(groups, 1 + selection.drafts.counts)
    widest = blocks_for(int(kv_lens.max()), batch.block_size)
    plan = Plan(
        step=step,
        decodes=len(decodes.slots),
        loads=tuple(selection.loads),
        row_slots=slots.astype(np.int32),
        tokens=tokens,
        from_device=from_device,
        positions=positions,
        query_lens=packed.query_lens,
        query_starts=packed.query_starts,
        kv_lens=kv_lens,
        block_tables=(batch.block_table[slots, :widest],),
        slot_mapping=(slot_mapping,),
        logit_indices=packed.query_starts[1:][sampling] - 1,
        logit_segments=sampling.astype(np.int32),
        output_indices=output_indices,
        noise=_noise(batch, packed.sample_slots, output_indices),
        prefix_group_lens=groups.lens,
        prefix_group_starts=groups.starts,
        prefix_group_segments=groups.segments,
        rope_positions=_rope_positions(batch, packed, selection.chunks, positions),
        encodes=tuple((image.key, unit) for image, unit in selection.encodes.chosen),
        images=_images(batch, packed.query_starts[len(decodes.slots) :], selection.chunks),
    )
    rows = batch.at(packed.sample_slots)
    launch = Launch(
        slots,
        kv_lens,
        packed.sample_slots,
        packed.sample_lens,
        rows,
        len(tokens),
        selection.admitted,
        _follows(decodes) if selection.drafts is not None else None,
    )
    return plan, launch


def _decodes(batch: Batch, selection: Selection) -> _Decodes:
    slots, drafts = selection.decodes, selection.drafts
    scheduled, tokens = batch.scheduled[slots], batch.last_token[slots]
    if drafts is None:
        return _Decodes(slots, scheduled, tokens, on_device=scheduled >= batch.known[slots])
    segments = 1 + drafts.counts
    firsts = np.cumsum(segments) - segments  # the rows' own last tokens
    packed = np.empty(int(segments.sum()), np.int32)
    drafted = np.ones(len(packed), np.bool_)
    drafted[firsts] = False
    packed[firsts], packed[drafted] = tokens, drafts.tokens
    places = np.arange(len(packed), dtype=np.int32) - np.repeat(firsts, segments).astype(np.int32)
    return _Decodes(
        np.repeat(slots, segments),
        np.repeat(scheduled, segments) + places,
        packed,
        np.zeros(len(packed), np.bool_),  # nothing is in flight
    )


def _follows(decodes: _Decodes) -> Follows:
    drafted = np.append(decodes.slots[1:] == decodes.slots[:-1], False)
    return Follows(drafted, np.roll(decodes.tokens, -1))


def _decoded(decodes: _Decodes) -> _Segments:
    """One token of each segment, and all sample."""
    slots, scheduled = decodes.slots, decodes.scheduled
    kv_lens = scheduled + np.int32(1)
    ones, starts, numbers = _single_tokens(len(slots))
    return _Segments(slots, scheduled, ones, starts, kv_lens, numbers, slots, kv_lens)


@lru_cache(256)
def _single_tokens(count: int) -> tuple[Int32, Int32, NDArray[np.intp]]:
    """Lengths and starts of segments of one token, and their numbers. Shared by many plans: read only."""
    lens, starts, numbers = np.ones(count, np.int32), np.arange(count + 1, dtype=np.int32), np.arange(count)
    for array in (lens, starts, numbers):
        array.flags.writeable = False
    return lens, starts, numbers


def _chunked(batch: Batch, decodes: _Decodes, chunks: list[Chunk]) -> _Segments:
    """Decode segments and chunks; a segment samples if it includes its row's last known token."""
    prefilling = np.array([chunk.row.slot for chunk in chunks], np.intp)
    slots = np.concatenate((decodes.slots, prefilling))
    query_lens = np.ones(len(slots), np.int32)
    query_lens[len(decodes.slots) :] = [chunk.tokens for chunk in chunks]
    query_starts = np.zeros(len(slots) + 1, np.int32)
    np.cumsum(query_lens, out=query_starts[1:])
    scheduled = np.concatenate((decodes.scheduled, batch.scheduled[prefilling]))
    kv_lens = scheduled + query_lens
    sampling = (kv_lens >= batch.known[slots]).nonzero()[0]
    return _Segments(
        slots, scheduled, query_lens, query_starts, kv_lens, sampling, slots[sampling], kv_lens[sampling]
    )


def _noise(batch: Batch, slots: NDArray[np.intp], output_indices: Int32) -> NDArray[np.float64]:
    """[L] noise for the rows in these slots; zeros if no sample depends on it."""
    if not batch.random[slots].any():
        return np.zeros(len(slots))
    return uniform(batch.noise_key[slots], output_indices)


def _inputs(batch: Batch, decodes: _Decodes, chunks: list[Chunk]) -> tuple[Int32, NDArray[np.bool_]]:
    """[T] token ids, and a mask of those that only the device knows yet."""
    if not chunks:
        return decodes.tokens, decodes.on_device
    tokens = [decodes.tokens]
    for chunk in chunks:
        begin = int(batch.scheduled[chunk.row.slot])
        tokens.append(chunk.row.tokens(begin, begin + chunk.tokens))
    packed = np.concatenate(tokens)
    from_device = np.zeros(len(packed), np.bool_)
    from_device[: len(decodes.on_device)] = decodes.on_device
    return packed, from_device


def _rope_positions(batch: Batch, packed: _Segments, chunks: list[Chunk], positions: Int32) -> Int32 | None:
    """Returns [A, T] the positions that the model's RoPE takes; None where they are `positions`."""
    offsets = batch.rope_offset[packed.slots]
    ropes = [chunk.row.origin.rope for chunk in chunks]
    if not (offsets.any() or any(ropes)):
        return None
    axes = max((len(rope.axes) for rope in ropes if rope is not None), default=1)
    found = np.tile(positions + np.repeat(offsets, packed.query_lens), (axes, 1))
    starts = packed.query_starts[len(packed.slots) - len(chunks) :].tolist()
    for start, chunk, rope in zip(starts, chunks, ropes, strict=False):
        if rope is not None:
            own = rope.axes[:, int(batch.scheduled[chunk.row.slot]) :][:, : chunk.tokens]
            found[:, start : start + own.shape[1]] = own
    return found if (found != found[0]).any() else found[:1]


def _images(batch: Batch, starts: Int32, chunks: list[Chunk]) -> tuple[ImagePiece, ...]:
    """Returns the features in the chunks, whose packed places begin at `starts`."""
    found = []
    for start, chunk in zip(starts.tolist(), chunks, strict=False):
        begin = int(batch.scheduled[chunk.row.slot])
        for placed in chunk.row.origin.images:
            for place, feature, count in placed.pieces(begin, begin + chunk.tokens):
                found.append(ImagePiece(placed.image.key, start + place - begin, feature, count))
    return tuple(found)


def _places(batch: Batch, packed: _Segments) -> tuple[Int32, NDArray[np.int64]]:
    """[T] position of each token in its row, and its place in the KV cache."""
    positions, slots, starts = packed.scheduled, packed.slots, packed.query_starts
    if starts[-1] > len(slots):  # some segment has several tokens
        positions = np.arange(starts[-1], dtype=np.int32)
        positions += np.repeat(packed.scheduled - starts[:-1], packed.query_lens)
        slots = np.repeat(slots, packed.query_lens)
    blocks, offsets = np.divmod(positions, np.int32(batch.block_size))
    held = batch.block_table[slots, blocks].astype(np.int64)
    return positions, held * batch.block_size + offsets
