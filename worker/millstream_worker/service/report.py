"""The worker's reports about itself: its heartbeat, and a log line a minute while it works. No Redis."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from millstream.version import version
from millstream.wire.state.heartbeat import (
    DRAINING,
    LOADING,
    SERVING,
    STARTING,
    Heartbeat,
)
from millstream_worker.engine.protocol.outputs import EngineStats
from millstream_worker.engine_link.link import EnginePort
from millstream_worker.intake.capacity import Capacity
from millstream_worker.jobs.served_model import ModelSlot

_log = structlog.get_logger(__name__)
LINE_S = 60.0
_LONGEST_STEP = 200  # characters


class Rates:
    """Tokens per second between two readings of an engine's counters."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._prompt, self._output = 0, 0

    def take(self, stats: EngineStats, now: float) -> tuple[float, float]:
        """Prompt tokens computed and tokens sampled per second, since the last call."""
        again = stats.prompt_computed_total < self._prompt or stats.output_total < self._output
        before = (0, 0) if again else (self._prompt, self._output)  # another engine counts from 0
        seconds = max(now - self._since, 1e-3)
        self._since, self._prompt, self._output = now, stats.prompt_computed_total, stats.output_total
        rates = [
            (total - old) / seconds for total, old in zip((self._prompt, self._output), before, strict=True)
        ]
        return round(rates[0], 1), round(rates[1], 1)


@dataclass(slots=True, eq=False)
class Report:
    """`draining` is set when the worker takes no more jobs; `keeps_results`: for equal requests."""

    name: str
    capacity: Capacity
    engine: EnginePort
    model: ModelSlot
    started_ms: int
    monotonic: Callable[[], float] = time.monotonic
    draining: bool = False
    keeps_results: bool = False
    _package: str = field(default_factory=version)
    _of_beats: Rates = field(init=False)
    _of_lines: Rates = field(init=False)
    _next_line: float = field(init=False)

    def __post_init__(self) -> None:
        now = self.monotonic()
        self._of_beats, self._of_lines = Rates(now), Rates(now)
        self._next_line = now + LINE_S

    def heartbeat(self) -> Heartbeat:
        """The next heartbeat; rates are means since the previous one."""
        stats, served = self.capacity.stats, self.model.current
        info = served.info if served is not None else None
        block_size = info.block_size if info else 0
        prompt_per_s, output_per_s = self._of_beats.take(stats, self.monotonic())
        return Heartbeat(
            self.name,
            token_capacity=info.token_capacity if info else 0,
            rows_running=stats.rows_running,
            rows_waiting=stats.rows_waiting,
            grammars_waiting=stats.grammars_waiting,
            kv_used=stats.blocks_used * block_size,
            kv_cached=stats.blocks_cached * block_size,
            kv_free=stats.blocks_free * block_size,
            prompt_per_s=prompt_per_s,
            output_per_s=output_per_s,
            prefix_queried=stats.prefix_queried_total,
            prefix_hit=stats.prefix_hit_total,
            images=bool(info and info.images),
            state=self._state,
            step="" if self.engine.up else self.model.step[:_LONGEST_STEP],
            started_ms=self.started_ms,
            package=self._package,
            keeps_results=int(self.keeps_results),
            **(served.facts.facts() if served else {}),
        )

    @property
    def _state(self) -> str:
        if self.model.current is None:  # also where it is asked to end: nobody waits for it
            return LOADING
        if self.draining:
            return DRAINING
        return SERVING if self.engine.up else STARTING

    def log_line(self) -> None:
        """Log a line once a minute, if anything was computed."""
        now = self.monotonic()
        if now < self._next_line:
            return
        self._next_line = now + LINE_S
        stats = self.capacity.stats
        prompt_per_s, output_per_s = self._of_lines.take(stats, now)
        if not (stats.rows_running or stats.grammars_waiting or prompt_per_s or output_per_s):
            return
        blocks = stats.blocks_used + stats.blocks_cached + stats.blocks_free
        _log.info(
            "working",
            rows_running=stats.rows_running,
            rows_waiting=stats.rows_waiting,
            grammars_waiting=stats.grammars_waiting,
            prompt_tokens_per_s=prompt_per_s,
            output_tokens_per_s=output_per_s,
            kv_used=f"{stats.blocks_used / max(blocks, 1):.0%}",
            kv_cached=f"{stats.blocks_cached / max(blocks, 1):.0%}",
            prefix_hits=f"{stats.prefix_hit_total / max(stats.prefix_queried_total, 1):.0%}",
        )
