"""Models with a recurrent state beside keys and values, of a shape like Qwen3.5-0.8B's: what checkpoints
save, and what states cost a step.

    python -m ops.bench hybrid [--parts shared time steps compiled drafts copies]

`shared`: the scheduler alone, with 128 rows known (of chats one): prompt tokens that it has computed, as
multiples of what a cache of keys and values alone would compute, and copies made, those at prompts' ends
apart; beside them the multiples without any state kept. `time`: the same work on the model, with checkpoints
and without a prefix cache, in turns. `steps`: decoding rows with 200 tokens of context, beside the same steps
whose states stand still. `compiled`: the same steps called from Python, and compiled and replayed, in turns.
`drafts`: one row's tokens a second with draft tokens that are right, or wrong, beside none, in turns.
`copies`: bytes of state that a step reads and writes beside a copy's, and a checkpoint beside a copy of its
bytes.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from ops.bench import plots
from ops.bench.command_line import add_threads, parsed, parser_of
from ops.bench.models.checkpoints import checkpoint
from ops.bench.plots import Row

from millstream_worker.engine.assembly import build
from millstream_worker.engine.brain.batch.plan import Sampled, packed_plan
from millstream_worker.engine.brain.scheduler import Scheduler
from millstream_worker.engine.brain.scheduler_config import SchedulerConfig
from millstream_worker.engine.brain.speculation.acceptance import Acceptance, GuessSource
from millstream_worker.engine.brain.speculation.text_drafter import Guess
from millstream_worker.engine.brain.speculation.token_index import LONGEST_MATCH
from millstream_worker.engine.engine import Engine
from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from millstream_worker.engine.runner.forward import Eager
from millstream_worker.engine.runner.self_check.state_check import random_heads
from millstream_worker.engine.runner.states.state_backend import StateBackend

Prompt = list[int]
BLOCK, KNOWN, CONTEXT, OUTPUT = 16, 128, 200, 4
MODEL = "qwen35-08b"
PARTS = ("shared", "time", "steps", "compiled", "drafts", "copies")


class Work:
    """Prompts of drawn token ids; the same in every run."""

    def __init__(self, scale: float = 1.0) -> None:
        self._draw = random.Random(1)
        self._scale = scale
        self.system = self.text(250)

    def text(self, low: int, high: int = 0) -> Prompt:
        return [self._draw.randrange(10, 10_000) for _ in range(self._draw.randrange(low, (high or low) + 1))]

    def last_token(self) -> list[Prompt]:
        shared = self.text(369)
        return [[*shared, *self.text(1)] for _ in range(self._many(2000))]

    def instruction(self) -> list[Prompt]:
        return [[*self.system, *self.text(200, 900)] for _ in range(self._many(1000))]

    def questions(self) -> list[Prompt]:
        documents = [self.text(800, 3000) for _ in range(self._many(60))]
        return [[*self.system, *one, *self.text(30)] for one in documents for _ in range(10)]

    def mixed_questions(self) -> list[Prompt]:
        prompts = self.questions()
        self._draw.shuffle(prompts)
        return prompts

    def heads(self) -> list[Prompt]:
        shots = [self.text(400) for _ in range(5)]
        inputs = self._many(1000)
        return [[*self.system, *self._draw.choice(shots), *self.text(60)] for _ in range(inputs)]

    def choices(self) -> list[Prompt]:
        return [prompt for _ in range(self._many(100)) for prompt in [self.text(300, 900)] * 8]

    def chats(self) -> list[Prompt]:
        talks = [[*self.system, *self.text(60)] for _ in range(self._many(50))]
        turns: list[Prompt] = []
        for _ in range(8):
            turns += talks
            talks = [[*talk, *self.text(190)] for talk in talks]
        return turns

    def _many(self, count: int) -> int:
        return max(1, int(count * self._scale))


#        what                                          prompts               known   places
_SHARED: tuple[tuple[str, Callable[[Work], list[Prompt]], int, int], ...] = (
    ("2,000 prompts, 369 of 370 tokens shared", Work.last_token, KNOWN, 64),
    ("1,000 documents under 250 tokens", Work.instruction, KNOWN, 64),
    ("60 documents x 10 questions", Work.questions, KNOWN, 64),
    ("the same in any order", Work.mixed_questions, KNOWN, 64),
    ("5 few-shot heads, 1,000 inputs", Work.heads, KNOWN, 64),
    ("100 prompts, n = 8", Work.choices, KNOWN, 64),
    ("50 chats of 8 turns", Work.chats, 1, 64),
    ("50 chats of 8 turns", Work.chats, 1, 128),
)
_TIMED: Mapping[str, tuple[Callable[[Work], list[Prompt]], float]] = {  # a share of the work above
    "369 of 370 tokens shared": (Work.last_token, 0.032),
    "documents x questions": (Work.questions, 0.035),
}


def shared(scale: float) -> Iterator[Row]:
    for what, prompts_of, known, places in _SHARED:
        prompts = prompts_of(Work(scale))
        least = ideal(prompts)
        scheduler = scheduled(prompts, known, places)
        states = scheduler.states
        assert states is not None, "the scheduler keeps no states"
        ends = states.saved - states.shared
        yield {
            "work": what,
            "places": places,
            "no states kept": f"{sum(map(len, prompts)) / least:.2f}x",
            "computed": f"{scheduler.stats().prompt_computed_total / least:.2f}x",
            "copies": f"{states.shared:,} + {ends:,} of ends",
        }


def ideal(prompts: Sequence[Prompt]) -> int:
    """Prompt tokens that are computed where each block's keys and values are found again."""
    seen: set[int] = set()
    total = 0
    for prompt in prompts:
        blocks = [hash(tuple(prompt[:end])) for end in range(BLOCK, len(prompt), BLOCK)]
        total += len(prompt) - BLOCK * sum(block in seen for block in blocks)
        seen.update(blocks)
    return total


def scheduled(prompts: Sequence[Prompt], known: int, places: int) -> Scheduler:
    """A scheduler that has been through these prompts, with a token for each, and a pool that holds all."""
    scheduler = Scheduler(
        SchedulerConfig(
            max_rows=64,
            max_step_tokens=2048,
            block_size=BLOCK,
            blocks=sum(map(len, prompts)) // BLOCK + 64,
            context_length=8192,
            prefix_cache=True,
            hash_seed=b"bench",
            state_places=places,
        )
    )
    waiting, inside = iter(enumerate(prompts)), 0
    while True:
        while inside < known and (one := next(waiting, None)) is not None:
            scheduler.add(EngineRequest(one[0], tuple(one[1]), 1), 0.0)
            inside += 1
        plan = scheduler.plan(0.0)
        if plan is None:
            return scheduler
        drawn = Sampled(np.zeros(len(plan.logit_indices), np.int32), {})
        inside -= len(scheduler.settle(drawn, 0.0).finished)


def timed(options: argparse.Namespace) -> Iterator[Row]:
    for what, (prompts_of, scale) in _TIMED.items():
        prompts = prompts_of(Work(scale * options.scale))
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(options.turns):
            for kept, taken in seconds.items():
                taken.append(_work_s(engine(options, prefix_cache=kept, max_rows=32), prompts))
        with_them, without = (statistics.median(taken) for taken in seconds.values())
        yield {
            "work": f"{len(prompts)} x {what}, {OUTPUT} output tokens",
            "with checkpoints s": with_them,
            "without s": without,
            "ratio": without / with_them,
        }


def _work_s(made: Engine[Any], prompts: Sequence[Prompt]) -> float:
    begun = time.perf_counter()
    _run(made, prompts, OUTPUT)
    return time.perf_counter() - begun


def _run(made: Engine[Any], prompts: Sequence[Prompt], output: int) -> None:
    greedy = SamplingSpec(temperature=0.0)
    for handle, prompt in enumerate(prompts):
        refused = made.add(EngineRequest(handle, tuple(prompt), output, greedy))
        assert refused is None, refused
    while not made.idle:
        made.step()


class _Still:
    """States that stand still: what is left of a step is what a plain model of these layers computes."""

    def begin(self) -> None: ...

    def layer(self, number: int) -> _Still:
        return self

    def convolve(self, inputs: Any, weight: Any, bias: Any) -> Any:
        return inputs

    def advance(self, query: Any, key: Any, value: Any, log_decay: Any, beta: Any) -> Any:
        return value


def steps(options: argparse.Namespace) -> Iterator[Row]:
    """Milliseconds, in turns of one engine."""
    made = engine(options, max_rows=max(options.rows))
    eager: Eager = made.runner.model.eager  # type: ignore[attr-defined]
    backends: tuple[StateBackend | None, ...] = (_Still(), eager.states)
    for rows in _decoding(options, [made]):
        seconds: list[list[float]] = [[], []]
        for turn in range(2 * options.turns):
            eager.states = backends[turn % 2]
            eager.reconnect()
            seconds[turn % 2] += [_step_s(made) for _ in range(6)][1:]
        plain, own = map(statistics.median, seconds)
        yield {"rows": rows, "states still ms": 1e3 * plain, "step ms": 1e3 * own, "ratio": plain / own}


def compiled(options: argparse.Namespace) -> Iterator[Row]:
    """Milliseconds."""
    engines = [engine(options, max_rows=max(options.rows), compile_model=form) for form in ("off", "on")]
    for rows in _decoding(options, engines):
        for made in engines:
            for _ in range(4):  # a size is recorded, and proved
                made.step()
        seconds: list[list[float]] = [[], []]
        for turn in range(2 * options.turns):
            seconds[turn % 2] += [_step_s(engines[turn % 2]) for _ in range(6)][1:]
        python, replayed = map(statistics.median, seconds)
        yield {
            "rows": rows,
            "from Python ms": 1e3 * python,
            "replayed ms": 1e3 * replayed,
            "ratio": python / replayed,
        }


def _decoding(options: argparse.Namespace, engines: Sequence[Engine[Any]]) -> Iterator[int]:
    """Has the engines decode so many rows, more and more."""
    work, begun = Work(), 0
    for rows in sorted(options.rows):
        for handle in range(begun, rows):
            prompt, tokens = tuple(work.text(CONTEXT)), 100 * options.turns
            for made in engines:
                made.add(EngineRequest(handle, prompt, tokens, SamplingSpec(temperature=0.0)))
        begun = rows
        for made in engines:
            while (step := made.step()) is None or len(step.tokens) < rows:
                pass
        yield rows


class _Drafter:
    """Knows the output; `wrong`: and says something else."""

    def __init__(self, output: Sequence[int], count: int, *, wrong: bool) -> None:
        self.acceptance = Acceptance()
        self._output, self._count, self._wrong = output, count, wrong

    def guess(self, row: Any) -> Guess:
        place = len(row.output)
        known = self._output[place : place + self._count]
        return Guess(GuessSource.OWN, LONGEST_MATCH, [token ^ self._wrong for token in known])

    def learn(self, row: Any) -> None: ...


def drafts(options: argparse.Namespace) -> Iterator[Row]:
    prompt = Work().text(CONTEXT)
    made = engine(options, max_rows=16, prefix_cache=False, compile_model="on", speculate="always")
    speculation = made.scheduler._speculation
    assert speculation is not None, "the engine does not speculate"
    speculation._drafter = _Drafter([], 0, wrong=False)
    output = _output(made, prompt)
    for count, wrong in ((1, False), (3, False), (7, False), (1, True), (3, True), (7, True)):
        seconds: list[list[float]] = [[], []]
        for turn in range(2 * options.turns + 2):
            speculation._drafter = _Drafter(output, count * (turn % 2), wrong=wrong)
            begun = time.perf_counter()
            assert _output(made, prompt) == output, "draft tokens changed the output"
            if turn > 1:  # sizes are recorded, and proved
                seconds[turn % 2].append(time.perf_counter() - begun)
        without, with_them = map(statistics.median, seconds)
        yield {
            "draft tokens a step": f"{count} {'wrong' if wrong else 'right'}",
            "tokens/s": len(output) / with_them,
            "without": len(output) / without,
            "ratio": without / with_them,
        }


def _output(made: Engine[Any], prompt: Prompt) -> list[int]:
    made.add(EngineRequest(0, tuple(prompt), 64, SamplingSpec(temperature=0.0)))
    tokens: list[int] = []
    while not made.idle:
        step = made.step()
        tokens += step.tokens if step is not None else []
    return tokens


def _step_s(made: Engine[Any]) -> float:
    begun = time.perf_counter()
    made.step()
    return time.perf_counter() - begun


def copies(options: argparse.Namespace) -> Iterator[Row]:
    """In turns, on states that no cache holds."""
    eager: Eager = engine(options, max_rows=32).runner.model.eager  # type: ignore[attr-defined]
    storage, states = eager.state_storage, eager.states
    assert storage is not None, "the model keeps no states"
    assert states is not None, "the model keeps no states"
    rows, layers, row = storage.max_rows, len(storage.specs), storage.memory.shape[1]
    rule, kept = storage.specs[0].rule, storage.rules[0]
    modules = [states.layer(number) for number in range(layers)]
    assert rule is not None, "the model has no rule"
    assert kept is not None, "the model has no rule"
    step = packed_plan([1] * rows, [CONTEXT] * rows, np.zeros((rows, CONTEXT)), BLOCK)
    storage.begin(step)
    states.begin()
    heads = random_heads(rule, rows, torch.Generator().manual_seed(0))
    source, target = (torch.ones(layers, max(kept[0].numel() * rows, row)) for _ in range(2))
    numbers = kept[0].numel() * rows
    saved = np.zeros((1, 2), np.int32)
    saving = replace(step, state_saves=saved)

    def advance(turn: int) -> None:
        modules[turn % layers].advance(*heads)

    def copy(turn: int) -> None:
        target[turn % layers, :numbers].copy_(source[turn % layers, :numbers])

    def save(turn: int) -> None:
        saved[:] = turn % rows, turn % 4
        storage.end(saving)

    def copy_row(turn: int) -> None:
        target[turn % layers, :row].copy_(source[turn % layers, :row])

    taken: dict[Callable[[int], None], list[float]] = {work: [] for work in (advance, copy, save, copy_row)}
    with torch.inference_mode():
        for turn in range(20 * options.turns):
            for work, seconds in taken.items():
                begun = time.perf_counter()
                work(turn)
                seconds.append(time.perf_counter() - begun)
    median = {work: statistics.median(seconds) for work, seconds in taken.items()}
    for what, own, other, size in (
        (f"states of {rows} rows of a module, read and written", advance, copy, 4 * numbers),
        (f"a checkpoint of {row / 2**18:.1f} MiB", save, copy_row, 4 * row),
    ):
        rates = (2 * size / median[work] / 1e9 for work in (own, other))
        yield (
            {"what": what}
            | dict(zip(("GB/s", "copy GB/s"), rates, strict=True))
            | {"ratio": median[other] / median[own]}
        )


def engine(options: argparse.Namespace, **changes: Any) -> Engine[Any]:
    config = EngineConfig(
        str(checkpoint(options.model)),
        device="cpu",
        threads=options.threads,
        compile_model="off",
        speculate="off",
    )
    return build(replace(config, **changes), lambda message: None)[0]


def main() -> None:
    options = _options()
    print("\n".join(plots.caption("hybrid")), end="\n\n")
    if "shared" in options.parts:
        print(plots.markdown(list(shared(options.scale))), end="\n\n")
    for part, rows in (
        ("time", timed),
        ("steps", steps),
        ("compiled", compiled),
        ("drafts", drafts),
        ("copies", copies),
    ):
        if part in options.parts:
            print(plots.markdown(list(rows(options))), end="\n\n", flush=True)


def _options() -> argparse.Namespace:
    parser = parser_of("hybrid", __doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the work")
    add_threads(parser)
    return parsed(parser)


if __name__ == "__main__":
    main()
