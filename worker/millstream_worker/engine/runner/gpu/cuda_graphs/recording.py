"""Records CUDA graphs at start. Steps that cannot be recorded run eagerly; the reason is logged."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from millstream_worker.engine.protocol.frames import Tried
from millstream_worker.engine.runner.device.transfer import settle
from millstream_worker.engine.runner.forward import Eager
from millstream_worker.engine.runner.gpu.cuda_graphs.recorder import CannotRecord, Recorder
from millstream_worker.engine.runner.gpu.cuda_graphs.replay_check import check_replay, compute
from millstream_worker.engine.runner.gpu.cuda_graphs.replay_steps import ReplaySteps
from millstream_worker.engine.runner.gpu.cuda_graphs.steps import CudaGraphs, GraphLimits
from millstream_worker.engine.runner.self_check.deviation import Mismatch
from millstream_worker.engine.runner.self_check.findings import Findings, short

_DECODES_ONLY = "CUDA graphs of decode steps only"


def wanted(name: str, device: torch.device) -> bool:
    """True if steps are to be recorded, for the setting `name`; ValueError where the device cannot."""
    if name == "on" and device.type != "cuda":
        raise ValueError(f"cuda_graphs 'on' needs a CUDA device, this is {device.type}; use 'auto' or 'off'")
    return name != "off" and device.type == "cuda"


@torch.inference_mode()
def record(eager: Eager, recorder: Recorder, limits: GraphLimits, findings: Findings) -> CudaGraphs:
    """Returns the recorded and checked steps of a model, beside which any step that is called from Python has
    the memory that it needs. Raises `CannotRecord`; everything works without."""
    try:
        graphs = _record(eager, recorder, limits, findings)
        free = recorder.free_bytes()
        if free < limits.spare and graphs.sizes[1]:
            del graphs
            findings.fall_back(f"{_DECODES_ONLY}: {_too_little(free, limits.spare)}")
            recorder.start_over()
            graphs = _record(eager, recorder, replace(limits, prompts=False), findings)
            free = recorder.free_bytes()
        if free < limits.spare:
            raise CannotRecord(_too_little(free, limits.spare))
        _check(eager, graphs, limits, findings)
    except CannotRecord:
        raise
    except Exception as error:  # of the model's code, a compiler, a library, or a mismatch
        settle(eager.loaded.device)
        raise CannotRecord(short(error)) from error
    return graphs


def _record(eager: Eager, recorder: Recorder, limits: GraphLimits, findings: Findings) -> CudaGraphs:
    before, start = recorder.free_bytes(), time.monotonic()
    graphs = CudaGraphs(eager, recorder, limits)
    rows, tokens = graphs.sizes
    findings.report(Tried.CUDA_GRAPHS)
    graphs.record(eager.mark, findings.fall_back)
    free = recorder.free_bytes()
    findings.report(
        f"recorded CUDA graphs in {time.monotonic() - start:.1f} s: {_ladder('rows', rows)}; "
        f"{_ladder('tokens', tokens)}; they take {_mib(before - free)}, {_mib(free)} are free, "
        f"a step may need {_mib(limits.spare)}"
    )
    return graphs


def _check(eager: Eager, graphs: CudaGraphs, limits: GraphLimits, findings: Findings) -> None:
    """Forgets the kind of steps that is replayed wrongly. Raises Mismatch if that is both."""
    longest = min(eager.loaded.context_length, limits.width * eager.storage.block_size)
    steps = ReplaySteps.within(eager.storage, longest, limits.rows)
    if steps is None:
        findings.unchecked("CUDA graphs", "the KV cache has no room for their steps")
        return
    compute(eager, steps.fill(limits.tokens))
    found, wrong = [], None
    for of_kind, forget, line in (
        (steps.decodes(), graphs.forget_decodes, "CUDA graphs of steps with prompts only"),
        (steps.mixed(), graphs.forget_mixed, _DECODES_ONLY),
    ):
        try:
            found.append(check_replay(eager, graphs.replay, of_kind))
        except Mismatch as error:
            if wrong or not all(graphs.sizes):
                raise
            forget()
            wrong = error
            findings.fall_back(f"{line}: {error}")
    compared = [worst for worst in found if worst is not None]
    if compared:
        findings.passed("CUDA graphs", max(compared))
    else:
        findings.unchecked("CUDA graphs", "no step of theirs fits into the check")


def _too_little(free: int, spare: int) -> str:
    return f"beside what is recorded {_mib(free)} are free, and a step may need {_mib(spare)}"


def _mib(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"


def _ladder(what: str, rungs: list[int]) -> str:
    return f"{len(rungs)} sizes up to {rungs[-1]} {what}" if rungs else f"none by {what}"
