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
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from millstream_worker.engine.runner.model import load
from millstream_worker.engine.runner.model.weights import ReadWeights

_HOLE = 2**32  # bytes
TINY = TINY_14M | {"num_hidden_layers": 2, "vocab_size": 1000}


@contextlib.contextmanager
def random_weights() -> Iterator[None]:
    """What is loaded in the meantime are random weights, each time the same."""
    with mock.patch.object(load, "load_weights", _made):
        yield


def folder(shape: dict[str, Any], place: Path) -> Path:
    """A folder for `load_model`. Its file of weights is a hole, large enough for a model of any shape."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps(shape))
    header = json.dumps({"none": {"dtype": "U8", "shape": [_HOLE], "data_offsets": [0, _HOLE]}}).encode()
    with (place / "load.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + _HOLE)
    return place


def _made(
    _folder: str,
    config: PretrainedConfig,
    dtype: torch.dtype,
    device: torch.device,
    attention: str,
    *_: object,
) -> ReadWeights:
    """As `load_weights`."""
    if torch.cuda.is_available():  # also what is read to the CPU otherwise: its numbers take a minute there
        device = torch.device("cuda")
    torch.manual_seed(0)
    with device:
        made = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    for module in made.modules():
        if isinstance(module, PreTrainedModel):
            module.warn_if_padding_and_no_attention_mask = lambda *_: None
    return ReadWeights(made.eval(), forms="", left_out="")
