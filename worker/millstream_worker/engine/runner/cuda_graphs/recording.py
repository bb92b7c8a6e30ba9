"""Recording at start: what can be is recorded, what cannot runs eagerly, and the reason is told."""

from __future__ import annotations

import time

import torch

from millstream_worker.engine.runner.cuda_graphs.body import Body
from millstream_worker.engine.runner.cuda_graphs.recorder import CannotRecord, Recorder
from millstream_worker.engine.runner.cuda_graphs.replay_check import check_replay
from millstream_worker.engine.runner.cuda_graphs.steps import CudaGraphs, GraphLimits
from millstream_worker.engine.runner.device.gpu import settle
from millstream_worker.engine.runner.forward import Eager
from millstream_worker.engine.runner.self_check.findings import Findings, short

NAMES = ("auto", "on", "off")
_MIB = 2**20


def wanted(name: str, device: torch.device) -> bool:
    """Whether to record, for what was asked; ValueError where the device cannot."""
    if name not in NAMES:
        raise ValueError(f"cuda_graphs is {name!r}; it must be one of {', '.join(NAMES)}")
    if name == "on" and device.type != "cuda":
        raise ValueError(f"cuda_graphs 'on' needs a CUDA device, this is {device.type}; use 'auto' or 'off'")
    return name != "off" and device.type == "cuda"


@torch.inference_mode()
def record(eager: Eager, recorder: Recorder, limits: GraphLimits, findings: Findings) -> CudaGraphs:
    """Returns the recorded and checked steps of a model. Raises `CannotRecord`; everything works without."""
    before, start = recorder.used_bytes(), time.monotonic()
    try:
        graphs = CudaGraphs(eager, Body(eager.loaded), recorder, limits)
        rows, tokens = graphs.sizes
        findings.report(f"recording CUDA graphs: {_ladder('rows', rows)}; {_ladder('tokens', tokens)}")
        graphs.record(eager.mark, findings.fall_back)
        worst = check_replay(eager, graphs.replay, limits.rows)
    except CannotRecord:
        raise
    except Exception as error:  # of the model's code, a compiler, a library, or a mismatch
        settle(eager.loaded.device)
        raise CannotRecord(short(error)) from error
    used = (recorder.used_bytes() - before) / _MIB
    findings.report(f"recorded CUDA graphs in {time.monotonic() - start:.1f} s, {used:,.0f} MiB")
    findings.passed("CUDA graphs", worst)
    return graphs


def _ladder(what: str, rungs: list[int]) -> str:
    return f"{len(rungs)} sizes up to {rungs[-1]} {what}" if rungs else f"none by {what}"
