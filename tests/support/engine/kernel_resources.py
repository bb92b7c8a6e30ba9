"""What a Triton kernel takes of a GPU that is not here: it is compiled as it would be launched there."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from millstream_worker.engine.runner.gpu.attention import launches
from millstream_worker.engine.runner.gpu.attention.triton_backend import TritonAttention
from millstream_worker.engine.runner.gpu.sampling import draw_kernel, mask_kernel
from millstream_worker.engine.runner.gpu.sampling.triton_draws import TritonDraws
from support.engine.attention_step import Step

# Bytes of shared memory that one program may have, by compute capability (CUDA C++ Programming Guide, 20).
SHARED_BYTES = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}
_KERNELS = ("decode_kernel", "merge_kernel", "shared_kernel", "prefill_kernel", "store_kernel")
_POINTERS = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.float64: "*fp64",
    torch.bool: "*i1",
}
# An instruction whose first operand is a register that it writes.
_WRITES = re.compile(r"(?!BRA|EXIT|BAR|ST|RED|LDGSTS|R2UR|ISETP|FSETP|U)\S+\s+(?:P\d,\s*)?R(\d+)")
_CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


@dataclass(frozen=True)
class Launch:
    kernel: Any
    given: tuple[Any, ...]
    constants: dict[str, Any]
    options: dict[str, int | bool]

    @property
    def name(self) -> str:
        return str(self.kernel.fn.__name__)


@dataclass(frozen=True)
class Resources:
    registers: int  # of a thread
    stack: int  # bytes of a thread: numbers that have no register
    spills: int  # instructions of the loops that move such numbers
    shared: int  # bytes of a program
    waits: tuple[int, ...]  # for copies to shared memory: as many may still be under way
    fused: int  # products and sums of float32 that are, or may be, rounded once
    hazards: int  # instructions that write to a register which a WGMMA may still read


def launches_of(step: Step, programs: int) -> list[Launch]:
    """Those of one layer's attention on a GPU that wants so many programs."""
    found: list[Launch] = []
    kernels = {name: _recorded(getattr(launches, name), found) for name in _KERNELS}
    with mock.patch.multiple(launches, **kernels):
        backend = TritonAttention(step.storage, programs)
        backend.begin(step.plan)
        backend.attend(0, step.query, *step.new, step.sinks)
    return found


def launches_of_draws(rows: int, vocab_size: int, dtype: torch.dtype) -> list[Launch]:
    """Those of a step's masks and draws."""
    found: list[Launch] = []
    logits = torch.empty(rows, vocab_size, dtype=dtype)
    settings, rows_of = torch.empty(4, rows, dtype=torch.float64), torch.empty(rows, dtype=torch.int64)
    kernels = draw_kernel.draw_kernel, mask_kernel.mask_kernel
    drawing, masking = (_recorded(kernel, found) for kernel in kernels)
    with (
        mock.patch.object(draw_kernel, "draw_kernel", drawing),
        mock.patch.object(mask_kernel, "mask_kernel", masking),
    ):
        draws = TritonDraws(vocab_size)
        words = torch.empty(rows, -(-vocab_size // 32), dtype=torch.int32)
        draws.mask(logits, rows_of.to(torch.int32), words)
        draws.draw(logits, rows_of, settings, rows_of)
    return found


def _recorded(kernel: Any, found: list[Launch]) -> mock.MagicMock:
    """Stands in for a kernel, and only keeps what is launched."""

    def launch(
        *given: Any,
        num_warps: int = 4,
        num_stages: int = 3,
        enable_fp_fusion: bool = True,
        **constants: Any,
    ) -> None:
        options = {
            "num_warps": num_warps,
            "num_stages": num_stages,
            "enable_fp_fusion": enable_fp_fusion,
        }
        found.append(Launch(kernel, given, constants, options))

    stand_in = mock.MagicMock()
    stand_in.__getitem__.return_value = launch
    return stand_in


def compiled(launch: Launch, capability: int) -> Resources:
    """Raises what Triton and ptxas raise."""
    names, values = launch.kernel.arg_names, launch.given
    free = {launch.kernel.params[place].name for place in _specialized(launch.kernel)}
    signature, constants, aligned = {}, {}, {}
    for place, name in enumerate(names):
        value = values[place] if place < len(values) else launch.constants[name]
        if place >= len(values) or (name in free and isinstance(value, int) and value == 1):
            signature[name], constants[(place,)] = "constexpr", value
            continue
        signature[name] = _type(value)
        if isinstance(value, torch.Tensor) or (name in free and isinstance(value, int) and value % 16 == 0):
            aligned[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(launch.kernel, signature, constants, aligned)
    made = triton.compile(source, target=GPUTarget("cuda", capability, warp_size=32), options=launch.options)
    waits = re.findall(r"async_wait.*?num = (\d+)", made.asm["ttgir"])
    fused = re.findall(r"\bfma\.|\b(?:add|sub|mul)\.f32\b", made.asm["ptx"])
    stack, sass = _disassembled(made.asm["cubin"])
    shared = made.metadata.shared
    return Resources(
        *stack, _spills_in_loops(sass), shared, tuple(map(int, waits)), len(fused), hazards(sass)
    )


def _specialized(kernel: Any) -> Iterator[int]:
    return (place for place, one in enumerate(kernel.params) if not one.do_not_specialize)


def _type(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return _POINTERS[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def hazards(sass: str) -> int:
    """Writes to registers that a WGMMA takes its A operand from, before the warpgroup has waited for it. The
    assembler before 13.3 has made such code (triton-lang/triton 9433, 11781, 11854): wrong results on
    Hopper."""
    found, read = 0, set[int]()
    for text in re.findall(r"/\*[0-9a-f]{4,6}\*/\s+(.*?);", sass):
        if "HGMMA" in text:
            operands = text.split("HGMMA", 1)[1].split(None, 1)[1].split(",")
            if match := re.match(r"\s*R(\d+)", operands[1]):
                read.update(range(int(match[1]), int(match[1]) + 4))
        elif "WARPGROUP.DEPBAR" in text:
            read.clear()
        elif written := _WRITES.match(text.split(None, 1)[1] if text.startswith("@") else text):
            wide = 4 if ".128" in text else 2 if ".64" in text or ".WIDE" in text else 1
            found += sum(one in read for one in range(int(written[1]), int(written[1]) + wide))
    return found


def _disassembled(cubin: bytes) -> tuple[tuple[int, int], str]:
    """Registers and stack; the code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [os.fspath(_CUOBJDUMP), "-res-usage", "-sass", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", done.stdout + done.stderr)
    assert found is not None, done.stdout[-2000:]
    return (int(found[1]), int(found[2])), done.stdout


def _spills_in_loops(sass: str) -> int:
    """Loads and stores of local memory between the target of a jump back and the jump."""
    code = [(int(at, 16), text) for at, text in re.findall(r"/\*([0-9a-f]{4,6})\*/\s+(.*?);", sass)]
    jumps = [(at, re.search(r"\bBRA\b.*?0x([0-9a-f]+)", text)) for at, text in code]
    loops = [(int(to[1], 16), at) for at, to in jumps if to is not None and int(to[1], 16) < at]
    return sum(
        re.search(r"\b(LDL|STL)\b", text) is not None and any(low <= at <= high for low, high in loops)
        for at, text in code
    )
