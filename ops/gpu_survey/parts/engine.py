"""A whole engine on the shape of a model with random weights: its start, line by line; the workloads of
ops.bench at full size, beside vLLM; what the device and the host do in a decode step; sampled tokens.

SURVEY_ENGINE: settings, as "compile_model=off,kv_dtype=int8". SURVEY_WORKLOADS: names, separated by commas;
"none" for the start alone.
"""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from ops.bench.engines.adapters.millstream import engine_settings
from ops.bench.models.shapes import LLAMA_8B, QWEN_06B
from ops.gpu_survey.parts.arrivals import arriving
from ops.gpu_survey.parts.random_model import TINY, folder, random_weights
from ops.gpu_survey.parts.step_profile import decode_kernels, host_shares, prefill_kernels
from ops.gpu_survey.parts.workload_runs import GREEDY, Served, decode_without_waits, run_workload
from ops.gpu_survey.survey import FAILED, Survey, wait_for_quiet

from millstream_worker.engine.assembly import build
from millstream_worker.engine.check_page import print_page
from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.request import SamplingSpec
from millstream_worker.engine.runner.compiled import cache as compiled_cache
from millstream_worker.engine.runner.model.load import LoadedModel

WORKLOADS = ("decode", "single", "shareddoc", "shared", "document", "ragged")
TINY_WORKLOADS = ("c",)
SAMPLED = (SamplingSpec(), SamplingSpec(top_p=0.9))
_LOGGED = ("recorded CUDA graphs", "compiled in", "checked:")  # words of the start's lines that are kept
_STARTED = time.monotonic()


def llama8b(survey: Survey) -> None:
    _whole(survey, LLAMA_8B, "llama8b")


def qwen06b(survey: Survey) -> None:
    _whole(survey, QWEN_06B, "qwen06b")


def check_page(survey: Survey) -> None:
    """What `millstream-worker --check` prints."""
    place, own = _settings(survey, LLAMA_8B)
    page = io.StringIO()
    with random_weights(), _compiled_anywhere():
        status = print_page(EngineConfig(str(place), device=survey.device, **own), page)
    survey.failed = bool(status)
    survey.found("page", page.getvalue())


def _whole(survey: Survey, shape: dict[str, Any], model: str) -> None:
    served = _started(survey, shape, model)
    survey.found("waited", f"{wait_for_quiet():.1f} s for the parts beside")
    named = os.environ.get("SURVEY_WORKLOADS", "")
    if named == "none":
        return
    names = [*filter(None, named.split(","))] or [*(TINY_WORKLOADS if survey.tiny else WORKLOADS)]
    for name in names:
        survey.attempt(name, partial(run_workload, survey, served, name, GREEDY))
    survey.attempt("decode, profile", partial(decode_kernels, survey, served))
    survey.attempt("prefill, profile", partial(prefill_kernels, survey, served))
    survey.attempt("decode, host", partial(host_shares, survey, served))
    if not named:
        for spec in SAMPLED:
            what = f"decode, temperature 1, top_p {spec.top_p}"
            survey.attempt(what, partial(run_workload, survey, served, names[0], spec))
        for shared in (True, False):
            what = f"arrivals, {'shared' if shared else 'apart'}"
            survey.attempt(what, partial(arriving, survey, served, shared))
        survey.attempt("nobody waits for the device", partial(decode_without_waits, survey, served))
    if survey.device == "cuda":
        peak = torch.cuda.max_memory_reserved() / 2**30
        survey.found("memory", f"{peak:.1f} GiB reserved by torch at the most", peak_gib=round(peak, 2))
    survey.attempt("after all", partial(_after_all, served))


def _started(survey: Survey, shape: dict[str, Any], model: str) -> Served:
    said: list[str] = []

    def report(line: str) -> None:
        said.append(line)
        print(f"{time.monotonic() - _STARTED:7.1f} s, {_cpu_s():6.1f} s of CPU  {line}", flush=True)

    place, own = _settings(survey, shape)
    begun, imports_s = time.monotonic(), _cpu_s()
    with random_weights(), _compiled_anywhere():
        engine, info = build(EngineConfig(str(place), device=survey.device, **own), report)
    seconds, cpu_s = round(time.monotonic() - begun, 1), round(_cpu_s() - imports_s, 1)
    survey.found(
        "start",
        f"{seconds} s, {cpu_s} s of CPU, after {imports_s:.1f} s of CPU to import; {info.blocks:,} blocks",
        seconds=seconds,
        cpu_s=cpu_s,
        settings=own,
    )
    survey.found("checked", info.self_check or "nothing")
    for reason in info.fallbacks:
        survey.failed = True
        survey.found("slower", f"{FAILED}: {reason}")
    for line in said:
        if any(part in line for part in _LOGGED):
            survey.found("said", line)
    return Served(engine, info, model)


def _settings(survey: Survey, shape: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """Returns the folder of the model, and the engine's settings."""
    own: dict[str, Any] = {
        "max_rows": 256,
        "max_step_tokens": 8192,
        "compile_model": "on",
        "speculate": "off",
        "kv_memory": "40GiB",
        "cache_dir": str(survey.scratch / "engine"),
    }
    if survey.tiny:
        shape = TINY
        own |= {"max_rows": 8, "kv_memory": "64MiB", "compile_model": "off", "attention": "torch"}
    own |= engine_settings(os.environ.get("SURVEY_ENGINE", ""))
    return folder(shape, survey.out / f"{survey.name}-model"), own


@contextmanager
def _compiled_anywhere() -> Iterator[None]:
    """Keep compiled code in a folder of one name on all machines: what the null GPU has compiled is found."""
    sources = [Path(source).read_text("utf-8") for source in compiled_cache._SOURCES]
    version = hashlib.sha256("".join([torch.__version__, *sources]).encode()).hexdigest()[:8]

    def digest(loaded: LoadedModel) -> str:
        return f"{loaded.architecture}-{loaded.parameters}-{loaded.attention}-{loaded.weights}-{version}"

    with mock.patch.object(compiled_cache, "_digest", digest):
        yield


def _after_all(served: Served) -> str:
    served.engine.check()
    return "pool sound"


def _cpu_s() -> float:
    return sum(os.times()[:4])
