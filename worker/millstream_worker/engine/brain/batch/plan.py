"""One step of the batch as plain arrays: what the brain hands to the runner. It refers to no row object, so
that it can be sent to other processes (tensor-parallel ranks) as it is.

A step packs segments without padding: first `decodes` segments of one new token each, then prefill chunks of
any number of new tokens. A row that decodes has a segment for its last token, and one for each draft token
after it; a row that prefills has one chunk. Each layer stores all keys and values of a step before it reads
any: so a segment also reads what those of the same row before it have stored.

    tokens     t0 │ t1 │ t2 t3 t4 t5 │ t6 t7          query_lens   1 1 4 2     decodes 2
               ───┴────┴─────────────┴──────          query_starts 0 1 2 6 8

A *prefix group* is a set of decode segments whose block tables begin with the same full blocks: attention
may read those once for all of them. A segment is in one prefix group at most, and computes the same, but for
rounding, if prefix groups are ignored.

    segments   0: A B x │ 1: C y │ 2: A B z │ 3: C w      blocks of 16 tokens
    prefix groups: segments 0 and 2 share 32 tokens, 1 and 3 share 16
    prefix_group_lens 32 16    prefix_group_starts 0 2 4    prefix_group_segments 0 2 1 3
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from millstream_worker.engine.brain.images.held_image import ImageKey
from millstream_worker.engine.protocol.request import SamplingSpec

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
LOGITS = "logits"  # the head of a step that samples


@dataclass(frozen=True, slots=True)
class RowLoad:
    """Sampling state to place into a batch slot before the step: a row enters the batch, or re-enters it."""

    slot: int
    sampling: SamplingSpec
    prompt: tuple[int, ...]
    output: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ImagePiece:
    """Features of an image, from `feature` on, that stand at packed places of the step, from `place` on."""

    key: ImageKey
    place: int
    feature: int
    count: int


def _none() -> Int32:
    return np.empty(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """S segments, T new tokens, L logits wanted, W the widest block table, F prefix groups with M members. A
    *group* is a set of layers with one block table (today one group holds all layers); the prefix groups are
    those of every group."""

    step: int
    decodes: int  # the first `decodes` segments have exactly one new token
    loads: tuple[RowLoad, ...]
    row_slots: Int32  # [S] batch slot of each segment's row, 0 <= slot < max_rows
    tokens: Int32  # [T] token ids; ignored if from_device
    from_device: NDArray[np.bool_]  # [T] use the token last sampled in the segment's batch slot instead
    positions: Int32  # [T]
    query_lens: Int32  # [S] new tokens
    query_starts: Int32  # [S + 1] offsets into the packed tokens
    kv_lens: Int32  # [S] tokens in the cache after this step has written its own
    block_tables: tuple[Int32, ...]  # per group [S, W]; unused places are 0
    slot_mapping: tuple[Int64, ...]  # per group [T] place of each new token: block * block_size + offset
    logit_indices: Int32  # [L] packed positions whose logits are wanted, rising; one sample each
    logit_segments: Int32  # [L] the segment of each
    output_indices: Int32  # [L] index of the sampled token in its row's output: 0 for the first
    noise: NDArray[np.float64]  # [L] uniform in [0, 1), by (seed, choice, output index); or all 0 if unused
    # [F] tokens that a prefix group shares: full blocks
    prefix_group_lens: Int32 = field(default_factory=_none)
    # [F + 1] offsets into prefix_group_segments
    prefix_group_starts: Int32 = field(default_factory=lambda: np.zeros(1, np.int32))
    # [M] decode segments, prefix group after prefix group
    prefix_group_segments: Int32 = field(default_factory=_none)
    # copies of blocks before the step; those out of the pool first: [O, 2] block, place in host memory
    swap_out: Int32 = field(default_factory=lambda: np.empty((0, 2), np.int32))
    # [I, 2] place in host memory, block
    swap_in: Int32 = field(default_factory=lambda: np.empty((0, 2), np.int32))
    # copies of recurrent state: before the step, [N, 2] place of a checkpoint, slot
    state_loads: Int32 = field(default_factory=lambda: np.empty((0, 2), np.int32))
    # after it, [M, 2] slot, place
    state_saves: Int32 = field(default_factory=lambda: np.empty((0, 2), np.int32))
    encodes: tuple[tuple[ImageKey, int], ...] = ()  # units of images to encode before the step
    # [A, T] positions that the model's RoPE takes, where they are others than `positions`: of several axes in
    # images; one axis where all are equal
    rope_positions: Int32 | None = None
    images: tuple[ImagePiece, ...] = ()  # whose features stand in the place of the tokens' embeddings
    head: str = LOGITS  # that answers for the hidden states at logit_indices

    @property
    def token_count(self) -> int:
        return len(self.tokens)

    @property
    def has_axes(self) -> bool:
        """True if the positions of the model's RoPE have several axes."""
        return self.rope_positions is not None and len(self.rope_positions) > 1

    @property
    def model_positions(self) -> Int32:
        """Returns the positions [T] of the model's RoPE, of one axis."""
        return self.positions if self.rope_positions is None else self.rope_positions[0]


def packed_plan(
    query_lens: ArrayLike,
    kv_lens: ArrayLike,
    block_table: ArrayLike,
    block_size: int,
    *,
    samples: bool = False,
) -> Plan:
    """A step made without a scheduler, of segments [S], those with one token first. Segment i is the row in
    batch slot i, and all tokens are 0. If `samples`, each segment samples after its last token.
    """
    lens, ends, table = (np.asarray(given, np.int32) for given in (query_lens, kv_lens, block_table))
    starts = np.concatenate(([0], lens.cumsum())).astype(np.int32)
    segments = np.arange(len(lens), dtype=np.int32)
    owners = np.repeat(segments, lens)  # [T]
    positions = np.arange(starts[-1], dtype=np.int32) + (ends - starts[1:])[owners]
    sampling = segments if samples else _none()
    return Plan(
        step=0,
        decodes=int(np.argmax(np.append(lens > 1, True))),  # up to the first segment with several tokens
        loads=(),
        row_slots=segments,
        tokens=np.zeros(len(positions), np.int32),
        from_device=np.zeros(len(positions), np.bool_),
        positions=positions,
        query_lens=lens,
        query_starts=starts,
        kv_lens=ends,
        block_tables=(table,),
        slot_mapping=(
            table[owners, positions // block_size].astype(np.int64) * block_size + positions % block_size,
        ),
        logit_indices=starts[1:][sampling] - 1,
        logit_segments=sampling,
        output_indices=np.zeros(len(sampling), np.int32),
        noise=np.zeros(len(sampling)),
    )


@dataclass(frozen=True, slots=True, eq=False)
class TokenMasks:
    """The tokens that some of a plan's samples may become: G of its L."""

    indices: Int32  # [G] into L, rising
    bits: Int32  # [G, words] a bit for each token, token 0 lowest; at least one is set


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """The runner's result for a plan: one token per wanted logit."""

    tokens: Int32  # [L]
    logprobs: dict[int, SampledLogprobs]  # by index into L, only for rows that requested them
    non_finite: tuple[int, ...] = ()  # indices into L without finite logits: their tokens are meaningless
    encode_s: float = 0.0  # of the step: seconds of encoding images before it

    def logprobs_without(self, dropped: Sequence[int]) -> list[tuple[int, float, list[int], list[float]]]:
        """Logprobs of the samples that were not dropped (ascending indices), in order, with their new
        indices: as in a Step.
        """
        return [
            (index - bisect_left(dropped, index), one.logprob, list(one.top_ids), list(one.top_logprobs))
            for index, one in sorted(self.logprobs.items())
            if index not in dropped
        ]


@dataclass(frozen=True, slots=True)
class SampledLogprobs:
    """Natural logarithms under the model's own distribution, before penalties, bias and temperature."""

    logprob: float  # of the sampled token
    top_ids: tuple[int, ...]  # most likely first
    top_logprobs: tuple[float, ...]
