"""The settings of a safer engine, and those that stay as the operator has set them."""

from __future__ import annotations

from dataclasses import replace

from millstream_worker.engine.protocol.config import EngineConfig
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


def test_what_the_operator_has_set_stays() -> None:
    mode = SafeMode(replace(GIVEN, cuda_graphs="on", attention="native"))
    assert mode.step_down("a fault")
    assert mode.config == replace(GIVEN, cuda_graphs="on", attention="native", compile_model="off")
    assert not mode.step_down("another")
