"""Our Triton attention beside torch's over the same numbers, widened to float32; and the pool, in which
nothing but the step's own keys and values may have changed, bit by bit."""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from ops.gpu_survey.survey import Survey
from support.engine import attention_step
from support.engine.attention_step import INT8, Step, spec
from torch import Tensor

from millstream_worker.engine.runner.attention.torch_backend import TorchAttention
from millstream_worker.engine.runner.gpu.attention.triton_backend import TritonAttention
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage

LAYERS: dict[str, LayerSpec] = {
    "32/8 x 128": spec(32, 8, 128),
    "16/8 x 128": spec(16, 8, 128),
    "28/4 x 128": spec(28, 4, 128),
    "16/8 x 256, soft cap": spec(16, 8, 256, softcap=50.0),
    "64/8 x 64, sinks, window": spec(64, 8, 64, window=128, sinks=True),
    "32/32 x 80": spec(32, 32, 80),
    "32/8 x 128, int8": spec(32, 8, 128, **INT8),
    "16/8 x 256, soft cap, int8": spec(16, 8, 256, softcap=50.0, **INT8),
    "32/32 x 80, int8": spec(32, 32, 80, **INT8),
}
LENS = {
    "decode": [(keys - 1, 1) for keys in (1, 15, 16, 17, 64, 65, 257, 700, 2100)],
    "chunks": [(0, 70), (90, 33)],
    "mixed": [(0, 70), (90, 33), (0, 1), (37, 1), (0, 257), (300, 64), (18, 5)],
    "prefix_groups": [(4 * 16 + own, 1) for own in range(3)] + [(20 * 16 + own, 1) for own in range(21)],
}
_PREFIX_GROUPS = [(4, range(3)), (20, range(3, 24))]  # one of three, one larger than a tile
_TINY = {"4/2 x 16": spec(4, 2, 16), "4/2 x 16, int8": spec(4, 2, 16, **INT8)}
_TINY_LENS = {"decode": [(15, 1), (16, 1)], "mixed": [(3, 1), (0, 5)]}
_IN_FLOAT32 = ("32/8 x 128", "32/8 x 128, int8", "4/2 x 16")
_TOLERANCE = {"bfloat16": 2e-2, "float16": 4e-3, "float32": 1e-4}  # of the largest answer


def bfloat16(survey: Survey) -> None:
    survey.need_cuda("as Triton's interpreter multiplies bfloat16 as integers")
    _check(survey, "bfloat16", LAYERS)


def others(survey: Survey) -> None:
    layers = _TINY if survey.tiny else LAYERS
    _check(survey, "float16", layers)
    _check(survey, "float32", {name: layers[name] for name in _IN_FLOAT32 if name in layers})


def smallest(survey: Survey) -> None:
    _check(survey, "bfloat16", {"4/2 x 64": spec(4, 2, 64)}, {"mixed": LENS["mixed"]})


def memcheck(survey: Survey) -> None:
    survey.need_cuda()
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).is_file():
        survey.found("memcheck", "there is no compute-sanitizer")
        return
    part = ("ops.gpu_survey.parts.attention:smallest", survey.name, survey.device, str(survey.out), "100")
    command = [
        tool,
        "--tool",
        "memcheck",
        "--error-exitcode",
        "9",
        sys.executable,
        "-m",
        "ops.gpu_survey.part_process",
        *part,
    ]
    status = subprocess.run(command, check=False).returncode
    survey.failed = status != 0
    survey.found("memcheck", f"FAILED with status {status}, see the log" if status else "no error")


def _check(
    survey: Survey, dtype: str, layers: dict[str, LayerSpec], lens: dict[str, Any] | None = None
) -> None:
    attention_step.DEVICE = torch.device(survey.device)
    lens = lens or (_TINY_LENS if survey.tiny else LENS)
    for name, layer in layers.items():
        survey.attempt(f"{name}, {dtype}", partial(layer_off, layer, dtype, lens))


def layer_off(layer: LayerSpec, dtype: str, lens: dict[str, Any]) -> str:
    """How far all steps of a layer are off; AssertionError where that is too far."""
    found = {}
    for name, rows in lens.items():
        prefix_groups = _PREFIX_GROUPS if name == "prefix_groups" and layer.window is None else ()
        step = Step(layer, rows, dtype=getattr(torch, dtype), prefix_groups=prefix_groups)
        for parts in (1, 2, 8) if name in ("decode", "prefix_groups") else (1,):
            found[f"{name} in {parts}"] = _off(step, parts * len(rows) * layer.kv_heads)
    worst, limit = max(found.values()), _TOLERANCE[dtype]
    words = f"off by {worst:.1e} ({', '.join(f'{name} {off:.1e}' for name, off in found.items())})"
    assert all(off <= limit for off in found.values()), f"{words}, more than {limit}"
    return words


def _off(step: Step, programs: int) -> float:
    """By how much of the largest answer, where the device wants so many programs."""
    storage, tensors = step.storage, [_strided(tensor) for tensor in (step.query, *step.new)]
    wide, right = _copied(storage, torch.float32), copy.copy(step)
    for part in wide.parts():
        part.nan_to_num_()
    right.storage = _copied(storage, storage.dtype)
    slots = torch.from_numpy(step.plan.slot_mapping[0]).to(storage.device)
    right.put(slots // step.block_size, slots % step.block_size, *tensors[1:])
    ours, theirs = TritonAttention(storage, programs), TorchAttention(wide)
    for backend in (ours, theirs):
        backend.begin(step.plan)
    sinks = None if step.sinks is None else step.sinks.float()
    want = theirs.attend(0, *(tensor.float() for tensor in tensors), sinks)
    got = ours.attend(0, *tensors, step.sinks).float()
    for there, after in zip(storage.parts(), right.storage.parts(), strict=True):
        assert torch.equal(there.view(torch.uint8), after.view(torch.uint8)), "the pool has something else"
    return float((got - want).abs().max() / want.abs().max())


def _copied(storage: KVStorage, dtype: torch.dtype) -> KVStorage:
    copied = KVStorage(storage.layers, storage.blocks, storage.block_size, dtype, storage.device)
    for mine, theirs in zip(copied.parts(), storage.parts(), strict=True):
        mine.copy_(theirs)
    return copied


def _strided(tensor: Tensor) -> Tensor:
    """The same numbers within wider rows, as fused projections hand them over."""
    tokens, heads, dim = tensor.shape
    wide = tensor.new_zeros(tokens, heads + 3, dim)
    wide[:, 2:-1] = tensor
    return wide[:, 2:-1]
