"""The kernels compile for GPUs that are not here, as they are launched there: they fit into the shared memory
of each, and threads keep their numbers in registers."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("triton")

import torch
from support.engine.attention_step import INT8, Step, spec
from support.engine.kernel_resources import SHARED_BYTES, compiled, launches_of, launches_of_draws

from millstream_worker.engine.runner.kv.kv_format import KVFormat
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
LAYERS = {
    "llama": spec(32, 8, 128),
    "gemma": spec(16, 8, 256, softcap=50.0),
    "gemma4": spec(8, 1, 512),
    "gpt-oss": spec(64, 8, 64, window=128, sinks=True),
    "phi": spec(32, 32, 80),
    "llama int8": spec(32, 8, 128, **INT8),
}
STACK = {torch.float32: 448, torch.bfloat16: 288}  # bytes of a thread that have no register
SPILLS = {torch.float32: 320, torch.bfloat16: 64}  # instructions that move these, in loops of 400 to 900
DRAW_STACK = 288  # of a thread that draws, most of them outside of its loops over a row
REGISTERS = 65_536  # of a processor
AHEAD = {"decode_kernel", "shared_kernel", "prefill_kernel"}  # load keys before they are needed
LENS = [(600, 1), (600, 1), (5, 1), (0, 70), (40, 33)]
GROUPS = [(2, (0, 1))]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # else some versions warn that it will change


def check(model: str, dtype: torch.dtype, capability: int, *, programs: int = 528) -> set[str]:
    """Returns the names of the kernels that a step launches with as many programs, all of which fit."""
    layer: LayerSpec = LAYERS[model]
    step = Step(layer, LENS, dtype=dtype, prefix_groups=[] if layer.window else GROUPS)
    launched = launches_of(step, programs)
    for launch in launched:
        found = compiled(launch, capability)
        about = f"{launch.name}, {model}, {dtype}, compute capability {capability}: {found}"
        room = dtype == torch.float32 or layer.key_dim <= 128 or layer.kv_format is KVFormat.INT8
        ahead = launch.name in AHEAD and room
        assert not ahead or max(found.waits) > 0, about
        assert found.shared <= SHARED_BYTES[capability], about
        assert found.stack <= STACK[dtype], about
        assert found.spills <= SPILLS[dtype], about
        assert not found.hazards, about
        exact = launch.name == "store_kernel"  # its codes are PyTorch's, which rounds products before sums
        assert not exact or not found.fused, about
    return {launch.name for launch in launched}


def check_draws(vocab_size: int, dtype: torch.dtype, capability: int) -> None:
    """A program has registers on a processor; a block's sums stay in them."""
    for launch in launches_of_draws(64, vocab_size, dtype):
        found = compiled(launch, capability)
        about = f"{launch.name}, {vocab_size}, {dtype}, compute capability {capability}: {found}"
        assert found.registers * 32 * launch.options["num_warps"] <= REGISTERS, about
        assert found.stack <= DRAW_STACK, about
        assert found.shared <= SHARED_BYTES[capability], about


# Each model, each precision, and kinds of GPU that differ in their instructions and their shared memory;
# `make gpu-matrix` compiles each beside each of the others and writes a table of what they take.
@pytest.mark.parametrize(
    ("model", "dtype", "capability"),
    [
        ("llama", torch.bfloat16, 90),
        ("gpt-oss", torch.bfloat16, 100),
        pytest.param("phi", torch.bfloat16, 80, marks=pytest.mark.alone),
        ("llama int8", torch.bfloat16, 120),
        pytest.param("gemma4", torch.bfloat16, 86, marks=pytest.mark.alone),
        # eight warps for a tile, and half as many queries where heads are wide
        pytest.param("gemma", torch.float32, 86, marks=pytest.mark.alone),
    ],
)
def test_all_kernels_fit(model: str, dtype: torch.dtype, capability: int) -> None:
    assert len(check(model, dtype, capability)) == (3 if model == "gpt-oss" else 5)


def test_contexts_in_one_part() -> None:
    check("gemma", torch.bfloat16, 90, programs=1)


@pytest.mark.parametrize(
    ("vocab_size", "dtype", "capability"),
    [
        (1, torch.bfloat16, 80),
        (50_257, torch.bfloat16, 120),
        (151_936, torch.float32, 90),
    ],
)
def test_draws(vocab_size: int, dtype: torch.dtype, capability: int) -> None:
    """Blocks of 16 and of 64."""
    check_draws(vocab_size, dtype, capability)
