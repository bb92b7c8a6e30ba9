"""Every variant of a kernel that a step asks for is one that the check at start has compiled: no step of
service waits for a compiler. A stand-in for Triton's driver counts them, and nothing is compiled or run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

import torch
from support.engine.attention_step import INT8, spec
from support.engine.planning import random_plan, sharing
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.attention.interface import StaticSize
from millstream_worker.engine.runner.gpu.attention.triton_backend import TritonAttention
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.self_check.attention_check import random_inputs
from millstream_worker.engine.runner.self_check.attention_steps import attention_steps

CPU = torch.device("cpu")
STEPS = 10  # of each kind of layer
Variants = set[tuple[str, str]]  # kernel, and what it is specialized for


class StandIn:
    """Of an H200's driver, for a device that no other test has."""

    def get_current_device(self) -> int:
        return -1

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Variants:
    found: Variants = set()

    def note(*, key: Any, fn: Any, **_: Any) -> bool:
        found.add((fn.name.split(".")[-1], str(key)))
        return True  # Triton neither compiles nor launches it

    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", note)
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # else some versions warn that it will change
    monkeypatch.setattr(driver, "_active", StandIn())
    return found


def random_step(random: np.random.Generator) -> Plan:
    plan = random_plan(int(random.integers(10**6)), int(random.integers(1, 12)))
    members = np.flatnonzero(plan.kv_lens[: plan.decodes] > 32)
    return sharing(plan, [(32, members.tolist())]) if len(members) > 1 and random.integers(2) else plan


def attend(backend: TritonAttention, layer: LayerSpec, tokens: int, dtype: torch.dtype) -> None:
    query, key, value, sinks = random_inputs(layer, tokens, dtype, CPU)
    backend.attend(0, query, key, value, sinks)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("layer", "kernels"),
    [
        (spec(32, 8, 128), 5),
        (spec(14, 2, 64, softcap=30.0), 5),
        (spec(32, 32, 80), 5),
        (spec(16, 8, 256, window=1024), 4),  # no layer with a window shares
        (spec(64, 8, 64, window=128, sinks=True), 3),  # nor is a short one cut
        (spec(32, 8, 128, **INT8), 5),
    ],
)
@pytest.mark.parametrize("programs", [pytest.param(80, marks=pytest.mark.slow), 528])
def test_the_check_at_start_asks_for_all_of_them(
    layer: LayerSpec, kernels: int, dtype: torch.dtype, programs: int, asked: Variants
) -> None:
    storage = KVStorage([replace(layer, group=0)], 1, 16, dtype, CPU)
    backend = TritonAttention(storage, programs)
    for plan in attention_steps(16)[0]:
        backend.begin(plan)
        attend(backend, layer, plan.token_count, dtype)
    at_start = set(asked)
    assert len(at_start) == len({kernel for kernel, _ in at_start}) == kernels

    random = np.random.default_rng(0)
    for number in range(STEPS):
        plan = random_step(random)
        backend.begin(plan)
        attend(backend, layer, plan.token_count, dtype)
        rows, prompts = int(random.integers(1, 40)), int(random.integers(1, 9))
        for size in (
            StaticSize(rows, rows, 0, 512, prefix_groups=number % 2 == 0),
            StaticSize(rows, rows + 16 * prompts, prompts, 512, prefix_groups=True),
        ):
            backend.hold(backend.reserve(size))
            attend(backend, layer, size.tokens, dtype)
    assert asked == at_start
