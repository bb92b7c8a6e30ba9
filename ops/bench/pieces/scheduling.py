"""What the scheduler's choices are worth: each is simulated beside doing without it. No model runs, and no
clock: a step takes a base, and so much for each token (about an 8B model on a large GPU) and for each block
that comes back from host memory. So the same figures come out everywhere, in moments.

    python -m ops.bench scheduling [families] [tail] [preemption] [chunks]

Rows end by an end id where their length is not to be known, and by `max_tokens` where it is.
"""

from __future__ import annotations

import argparse
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from unittest.mock import patch

import numpy as np

from millstream_worker.engine.brain.batch.plan import Plan, Sampled
from millstream_worker.engine.brain.batch.rows import Row
from millstream_worker.engine.brain.running import admit_rows, preemption
from millstream_worker.engine.brain.scheduler import Scheduler
from millstream_worker.engine.brain.scheduler_config import SchedulerConfig
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec

STEP_S, TOKEN_S = 0.008, 25e-6
BLOCK_S = 80e-6  # 2 MiB at 25 GB/s
END, WORD = 1, 2
PROMPTS = 10_000  # token ids of prompts; the last token of a prompt is its row's length


@dataclass(frozen=True, slots=True)
class Arrival:
    request: EngineRequest
    at: float = 0.0


@dataclass(slots=True)
class Outcome:
    steps: int = 0
    tokens: int = 0  # computed, prompts and decode rows
    seconds: float = 0.0
    preemptions: int = 0
    first: dict[int, float] = field(default_factory=dict)  # seconds from arrival to the first token
    done: dict[int, float] = field(default_factory=dict)  # to the last
    gaps: dict[int, float] = field(default_factory=dict)  # the longest between two of its tokens
    interactive: set[int] = field(default_factory=set)  # handles

    def figures(self) -> tuple[float, ...]:
        return self.steps, self.tokens, self.seconds, statistics.fmean(self.done.values())

    def latency(self) -> str:
        if not self.interactive:
            return "-"
        ttft = statistics.fmean(self.first[handle] for handle in self.interactive)
        return f"{ttft * 1e3:,.0f}, {max(self.gaps[handle] for handle in self.interactive) * 1e3:,.0f}"


class Machine:
    """Draws the end id at a row's length."""

    def __init__(self, rows: int) -> None:
        self._lengths = np.zeros(rows, np.int64)

    def draw(self, plan: Plan) -> Sampled:
        for load in plan.loads:
            self._lengths[load.slot] = load.prompt[-1]
        over = plan.output_indices + 1 >= self._lengths[plan.row_slots[plan.logit_segments]]
        return Sampled(np.where(over, END, WORD).astype(np.int32), {})


def simulate(arrivals: Sequence[Arrival], **sizes: object) -> Outcome:
    config = SchedulerConfig(
        **{  # type: ignore[arg-type]
            "max_rows": 64,
            "max_step_tokens": 2048,
            "block_size": 16,
            "blocks": 65_536,
            "context_length": 8192,
            "prefix_cache": True,
            "hash_seed": b"simulation",
            **sizes,
        }
    )
    scheduler, machine, outcome = Scheduler(config), Machine(config.max_rows), Outcome()
    outcome.interactive = {a.request.handle for a in arrivals if a.request.priority == 0}
    coming = deque(sorted(arrivals, key=lambda arrival: arrival.at))
    begun = {arrival.request.handle: arrival.at for arrival in arrivals}
    latest: dict[int, float] = {}
    now = 0.0
    while coming or not scheduler.idle:
        while coming and (coming[0].at <= now or scheduler.idle):
            now = max(now, coming[0].at)
            scheduler.add(coming.popleft().request, now)
        plan = scheduler.plan(now)
        assert plan is not None, "nothing to compute"
        now += STEP_S + TOKEN_S * plan.token_count + BLOCK_S * len(plan.swap_in)
        settled = scheduler.settle(machine.draw(plan), now)
        outcome.steps += 1
        outcome.tokens += plan.token_count
        for handle in settled.handles:
            outcome.first.setdefault(handle, now - begun[handle])
            outcome.gaps[handle] = max(outcome.gaps.get(handle, 0.0), now - latest.get(handle, now))
            latest[handle] = now
        outcome.done |= {handle: now - begun[handle] for handle, _ in settled.finished}
    outcome.seconds, outcome.preemptions = now, scheduler.stats().preemptions_total
    return outcome


def ask(
    random: np.random.Generator,
    handle: int,
    prompt: int,
    length: int,
    *,
    known: bool = True,
    **fields: object,
) -> EngineRequest:
    """A row of `length` output tokens behind `prompt` random ones and a `document`, if any."""
    document = fields.pop("document", ())
    own = random.integers(10, PROMPTS, prompt - 1).tolist()
    sampling = SamplingSpec(end_ids=() if known else (END,))
    tokens = (*document, *own, length)  # type: ignore[misc]
    return EngineRequest(handle, tokens, length if known else 4096, sampling, **fields)  # type: ignore[arg-type]


def families() -> dict[str, Outcome]:
    """Ten documents of 2,000 tokens, 40 questions about each, submitted in turns; the pool holds four."""

    def work(in_turns: bool) -> list[Arrival]:
        random = np.random.default_rng(0)
        documents = [tuple(random.integers(10, PROMPTS, 2000).tolist()) for _ in range(10)]
        return [  # deadlines one after the other force the order of arrival
            Arrival(
                ask(
                    random,
                    handle,
                    30,
                    64,
                    document=documents[handle % 10],
                    deadline_ms=handle if in_turns else None,
                )
            )
            for handle in range(400)
        ]

    return {
        "in order of arrival": simulate(work(in_turns=True), blocks=512, max_rows=32, patience_s=1e9),
        "by family": simulate(work(in_turns=False), blocks=512, max_rows=32),
    }


def tail() -> dict[str, Outcome]:
    """512 rows of 32 to 512 tokens, 16 to 512 to come, 128 at a time; twice a second an interactive one."""

    def work(known: bool) -> list[Arrival]:
        random = np.random.default_rng(0)
        sizes = random.integers((32, 16), (513, 513), (512, 2)).tolist()
        rows = [Arrival(ask(random, n, *size, known=known)) for n, size in enumerate(sizes)]
        asked = (ask(random, 1000 + n, 100, 50, known=known, priority=0) for n in range(20))
        return rows + [Arrival(request, 0.5 * n) for n, request in enumerate(asked)]

    return {
        "lengths unknown: by arrival": simulate(work(known=False), max_rows=128),
        "lengths known: longest first": simulate(work(known=True), max_rows=128),
    }


def preempted() -> dict[str, Outcome]:
    """256 rows of 32 to 2,000 tokens, 64 to 512 to come, a third of them over one document, in a pool that
    holds about 24 of them at their ends; and interactive rows of 1,000 tokens, four a second."""
    random = np.random.default_rng(0)
    document = tuple(random.integers(10, PROMPTS, 1500).tolist())
    sizes = random.integers((32, 64), (2001, 513), (256, 2)).tolist()
    work = [
        Arrival(ask(random, n, 32, size[1], known=False, document=document))
        if n % 3 == 0
        else Arrival(ask(random, n, *size, known=False))
        for n, size in enumerate(sizes)
    ]
    work += [Arrival(ask(random, 1000 + n, 1000, 40, priority=0), 0.25 * n) for n in range(80)]

    def youngest(_: object, rows: list[Row], __: int) -> Row:
        return max(rows, key=lambda row: row.rank)

    swap = {"host_blocks": 4096, "host_blocks_a_step": 192, "host_block_s": BLOCK_S}
    with patch.object(preemption, "least_loss", youngest), patch.object(admit_rows, "least_loss", youngest):
        before = simulate(work, blocks=2048)
    return {
        "the youngest": before,
        "who loses least": simulate(work, blocks=2048),
        "and swap to host memory": simulate(work, blocks=2048, **swap),
    }


def chunks() -> dict[str, Outcome]:
    """Eight interactive rows decode while 64 prompts of 2,000 tokens are computed."""
    random = np.random.default_rng(0)
    work = [Arrival(ask(random, n, 100, 400, priority=0)) for n in range(8)]
    work += [Arrival(ask(random, 100 + n, 2000, 16), 0.5) for n in range(64)]
    return {
        f"target {target_s * 1000:.0f} ms" if target_s else "no target": simulate(
            work, step_time_target_s=target_s
        )
        for target_s in (0.0, 0.05, 0.025)
    }


PARTS: dict[str, Callable[[], dict[str, Outcome]]] = {
    "families": families,
    "tail": tail,
    "preemption": preempted,
    "chunks": chunks,
}


def table(outcomes: dict[str, Outcome]) -> str:
    """Ratios are to the first."""
    lines = [
        "| | steps | tokens computed | seconds | mean completion s | preemptions "
        "| interactive: mean TTFT ms, longest gap ms |",
        "|---|---|---|---|---|---|---|",
    ]
    first = next(iter(outcomes.values()))
    for name, outcome in outcomes.items():
        cells = [
            f"{value:,.6g} ({value / other:.2f}x)"
            for value, other in zip(outcome.figures(), first.figures(), strict=True)
        ]
        lines.append(f"| {name} | {' | '.join(cells)} | {outcome.preemptions} | {outcome.latency()} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m ops.bench scheduling", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=[*PARTS], metavar="part", help=", ".join(PARTS))
    for name in parser.parse_args().parts:
        print(f"\n{name}: {PARTS[name].__doc__}\n\n{table(PARTS[name]())}", flush=True)


if __name__ == "__main__":
    main()
