"""Recurrent states whose backend has been checked with the loaded model's modules, or PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from millstream_worker.engine.protocol.frames import Tried
from millstream_worker.engine.runner.model.load import LoadedModel
from millstream_worker.engine.runner.self_check.findings import Findings, short
from millstream_worker.engine.runner.self_check.state_check import check_states
from millstream_worker.engine.runner.states.torch_states import TorchStates


def checked_states(
    loaded: LoadedModel, named: str, findings: Findings, mark: Callable[[], None] = lambda: None
) -> LoadedModel:
    """Returns the model, with PyTorch's states where its own backend fails in whatever way. Raises ValueError
    if that is what the operator has `named` ("auto": nothing)."""
    if not loaded.state_specs or loaded.attention == "torch":
        return replace(loaded, advance_over=TorchStates)
    findings.report(f"{Tried.ATTENTION}, and recurrent states")
    try:
        worst = check_states(loaded.advance_over, loaded.state_specs, mark)
    except Exception as error:  # of a compiler, a library, or a mismatch
        if named != "auto":
            raise ValueError(
                f"attention {named!r}: its recurrent states do not work here: {short(error)}; use 'torch' or "
                "'auto'"
            ) from error
        findings.fall_back(f"recurrent states: plain PyTorch, many times slower: {short(error)}")
        return replace(loaded, advance_over=TorchStates)
    findings.passed("recurrent states", worst)
    return loaded
