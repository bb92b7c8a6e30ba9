"""The checkpoints that engines are timed on: a shape's random weights, made once and kept in the cache, or a
real one by folder or hub id."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ops.bench.models.shapes import SHAPES


def checkpoint(model: str) -> Path:
    """`model`: a shape's name, a folder, or a hub id. A folder with config.json and safetensors."""
    if model in SHAPES:
        return shaped_checkpoint(model)
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.jinja"]))


def shaped_checkpoint(shape: str) -> Path:
    """A folder with random weights of that shape."""
    folder = cache() / shape
    if not folder.exists():
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        fields = dict(SHAPES[shape])
        config = AutoConfig.for_model(fields.pop("model_type"), **fields)
        torch.manual_seed(0)
        part = folder.with_suffix(".part")  # gigabytes, perhaps: what was interrupted must not look finished
        shutil.rmtree(part, ignore_errors=True)
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(part)
        part.replace(folder)
    return folder


def cache() -> Path:
    """Where the benchmark keeps what it makes once."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "millstream" / "bench"
