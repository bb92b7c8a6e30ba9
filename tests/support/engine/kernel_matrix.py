"""What the Triton kernels take of each kind of GPU, compiled by each version of Triton that they may meet.
Needs no GPU.

    make gpu-matrix     writes ops/bench/kernels.csv, in about ten minutes

`stack` are bytes of a thread that have no register, `spills` the instructions inside of loops that move them,
`waits` the most copies to shared memory that are under way while the program computes.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

VERSIONS = ("3.6.0", "3.7.1")  # of Triton: those of the supported versions of torch
TABLE = Path(__file__).parents[3] / "ops/bench/kernels.csv"
FOLDERS = Path("out")
COLUMNS = (
    "triton", "layer", "dtype", "capability", "kernel", "rows", "warps", "stages",
    "registers", "stack", "spills", "shared_bytes", "waits", "hazards",
)  # fmt: skip
CAPABILITIES = (80, 86, 89, 90, 100, 120)
PROGRAMS = 528


def measured() -> Iterator[tuple[object, ...]]:
    """Rows of the table, by the Triton of this process."""
    import torch
    import triton

    from support.engine.attention_step import INT8, Step, spec
    from support.engine.kernel_resources import compiled, launches_of

    layers = {
        "llama 32/8 x 128": spec(32, 8, 128),
        "gemma 16/8 x 256, soft cap": spec(16, 8, 256, softcap=50.0),
        "gemma 8/4 x 256, window 1024": spec(8, 4, 256, window=1024),
        "gpt-oss 64/8 x 64, window 128, sinks": spec(64, 8, 64, window=128, sinks=True),
        "phi 32/32 x 80": spec(32, 32, 80),
        "llama 32/8 x 128, int8": spec(32, 8, 128, **INT8),
        "gemma 16/8 x 256, soft cap, int8": spec(16, 8, 256, softcap=50.0, **INT8),
        "phi 32/32 x 80, int8": spec(32, 32, 80, **INT8),
    }
    float32 = list(layers)[:2]
    for name, layer in layers.items():
        for dtype in (torch.bfloat16, torch.float32) if name in float32 else (torch.bfloat16,):
            groups = [] if layer.window else [(2, (0, 1))]
            step = Step(
                layer, [(600, 1), (600, 1), (5, 1), (0, 70), (40, 33)], dtype=dtype, prefix_groups=groups
            )
            for launch in {one.name: one for one in launches_of(step, PROGRAMS)}.values():
                for capability in CAPABILITIES:
                    found, options = compiled(launch, capability), launch.options
                    yield (
                        triton.__version__, name, str(dtype).removeprefix("torch."), capability,
                        launch.name.removesuffix("_kernel"), launch.constants.get("ROWS", ""),
                        options["num_warps"], options["num_stages"], found.registers, found.stack,
                        found.spills, found.shared, max(found.waits, default=""), found.hazards,
                    )  # fmt: skip


def child(triton: str) -> subprocess.Popen[str]:
    """Prints the rows of that version, which is installed into a folder of its own where it is not ours."""
    paths = ["tests", os.environ.get("PYTHONPATH", "")]
    if version("triton") != triton:
        folder = FOLDERS / f"triton-{triton}"
        if not folder.exists():
            install = f"-m pip install --quiet --no-deps --target {folder} triton=={triton}"
            subprocess.run([sys.executable, *install.split()], check=True)
        paths.insert(0, str(folder.resolve()))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "TRITON_CACHE_DIR": str((FOLDERS / f"triton-{triton}-cache").resolve()),
        "TRITON_DEFAULT_FP_FUSION": "1",
    }
    command = [sys.executable, "-m", "support.engine.kernel_matrix", "--rows"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", action="store_true", help="print those of the installed version only")
    if parser.parse_args().rows:
        csv.writer(sys.stdout, lineterminator="\n").writerows(measured())
        return
    children = [child(triton) for triton in VERSIONS]
    tables = [one.communicate()[0] for one in children]
    if any(one.returncode for one in children):
        sys.exit("a version of Triton does not compile the kernels; see above")
    TABLE.write_text(",".join(COLUMNS) + "\n" + "".join(tables), "utf-8")


if __name__ == "__main__":
    main()
