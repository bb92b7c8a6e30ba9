"""An engine process with the real frames, process loop, batch loop, scheduler, grammars and draft tokens.
Its model only counts (`words`), over a paged store that is compared with what each row must contain. With
`image_memory` it reads images.

    PYTHONPATH=tests python -m support.workers.word_engine --fd N

The model is "counting:rows=8,step_s=0.002,…", see `fake_engine.Counting`.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from millstream_worker.engine.brain.batch.plan import Plan, Sampled, TokenMasks
from millstream_worker.engine.brain.scheduler import Scheduler, SchedulerConfig
from millstream_worker.engine.engine import Engine
from millstream_worker.engine.grammars.grammar_compiler import GrammarCompiler
from millstream_worker.engine.grammars.grammar_thread import GrammarThread
from millstream_worker.engine.grammars.grammar_trial import GrammarTrial
from millstream_worker.engine.process import CannotLoad, Tell
from millstream_worker.engine.protocol.config import EngineConfig, EngineInfo
from millstream_worker.engine.protocol.frames import Found
from millstream_worker.engine.protocol.outputs import Refused, Step
from millstream_worker.engine.protocol.request import EngineRequest
from support.engine.counting import CountingRunner, is_drafted
from support.engine.counting_images import shown
from support.workers.fake_engine import Counting, info_of, pause, run, suffer
from support.workers.words import END, VOCAB, next_token, tokens_of, turn, vocabulary

COMMAND = f"{sys.executable} -m {__name__}"
DAMAGE = "KV cache damaged"  # in the log of a worker, whose engine's standard error is its own
BLOCK = 16
TALLY = ("drafted_total", "accepted_total", "masked_rows_total", "forced_total")
_TALLY_STEPS = 20
_FEATURE_BYTES = 64


@dataclass(slots=True, eq=False)
class Launched:
    plan: Plan
    texts: list[list[int]]  # by segment
    healthy: list[bool]
    sampled: Sampled | None = None


class WordRunner(CountingRunner):
    """`StepRunner` that samples when it is told to, under masks."""

    def __init__(self, model: Counting, mark: Callable[[], None]) -> None:
        super().__init__(blocks=model.blocks, block_size=BLOCK, max_rows=model.rows)
        self.non_finite = {model.nan}
        self._model = model
        self._mark = mark
        self._front = os.getppid()
        self._allowed: dict[int, NDArray[np.intp]] = {}  # by place among a plan's samples

    def forward(self, plan: Plan) -> Launched:
        pause(self._model.step_s, self._mark)
        texts, healthy = self._compute(plan)
        for fault in self.faults:
            print(f"{DAMAGE}: {fault}", file=sys.stderr)
        self.faults.clear()
        return Launched(plan, texts, healthy)

    def sample(self, handle: Launched, masks: TokenMasks | None = None) -> None:
        self._allowed = {}
        if masks is not None:
            rows = zip(masks.indices.tolist(), masks.bits, strict=True)
            self._allowed = {place: tokens_of(bits) for place, bits in rows}
        handle.sampled = self._draw(handle.plan, handle.texts, handle.healthy)

    def settle(self, handle: Launched) -> Sampled:
        assert handle.sampled is not None, "it was not sampled"
        return handle.sampled

    def _texts(self, plan: Plan) -> list[list[int]]:
        """Rows go on where the scheduler says: without draft tokens that it did not accept, and with tokens
        that their grammars force."""
        for segment, slot in enumerate(plan.row_slots.tolist()):
            row, kv_len = self.rows[slot], int(plan.kv_lens[segment])
            if is_drafted(plan, segment):
                continue
            if segment < plan.decodes:
                del row[kv_len:]
            elif kv_len > len(row):
                end = int(plan.query_starts[segment + 1])
                row += plan.tokens[end - (kv_len - len(row)) : end].tolist()
        return super()._texts(plan)

    def _token(self, plan: Plan, place: int, text: list[int]) -> int:
        slot = int(plan.row_slots[plan.logit_segments[place]])
        noise = float(plan.noise[place])
        seen = turn(shown(text), int(plan.output_indices[place]))
        token = next_token(text[-1], self.sampling[slot].temperature, noise, self._allowed.get(place), seen)
        if text == self.rows[slot]:  # else it follows a draft token that was wrong
            suffer(self._model, token, self._front)
        return token


def tallied(folder: Path) -> Counter[str]:
    """`TALLY` over all engines that had this folder; some steps short of each that was killed."""
    total: Counter[str] = Counter()
    for file in folder.glob("*.tally"):
        total.update(dict(zip(TALLY, map(int, file.read_text().split()), strict=False)))
    return total


class WordEngine(Engine[Launched]):
    """`refused`: a prompt that begins with this token is. `tally`: where it writes down what it does."""

    refused = -1
    tally = ""

    def add(self, request: EngineRequest) -> Refused | None:
        if request.prompt[0] == self.refused:
            return Refused(request.handle, "prompt", f"leave it out (got {self.refused})")
        return super().add(request)

    def step(self) -> Step | None:
        step = super().step()
        if self.tally and step is not None and self._steps % _TALLY_STEPS == 0:
            counts = " ".join(str(getattr(step.stats, name)) for name in TALLY)
            Path(self.tally, f"{os.getpid()}.tally").write_text(counts)
        return step


def build(
    config: EngineConfig, report: Callable[[str], None], mark: Callable[[], None], tell: Tell
) -> tuple[WordEngine, EngineInfo]:
    model = Counting.parse(config.model)
    if model.broken:
        raise CannotLoad(model.broken)
    tell(Found(model.name, model.digest))
    report("reading the weights")
    pause(model.load_s, mark)
    depth = os.getpid() % 2  # an engine as on a CPU, or one that plans ahead as on a GPU: they do the same
    scheduler = Scheduler(
        SchedulerConfig(
            max_rows=model.rows,
            max_step_tokens=8 * BLOCK,
            block_size=BLOCK,
            blocks=model.blocks,
            context_length=model.context,
            prefix_cache=config.prefix_cache,
            hash_seed=b"words",
            vocab_size=VOCAB,
            pipeline_depth=depth,
            speculate=config.speculate,
            image_bytes=model.image_memory,
            feature_bytes=_FEATURE_BYTES if model.image_memory else 0,
        )
    )
    runner = WordRunner(model, mark)
    runner.scheduler = scheduler
    grammars = GrammarThread(GrammarCompiler(vocabulary, GrammarTrial().check))
    engine = WordEngine(scheduler, runner, depth=depth, grammars=grammars, images=runner.images)
    engine.refused, engine.tally = model.refuse, model.tally
    info = info_of(model, vocabulary=VOCAB, eos=END)
    reads = bool(model.image_memory) and config.images != "off"
    return engine, replace(info, images=reads, image_memory=model.image_memory, feature_bytes=_FEATURE_BYTES)


def main(arguments: Sequence[str] | None = None) -> int:
    return run(build, arguments)


if __name__ == "__main__":
    sys.exit(main())
