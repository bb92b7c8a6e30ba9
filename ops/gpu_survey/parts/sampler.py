"""What drawing costs beside a step: 256 rows of a vocabulary of 128,256, in each way that it is asked for."""

from __future__ import annotations

import itertools
import time
from functools import partial

import numpy as np
import torch
from ops.gpu_survey.parts.timing import graph_us, median_ms, plan_of
from ops.gpu_survey.survey import Survey

from millstream_worker.engine.brain.batch.plan import RowLoad
from millstream_worker.engine.protocol.request import SamplingSpec
from millstream_worker.engine.runner.device.transfer import together
from millstream_worker.engine.runner.gpu.sampling.triton_chooser import TritonChooser
from millstream_worker.engine.runner.gpu.sampling.triton_draws import TritonDraws
from millstream_worker.engine.runner.sampling import slot_settings
from millstream_worker.engine.runner.sampling.numpy_chooser import NumpyChooser
from millstream_worker.engine.runner.sampling.sampler import Sampler

WAYS = {
    "greedy": SamplingSpec(temperature=0.0),
    "temperature": SamplingSpec(),
    "top_p 0.9": SamplingSpec(top_p=0.9),
    "top_k 50": SamplingSpec(top_k=50),
    "top_k 50, top_p 0.9": SamplingSpec(top_k=50, top_p=0.9),
    "min_p 0.05": SamplingSpec(min_p=0.05),
    "penalties": SamplingSpec(repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.5),
    "greedy, 5 logprobs": SamplingSpec(temperature=0.0, top_logprobs=5),
}
KERNEL_WAYS = ("temperature", "top_p 0.9", "top_k 50", "min_p 0.05")


def draw(survey: Survey) -> None:
    rows, vocabulary = (4, 1000) if survey.tiny else (256, 128_256)
    dtype = torch.float32 if survey.tiny else torch.bfloat16
    logits = 3 * torch.randn(rows, vocabulary, device=survey.device, dtype=dtype)
    for name, spec in WAYS.items():
        survey.attempt(f"{rows} x {vocabulary:,}, {name}", partial(_timed, spec, logits))
    if survey.tiny:
        return
    for wide, name in itertools.product((1, 3, 8), KERNEL_WAYS):
        what = f"kernel alone, logits spread by {wide}, {name}"
        survey.attempt(what, partial(_kernel, WAYS[name], wide / 3 * logits))


def _timed(spec: SamplingSpec, logits: torch.Tensor) -> str:
    rows, vocabulary = logits.shape
    chooser = TritonChooser(TritonDraws(vocabulary)) if logits.is_cuda else NumpyChooser()
    sampler = Sampler(vocabulary, rows, logits.device, chooser)
    for slot in range(rows):
        sampler.load(RowLoad(slot, spec, tuple(range(3, 200)), ()))
    plan = plan_of([(199, 1)] * rows)
    plan.noise[:] = np.random.default_rng(0).random(rows)
    ms = median_ms(lambda: sampler.sample(logits, plan))
    before = time.perf_counter()
    drawn = sampler.collect(sampler.sample(logits, plan))
    took_ms = 1e3 * (time.perf_counter() - before)
    return f"{ms:.2f} ms, with its tokens on the host {took_ms:.2f} ms, {len(set(drawn.tokens))} tokens"


@torch.inference_mode()
def _kernel(spec: SamplingSpec, logits: torch.Tensor) -> str:
    """The kernel that draws, by itself."""
    rows, vocabulary = logits.shape
    draws = TritonDraws(vocabulary)
    settings = slot_settings.empty(rows)
    settings[:] = slot_settings.settings_of(spec, vocabulary)
    columns = slot_settings.columns(settings, np.random.default_rng(0).random(rows))
    given = together([np.arange(rows), columns, settings["top_k"]], logits.device)
    draws.draw(logits, *given)
    return f"{graph_us(lambda: draws.draw(logits, *given)):,.0f} us"
