"""The checkpoints that engines are timed on: a shape's random weights, made once and kept in the cache, or a
real one by folder or hub id; in a precision that the device computes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

from ops.bench.machine import precision
from ops.bench.models.shapes import SHAPES


def checkpoint(model: str, device: str = "cpu") -> Path:
    """`model`: a shape's name, a folder, a GGUF file, or a hub id. Returns a folder with config.json and
    safetensors, in a precision that the device computes: every engine gets the same; a file as it is."""
    if model.endswith(".gguf"):
        return Path(model)
    if model in SHAPES:
        return shaped_checkpoint(model, device)
    if Path(model).is_dir():
        return _computable(Path(model), device)
    from huggingface_hub import snapshot_download

    own = snapshot_download(model, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.jinja"])
    return _computable(Path(own), device)


def shaped_checkpoint(
    shape: str, device: str = "cpu", shapes: Mapping[str, Mapping[str, Any]] = SHAPES
) -> Path:
    """A folder with random weights of that shape, in bfloat16 or the device's substitute: the same numbers in
    wider memory, as with a real checkpoint.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    dtype = precision(device)
    folder = cache() / (shape if dtype == "bfloat16" else f"{shape}-as-{dtype}")
    if not folder.exists():
        fields = dict(shapes[shape])
        config = AutoConfig.for_model(fields.pop("model_type"), **fields)
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        save(model.to(getattr(torch, dtype)), folder)
    return folder


def _computable(folder: Path, device: str) -> Path:
    """The folder, or a copy in another precision, which is kept."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from millstream_worker.engine.runner.gpu.gpu import gpu_of
    from millstream_worker.engine.runner.model.dtypes import computed_in

    own = AutoConfig.from_pretrained(folder, local_files_only=True).dtype
    dtype = computed_in(own, gpu_of(torch.device(device)))
    if own in (None, dtype):
        return folder
    copy = cache() / f"{own_name(folder)}-float32"
    if not copy.exists():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
        save(model, copy, also=folder.glob("*token*"))
    return copy


def save(model: Any, folder: Path, also: Iterable[Path] = ()) -> None:
    part = folder.with_name(f"{folder.name}.part")  # gigabytes: what was interrupted must not look finished
    shutil.rmtree(part, ignore_errors=True)
    model.save_pretrained(part)
    for file in also:
        shutil.copy(file, part)
    part.replace(folder)


def own_name(folder: Path) -> str:
    """The name of files made of a checkpoint, until the checkpoint changes."""
    files = sorted((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in folder.iterdir())
    return f"{folder.name}-{crc32(repr((folder.absolute(), files)).encode()):08x}"


def cache() -> Path:
    """The folder of files that the benchmark makes once."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "millstream" / "bench"
