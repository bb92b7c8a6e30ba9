"""Anything may arrive, in any order, into pools and budgets of any size: each row draws what it draws alone,
the audit passes after every move, nothing deadlocks, and in the end all blocks and slots are free."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine.counting import ErringDrafter, Rig, counted

from millstream_worker.engine.brain.batch.shared_prefixes import SharingCosts
from millstream_worker.engine.brain.scheduler import Scheduler
from millstream_worker.engine.brain.scheduler_config import SchedulerConfig
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec

DOCUMENTS = (tuple(range(100, 160)), tuple(range(120, 180)), (7,) * 60)


@dataclass(frozen=True)
class Arrival:
    step: int
    request: EngineRequest
    aborted_at: int | None  # so many steps later


@st.composite
def configs(draw: st.DrawFn) -> SchedulerConfig:
    block_size = draw(st.sampled_from([1, 2, 3, 4, 8]))
    recurrent = draw(st.booleans())
    return SchedulerConfig(
        max_rows=draw(st.integers(1, 6)),
        max_step_tokens=draw(st.one_of(st.integers(1, 48), st.just(300))),
        block_size=block_size,
        blocks=draw(st.integers(-(-8 // block_size), 24)),
        context_length=draw(st.integers(8, 64)),
        prefix_cache=draw(st.booleans()),
        hash_seed=b"counting",
        pipeline_depth=draw(st.integers(0, 1)),
        patience_s=draw(st.sampled_from([0.0, 3.0, 10.0])),
        step_time_target_s=draw(st.sampled_from([0.0, 0.5, 2.0])),  # a step takes a second
        step_time_for_all=draw(st.booleans()),
        host_blocks=0 if recurrent else draw(st.sampled_from([0, 1, 3, 8, 40])),
        host_blocks_a_step=draw(st.sampled_from([1, 4, 64])),
        speculate=draw(st.sampled_from(["off", "auto", "always"])),
        most_drafts=draw(st.sampled_from([1, 3] if recurrent else [0, 1, 3])),
        state_places=draw(st.sampled_from([1, 2, 4, 12])) if recurrent else 0,
        sharing=draw(st.sampled_from([None, SharingCosts(row=0, step=0), SharingCosts(row=2, step=20)])),
    )


@st.composite
def requests(draw: st.DrawFn, handle: int, longest: int) -> EngineRequest:
    shared = draw(st.integers(0, longest - 1))
    own = draw(st.lists(st.integers(0, 999), min_size=not shared, max_size=6))
    prompt = (*draw(st.sampled_from(DOCUMENTS))[:shared], *own)[: longest - 1]
    ends = tuple({(prompt[-1] + draw(st.integers(1, 12))) % 1000} if draw(st.booleans()) else ())
    max_tokens = draw(st.integers(1, 20))
    sampling = SamplingSpec(
        end_ids=ends, min_tokens=draw(st.integers(0, min(5, max_tokens))), seed=draw(st.integers(0, 3))
    )
    choices = draw(st.integers(1, 3))
    tokens, _ = counted(prompt, min(max_tokens, longest - len(prompt)), sampling)
    drawn = draw(st.lists(st.integers(0, len(tokens)), max_size=choices))
    return EngineRequest(
        handle=handle,
        prompt=prompt,
        max_tokens=max_tokens,
        sampling=sampling,
        choices=choices,
        outputs=tuple(tuple(tokens[:count]) for count in drawn),
        done=tuple(draw(st.sets(st.integers(0, choices - 1), max_size=choices - 1))),
        priority=draw(st.integers(0, 1)),
        deadline_ms=draw(st.sampled_from([None, None, 1, 2])),
        tenant=draw(st.sampled_from(["", "a", "b"])),
        salt=draw(st.sampled_from(["", "", "salt"])),
        alone=draw(st.sampled_from([False] * 7 + [True])),
    )


@st.composite
def scenarios(draw: st.DrawFn) -> tuple[SchedulerConfig, list[Arrival]]:
    config = draw(configs())
    longest = min(config.context_length, config.blocks * config.block_size)
    arrivals = [
        Arrival(
            step=draw(st.integers(0, 20)),
            request=draw(requests(10 * number, longest)),
            aborted_at=draw(st.sampled_from([None, None, None, 0, 1, 5])),
        )
        for number in range(draw(st.integers(1, 10)))
    ]
    return config, arrivals


@settings(max_examples=50)
@given(scenarios())
def test_every_row_draws_what_it_draws_alone(scenario: tuple[SchedulerConfig, list[Arrival]]) -> None:
    draws_what_it_draws_alone(*scenario)


@pytest.mark.slow
@settings(max_examples=200)
@given(scenarios())
def test_in_many_more_scenarios(scenario: tuple[SchedulerConfig, list[Arrival]]) -> None:
    draws_what_it_draws_alone(*scenario)


def draws_what_it_draws_alone(config: SchedulerConfig, arrivals: list[Arrival]) -> None:
    rig = Rig(Scheduler(config, ErringDrafter(every=2 + len(arrivals) % 5)))
    for step in range(30):
        for arrival in arrivals:
            handles = range(arrival.request.handle, arrival.request.handle + arrival.request.choices)
            if arrival.step == step:
                rig.add(arrival.request)
            if arrival.aborted_at is not None and arrival.step + arrival.aborted_at == step:
                rig.abort(*handles)
        rig.step()
    # At worst a row alone takes a step for each token; preempted ones are recomputed: allow that thrice.
    tokens = sum(a.request.choices * (len(a.request.prompt) + a.request.max_tokens) for a in arrivals)
    rig.run(most_steps=4 * tokens)
