"""How many more jobs this worker may take from the queue: as many as its engine can hold, plus a small
look-ahead. Other work stays in Redis, where other workers find it.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field

from millstream_worker.engine.protocol.outputs import EngineStats
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.jobs.served_model import ModelSlot
from millstream_worker.jobs.table import JobTable

_LOOK_AGAIN_S = 1.0
_WEIGHT = 0.05  # of the newest prompt in the running mean


@dataclass(slots=True, eq=False)
class Capacity:
    """`stats`: of the engine's last step; all zero without an engine. `lookahead`: jobs held beyond those in
    the batch. `shards`: number of shards, which share the room.
    """

    table: JobTable
    queue: EngineQueue
    model: ModelSlot
    _: KW_ONLY
    lookahead: int
    shards: int = 1
    stats: EngineStats = field(default_factory=EngineStats)
    _typical_tokens: float = 256.0  # prompt tokens of recent jobs, running mean

    def update(self, stats: EngineStats) -> None:
        self.stats = stats
        self.table.changed.notify()

    def learn(self, prompt_tokens: int) -> None:
        self._typical_tokens += _WEIGHT * (prompt_tokens - self._typical_tokens)

    @property
    def flooded(self) -> bool:
        """The waiting inputs would fill the KV pool."""
        served = self.model.current
        return served is None or self.table.waiting_tokens >= served.info.token_capacity

    def room(self) -> int:
        """Number of jobs; 0 without an engine, or while a suspect is held."""
        if not self.queue.engine.up or self.table.has_suspect or self.flooded:
            return 0
        blocks = self.stats.blocks_free + self.stats.blocks_cached
        typical_blocks = self._typical_tokens // self.model.get().info.block_size + 1
        fits = min(self.stats.free_rows, int(blocks // typical_blocks))
        return max(0, fits + self.lookahead - self.table.waiting_rows)

    async def wait_share(self) -> int:
        """One shard's share of the room, at least 1 if there is any. Waits a while for a change if there is
        none, and may still return 0.
        """
        room = self.room()
        if not room:
            await self.table.changed.wait(_LOOK_AGAIN_S)
            room = self.room()
        return max(1, room // self.shards) if room else 0
