"""How long the device computes, and how long it waits between two steps, by its own clock. In a step nobody
waits for it: its times are read when the tokens are there. Times a runner from outside."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from millstream_worker.engine.brain.batch.plan import Plan, Sampled, TokenMasks


class Event(Protocol):
    """A moment on the device's clock, as `torch.cuda.Event` has it."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds to a later moment, when both have passed."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """Sums over settled steps since the last `reset`."""

    steps: int
    busy_s: float  # from the start of a step's forward to the end of its sampling
    idle_s: float  # from there to the start of the next; that there was no work is among it

    @property
    def idle_share(self) -> float:
        whole = self.busy_s + self.idle_s
        return self.idle_s / whole if whole else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """A step on the device's clock."""

    started: Event
    ended: Event


class DeviceClock:
    """Of one device, for steps that are launched and settled in one order."""

    def __init__(self, event: Callable[[], Event]) -> None:
        self._event = event
        self._last: Event | None = None
        self._steps, self._busy_ms, self._idle_ms = 0, 0.0, 0.0

    def start(self) -> Span:
        span = Span(self._event(), self._event())
        span.started.record()
        return span

    def settle(self, span: Span) -> None:
        """Add a step that has passed."""
        self._steps += 1
        self._busy_ms += span.started.elapsed_time(span.ended)
        if self._last is not None:
            self._idle_ms += self._last.elapsed_time(span.started)
        self._last = span.ended

    def reset(self) -> None:
        self._last, self._steps, self._busy_ms, self._idle_ms = None, 0, 0.0, 0.0

    @property
    def times(self) -> DeviceTimes:
        return DeviceTimes(self._steps, self._busy_ms / 1e3, self._idle_ms / 1e3)


class TimedRunner:
    """Stands where the runner stands, and has the clock time its steps."""

    def __init__(self, runner: Any, clock: DeviceClock) -> None:
        self._runner = runner
        self._clock = clock
        self._spans: deque[Span] = deque()  # of the steps that are not settled

    def forward(self, plan: Plan) -> Any:
        self._spans.append(self._clock.start())
        return self._runner.forward(plan)

    def sample(self, launched: Any, masks: TokenMasks | None = None) -> None:
        self._runner.sample(launched, masks)
        self._spans[-1].ended.record()

    def settle(self, launched: Any) -> Sampled:
        sampled: Sampled = self._runner.settle(launched)
        span = self._spans.popleft()
        span.ended.synchronize()
        self._clock.settle(span)
        return sampled


def clock_of(device: torch.device) -> DeviceClock | None:
    """None: the device computes while the host launches, and has no time of its own."""
    if device.type != "cuda":
        return None
    return DeviceClock(lambda: torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
