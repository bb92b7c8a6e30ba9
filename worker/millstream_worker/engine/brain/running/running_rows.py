"""The rows in the batch and their blocks, changed together: entering, growing, publishing hashes, leaving.
Which rows enter, grow and are preempted is decided elsewhere.

A row that leaves keeps slot and blocks while a launch that contains it is in flight.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream_worker.engine.brain.batch.batch import Batch, blocks_for
from millstream_worker.engine.brain.batch.planner import Chunk
from millstream_worker.engine.brain.batch.rows import Origin, Row, RowState
from millstream_worker.engine.brain.cache.blocks import BlockPool
from millstream_worker.engine.brain.cache.states import StatePool
from millstream_worker.engine.brain.images.encode_choice import EncodeChoice
from millstream_worker.engine.brain.images.feature_pool import FeaturePool
from millstream_worker.engine.brain.waiting.waiting_rows import WaitingRows


@dataclass(slots=True)
class Totals:
    """Counted since the start."""

    prefix_queried: int = 0  # prompt tokens of rows that entered for the first time
    prefix_hit: int = 0  # those of them that were in the cache
    prompt_computed: int = 0
    output: int = 0
    preemptions: int = 0
    masked: int = 0  # samples under a grammar, or limits of tokens
    forced: int = 0  # of the output: tokens that a grammar left no choice about
    drafted: int = 0  # draft tokens
    accepted: int = 0  # those of them that were right


class RunningRows:
    """`states`: of models that keep a recurrent state beside keys and values; `images`: of models that read
    them."""

    def __init__(
        self,
        pool: BlockPool,
        batch: Batch,
        waiting: WaitingRows,
        states: StatePool | None = None,
        images: FeaturePool | None = None,
    ) -> None:
        self.pool = pool
        self.states = states
        self.images = images
        self.batch = batch
        self.waiting = waiting
        self.totals = Totals()
        self.leaving: dict[int, Row] = {}  # by arrival: preempted or ending, and still in flight
        self.alone: Origin | None = None  # the request that has the batch to itself

    @property
    def leaving_blocks(self) -> int:
        """Blocks that become free when the launches in flight are settled; a lower bound."""
        return sum(self.pool.held_once(row.blocks) for row in self.leaving.values())

    def cached_blocks(self, row: Row) -> list[int]:
        """The blocks of a row's longest cached prefix, up to a checkpoint where the model has a recurrent
        state. Its last token is always computed, for the logits."""
        most = (row.known - 1) // self.batch.block_size
        chain = row.hash_blocks(most, self.batch.block_size)
        found = self.pool.match(chain, most)
        return found if self.states is None else found[: self.states.depth(chain, len(found))]

    def encodes(self) -> EncodeChoice:
        """Returns a choice of the units of images that the next step encodes."""
        return EncodeChoice() if self.images is None else self.images.choice()

    def awaits_state(self, row: Row, cached: list[int]) -> bool:
        """True if a running row is about to make a checkpoint from which this one would start."""
        if self.states is None:
            return False
        most = (row.known - 1) // self.batch.block_size
        chain = row.hash_blocks(most, self.batch.block_size)[:most]
        return self.states.awaited(chain, len(cached), row.priority)

    def may_begin(self, row: Row, cached: list[int], encodes: EncodeChoice) -> bool:
        """False for a row that begins with an image, while the step encodes none; and for one that has an
        image for which a running row waits, or they would both compute what stands behind each unit."""
        begin = len(cached) * self.batch.block_size
        images = row.origin.images
        return encodes.may_begin(images, begin) and not (images and self._awaits_image(row, begin, encodes))

    def _awaits_image(self, row: Row, begin: int, encodes: EncodeChoice) -> bool:
        left = encodes.incomplete(row.origin.images, begin)
        if not left:
            return False
        return any(
            placed.image in left
            for other in self.batch.at(self.batch.prefilling.nonzero()[0])
            if other.priority <= row.priority
            for placed in other.origin.images
        )

    def next_chunk(self, row: Row, most: int, encodes: EncodeChoice) -> Chunk:
        """Returns the next known tokens of a row, at most `most`: up to where it is to make a checkpoint, and
        to the first feature of an image that the step cannot have, which may be none."""
        tokens = min(self.batch.unscheduled(row), most)
        if row.origin.images:
            tokens = encodes.fitting(row.origin.images, int(self.batch.scheduled[row.slot]), tokens)
        if tokens and self.states is not None:
            tokens = self.states.next_tokens(row, int(self.batch.scheduled[row.slot]), tokens)
        return Chunk(row, tokens)

    def missing_blocks(self, row: Row, cached: list[int]) -> int:
        """Blocks that must become free before a row may enter (<= 0: none): for all its known tokens, and one
        for each running row, so that the new row's blocks are not taken away again when the others need their
        next block.
        """
        fresh = blocks_for(row.known, self.batch.block_size) - len(cached)
        return fresh + self.pool.unheld(cached) + len(self.batch.running()) - self.pool.free

    def enter(self, row: Row, cached: list[int], now: float) -> None:
        """Move a row from the waiting rows into a slot; it shares the `cached` blocks."""
        self.waiting.admit(row, now)
        for block in cached:
            self.pool.share(block)
        row.move(RowState.RUNNING)
        self.batch.enter(row, cached + self._fetched(row, len(cached)))
        if self.states is not None:
            self.states.enter(row, len(cached), len(self.pool.match(row.chain, len(row.chain))))
        if row.origin.request.alone:
            self.alone = row.origin

    def _fetched(self, row: Row, begin: int) -> list[int]:
        """Fresh blocks into which the plan copies the row's prefix from host memory, from block `begin` on.
        Others find them immediately: they are filled before the step that reads them.
        """
        host = self.pool.host
        if host is None or not host.used:
            return []
        most = (row.known - 1) // self.batch.block_size
        chain = row.hash_blocks(most, self.batch.block_size)[begin:most]
        blocks = []
        for block_hash, slot in zip(chain, host.fetch(chain), strict=False):
            block = self.pool.take()
            self.pool.publish(block, block_hash)
            host.bring(slot, block)
            blocks.append(block)
        return blocks

    def grow(self, row: Row, blocks: int) -> None:
        self.batch.add_blocks(row, [self.pool.take() for _ in range(blocks)])
        self.waiting.charge(row, blocks * self.batch.block_size)

    def shrink(self, row: Row, kv_len: int) -> None:
        """Take back what was computed of a row beyond `kv_len` tokens."""
        spare = self.batch.rewind(row, kv_len)
        self.pool.release(spare)
        self.waiting.charge(row, -len(spare) * self.batch.block_size)

    def prefill(self, chunk: Chunk) -> None:
        """Add the blocks for a chunk. Others find its prefix immediately, even in this step: each layer
        writes the step's K and V before it reads any.
        """
        row = chunk.row
        begin = int(self.batch.scheduled[row.slot])
        self.grow(row, self.batch.missing_blocks(row, chunk.tokens))
        self.publish(row, begin + chunk.tokens)
        if self.states is not None:
            self.states.reached(row, begin + chunk.tokens)
        self.totals.prompt_computed += max(0, min(len(row.origin.prompt) - begin, chunk.tokens))

    def publish(self, row: Row, tokens: int) -> None:
        """Let others find the full blocks of the row's first `tokens`: known, and computed or about to be."""
        full = tokens // self.batch.block_size
        chain = row.hash_blocks(full, self.batch.block_size)
        for index in range(row.published, full):
            self.pool.publish(row.blocks[index], chain[index])
        row.published = max(row.published, full)

    def preempt(self, row: Row, now: float) -> None:
        self.totals.preemptions += 1
        row.preemptions += 1
        self.retire(row, RowState.PREEMPTED)
        self.let_go(now)

    def abort(self, row: Row) -> None:
        self.retire(row)
        if not self.batch.in_flight(row):
            self._leave(row)

    def retire(self, row: Row, state: RowState = RowState.ENDING) -> None:
        """Stop planning the row, and remove it when no launch of it is in flight."""
        row.move(state)
        self.batch.retire(row)
        self.leaving[row.arrival] = row

    def let_go(self, now: float) -> None:
        """Remove rows whose last launch is settled: the preempted ones wait again."""
        if not self.leaving:
            return
        for row in [row for row in self.leaving.values() if not self.batch.in_flight(row)]:
            self._leave(row)
            if row.state is RowState.WAITING:
                self.waiting.add(row, now)

    def _leave(self, row: Row) -> None:
        del self.leaving[row.arrival]
        if self.states is not None:
            self.states.leave(row)
        self.pool.release(self.batch.leave(row), wanted=row.state is RowState.PREEMPTED)
        row.move(RowState.ENDED if row.state is RowState.ENDING else RowState.WAITING)
        if not self.batch.occupied:
            self.alone = None

    def check(self) -> None:
        """AssertionError if blocks, slots, counts and states disagree."""
        rows = [row for row in self.batch.rows if row is not None]
        self.pool.check(row.blocks for row in rows)
        self.batch.check()
        for row in rows:
            running = bool(self.batch.decoding[row.slot]) != bool(self.batch.prefilling[row.slot])
            assert running == (row.state is RowState.RUNNING), f"row {row.handle} is {row.state}"
            assert running != (row.arrival in self.leaving), f"row {row.handle}: neither running nor leaving"
        self.waiting.check()
        for row in self.waiting:
            assert row.state is RowState.WAITING, f"row {row.handle} waits as {row.state}"
            assert row.slot is None, f"row {row.handle} waits in slot {row.slot}"
            assert not row.blocks, f"row {row.handle} waits and holds blocks"
