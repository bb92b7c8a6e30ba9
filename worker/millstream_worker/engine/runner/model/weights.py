"""Reads the weights of a model's folder. What is missing or does not fit is named; nothing is made up. Knows
transformers' loading; knows nothing of attention.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import torch
from transformers import (
    PretrainedConfig,
    PreTrainedModel,
    modeling_utils,
)
from transformers.utils import logging as transformers_logging

from millstream_worker.engine.protocol.frames import LoadStep
from millstream_worker.engine.runner.checkpoint.quantized.dense import forms_of, open_dense
from millstream_worker.engine.runner.checkpoint.quantized.parts import UnreadWeight
from millstream_worker.engine.runner.kv.pool_size import free_bytes
from millstream_worker.engine.runner.model_config.support import UnsupportedModel, architecture
from millstream_worker.engine.runner.model_config.text_half import own_names, text_class

_TELL_S = 1.0  # between two reports of how far reading is


@dataclass(frozen=True, slots=True, eq=False)
class ReadWeights:
    """A model in evaluation mode. `forms`: the names of the formats that its weights were dequantised from;
    `left_out`: a line on what is not loaded. Each "" where there is none."""

    model: PreTrainedModel
    forms: str
    left_out: str


def load_weights(
    folder: str,
    config: PretrainedConfig,
    dtype: torch.dtype,
    device: torch.device,
    attention: str,
    report: Callable[[str], None],
    mark: Callable[[], None],
    whole: PretrainedConfig,
    settings: Mapping[str, Any],
) -> ReadWeights:
    """Returns the model, its attention modules calling the function registered as `attention`. `config`: the
    checkpoint's configuration, or its text half's; `whole`: the checkpoint's; `settings`: what
    `without_quantization` returned of them. Quantised weights are dequantised. `mark` is called with each
    weight, `report` from time to time. Raises `UnsupportedModel` where weights are missing, cannot be read or
    do not fit, or are more than the free memory."""
    with (
        _progress_to(report, mark),
        _segments_of_their_own(),
        named_faults(config, folder),
        open_dense(Path(folder), settings, dtype, device) as stored,
    ):
        names = own_names(config, whole, stored)
        needed = sum(prod(stored[name].get_shape()) for name in names) * dtype.itemsize
        form = str(dtype).removeprefix("torch.")
        check_memory(needed, form, device)
        forms = forms_of({name: stored[name] for name in names})
        if forms:
            report(f"{LoadStep.WEIGHTS}: {forms} become {form}, {needed / 1e9:,.1f} GB in all")
        model, found = text_class(config, whole).from_pretrained(
            None,
            config=config,
            state_dict={own: stored[name] for name, own in names.items()},
            dtype=dtype,
            attn_implementation=attention,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # to name them: its own error only points to a report in the log
            device_map=None if device.type == "cpu" else {"": device},
        )
    name = type(model).__name__
    if wrong := sorted(found["mismatched_keys"]):  # transformers would go on with random ones
        weight, given, wanted = wrong[0]
        raise UnsupportedModel(
            f"{name}: {folder} has {len(wrong)} weights that do not fit its config.json, the first is "
            f"{weight}: {list(given)} instead of {list(wanted)}"
        )
    if missing := sorted(found["missing_keys"]):  # here, too
        raise UnsupportedModel(f"{name}: {folder} lacks {len(missing)} weights, the first is {missing[0]}")
    for module in model.modules():
        if isinstance(module, PreTrainedModel):  # some look for padding in each step, and wait for the device
            module.warn_if_padding_and_no_attention_mask = lambda *_: None
    left_out = ""
    if whole is not config:
        others = f"{len(stored) - len(names)} weights of its other parts are not loaded"
        left_out = f"text half of {architecture(whole)}: {others}"
    return ReadWeights(model.eval(), forms, left_out)


def check_memory(needed: int, form: str, device: torch.device) -> None:
    """Raises `UnsupportedModel` where so many bytes of weights are more than the memory that is free. `form`:
    the weights' format."""
    free = free_bytes(device)
    if needed > free:
        raise UnsupportedModel(
            f"its weights take {needed / 1e9:,.1f} GB in {form}, and {free / 1e9:,.1f} GB are free on "
            f"{device.type}: use a smaller model, or a GGUF file with fewer bits, or free memory"
        )


def check_finite(folder: str, model: PreTrainedModel) -> None:
    """Raises `UnsupportedModel` for weights that are not finite. Reads all of them: for a model whose logits
    are not finite, which float16 may be too narrow for, too."""
    for name, weight in chain(model.named_parameters(), model.named_buffers()):
        if weight.is_floating_point() and not torch.isfinite(weight).all():
            raise UnsupportedModel(
                f"{folder}: {name} has values that are not finite, with which every answer is noise; fetch "
                "the weights and config.json anew"
            )


@contextlib.contextmanager
def named_faults(config: PretrainedConfig, folder: str) -> Iterator[None]:
    """Raises `UnsupportedModel` with the model's name for a quantised weight that cannot be read."""
    try:
        yield
    except UnreadWeight as error:
        raise UnsupportedModel(f"{architecture(config)}: {folder}: {error}") from error


@contextlib.contextmanager
def _segments_of_their_own() -> Iterator[None]:
    """Transformers takes a GPU's memory for all weights as one segment, which stays as long as any of them.
    Without that, what layers leave when they are fused can be given back."""
    warm_up = getattr(modeling_utils, "caching_allocator_warmup", None)
    if warm_up is None:
        yield
        return
    vars(modeling_utils)["caching_allocator_warmup"] = lambda *arguments: None
    try:
        yield
    finally:
        vars(modeling_utils)["caching_allocator_warmup"] = warm_up


@contextlib.contextmanager
def _progress_to(report: Callable[[str], None], mark: Callable[[], None]) -> Iterator[None]:
    """Transformers draws a bar while it loads weights; `mark` is called with each instead, and `report`."""

    def each(items: Iterable[Any]) -> Iterator[Any]:
        size = len(items) if isinstance(items, Sized) else 0
        told_at = time.monotonic()
        for number, item in enumerate(items):
            mark()
            if size and (now := time.monotonic()) - told_at > _TELL_S:
                report(f"{LoadStep.WEIGHTS}: {number / size:.0%}")
                told_at = now
            yield item

    def listen(bar: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return bar(*(each(given[0]), *given[1:]), **named) if given else bar(**named)

    enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    hook = getattr(transformers_logging, "set_tqdm_hook", lambda hook: None)  # older ones have none
    before = hook(listen)
    try:
        yield
    finally:
        hook(before)
        if enabled:
            transformers_logging.enable_progress_bar()
