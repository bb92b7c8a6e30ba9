"""Models of a shape whose random weights are made on the device: no checkpoint is written or read."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from ops.bench.models.shapes import TINY_14M
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from millstream_worker.engine.runner.model import load

TINY = TINY_14M | {"num_hidden_layers": 2, "vocab_size": 1000}


@contextlib.contextmanager
def random_weights() -> Iterator[None]:
    """What is loaded in the meantime are random weights, each time the same."""
    with mock.patch.object(load, "load_weights", _made):
        yield


def folder(shape: dict[str, Any], place: Path) -> Path:
    """A folder for `load_model`, with as good as no weights in it."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps(shape))
    save_file({"none": torch.zeros(1)}, place / "load.safetensors")
    return place


def _made(
    _folder: str,
    config: PretrainedConfig,
    dtype: torch.dtype,
    device: torch.device,
    attention: str,
    *_: object,
) -> PreTrainedModel:
    torch.manual_seed(0)
    with device:
        made = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    for module in made.modules():
        if isinstance(module, PreTrainedModel):
            module.warn_if_padding_and_no_attention_mask = lambda *_: None
    return made.eval()
