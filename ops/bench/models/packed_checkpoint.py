"""A checkpoint with its weights in the bits of a GGUF file, without the file: what a worker makes of one."""

from __future__ import annotations

import shutil
from pathlib import Path

from ops.bench.models.checkpoints import cache, own_name


def packed_checkpoint(folder: Path, kind: str) -> Path:
    """A folder with each weight of several dimensions in GGUF's type `kind`, of those that gguf quantises to:
    Q8_0, Q4_0, Q4_1, Q5_0, Q5_1. Made once, and kept in the cache."""
    packed = cache() / f"{own_name(folder)}-{kind}"
    if not packed.exists():
        part = packed.with_name(f"{packed.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        for file in folder.glob("*config.json"):
            shutil.copy(file, part)
        _write(folder, kind, part)
        part.replace(packed)
    return packed


def _write(folder: Path, kind: str, to: Path) -> None:
    import gguf
    from safetensors import safe_open

    from millstream_worker.engine.runner.quantization.gguf_blocks import unpack
    from millstream_worker.engine.runner.quantization.packed import PackedWeights, write_packed

    type_ = gguf.GGMLQuantizationType[kind]
    codes, others = {}, {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is no mapping
                tensor = tensors.get_tensor(name)
                if tensor.ndim > 1:
                    codes[name] = unpack(gguf.quants.quantize(tensor.float().numpy(), type_), type_)
                else:
                    others[name] = tensor
    write_packed(to, PackedWeights(codes, others, kind))
