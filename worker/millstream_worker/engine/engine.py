"""The batch loop: plan, forward, sample, settle. It owns the scheduler and the runner, and knows nothing of
processes, frames on sockets or Redis; tests run it in their own process."""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Generic, Protocol, TypeVar

from millstream_worker.engine.answer_checks import AnswerChecks
from millstream_worker.engine.brain.batch.plan import Plan, Sampled, TokenMasks
from millstream_worker.engine.brain.images.feature_pool import FeaturePool
from millstream_worker.engine.brain.images.held_image import ImageKey
from millstream_worker.engine.brain.scheduler import Scheduler
from millstream_worker.engine.grammars.grammar_thread import GrammarThread
from millstream_worker.engine.protocol.frames import DropImage, HoldImage
from millstream_worker.engine.protocol.outputs import Compiled, Refused, Step
from millstream_worker.engine.protocol.request import EngineRequest
from millstream_worker.images.messages import PackedArray

H = TypeVar("H")


class StepRunner(Protocol[H]):
    """The runner as the loop needs it: start a step, sample its tokens, and later wait for them."""

    def forward(self, plan: Plan) -> H: ...

    def sample(self, handle: H, masks: TokenMasks | None) -> None: ...

    def settle(self, handle: H) -> Sampled: ...


class ImageStore(Protocol):
    """The images of an engine as the loop needs them."""

    def hold(self, key: ImageKey, features: int, arrays: Sequence[PackedArray]) -> int:
        """Take an image; returns the number of units that are encoded each by itself."""

    def forget(self, keys: Iterable[ImageKey]) -> None: ...


@dataclass(frozen=True, slots=True)
class Later:
    """Work that pays off in a long run, and blocks the engine while it is done."""

    busy_s: float  # of computing before it is due
    work: Callable[[float], None]  # called with the mean seconds of a step


@dataclass(slots=True, eq=False)
class Engine(Generic[H]):
    """Iteration-level batching: after each step finished rows leave and waiting rows join.

    `depth` steps are launched ahead of the one being settled: 0 if launching computes (CPU), 1 if the device
    works while the host plans (its tokens are then seen one step late). A step with masks is sampled only
    when the tokens before it are known: its forward runs meanwhile.
    """

    scheduler: Scheduler
    runner: StepRunner[H]
    _: KW_ONLY
    depth: int = 0
    later: Later | None = None
    grammars: GrammarThread | None = None
    images: ImageStore | None = None  # of a model that reads them
    clock: Callable[[], float] = time.monotonic
    _checks: AnswerChecks | None = None
    _busy_s: float = 0.0
    _steps: int = 0
    _in_flight: deque[H] = field(default_factory=deque)
    _unsampled: H | None = None  # the last of those

    def __post_init__(self) -> None:
        if self.grammars is not None:
            self._checks = AnswerChecks(self.grammars)

    @property
    def idle(self) -> bool:
        return not (self._in_flight or self.grammars or self._checks) and self.scheduler.idle

    def add(self, request: EngineRequest) -> Refused | None:
        """Take a request into the waiting rows; a refusal names the field that can never fit. One with a
        grammar waits for that to be compiled, see `take_compiled`.
        """
        if request.grammar is None:
            return self.scheduler.add(request, self.clock())
        if (refused := self.scheduler.refuse(request)) is not None:
            return refused
        if self.grammars is None:
            return Refused(request.handle, request.grammar.field, "this engine has no grammars")
        self.grammars.put(request)
        return None

    def hold_image(self, image: HoldImage) -> None:
        """Take an image for requests to come."""
        store, pool = self._of_images()
        key = self.scheduler.image_key(image.salt, image.digest)
        store.forget(pool.make_room(key, image.features))
        pool.hold(key, image.features, store.hold(key, image.features, image.arrays))

    def drop_image(self, image: DropImage) -> None:
        """No request needs the image any more."""
        store, pool = self._of_images()
        store.forget(pool.drop(self.scheduler.image_key(image.salt, image.digest)))

    def _of_images(self) -> tuple[ImageStore, FeaturePool]:
        pool = self.scheduler.images
        if self.images is None or pool is None:
            raise AssertionError("the front sends no images to a model that reads none")
        return self.images, pool

    def take_compiled(self) -> list[Compiled | Refused]:
        """Take requests whose grammars are compiled into the waiting rows; returns these, and refusals."""
        reports: list[Compiled | Refused] = []
        for done in self.grammars.take() if self.grammars else ():
            if isinstance(done.matchers, Refused):
                reports.append(done.matchers)
                continue
            if self._checks is not None:
                self._checks.watch(done.request, done.matchers)
            self.scheduler.add(done.request, self.clock(), done.matchers)
            self.abort(done.aborted)
            reports.append(Compiled(done.request.handle, done.waited_s))
        return reports

    def check(self) -> None:
        """Audit rows and KV pool, which hold nothing while idle; AssertionError on any difference."""
        self.scheduler.check()
        stats = self.scheduler.stats()
        assert not (self.idle and stats.blocks_used), f"{stats.blocks_used} KV blocks are held by no row"

    def abort(self, handles: Iterable[int]) -> None:
        handles = tuple(handles)
        self.scheduler.abort(handles)
        if self.grammars is not None and self._checks is not None:
            self.grammars.abort(handles)
            self._checks.abort(handles)

    def step(self) -> Step | None:
        """Launch until `depth` steps are ahead and settle the oldest. None: there was nothing to compute."""
        self._launch_ahead()
        if not self._in_flight:
            step = self.report(self.scheduler.take_finished())
            return step if step.finished else None
        sampled = self.runner.settle(self._in_flight.popleft())
        step = self._counted(self.scheduler.settle(sampled, self.clock()))
        if self._unsampled is not None:
            handle, self._unsampled = self._unsampled, None
            self.runner.sample(handle, self.scheduler.masks())
        self._busy_s += step.stats.step_s
        self._steps += 1
        return step

    def take_due(self) -> Callable[[], None] | None:
        """Work that is due, once, between two steps; not while an interactive row runs or waits."""
        later = self.later
        if later is None or self._busy_s < later.busy_s or self._in_flight or self.scheduler.interactive:
            return None
        self.later = None
        return functools.partial(later.work, self._busy_s / self._steps)

    def report(self, finished: list[tuple[int, str]] | None = None) -> Step:
        """A step without tokens: for its statistics, and for choices that had ended before they came here."""
        return self._counted(Step([], [], finished or [], [], [], self.scheduler.stats()))

    def _counted(self, step: Step) -> Step:
        """With the statistics of grammars, and the ends that they release, if there are any."""
        if self.grammars is None or self._checks is None:
            return step
        finished, misfits = self._checks.released(step.finished)
        over = {handle for handle, _ in finished}
        held = [handle for handle, reason in step.finished if reason == "stop" and handle not in over]
        stats = self.grammars.counted(step.stats)
        return step._replace(finished=finished, misfits=misfits, held=held, stats=stats)

    def _launch_ahead(self) -> None:
        while len(self._in_flight) <= self.depth:
            plan = self.scheduler.plan(self.clock())
            if plan is None:
                return
            handle = self.runner.forward(plan)
            if self._in_flight and self.scheduler.constrained:
                self._unsampled = handle
            else:
                self.runner.sample(handle, self.scheduler.masks())
            self._in_flight.append(handle)
