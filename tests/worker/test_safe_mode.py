"""The settings of a safer engine, and those that stay as the operator has set them."""

from __future__ import annotations

from dataclasses import replace

from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.frames import Loading, Tried
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


def test_what_the_operator_has_set_stays() -> None:
    mode = SafeMode(replace(GIVEN, cuda_graphs="on", attention="native"))
    assert mode.step_down("a fault")
    assert mode.config == replace(GIVEN, cuda_graphs="on", attention="native", compile_model="off")
    assert not mode.step_down("another")


def test_what_an_engine_tries_is_read_from_its_reports() -> None:
    assert Loading(f"{Tried.ATTENTION} of triton").tried is Tried.ATTENTION
    assert Loading("reading weights").tried is None
    assert all(hasattr(GIVEN, one.setting) for one in Tried)
