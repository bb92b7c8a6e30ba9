"""The loop over the real scheduler and a model that counts, at both pipeline depths."""

from __future__ import annotations

from support.engine.brain import SIZES
from support.engine.counting import CountingRunner, counted

from millstream_worker.engine.brain.batch.plan import Sampled
from millstream_worker.engine.brain.scheduler import Scheduler
from millstream_worker.engine.brain.scheduler_config import SchedulerConfig
from millstream_worker.engine.engine import Engine, Later
from millstream_worker.engine.protocol.outputs import Step
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec


def engine(depth: int) -> Engine[object]:
    config = SchedulerConfig(**SIZES | {"max_rows": 4, "context_length": 64, "pipeline_depth": depth})
    return Engine(Scheduler(config), CountingRunner(blocks=64, block_size=4, max_rows=4), depth=depth)


class Slow(CountingRunner):
    """The device takes a second for each step, also for one that was launched while another ran."""

    now = 100.0

    def __init__(self) -> None:
        super().__init__(blocks=64, block_size=4, max_rows=4)

    def settle(self, handle: Sampled) -> Sampled:
        self.now += 1.0
        return handle


def run(loop: Engine[object]) -> tuple[dict[int, list[int]], dict[int, str], list[Step]]:
    tokens: dict[int, list[int]] = {}
    reasons: dict[int, str] = {}
    steps = []
    while not loop.idle:
        step = loop.step()
        assert step is not None
        steps.append(step)
        for handle, token in zip(step.handles, step.tokens, strict=True):
            tokens.setdefault(handle, []).append(token)
        reasons |= dict(step.finished)
    return tokens, reasons, steps


def test_rows_of_any_length_share_the_batch(depth: int) -> None:
    loop = engine(depth)
    prompts = {handle: tuple(range(handle, handle + 3 + 2 * handle)) for handle in range(9)}
    for handle, prompt in prompts.items():
        assert loop.add(EngineRequest(handle, prompt, max_tokens=1 + handle * 2)) is None
    tokens, reasons, steps = run(loop)
    for handle, prompt in prompts.items():
        assert (tokens[handle], reasons[handle]) == counted(prompt, 1 + handle * 2)
    assert max(step.stats.rows_running for step in steps) == 4
    assert steps[-1].stats.output_total == sum(map(len, tokens.values()))
    assert steps[-1].stats.blocks_used == 0


def test_a_steps_time_is_its_own_and_not_that_of_the_step_before(depth: int) -> None:
    runner = Slow()
    loop = Engine(engine(depth).scheduler, runner, depth=depth, clock=lambda: runner.now)
    loop.add(EngineRequest(1, (1, 2, 3), max_tokens=5))
    _, _, steps = run(loop)
    assert [step.stats.step_s for step in steps] == [1.0] * 5


def test_a_choice_that_ended_earlier_is_reported_uncomputed() -> None:
    loop = engine(0)
    sampling = SamplingSpec(end_ids=(9,))
    loop.add(EngineRequest(3, (7,), max_tokens=4, sampling=sampling, outputs=((8, 9),)))
    step = loop.step()
    assert step is not None
    assert (step.finished, step.tokens, loop.idle) == ([(3, "stop")], [], True)
    assert loop.step() is None


def test_later_work_is_due_once_when_busy_and_unwatched(depth: int) -> None:
    runner, done = Slow(), list[float]()
    later = Later(3.0, done.append)
    loop = Engine(engine(depth).scheduler, runner, depth=depth, later=later, clock=lambda: runner.now)

    def due_after(priority: int) -> list[bool]:
        loop.add(EngineRequest(1, (1, 2, 3), max_tokens=5, priority=priority))
        seen = []
        while not loop.idle:
            loop.step()
            work = loop.take_due()
            seen.append(work is not None)
            if work is not None:
                work()
        return seen

    assert due_after(priority=0)[:-1] == [False] * 4  # its reader waits for the tokens as they come
    assert done == [1.0]
    assert not any(due_after(priority=1))
