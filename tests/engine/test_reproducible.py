"""A whole engine as the worker builds it, over a tiny real model in float32: a row's tokens are its own,
whatever runs beside it, whatever happens to it; and a shared prefix is computed once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from support.engine import whole_engine
from support.models import checkpoints

from millstream_worker.engine.assembly import build
from millstream_worker.engine.engine import Engine
from millstream_worker.engine.protocol.config import EngineConfig, EngineInfo
from millstream_worker.engine.protocol.outputs import EngineStats
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from millstream_worker.engine.runner.runner import Launched

BLOCK = 4
SEEDED = SamplingSpec(
    temperature=1.3, top_p=0.95, min_p=0.01, repetition_penalty=1.1, frequency_penalty=0.3, seed=11
)
PROMPT = tuple(range(20, 33))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.build("llama", tmp_path_factory.mktemp("models"))


def engine(
    folder: Path, report: Callable[[str], None] = lambda _: None, **changes: object
) -> tuple[Engine[Launched], EngineInfo]:
    config = EngineConfig(
        str(folder), dtype="float32", device="cpu", threads=1, kv_memory="1MiB", block_size=BLOCK, max_rows=4,
        compile_model="off",
    )  # fmt: skip
    return build(dataclasses.replace(config, **changes), report)  # type: ignore[arg-type]


def run(
    loop: Engine[Launched], requests: Iterable[EngineRequest]
) -> tuple[dict[int, list[int]], EngineStats]:
    return whole_engine.run(loop, requests), loop.report().stats


def neighbours(count: int) -> list[EngineRequest]:
    return [
        EngineRequest(
            100 + index,
            tuple((index * 7 + place) % 90 + 3 for place in range(5 + 3 * index)),
            max_tokens=12,
            sampling=SamplingSpec(temperature=1.0, top_k=20, seed=index),
        )
        for index in range(count)
    ]


def test_a_seeded_row_draws_the_same_in_any_batch(folder: Path) -> None:
    row = EngineRequest(1, PROMPT, max_tokens=24, sampling=SEEDED)
    alone, _ = run(engine(folder)[0], [row])
    crowded, _ = run(engine(folder, max_step_tokens=6)[0], [*neighbours(3), row, *neighbours(9)[3:]])
    other, _ = run(
        engine(folder)[0], [dataclasses.replace(row, sampling=dataclasses.replace(SEEDED, seed=12))]
    )
    assert len(set(alone[1])) > 8
    assert crowded[1] == alone[1]
    assert other[1] != alone[1]


def test_a_preempted_row_draws_the_same_after_host_swap(folder: Path) -> None:
    rows = [EngineRequest(n, (*PROMPT, n) * 2, max_tokens=24, sampling=SEEDED) for n in range(3)]
    roomy, _ = run(engine(folder)[0], rows)
    _, info = engine(folder)
    sizes = {"kv_memory": f"{info.kv_bytes_per_token * BLOCK * 15}", "step_time_target_ms": 0}
    tight, without = run(engine(folder, **sizes, host_swap="0")[0], rows)
    swapped, stats = run(engine(folder, **sizes, host_swap="1MiB")[0], rows)

    assert swapped == tight == roomy
    assert min(stats.preemptions_total, without.preemptions_total, stats.swapped_in_total) > 0
    assert stats.prompt_computed_total < without.prompt_computed_total


@pytest.mark.parametrize("logged", [1, 23])
def test_a_seeded_row_goes_on_from_its_token_log_after_a_crash(folder: Path, logged: int) -> None:
    row = EngineRequest(1, PROMPT, max_tokens=24, sampling=SEEDED)
    whole, _ = run(engine(folder)[0], [row])
    resumed = dataclasses.replace(row, outputs=(tuple(whole[1][:logged]),))
    rest, _ = run(engine(folder)[0], [*neighbours(2), resumed])
    assert rest[1] == whole[1][logged:]


def test_choices_differ_and_are_each_as_if_alone(folder: Path) -> None:
    tokens, stats = run(
        engine(folder)[0], [EngineRequest(1, PROMPT, max_tokens=16, sampling=SEEDED, choices=3)]
    )
    single, _ = run(engine(folder)[0], [EngineRequest(1, PROMPT, max_tokens=16, sampling=SEEDED)])
    assert len({tuple(tokens[handle]) for handle in (1, 2, 3)}) == 3
    assert tokens[1] == single[1]
    shared = len(PROMPT) // BLOCK * BLOCK
    assert stats.prompt_computed_total == len(PROMPT) + 2 * (len(PROMPT) - shared)


def test_a_shared_prefix_is_computed_once(folder: Path) -> None:
    prefix = tuple(range(3, 3 + 5 * BLOCK))
    rows = [EngineRequest(n, (*prefix, 50 + n, 60 + n, 70), max_tokens=5) for n in range(6)]
    _, stats = run(engine(folder)[0], rows)
    assert stats.prompt_computed_total == len(prefix) + 3 * len(rows)
    assert stats.prefix_hit_total == len(prefix) * (len(rows) - 1)
    _, stats = run(engine(folder, prefix_cache=False)[0], rows)
    assert stats.prompt_computed_total == (len(prefix) + 3) * len(rows)


def test_the_engine_says_what_it_can_hold(folder: Path) -> None:
    said: list[str] = []
    _, info = engine(folder, said.append)
    assert info.architecture == "LlamaForCausalLM"
    assert info.token_capacity * info.kv_bytes_per_token <= 2**20
    assert any(f"{info.token_capacity:,} tokens" in line for line in said)
