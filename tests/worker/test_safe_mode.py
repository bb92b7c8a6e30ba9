"""The settings of a safer engine, and those that stay as the operator has set them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.frames import Loading, Tried, stepping_down
from millstream_worker.engine_link.safe_mode import SafeMode

GIVEN = EngineConfig("model")


def test_graphs_go_first_then_compiled_code_and_own_kernels() -> None:
    mode = SafeMode(GIVEN)
    assert mode.config == GIVEN
    assert mode.step_down("a fault")
    assert mode.config == replace(GIVEN, cuda_graphs="off")
    assert mode.step_down("another")
    assert mode.config == replace(GIVEN, cuda_graphs="off", compile_model="off", attention="torch")
    assert not mode.step_down("a third")
    assert mode.reasons == [
        "cuda graphs off since a fault",
        "compile model off, attention torch since another",
    ]


def test_without_graphs_to_begin_with_compiled_code_and_own_kernels_go_first() -> None:
    mode = SafeMode(GIVEN)
    mode.device = "cpu"
    assert mode.step_down("a fault")
    assert mode.config == replace(GIVEN, compile_model="off", attention="torch")
    assert not mode.step_down("another")


def test_what_was_tried_at_the_death_goes_first() -> None:
    mode = SafeMode(GIVEN)
    assert mode.step_down("a fault", Tried.ATTENTION)
    assert mode.config == replace(GIVEN, attention="torch")
    assert mode.step_down("another", Tried.COMPILE_MODEL)
    assert mode.config == replace(GIVEN, attention="torch", compile_model="off")
    assert mode.step_down("the same again", Tried.COMPILE_MODEL), "it was not that"
    assert mode.config == replace(GIVEN, attention="torch", compile_model="off", cuda_graphs="off")
    assert not mode.step_down("a fourth", Tried.CUDA_GRAPHS)


@pytest.mark.parametrize(
    ("tried", "without"),
    [
        (Tried.FLASH_ATTENTION, {"flash_attention": "off"}),  # our kernels stay
        (Tried.SAMPLING, {"sampling": "torch"}),
        (Tried.CUDA_GRAPHS, {"cuda_graphs": "off"}),
    ],
)
def test_a_death_in_one_check_costs_that_alone(tried: Tried, without: dict[str, str]) -> None:
    mode = SafeMode(GIVEN)
    assert mode.step_down("exit status -11", tried)
    assert mode.config == replace(GIVEN, **without)


def test_the_largest_step_costs_one_suspect_after_the_other() -> None:
    mode = SafeMode(GIVEN)
    safe = GIVEN
    for name, value in (("flash_attention", "off"), ("compile_model", "off"), ("attention", "torch")):
        safe = replace(safe, **{name: value})
        assert mode.step_down("exit status -11", Tried.LARGEST_STEP)
        assert mode.config == safe
    assert mode.reasons[0] == "flash attention off since exit status -11"


def test_what_an_engine_has_stepped_down_from_is_kept_off() -> None:
    mode = SafeMode(GIVEN)
    assert mode.keep(Tried.COMPILE_MODEL, "other logits") == "compile model off since other logits"
    assert mode.config == replace(GIVEN, compile_model="off")
    assert mode.reasons == ["compile model off since other logits"]

    named = SafeMode(replace(GIVEN, cuda_graphs="on"))
    assert named.keep(Tried.CUDA_GRAPHS, "other logits") == "cuda graphs off since other logits"
    assert named.config.cuda_graphs == "on", "the next one tries what the operator wants"
    assert not named.reasons


def test_what_the_operator_has_set_stays() -> None:
    mode = SafeMode(replace(GIVEN, cuda_graphs="on", attention="native"))
    assert mode.step_down("a fault")
    assert mode.config == replace(GIVEN, cuda_graphs="on", attention="native", compile_model="off")
    assert not mode.step_down("another")


def test_what_an_engine_tries_is_read_from_its_reports() -> None:
    assert Loading(f"{Tried.ATTENTION} of triton").tried is Tried.ATTENTION
    assert Loading(f"{Tried.FLASH_ATTENTION} for prompts").tried is Tried.FLASH_ATTENTION
    assert Loading("reading weights").tried is None
    assert Loading("reading weights").stepped_down is None
    down = Loading(stepping_down(Tried.CUDA_GRAPHS, "a: b"))
    assert down.stepped_down == (Tried.CUDA_GRAPHS, "a: b")
    assert down.tried is None
    assert all(hasattr(GIVEN, suspect.setting) for one in Tried for suspect in one.suspects)
