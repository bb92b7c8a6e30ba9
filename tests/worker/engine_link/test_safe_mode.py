"""The settings of a safer engine, and those that stay as the operator has set them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.frames import LoadProgress, Tried
from millstream_worker.engine_link.safe_mode import SafeMode

GIVEN = EngineConfig("model")
GRAPHS = {"cuda_graphs": "off"}
CODE, KERNELS = {"compile_model": "off"}, {"attention": "torch"}
CHOSEN = {"cuda_graphs": "on", "attention": "native"}  # by an operator

Deaths = list[tuple[Tried | None, dict[str, str]]]  # what was tried then, and what is off from then on, too


@pytest.mark.parametrize(
    ("given", "device", "deaths"),
    [
        ({}, "", [(None, GRAPHS), (None, CODE | KERNELS)]),
        ({}, "cpu", [(None, CODE | KERNELS)]),
        (CHOSEN, "", [(None, CODE)]),
        # What was tried at the death goes first; at the same again it was not that.
        ({}, "", [(Tried.ATTENTION, KERNELS), (Tried.COMPILE_MODEL, CODE), (Tried.COMPILE_MODEL, GRAPHS)]),
        # The largest step costs one suspect after the other.
        ({}, "", [(Tried.LARGEST_STEP, off) for off in (CODE, KERNELS)]),
    ],
)
def test_each_death_costs_something_until_nothing_is_left(
    given: dict[str, Any], device: str, deaths: Deaths
) -> None:
    mode = SafeMode(replace(GIVEN, **given))
    mode.device = device or mode.device
    safe = mode.config
    for tried, off in deaths:
        assert mode.step_down("a fault", tried)
        safe = replace(safe, **off)
        assert mode.config == safe
    if deaths[0][0] is not Tried.LARGEST_STEP:
        assert not mode.step_down("another")


@pytest.mark.parametrize(("tried", "without"), [(Tried.COMPILE_MODEL, CODE), (Tried.CUDA_GRAPHS, GRAPHS)])
def test_a_death_in_one_check_costs_that_alone(tried: Tried, without: dict[str, str]) -> None:
    mode = SafeMode(GIVEN)
    assert mode.step_down("exit status -11", tried)
    assert mode.config == replace(GIVEN, **without)


def test_reasons_say_what_is_off_and_since_when() -> None:
    mode = SafeMode(GIVEN)
    assert mode.step_down("a fault")
    assert mode.step_down("another")
    told = mode.reasons
    assert told == ["cuda graphs off since a fault", "compile model off, attention torch since another"]


def test_what_an_engine_tries_is_read_from_its_reports() -> None:
    assert LoadProgress(Tried.ATTENTION).tried is Tried.ATTENTION
    assert LoadProgress("reading weights").tried is None
    assert all(hasattr(GIVEN, suspect.setting) for one in Tried for suspect in one.suspects)
